use crate::{
    RowsKind, Step,
    gpu::{
        Arg, Driver, Gpu, GpuError, Kv, Rows,
        pieces::{FEW, Pieces},
        table::{
            ATTENTION_MERGE_D128, ATTENTION_MERGE_D256, ATTENTION_R16_D128, ATTENTION_R16_D256,
            ATTENTION_R32_D256, ATTENTION_R64_D128, Kernel,
        },
        upload::Upload,
    },
};

/// The kernels for heads up to a maximum width. A row is a token and one of the query heads that share a key head.
struct Width {
    head_dim: usize,
    /// For thread blocks of [`FEW`] rows, which their warps share.
    few: &'static Kernel,
    /// For thread blocks of more rows, with their number.
    many: (&'static Kernel, usize),
    merge: &'static Kernel,
    /// Thread blocks of few rows that a multiprocessor takes at once; keys are split into chunks for up to this many.
    resident: usize,
}

static WIDTHS: [Width; 2] = [
    Width {
        head_dim: 128,
        few: &ATTENTION_R16_D128,
        many: (&ATTENTION_R64_D128, 64),
        merge: &ATTENTION_MERGE_D128,
        resident: 3,
    },
    Width {
        head_dim: 256,
        few: &ATTENTION_R16_D256,
        many: (&ATTENTION_R32_D256, 32),
        merge: &ATTENTION_MERGE_D256,
        resident: 2,
    },
];

/// Tiles of keys, times key heads of 128, that have room for their parts, for each multiprocessor.
const TILES_PER_PROCESSOR: usize = 64;

/// Bytes of the sums of [`FEW`] rows, with the maximum and the total of each.
const fn part_bytes(head_dim: usize) -> usize {
    4 * FEW * (head_dim + 2)
}

/// Bytes of the parts of tiles.
pub(in crate::gpu) fn parts_bytes(processors: u32) -> usize {
    TILES_PER_PROCESSOR * processors as usize * part_bytes(WIDTHS[0].head_dim)
}

impl<D: Driver> Gpu<D> {
    /// Computes causal attention of every token over its sequence's positions up to its own, with the queries in the
    /// first columns of `qkv`, which may have further columns; `out` is `[n][heads * head_dim]`.
    pub fn attention(&mut self, step: Step<'_>, qkv: &Rows, kv: &Kv, out: &mut Rows) -> Result<(), GpuError> {
        let (kv_heads, head_dim) = (kv.shape.kv_heads, kv.shape.head_dim);
        let heads = out.width / head_dim;
        assert!(
            heads * head_dim == out.width && heads.is_multiple_of(kv_heads),
            "rows must have whole heads"
        );
        assert!(out.width + 2 * kv_heads * head_dim <= qkv.width, "rows must have queries, keys and values");
        assert!(
            qkv.kind == RowsKind::Intermediate && out.kind == RowsKind::Intermediate,
            "heads must be bf16"
        );
        let rows = qkv.rows.min(out.rows);
        assert!(step.tokens() <= rows, "the rows must fit their buffers");
        let group = heads / kv_heads;
        let width = WIDTHS.iter().find(|width| head_dim <= width.head_dim);
        let width = width.expect("a cache has heads that a kernel takes");
        self.describe(step);
        assert!(self.step.listed, "all keys must have blocks");
        assert!(self.step.reached <= kv.shape.blocks, "blocks must be in the cache");
        let pieces = self.pieces(step, group, width.many.1);
        let listed = self.upload_once(Upload::Blocks, || step.blocks.iter().copied())?;
        let common = [qkv.address(), kv.keys.address(), kv.values.address(), listed];
        let scale = 1.0 / (head_dim as f32).sqrt();
        let sizes = [qkv.stride, out.stride, kv.stride, head_dim, group];
        let tail: Vec<Arg> =
            sizes.iter().map(|&size| Arg::u32(size as u32)).chain([Arg::f32(scale)]).collect();
        let Pieces { few, many, .. } = &pieces;
        if !many.pieces.is_empty() {
            let work = self.upload_once(Upload::ManyRows, || many.words())?;
            let head = common.into_iter().chain([work, out.address()]).map(Arg::u64);
            let args: Vec<Arg> = head.chain(tail.iter().copied()).collect();
            let kernel = width.many.0;
            self.launch(kernel, [many.pieces.len(), kv_heads, 1], kernel.dynamic as usize, &args)?;
        }
        if few.pieces.is_empty() {
            self.keep(pieces);
            return Ok(());
        }
        let work = self.upload_once(Upload::FewRows, || few.words())?;
        let (tiles, chunks) = self.chunks(few.pieces.len() * kv_heads, few.tiles, width);
        let parts = self.parts.address();
        let head = common.into_iter().chain([work, out.address(), parts]).map(Arg::u64);
        let split = [few.tiles, tiles].map(|size| Arg::u32(size as u32));
        let args: Vec<Arg> = head.chain(split).chain(tail).collect();
        let kernel = width.few;
        self.launch(kernel, [few.pieces.len(), kv_heads, chunks], kernel.dynamic as usize, &args)?;
        let (tiles, count) = (few.tiles, few.pieces.len());
        self.keep(pieces);
        if chunks == 1 {
            return Ok(());
        }
        let sizes = [tiles, out.stride, head_dim, group].map(|size| Arg::u32(size as u32));
        let args: Vec<Arg> = [parts, work, out.address()].into_iter().map(Arg::u64).chain(sizes).collect();
        self.launch(width.merge, [count, kv_heads, FEW], 0, &args)
    }

    /// Returns the tiles of 64 keys per chunk and the number of chunks: enough to give every multiprocessor work. Parts
    /// are merged in order, so that the number of chunks changes no bit.
    fn chunks(&mut self, blocks: usize, tiles: usize, width: &Width) -> (usize, usize) {
        let places = width.resident * self.driver.info().processors as usize;
        if blocks * tiles * part_bytes(width.head_dim) > self.parts.bytes() {
            return (tiles, 1);
        }
        let chunk = tiles.div_ceil((places / blocks).clamp(1, tiles));
        (chunk, tiles.div_ceil(chunk))
    }
}
