//! Launches products with ternary and int8 matrices, with the norm before them or the operation after them where a kernel does
//! both. Which tile a product takes is estimated in `plan`, unless it was measured.

use crate::{
    BLOCK_TOKENS, Gate, Grouping, HeadNorms, KvType, RowOrder, RowsKind, Run, Step,
    gpu::{
        Arg, Driver, Gain, Gpu, GpuError, Int8Rows, Kv, Linear, Rope, Rows,
        layout::{K_TILE, Scales},
        queue::WaitingNorm,
        table::{
            BITLINEAR_T1, BITLINEAR_T8, BITLINEAR_T16, BITLINEAR_T32, BITLINEAR_T64, BITLINEAR_T128,
            GROUPED_NORMED_ROWS_T1, GROUPED_NORMED_T1, GROUPED_T1, GROUPED_T8, GROUPED_T16, GROUPED_T32,
            GROUPED_T64, GROUPED_T128, INT8_T8, INT8_T32, INT8_T64, Kernel, NORMED_ROWS_T1, NORMED_T1,
        },
        tilings::Tiling,
        upload::Upload,
    },
};

use super::{
    plan::{Plan, TimedTile, split_blocks},
    tile::{Kind, Shape, Tile},
};

/// The kernels for one token.
static ONE_TOKEN: Tile = Tile { kernel: &BITLINEAR_T1, rows: 16, tokens: 1 };
static ONE_GROUPED_TOKEN: Tile = Tile { kernel: &GROUPED_T1, rows: 16, tokens: 1 };
/// The kernels for one token that include its norm, for few rows and for many.
static ONE_NORMED_TOKEN: [Tile; 2] = [
    Tile { kernel: &NORMED_T1, rows: 32, tokens: 1 },
    Tile { kernel: &NORMED_ROWS_T1, rows: 128, tokens: 1 },
];
static ONE_GROUPED_NORMED_TOKEN: [Tile; 2] = [
    Tile { kernel: &GROUPED_NORMED_T1, rows: 32, tokens: 1 },
    Tile { kernel: &GROUPED_NORMED_ROWS_T1, rows: 128, tokens: 1 },
];

/// The kernels for more, by number of tokens. Their cycles are fitted to what an H100 measured.
static TILES: [TimedTile; 5] = [
    summed(&BITLINEAR_T8, [32, 8], [4, 4], [645, 236, 75], [4000, 0]),
    summed(&BITLINEAR_T16, [32, 16], [2, 8], [1846, 671, 78], [617, 428]),
    summed(&BITLINEAR_T32, [64, 32], [3, 4], [4939, 299, 165], [2186, 173]),
    summed(&BITLINEAR_T64, [128, 64], [2, 2], [7136, 1515, 630], [3658, 1102]),
    summed(&BITLINEAR_T128, [128, 128], [2, 1], [7935, 1191, 1049], [14_000, 3374]),
];

/// Bytes that the second-level cache gives a multiprocessor in a cycle, fitted with the cycles of [`TILES`].
const MEASURED_CACHE_BYTES: usize = 41;
/// Bytes that the second-level cache is assumed to give a multiprocessor in a cycle to kernels that were not measured.
const CACHE_BYTES: usize = 23;

/// The kernels for more and for weights with scales for groups of columns, by number of tokens. Their cycles are fitted to
/// what an H200 measured.
static GROUPED_TILES: [TimedTile; 5] = [
    grouped(&GROUPED_T8, [64, 8], 4, [4630, 347, 132]),
    grouped(&GROUPED_T16, [64, 16], 3, [2789, 508, 199]),
    grouped(&GROUPED_T32, [64, 32], 5, [12_144, 999, 342]),
    grouped(&GROUPED_T64, [128, 64], 2, [13_259, 1556, 1052]),
    grouped(&GROUPED_T128, [128, 128], 1, [8051, 1914, 1900]),
];

/// The kernels for int8 weights, by number of tokens.
static INT8_TILES: [TimedTile; 3] = [
    int8(&INT8_T8, [64, 8], 3, [1400, 220, 130]),
    int8(&INT8_T32, [64, 32], 4, [1970, 460, 400]),
    int8(&INT8_T64, [128, 64], 1, [2800, 1200, 1100]),
];

const fn summed(
    kernel: &'static Kernel,
    [rows, tokens]: [usize; 2],
    [resident, teams]: [usize; 2],
    [fixed, stage, busy]: [usize; 3],
    split: [usize; 2],
) -> TimedTile {
    let tile = Tile { kernel, rows, tokens };
    TimedTile {
        tile,
        resident,
        teams,
        fixed,
        stage,
        busy,
        split,
        bytes: [32, 128],
        cache: MEASURED_CACHE_BYTES,
    }
}

const fn grouped(
    kernel: &'static Kernel,
    size: [usize; 2],
    resident: usize,
    cycles: [usize; 3],
) -> TimedTile {
    TimedTile { bytes: [36, 144], ..summed(kernel, size, [resident, 1], cycles, [0, 0]) }
}

const fn int8(kernel: &'static Kernel, size: [usize; 2], resident: usize, cycles: [usize; 3]) -> TimedTile {
    TimedTile { bytes: [136, 144], cache: CACHE_BYTES, ..summed(kernel, size, [resident, 1], cycles, [0, 0]) }
}

/// The sizes of a product of `tokens` tokens with `w`.
fn shape(w: &Linear, tokens: usize) -> Shape {
    let kind = match w.scales {
        Scales::Rows(_) => Kind::Trits(Grouping::Row),
        Scales::Groups(_) => Kind::Trits(Grouping::Groups),
        Scales::Blocks => Kind::Int8,
    };
    Shape { rows: w.rows, k_tiles: w.k_tiles(), tokens, kind }
}

/// The kernel that is for one token alone, if there is one.
fn one_token(kind: Kind) -> Option<&'static Tile> {
    match kind {
        Kind::Trits(Grouping::Row) => Some(&ONE_TOKEN),
        Kind::Trits(Grouping::Groups) => Some(&ONE_GROUPED_TOKEN),
        Kind::Int8 => None,
    }
}

/// Returns the kernel for one token that includes its norm, if there is one: that of few rows as long as all its blocks can
/// run at once.
fn one_normed_token(shape: Shape, at_once: usize) -> Option<&'static Tile> {
    let [few, many] = match shape.kind {
        Kind::Trits(Grouping::Row) => &ONE_NORMED_TOKEN,
        Kind::Trits(Grouping::Groups) => &ONE_GROUPED_NORMED_TOKEN,
        Kind::Int8 => return None,
    };
    Some(if few.blocks(shape)[0] <= at_once { few } else { many })
}

fn tiles(kind: Kind) -> &'static [TimedTile] {
    match kind {
        Kind::Trits(Grouping::Row) => &TILES,
        Kind::Trits(Grouping::Groups) => &GROUPED_TILES,
        Kind::Int8 => &INT8_TILES,
    }
}

/// Bytes of the parts and tickets of split sums; [`Gpu::new`] allocates them for the largest launch that is split.
pub(in crate::gpu) fn split_bytes(processors: u32) -> [usize; 2] {
    let blocks = split_blocks(processors);
    let tile = TILES.iter().map(|timed| timed.tile.rows * timed.tile.tokens).max().unwrap_or(0);
    [4 * blocks * tile, 4 * blocks]
}

/// Bytes of a group's sums of 16 rows with their scales, and of four more for the banks.
const GROUP_BYTES: usize = 160;

/// Dynamic shared memory of a block. The kernels for one token hold the whole row, some in turns of eight tiles, and with
/// scales for groups of columns also the sums of all groups, for each 16 rows.
fn shared_bytes(tile: &Tile, k_tiles: usize, group: usize) -> usize {
    let dynamic = tile.kernel.dynamic as usize;
    if tile.tokens > 1 {
        return dynamic;
    }
    let groups = K_TILE.checked_div(group).map_or(0, |each| k_tiles * each);
    dynamic * k_tiles.next_multiple_of(8) + GROUP_BYTES * groups.next_multiple_of(8) * (tile.rows / 16)
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
    Gelu = 5,
    Rope = 6,
    Heads = 7,
}

/// Where the sums go.
pub(super) enum Sink<'a> {
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
pub(super) struct Target<'a> {
    mode: Epilogue,
    out: &'a Rows,
    column: usize,
    /// Of what is added; the limit of a gate.
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
    pub(super) fn target(&self) -> Target<'_> {
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
                    (RowsKind::Intermediate, _) => Epilogue::Bf16,
                    (RowsKind::Residual, None) => Epilogue::F32,
                    (RowsKind::Residual, Some(_)) => Epilogue::AddF32,
                };
                Target { mode, column, factor: add.unwrap_or(1.0), rows: 1, ..pairs }
            }
            Sink::Gate { gate, .. } => {
                let mode = match gate {
                    Gate::SquaredRelu => Epilogue::SquaredRelu,
                    Gate::Silu | Gate::ClampedSilu { .. } => Epilogue::Silu,
                    Gate::Gelu => Epilogue::Gelu,
                };
                Target { mode, factor: gate.limit(), ..pairs }
            }
            Sink::Heads { head_dim, .. } => Target { head_dim, ..pairs },
            Sink::Rotated { ref kv, rope, positions, slots, .. } => {
                let (cos, sin) = (rope.cos.address(), rope.sin.address());
                let addresses = [cos, sin, positions, slots, kv.keys.address(), kv.values.address()];
                let kv_heads = kv.shape.kv_heads;
                let head_dim = kv.shape.head_dim;
                let kv_stride = kv.stride;
                Target { mode: Epilogue::Rope, addresses, kv_heads, head_dim, kv_stride, ..pairs }
            }
        }
    }
}

/// The arguments that all products have: of `n` tokens, with `tiles` tiles of features in a split, addresses of parts and
/// tickets, and the address of scales or the width of groups.
pub(super) fn arguments(
    x: &Int8Rows,
    w: &Linear,
    to: &Target<'_>,
    [n, tiles]: [usize; 2],
    [parts, tickets]: [u64; 2],
    (scales, group): (u64, usize),
) -> [Arg; 27] {
    let heads = (w.rows / to.head_dim).saturating_sub(2 * to.kv_heads);
    let [cos, sin, positions, slots, keys, values] = to.addresses.map(Arg::u64);
    let size = |size: usize| Arg::u32(size as u32);
    [
        Arg::u64(w.codes.address()),
        Arg::u64(scales),
        Arg::u64(x.values.address()),
        Arg::u64(x.scales.address()),
        Arg::u64(to.out.address()),
        Arg::u64(parts),
        Arg::u64(tickets),
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
        size(tiles),
        size(x.atoms),
        size(to.out.stride),
        size(to.column),
        size(heads),
        size(to.kv_heads),
        size(to.head_dim / 2),
        size(to.kv_stride),
        size(group),
        Arg::f32(to.factor),
    ]
}

impl<D: Driver> Gpu<D> {
    /// Computes `out[t][column + r] = sum_k x[t][k] * w[r][k]`, scaled as `order.rs` defines. With `add`, the product
    /// times this factor is added to `out`, which must be the residual.
    pub fn bit_linear(
        &mut self,
        n: usize,
        x: &Int8Rows,
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
        x: &Int8Rows,
        w: &Linear,
        gate: Gate,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        assert!(w.rows / 2 <= out.width && n <= out.rows, "the rows must fit their buffers");
        assert_eq!(w.order, RowOrder::GateUp, "the matrix must be gate and up");
        assert_eq!(out.kind, RowsKind::Intermediate, "the output must be bf16");
        self.multiply(n, x, w, Sink::Gate { out, gate })
    }

    /// Rotates queries and keys, and stores queries in `qkv` and keys and values in the cache. Each is rounded to bf16
    /// once; where heads have norms or the cache is int8, queries and keys are also rounded before.
    #[expect(clippy::too_many_arguments, reason = "the arguments of two operations")]
    pub fn bit_linear_norm_rope_store(
        &mut self,
        step: Step<'_>,
        x: &Int8Rows,
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
        assert_eq!(qkv.kind, RowsKind::Intermediate, "queries must be bf16");
        if norms.is_some() || kv.kv == KvType::Int8 {
            // A norm and a scale need a whole head, but a thread block may have only part of one.
            self.multiply(n, x, w, Sink::Heads { out: qkv, head_dim })?;
            let heads = w.rows / head_dim - 2 * kv.shape.kv_heads;
            return self.norm_rope_store(step, heads, rope, norms, qkv, kv);
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
        let known = self.describe(step);
        assert!(known.positions <= rope.positions, "the rotary table must have all positions");
        assert!(known.reached <= kv.shape.blocks, "blocks must be in the cache");
        let positions = self.upload_once(step, Upload::Positions, || positions(step))?;
        Ok((positions, self.upload_once(step, Upload::Slots, || slots(step))?))
    }

    fn multiply(&mut self, n: usize, x: &Int8Rows, w: &Linear, sink: Sink<'_>) -> Result<(), GpuError> {
        assert_eq!(x.width, w.cols, "rows must be as wide as the matrix");
        assert!(n <= x.rows, "the rows must fit their buffers");
        if n == 0 {
            return Ok(());
        }
        let shape = shape(w, n);
        let (grouping, group, scales) = match &w.scales {
            Scales::Rows(scales) => (Grouping::Row, 0, scales.address()),
            Scales::Groups(group) => (Grouping::Groups, *group, 0),
            Scales::Blocks => (Grouping::Groups, 0, 0),
        };
        assert_eq!(x.grouping, grouping, "activations and matrix must have the same grouping");
        let Plan { mut tile, splits } = self.plan(shape);
        let split_tiles = shape.k_tiles.div_ceil(splits);
        let splits = shape.k_tiles.div_ceil(split_tiles);
        let to = sink.target();
        let info = self.driver.info();
        let room = info.shared as usize;
        let processors = info.processors as usize;
        // Each block repeats the norm. Blocks on one multiprocessor share its f64 unit.
        let shares = self.norm.as_ref().is_some_and(WaitingNorm::adds_squares) && info.slow_f64();
        let at_once = if self.plans.by_size { 8 } else { processors * if shares { 1 } else { 2 } };
        let normed = one_normed_token(shape, at_once).filter(|normed| {
            let pays = self.plans.by_size || !shares || normed.blocks(shape)[0] <= processors;
            let shared = shared_bytes(normed, w.k_tiles(), group) + normed.kernel.shared as usize;
            n == 1 && pays && shared <= room
        });
        // No block may write what others still read.
        let included =
            |norm: &mut WaitingNorm| norm.out == x.values.address() && norm.row != to.out.address();
        let norm = self.norm.take_if(|norm| normed.is_some() && included(norm));
        if let (Some(_), Some(normed)) = (&norm, normed) {
            tile = normed;
        }
        let blocks = tile.blocks(shape);
        let split = [self.parts.address(), self.tickets.address()];
        let mut args = [Arg::u64(0); 33];
        if let Some(norm) = &norm {
            args[..6].copy_from_slice(&norm.args);
        }
        args[6..].copy_from_slice(&arguments(x, w, &to, [n, split_tiles], split, (scales, group)));
        let mut shared = shared_bytes(tile, w.k_tiles(), group);
        if n > 1 && shape.kind == Kind::Trits(Grouping::Row) {
            shared = shared.max(info.spread(blocks[0] * blocks[1] * splits));
        }
        let args = if norm.is_some() { &args[..] } else { &args[6..] };
        self.launch(tile.kernel, [blocks[0], blocks[1], splits], shared, args)
    }

    /// Ways to launch a product with `w` for `n` tokens that are worth measuring; none if there is only one, or if `w` is not
    /// ternary.
    pub fn tilings(&self, w: &Linear, n: usize) -> Vec<Tiling> {
        let shape = shape(w, n);
        let Shape { rows, k_tiles, tokens, kind } = shape;
        let (Kind::Trits(grouping), 2..) = (kind, n) else { return Vec::new() };
        let plans = Plan::likely(tiles(kind), shape, self.driver.info());
        let tiling = |Plan { tile, splits }| {
            let cols = K_TILE * k_tiles;
            Tiling { grouping, rows, cols, tokens, tile: tile.tokens, splits }
        };
        plans.into_iter().map(tiling).collect()
    }

    /// Launches products as `tilings` say: each for its number of tokens and, where no other is nearer, down to half
    /// of it. Other products are launched as estimated. Forgets the tilings of an earlier call.
    ///
    /// # Errors
    /// If these kernels cannot launch one of them.
    pub fn use_tilings(&mut self, tilings: &[Tiling]) -> Result<(), GpuError> {
        let info = self.driver.info();
        let plan = |&tiling: &Tiling| {
            let Tiling { grouping, rows, cols, tokens, tile, splits } = tiling;
            let shape = Shape { rows, k_tiles: cols / K_TILE, tokens, kind: Kind::Trits(grouping) };
            let plan = Plan::of(tiles(shape.kind), shape, info, [tile, splits]);
            let plan = plan.filter(|_| tokens > 1 && cols % K_TILE == 0);
            let reason = || format!("the kernels cannot launch {:?}", tiling.to_string());
            plan.map(|plan| (shape, plan)).ok_or_else(|| GpuError::Tilings { reason: reason() })
        };
        let measured = tilings.iter().map(plan).collect::<Result<_, _>>()?;
        self.plans.measure(measured);
        Ok(())
    }

    /// Returns how to launch a product. A step multiplies by few shapes again and again, so plans are kept.
    fn plan(&mut self, shape: Shape) -> Plan {
        if let Some(plan) = self.plans.get(shape) {
            return plan;
        }
        let info = self.driver.info();
        let tiles = tiles(shape.kind);
        let plan = match one_token(shape.kind) {
            Some(tile) if shape.tokens == 1 => Plan { tile, splits: 1 },
            _ if self.plans.by_size => Plan::by_size(tiles, shape, info),
            _ => self.plans.measured(shape).unwrap_or_else(|| Plan::by_time(tiles, shape, info)),
        };
        self.plans.keep(shape, plan);
        plan
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::DeviceInfo;

    fn shape(rows: usize, k_tiles: usize, tokens: usize, grouping: Grouping) -> Shape {
        Shape { rows, k_tiles, tokens, kind: Kind::Trits(grouping) }
    }

    /// A GPU of compute capability 9.0, but for these properties.
    fn gpu(processors: u32, processor_shared: u32) -> DeviceInfo {
        DeviceInfo { processors, processor_shared, ..DeviceInfo::h100() }
    }

    /// Such cards have 100 KB of shared memory a multiprocessor.
    #[test]
    fn blocks_that_do_not_share_a_multiprocessor_are_not_estimated_to() {
        let resident = |timed: &TimedTile, shared: u32| {
            gpu(1, shared << 10)
                .resident(timed.tile.kernel.shared + timed.tile.kernel.dynamic, timed.resident)
        };
        assert_eq!(TILES.each_ref().map(|timed| resident(timed, 228)), [4, 2, 3, 2, 2]);
        let small = TILES.each_ref().map(|timed| resident(timed, 100));
        assert_eq!(small[4], 1, "{small:?}");
        // Tiles of 64 tokens pay for a prompt if two of them share a multiprocessor.
        let prompt = shape(2560, 20, 256, Grouping::Row);
        let rows = |shared: u32| Plan::by_time(&TILES, prompt, &gpu(40, shared << 10)).tile.tokens;
        assert_eq!([rows(100), rows(228)], [128, 64]);
    }

    #[test]
    fn the_blocks_of_a_product_spread_over_all_multiprocessors() {
        for blocks in 1..2000 {
            for shared in [100, 164, 228] {
                let gpu = gpu(132, shared << 10);
                let bytes = gpu.spread(blocks) as u32;
                assert!(bytes <= gpu.shared.min(gpu.processor_shared - (1 << 10)));
                let share = blocks.div_ceil(132);
                let holds = gpu.resident(bytes, usize::MAX);
                assert!(holds == share || share > 8 && holds <= share, "{blocks}: {holds} of {share}");
            }
            let alone = DeviceInfo { overlap: false, ..gpu(132, 228 << 10) };
            assert_eq!(alone.spread(blocks), 0, "nothing waits on this GPU");
        }
    }

    #[test]
    fn a_product_takes_large_tiles_only_if_there_is_work_for_all_multiprocessors() {
        let row = |rows, k_tiles, tokens| {
            Plan::by_time(&TILES, shape(rows, k_tiles, tokens, Grouping::Row), &gpu(132, 228 << 10))
        };
        // Gate and up of 2B-4T in a prompt, its queries beside 31 others, its second projection beside 15.
        assert_eq!(row(13_824, 20, 2048), Plan { tile: &TILES[4].tile, splits: 1 });
        assert_eq!(row(3840, 20, 32), Plan { tile: &TILES[1].tile, splits: 1 });
        let down = row(2560, 54, 16);
        assert!(down.tile == &TILES[1].tile && down.splits > 1, "{down:?}");
        // The 27B with 64 sequences: few rows, then many.
        let groups = |rows, k_tiles| {
            Plan::by_time(&GROUPED_TILES, shape(rows, k_tiles, 64, Grouping::Groups), &gpu(132, 228 << 10))
        };
        assert_eq!(groups(5120, 136), Plan { tile: &GROUPED_TILES[1].tile, splits: 1 });
        assert_eq!(groups(34_816, 40), Plan { tile: &GROUPED_TILES[2].tile, splits: 1 });
    }

    #[test]
    fn split_sums_fit_their_memory_whatever_the_shape_and_the_gpu() {
        let of = |rows| {
            [1, 7, 20, 54, 300]
                .map(|k_tiles| [2, 8, 9, 33, 70, 2048].map(|n| shape(rows, k_tiles, n, Grouping::Row)))
        };
        for shape in [1, 130, 2560, 13_824].map(of).into_iter().flatten().flatten() {
            for processors in [1, 4, 16, 132] {
                let plans = [Plan::by_time, Plan::by_size]
                    .map(|plan| plan(&TILES, shape, &gpu(processors, 228 << 10)));
                for Plan { tile, splits } in plans {
                    let blocks = tile.blocks(shape).iter().product::<usize>();
                    assert!(splits <= shape.k_tiles, "{shape:?}: {splits} splits");
                    let [parts, tickets] = split_bytes(processors);
                    let fit = 4 * blocks * splits * tile.rows * tile.tokens <= parts && 4 * blocks <= tickets;
                    assert!(
                        splits == 1 || fit,
                        "{shape:?} on {processors}: {blocks} blocks, {splits} splits"
                    );
                }
            }
        }
    }
}
