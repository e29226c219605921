use crate::{
    Gate, RowOrder, RowsKind, Run,
    gpu::{
        Arg, Driver, Gpu, GpuError, Kv, Linear, Quants, Rope, Rows,
        table::{BITLINEAR_T1, BITLINEAR_T8, BITLINEAR_T16, BITLINEAR_T32, BITLINEAR_T64, BITLINEAR_T128},
        upload::Upload,
    },
};

use super::tile::Tile;

/// By the number of tokens.
static TILES: [Tile; 6] = [
    Tile { kernel: &BITLINEAR_T1, rows: 16, tokens: 1 },
    Tile { kernel: &BITLINEAR_T8, rows: 64, tokens: 8 },
    Tile { kernel: &BITLINEAR_T16, rows: 64, tokens: 16 },
    Tile { kernel: &BITLINEAR_T32, rows: 64, tokens: 32 },
    Tile { kernel: &BITLINEAR_T64, rows: 128, tokens: 64 },
    Tile { kernel: &BITLINEAR_T128, rows: 128, tokens: 128 },
];

/// Blocks that a processor can be given at once; splits make up to as many.
const BLOCKS_PER_PROCESSOR: usize = 2;
/// Tiles of 128 features that a split has at least: fewer are done before the copies are under way.
const SPLIT_TILES: usize = 4;

/// What the parts of split sums need: [`Gpu::new`] takes them for the largest launch that is split.
pub(in crate::gpu) fn split_bytes(processors: u32) -> [usize; 2] {
    let blocks = BLOCKS_PER_PROCESSOR * processors as usize;
    let tile = TILES.iter().map(|tile| tile.rows * tile.tokens).max().unwrap_or(0);
    [4 * blocks * tile, 4 * blocks]
}

/// What becomes of the sums: `p_mode` of the kernels.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Epilogue {
    Bf16 = 0,
    F32 = 1,
    AddF32 = 2,
    SquaredRelu = 3,
    Silu = 4,
    Rope = 5,
}

/// Where the sums go.
enum Sink<'a> {
    Rows { out: &'a mut Rows, column: usize, accumulate: bool },
    Gate { out: &'a mut Rows, gate: Gate },
    Heads { out: &'a mut Rows, kv: &'a mut Kv, rope: &'a Rope, positions: u64, slots: u64 },
}

impl<D: Driver> Gpu<D> {
    /// `out[t][column + r] (+)= (sum_k x[t][k] * w[r][k]) / multiplier(t) * scale(r)`; only the residual can be added
    /// to.
    pub fn bit_linear(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        out: &mut Rows,
        column: usize,
        accumulate: bool,
    ) -> Result<(), GpuError> {
        assert!(column + w.rows <= out.width && n <= out.rows, "rows fit their buffers");
        assert_eq!(w.order, RowOrder::Plain, "the rows are in order");
        assert!(!accumulate || out.kind == RowsKind::Residual, "only the residual is added to");
        self.multiply(n, x, w, Sink::Rows { out, column, accumulate })
    }

    /// `h = gate(x w_gate) * (x w_up)`, rounded to bf16 once; `out` is `[n]` rows at least as wide as `h`.
    pub fn bit_linear_gate(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        gate: Gate,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        assert!(w.rows / 2 <= out.width && n <= out.rows, "rows fit their buffers");
        assert_eq!(w.order, RowOrder::GateUp, "the matrix is gate and up");
        assert_eq!(out.kind, RowsKind::Between, "what is gated is not the residual");
        self.multiply(n, x, w, Sink::Gate { out, gate })
    }

    /// Queries and keys are turned, queries go to `qkv`, keys and values to the cache; each is rounded to bf16 once.
    #[expect(clippy::too_many_arguments, reason = "the arguments of two operations")]
    pub fn bit_linear_rope_store(
        &mut self,
        n: usize,
        x: &Quants,
        w: &Linear,
        runs: &[Run],
        blocks: &[u32],
        rope: &Rope,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), GpuError> {
        let head_dim = kv.shape.head_dim;
        assert_eq!(w.order, RowOrder::Rope { head_dim }, "the matrix is queries, keys and values");
        assert_eq!(rope.head_dim, head_dim, "angles are those of the heads");
        assert!(w.rows == qkv.width && n <= qkv.rows, "rows fit their buffers");
        assert_eq!(qkv.kind, RowsKind::Between, "queries are not the residual");
        let (positions, slots) = self.upload_slots(n, runs, blocks, rope, kv)?;
        self.multiply(n, x, w, Sink::Heads { out: qkv, kv, rope, positions, slots })
    }

    /// Position and place in the cache of every token of a step.
    pub(in crate::gpu) fn upload_slots(
        &mut self,
        n: usize,
        runs: &[Run],
        blocks: &[u32],
        rope: &Rope,
        kv: &Kv,
    ) -> Result<(u64, u64), GpuError> {
        let (positions, slots) = slots(n, runs, blocks);
        assert!(positions.iter().all(|&p| (p as usize) < rope.positions), "positions have angles");
        assert!(blocks.iter().all(|&b| (b as usize) < kv.shape.blocks), "blocks are the cache's");
        Ok((self.upload(Upload::Positions, positions)?, self.upload(Upload::Slots, slots)?))
    }

    fn multiply(&mut self, n: usize, x: &Quants, w: &Linear, sink: Sink<'_>) -> Result<(), GpuError> {
        assert_eq!(x.width, w.cols, "rows have the matrix's width");
        assert!(n <= x.rows, "rows fit their buffers");
        if n == 0 {
            return Ok(());
        }
        let tile = Tile::choose(&TILES, n);
        let blocks = [w.rows.div_ceil(tile.rows), n.div_ceil(tile.tokens)];
        let (tiles, splits) = self.splits(tile, blocks, w.k_tiles());
        let zero = [0; 6];
        let (out, mode, rows, column, [cos, sin, positions, slots, keys, values], shape) = match &sink {
            Sink::Rows { out, column, accumulate } => {
                let mode = match (out.kind, accumulate) {
                    (RowsKind::Between, _) => Epilogue::Bf16,
                    (RowsKind::Residual, false) => Epilogue::F32,
                    (RowsKind::Residual, true) => Epilogue::AddF32,
                };
                (&**out, mode, w.rows, *column, zero, None)
            }
            Sink::Gate { out, gate } => {
                let mode = match gate {
                    Gate::SquaredRelu => Epilogue::SquaredRelu,
                    Gate::Silu => Epilogue::Silu,
                };
                (&**out, mode, w.rows / 2, 0, zero, None)
            }
            Sink::Heads { out, kv, rope, positions, slots } => {
                let (cos, sin) = (rope.cos.address(), rope.sin.address());
                let addresses = [cos, sin, *positions, *slots, kv.keys.address(), kv.values.address()];
                (&**out, Epilogue::Rope, w.rows / 2, 0, addresses, Some(&**kv))
            }
        };
        let (kv_heads, head_dim, kv_stride) =
            shape.map_or((0, 2, 0), |kv| (kv.shape.kv_heads, kv.shape.head_dim, kv.stride));
        let heads = (w.rows / head_dim).saturating_sub(2 * kv_heads);
        let sizes = [
            mode as usize,
            n,
            rows,
            w.k_tiles(),
            tiles,
            x.atoms,
            out.stride,
            column,
            heads,
            kv_heads,
            head_dim / 2,
            kv_stride,
        ];
        let addresses = [
            w.codes.address(),
            w.scales.address(),
            x.values.address(),
            x.scales.address(),
            out.address(),
            self.parts.address(),
            self.tickets.address(),
            cos,
            sin,
            positions,
            slots,
            keys,
            values,
        ];
        let args: Vec<Arg> = addresses
            .into_iter()
            .map(Arg::U64)
            .chain(sizes.into_iter().map(|size| Arg::U32(size as u32)))
            .collect();
        self.launch(tile.kernel, [blocks[0], blocks[1], splits], tile.kernel.dynamic as usize, &args)
    }

    /// Tiles of 128 features of a split, and how many splits: as many as give every processor work. Sums are integers,
    /// so that it changes no bit.
    fn splits(&mut self, tile: &Tile, blocks: [usize; 2], k_tiles: usize) -> (usize, usize) {
        let places = BLOCKS_PER_PROCESSOR * self.driver.info().processors as usize;
        let most = if tile.tokens == 1 { 1 } else { places / (blocks[0] * blocks[1]) };
        let splits = most.min(k_tiles / SPLIT_TILES).max(1);
        let tiles = k_tiles.div_ceil(splits);
        (tiles, k_tiles.div_ceil(tiles))
    }
}

/// Position, and `64 * block + slot`, of every token.
fn slots(n: usize, runs: &[Run], blocks: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let (mut positions, mut slots) = (vec![0; n], vec![0; n]);
    for run in runs {
        for (i, token) in run.tokens.clone().enumerate() {
            let position = run.start + i;
            let block = blocks[run.blocks.start + position / crate::BLOCK_TOKENS] as usize;
            positions[token] = position as u32;
            slots[token] = (block * crate::BLOCK_TOKENS + position % crate::BLOCK_TOKENS) as u32;
        }
    }
    (positions, slots)
}
