use crate::{
    BLOCK_TOKENS, Gate, Grouping, HeadNorms, RowOrder, RowsKind, Run, Step,
    gpu::{
        Arg, Driver, Gain, Gpu, GpuError, Kv, Linear, Quants, Rope, Rows,
        quants::K_TILE,
        table::{
            BITLINEAR_T1, BITLINEAR_T8, BITLINEAR_T16, BITLINEAR_T32, BITLINEAR_T64, BITLINEAR_T128,
            GROUPED_T1, GROUPED_T8, GROUPED_T16, GROUPED_T32, GROUPED_T64, GROUPED_T128, Kernel,
        },
        ternary::Scales,
        upload::Upload,
    },
};

use super::tile::Tile;

/// The kernels, by number of tokens.
static TILES: [Tile; 6] =
    tiles([&BITLINEAR_T1, &BITLINEAR_T8, &BITLINEAR_T16, &BITLINEAR_T32, &BITLINEAR_T64, &BITLINEAR_T128]);

/// The kernels for weights with scales for groups of columns, by number of tokens.
static GROUPED_TILES: [Tile; 6] =
    tiles([&GROUPED_T1, &GROUPED_T8, &GROUPED_T16, &GROUPED_T32, &GROUPED_T64, &GROUPED_T128]);

const fn tiles([t1, t8, t16, t32, t64, t128]: [&'static Kernel; 6]) -> [Tile; 6] {
    [
        Tile { kernel: t1, rows: 16, tokens: 1 },
        Tile { kernel: t8, rows: 64, tokens: 8 },
        Tile { kernel: t16, rows: 64, tokens: 16 },
        Tile { kernel: t32, rows: 64, tokens: 32 },
        Tile { kernel: t64, rows: 128, tokens: 64 },
        Tile { kernel: t128, rows: 128, tokens: 128 },
    ]
}

/// Thread blocks that a multiprocessor takes at once; K is split for up to this many.
const BLOCKS_PER_PROCESSOR: usize = 2;
/// Minimum number of tiles of 128 features in a split; fewer would be done before the copies are in flight.
const SPLIT_TILES: usize = 4;

/// Bytes of the parts and tickets of split sums; [`Gpu::new`] allocates them for the largest launch that is split.
pub(in crate::gpu) fn split_bytes(processors: u32) -> [usize; 2] {
    let blocks = BLOCKS_PER_PROCESSOR * processors as usize;
    let tile = TILES.iter().map(|tile| tile.rows * tile.tokens).max().unwrap_or(0);
    [4 * blocks * tile, 4 * blocks]
}

/// Bytes of a group's sums of 16 rows with their scales, and of four more for the banks.
const GROUP_BYTES: usize = 160;

/// Dynamic shared memory of a block. The kernels for one token hold the whole row, in pairs of tiles, and with scales for
/// groups of columns also the sums of all groups.
fn shared_bytes(tile: &Tile, k_tiles: usize, group: usize) -> usize {
    let dynamic = tile.kernel.dynamic as usize;
    if tile.tokens > 1 {
        return dynamic;
    }
    let groups = K_TILE.checked_div(group).map_or(0, |each| k_tiles * each);
    dynamic * k_tiles.next_multiple_of(2) + GROUP_BYTES * groups.next_multiple_of(8)
}

/// What to do with the sums: `p_mode` of the kernels.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Epilogue {
    Bf16 = 0,
    F32 = 1,
    AddF32 = 2,
    SquaredRelu = 3,
    Silu = 4,
    Rope = 5,
    Heads = 6,
}

/// Where the sums go.
enum Sink<'a> {
    Rows {
        out: &'a mut Rows,
        column: usize,
        add: Option<f32>,
    },
    Gate {
        out: &'a mut Rows,
        gate: Gate,
    },
    /// Heads of this width, whose rows are paired for rotation, stored without rotation.
    Heads {
        out: &'a mut Rows,
        head_dim: usize,
    },
    Rotated {
        out: &'a mut Rows,
        kv: &'a mut Kv,
        rope: &'a Rope,
        positions: u64,
        slots: u64,
    },
}

/// Arguments of the kernels that describe a sink.
struct Target<'a> {
    mode: Epilogue,
    out: &'a Rows,
    column: usize,
    factor: f32,
    /// Rows of the matrix per output row or pair: 1 or 2.
    rows: usize,
    /// Cosines, sines, positions, slots, keys and values.
    addresses: [u64; 6],
    kv_heads: usize,
    head_dim: usize,
    kv_stride: usize,
}

impl Sink<'_> {
    fn target(&self) -> Target<'_> {
        let (Sink::Rows { out, .. }
        | Sink::Gate { out, .. }
        | Sink::Heads { out, .. }
        | Sink::Rotated { out, .. }) = self;
        let pairs = Target {
            mode: Epilogue::Heads,
            out,
            column: 0,
            factor: 1.0,
            rows: 2,
            addresses: [0; 6],
            kv_heads: 0,
            head_dim: 2,
            kv_stride: 0,
        };
        match *self {
            Sink::Rows { ref out, column, add } => {
                let mode = match (out.kind, add) {
                    (RowsKind::Between, _) => Epilogue::Bf16,
                    (RowsKind::Residual, None) => Epilogue::F32,
                    (RowsKind::Residual, Some(_)) => Epilogue::AddF32,
                };
                Target { mode, column, factor: add.unwrap_or(1.0), rows: 1, ..pairs }
            }
            Sink::Gate { gate: Gate::SquaredRelu, .. } => Target { mode: Epilogue::SquaredRelu, ..pairs },
            Sink::Gate { gate: Gate::Silu, .. } => Target { mode: Epilogue::Silu, ..pairs },
            Sink::Heads { head_dim, .. } => Target { head_dim, ..pairs },
            Sink::Rotated { ref kv, rope, positions, slots, .. } => {
                let (cos, sin) = (rope.cos.address(), rope.sin.address());
                let addresses = [cos, sin, positions, slots, kv.keys.address(), kv.values.address()];
                let (kv_heads, head_dim, kv_stride) = (kv.shape.kv_heads, kv.shape.head_dim, kv.stride);
                Target { mode: Epilogue::Rope, addresses, kv_heads, head_dim, kv_stride, ..pairs }
            }
        }
    }
}

impl<D: Driver> Gpu<D> {
    /// Computes `out[t][column + r] = sum_k x[t][k] * w[r][k]`, scaled as `order.rs` defines. With `add`, the product
    /// times this factor is added to `out`, which must be the residual.
    pub fn bit_linear(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        out: &mut Rows,
        column: usize,
        add: Option<f32>,
    ) -> Result<(), GpuError> {
        assert!(column + w.rows <= out.width && n <= out.rows, "the rows must fit their buffers");
        assert_eq!(w.order, RowOrder::Plain, "the rows must be in order");
        assert!(add.is_none() || out.kind == RowsKind::Residual, "only the residual can be added to");
        self.multiply(n, x, w, Sink::Rows { out, column, add })
    }

    /// Computes `h = gate(x w_gate) * (x w_up)`, rounded to bf16 once; the rows of `out` are at least as wide as `h`.
    pub fn bit_linear_gate(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        gate: Gate,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        assert!(w.rows / 2 <= out.width && n <= out.rows, "the rows must fit their buffers");
        assert_eq!(w.order, RowOrder::GateUp, "the matrix must be gate and up");
        assert_eq!(out.kind, RowsKind::Between, "the output must be bf16");
        self.multiply(n, x, w, Sink::Gate { out, gate })
    }

    /// Rotates queries and keys, and stores queries in `qkv` and keys and values in the cache. Each is rounded to bf16
    /// once; where heads have norms, queries and keys are also rounded before the norm.
    #[expect(clippy::too_many_arguments, reason = "the arguments of two operations")]
    pub fn bit_linear_rope_store(
        &mut self,
        step: Step<'_>,
        x: &Quants,
        w: &Linear,
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), GpuError> {
        let (n, head_dim) = (step.tokens(), kv.shape.head_dim);
        assert_eq!(w.order, RowOrder::Rope { head_dim }, "the matrix must be queries, keys and values");
        assert_eq!(rope.width, head_dim, "whole heads must be rotated");
        assert!(w.rows == qkv.width && n <= qkv.rows, "the rows must fit their buffers");
        assert_eq!(qkv.kind, RowsKind::Between, "queries must be bf16");
        if norms.is_some() {
            // A norm needs a whole head, but a thread block may have only part of one.
            self.multiply(n, x, w, Sink::Heads { out: qkv, head_dim })?;
            let heads = w.rows / head_dim - 2 * kv.shape.kv_heads;
            return self.rope_store(step, heads, rope, norms, qkv, kv);
        }
        let (positions, slots) = self.upload_slots(step, rope, kv)?;
        self.multiply(n, x, w, Sink::Rotated { out: qkv, kv, rope, positions, slots })
    }

    /// Uploads the position and the slot of every token of a step, and returns the addresses of both arrays.
    pub(in crate::gpu) fn upload_slots(
        &mut self,
        step: Step<'_>,
        rope: &Rope,
        kv: &Kv,
    ) -> Result<(u64, u64), GpuError> {
        self.describe(step);
        assert!(self.step.positions <= rope.positions, "the rotary table must have all positions");
        assert!(self.step.reached <= kv.shape.blocks, "blocks must be in the cache");
        let positions = self.upload_once(Upload::Positions, || positions(step))?;
        Ok((positions, self.upload_once(Upload::Slots, || slots(step))?))
    }

    fn multiply(&mut self, n: usize, x: &Quants, w: &Linear, sink: Sink<'_>) -> Result<(), GpuError> {
        assert_eq!(x.width, w.cols, "rows must be as wide as the matrix");
        assert!(n <= x.rows, "the rows must fit their buffers");
        if n == 0 {
            return Ok(());
        }
        let (tiles, grouping, group, scales) = match &w.scales {
            Scales::Rows(scales) => (&TILES, Grouping::Row, 0, scales.address()),
            Scales::Groups(group) => (&GROUPED_TILES, Grouping::Groups, *group, 0),
        };
        assert_eq!(x.grouping, grouping, "activations and matrix must have the same grouping");
        let tile = Tile::choose(tiles, n);
        let blocks = [w.rows.div_ceil(tile.rows), n.div_ceil(tile.tokens)];
        let (split_tiles, splits) = match grouping {
            Grouping::Row => self.splits(tile, blocks, w.k_tiles()),
            Grouping::Groups => (w.k_tiles(), 1),
        };
        let to = sink.target();
        let heads = (w.rows / to.head_dim).saturating_sub(2 * to.kv_heads);
        let [cos, sin, positions, slots, keys, values] = to.addresses.map(Arg::u64);
        let size = |size: usize| Arg::u32(size as u32);
        let args = [
            Arg::u64(w.codes.address()),
            Arg::u64(scales),
            Arg::u64(x.values.address()),
            Arg::u64(x.scales.address()),
            Arg::u64(to.out.address()),
            Arg::u64(self.parts.address()),
            Arg::u64(self.tickets.address()),
            cos,
            sin,
            positions,
            slots,
            keys,
            values,
            size(to.mode as usize),
            size(n),
            size(w.rows / to.rows),
            size(w.k_tiles()),
            size(split_tiles),
            size(x.atoms),
            size(to.out.stride),
            size(to.column),
            size(heads),
            size(to.kv_heads),
            size(to.head_dim / 2),
            size(to.kv_stride),
            size(group),
            Arg::f32(to.factor),
        ];
        let shared = shared_bytes(tile, w.k_tiles(), group);
        self.launch(tile.kernel, [blocks[0], blocks[1], splits], shared, &args)
    }

    /// Returns the tiles of 128 features per split and the number of splits: enough to give every multiprocessor work.
    /// Sums are integers, so that the number of splits changes no bit.
    fn splits(&mut self, tile: &Tile, blocks: [usize; 2], k_tiles: usize) -> (usize, usize) {
        let places = BLOCKS_PER_PROCESSOR * self.driver.info().processors as usize;
        let most = if tile.tokens == 1 { 1 } else { places / (blocks[0] * blocks[1]) };
        let splits = most.min(k_tiles / SPLIT_TILES).max(1);
        let tiles = k_tiles.div_ceil(splits);
        (tiles, k_tiles.div_ceil(tiles))
    }
}

/// The position of every token.
fn positions(step: Step<'_>) -> impl Iterator<Item = u32> {
    step.runs.iter().flat_map(|run| (run.start..run.start + run.tokens.len()).map(|position| position as u32))
}

/// `64 * block + slot` of every token.
fn slots(step: Step<'_>) -> impl Iterator<Item = u32> {
    let slot = move |run: &Run, position: usize| {
        let block = step.blocks[run.blocks.start + position / BLOCK_TOKENS] as usize;
        (block * BLOCK_TOKENS + position % BLOCK_TOKENS) as u32
    };
    let positions = |run: &Run| run.start..run.start + run.tokens.len();
    step.runs.iter().flat_map(move |run| positions(run).map(move |position| slot(run, position)))
}
