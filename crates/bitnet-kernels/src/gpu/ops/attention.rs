//! Launches attention: one kernel for runs of few rows and one for the others, and a merge if keys are split into
//! chunks.

use crate::{
    BLOCK_TOKENS, KvType, RowsKind, Step,
    gpu::{
        Arg, DeviceInfo, Driver, Gpu, GpuError, Kv, Rows,
        table::{
            ATTENTION_MERGE_D128, ATTENTION_MERGE_D256, ATTENTION_R16_D128, ATTENTION_R16_D128_INT8,
            ATTENTION_R16_D256, ATTENTION_R16_D256_INT8, ATTENTION_R32_D256, ATTENTION_R32_D256_INT8,
            ATTENTION_R64_D128, ATTENTION_R64_D128_INT8, Kernel,
        },
        upload::Upload,
        work_items::{FEW, WorkItems, WorkList},
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
    /// Thread blocks of few rows that a multiprocessor takes at once if it has shared memory for them; keys are split into chunks for up to this many.
    resident: usize,
    cycles: Cycles,
}

/// Cycles of attention for few rows, estimated from the machine code for compute capability 9.0.
struct Cycles {
    /// Of a tile of keys, for the longest chain of a thread block.
    tile: usize,
    /// Of a thread block beside its tiles, if it has all of them and divides the sums itself.
    whole: usize,
    /// The same if it has a chunk of them.
    chunk: usize,
    /// Of the merge, and more for each 8 tiles.
    merge: [usize; 2],
}

/// Cycles from the end of the chunks to the beginning of their merge, which overlap: 0.7 us at 1.755 GHz.
const LAUNCH: usize = 1230;
/// Bytes of memory for each multiprocessor in a cycle: 4.3 TB/s for 132 of them at 1.755 GHz.
const MEMORY_BYTES: usize = 18;

static WIDTHS: [Width; 2] = [
    Width {
        head_dim: 128,
        few: &ATTENTION_R16_D128,
        many: (&ATTENTION_R64_D128, 64),
        merge: &ATTENTION_MERGE_D128,
        resident: 3,
        cycles: Cycles { tile: 1670, whole: 1660, chunk: 980, merge: [400, 920] },
    },
    Width {
        head_dim: 256,
        few: &ATTENTION_R16_D256,
        many: (&ATTENTION_R32_D256, 32),
        merge: &ATTENTION_MERGE_D256,
        resident: 2,
        cycles: Cycles { tile: 2170, whole: 2200, chunk: 1100, merge: [530, 1110] },
    },
];

/// The same over int8: less shared memory, and for few rows about 330 instructions more for each tile, which turn bytes into
/// bf16 and multiply by scales.
static INT8_WIDTHS: [Width; 2] = [
    Width {
        head_dim: 128,
        few: &ATTENTION_R16_D128_INT8,
        many: (&ATTENTION_R64_D128_INT8, 64),
        merge: &ATTENTION_MERGE_D128,
        resident: 4,
        cycles: Cycles { tile: 2000, whole: 1660, chunk: 980, merge: [400, 920] },
    },
    Width {
        head_dim: 256,
        few: &ATTENTION_R16_D256_INT8,
        many: (&ATTENTION_R32_D256_INT8, 32),
        merge: &ATTENTION_MERGE_D256,
        resident: 2,
        cycles: Cycles { tile: 2730, whole: 2200, chunk: 1100, merge: [530, 1110] },
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
    /// Computes causal attention of every token over its sequence's positions up to its own, or the last of these if the
    /// step has a window, with the queries in the first columns of `qkv`, which may have further columns; `out` is
    /// `[n][heads * head_dim]`.
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
        let widths = if kv.kv == KvType::Int8 { &INT8_WIDTHS } else { &WIDTHS };
        let width = widths.iter().find(|width| head_dim <= width.head_dim);
        let width = width.expect("a cache has heads that a kernel takes");
        let known = self.describe(step);
        assert!(known.listed, "all keys must have blocks");
        assert!(known.reached <= kv.shape.blocks, "blocks must be in the cache");
        let items = self.work_items(step, group, width.many.1);
        let listed = self.upload_once(step, Upload::Blocks, || step.blocks.iter().copied())?;
        let common = [qkv.address(), kv.keys.address(), kv.values.address(), listed];
        let scale = 1.0 / (head_dim as f32).sqrt();
        let sizes = [qkv.stride, out.stride, kv.stride, head_dim, group];
        let tail: Vec<Arg> =
            sizes.iter().map(|&size| Arg::u32(size as u32)).chain([Arg::f32(scale)]).collect();
        let WorkItems { few, many, .. } = &items;
        if !many.items.is_empty() {
            let work = self.upload_once(step, Upload::ManyRows, || many.words())?;
            let head = common.into_iter().chain([work, out.address()]).map(Arg::u64);
            let args: Vec<Arg> = head.chain(tail.iter().copied()).collect();
            let kernel = width.many.0;
            self.launch(kernel, [many.items.len(), kv_heads, 1], kernel.dynamic as usize, &args)?;
        }
        if few.items.is_empty() {
            self.keep(step, items);
            return Ok(());
        }
        let work = self.upload_once(step, Upload::FewRows, || few.words())?;
        let info = self.driver.info();
        let parts = few.items.len() * kv_heads * few.tiles * part_bytes(width.head_dim);
        let (tiles, chunks) = if parts <= self.parts.bytes() {
            width.chunks(few, [kv_heads, kv.block_bytes()], info)
        } else {
            (few.tiles, 1)
        };
        let parts = self.parts.address();
        let head = common.into_iter().chain([work, out.address(), parts]).map(Arg::u64);
        let split = [few.tiles, tiles].map(|size| Arg::u32(size as u32));
        let args: Vec<Arg> = head.chain(split).chain(tail).collect();
        let kernel = width.few;
        self.launch(kernel, [few.items.len(), kv_heads, chunks], kernel.dynamic as usize, &args)?;
        let (tiles, count) = (few.tiles, few.items.len());
        self.keep(step, items);
        if chunks == 1 {
            return Ok(());
        }
        let sizes = [tiles, out.stride, head_dim, group].map(|size| Arg::u32(size as u32));
        let args: Vec<Arg> = [parts, work, out.address()].into_iter().map(Arg::u64).chain(sizes).collect();
        self.launch(width.merge, [count, kv_heads, FEW], 0, &args)
    }
}

impl Width {
    /// Returns the tiles of 64 keys per chunk and the number of chunks: enough to give every multiprocessor work, or one
    /// if that takes less time, because the loads of all blocks take longer than a chain or because the merge takes
    /// longer than the tiles that it saves. Parts are merged in order, so that the number of chunks changes no bit.
    fn chunks(
        &self,
        work: &WorkList,
        [kv_heads, block_bytes]: [usize; 2],
        gpu: &DeviceInfo,
    ) -> (usize, usize) {
        let processors = gpu.processors as usize;
        let resident = gpu.resident(self.few.shared + self.few.dynamic, self.resident);
        let (blocks, tiles) = (work.items.len() * kv_heads, work.tiles);
        let chunk = tiles.div_ceil((resident * processors / blocks).clamp(1, tiles));
        let loads = 2 * work.keys * block_bytes / (BLOCK_TOKENS * MEMORY_BYTES * processors);
        let Cycles { tile, whole, chunk: part, merge } = self.cycles;
        let merge = LAUNCH + merge[0] + work.longest.div_ceil(8) * merge[1];
        let whole = loads.max(whole + work.longest * tile);
        let split = loads.max(part + chunk.min(work.longest) * tile) + merge;
        if split < whole { (chunk, tiles.div_ceil(chunk)) } else { (tiles, 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;

    /// Tiles of a chunk and chunks, for sequences after so many tokens, which decode one more each, on 132 multiprocessors.
    fn split(width: &Width, kv_heads: usize, before: &[usize], window: Option<usize>) -> (usize, usize) {
        let of =
            |(i, &start): (usize, &usize)| Run { tokens: i..i + 1, start, blocks: 0..0, ..Run::default() };
        let runs: Vec<Run> = before.iter().enumerate().map(of).collect();
        let items = WorkItems::of(Step::new(&runs, &[]).within(window), 4, width.many.1);
        let block_bytes = kv_heads * KvType::Bf16.panel(width.head_dim);
        width.chunks(&items.few, [kv_heads, block_bytes], &DeviceInfo::h100())
    }

    fn chunks(width: &Width, kv_heads: usize, before: &[usize]) -> usize {
        split(width, kv_heads, before, None).1
    }

    /// So steps of decoding launch the same.
    #[test]
    fn a_full_window_is_split_in_the_same_way_wherever_it_begins() {
        for window in [1, 12, 64, 65, 512, 1000] {
            for width in WIDTHS.iter().chain(&INT8_WIDTHS) {
                let at = |before: usize| split(width, 4, &[before], Some(window));
                let first = at(5000);
                assert!((5001..5200).all(|before| at(before) == first), "{window}");
            }
        }
        let [narrow, _] = &WIDTHS;
        assert!(split(narrow, 4, &[5000], Some(512)).1 > 1);
        assert_eq!(split(narrow, 4, &[5000], Some(12)), (2, 1));
        assert_eq!(split(narrow, 4, &[300], Some(512)), split(narrow, 4, &[300], None));
    }

    #[test]
    fn keys_are_split_only_where_the_tiles_saved_take_longer_than_the_merge() {
        let [narrow, wide] = &WIDTHS;
        // Of two tiles or three, one is not worth a merge where heads are narrow; two are.
        assert_eq!((chunks(narrow, 5, &[BLOCK_TOKENS]), chunks(wide, 4, &[BLOCK_TOKENS])), (1, 2));
        assert_eq!(chunks(narrow, 5, &[128; 32]), 1);
        for before in [128, 1024, 30_000] {
            assert!(chunks(narrow, 5, &[before]) > 1 && chunks(wide, 4, &[before]) > 1, "one after {before}");
        }
        assert!(chunks(narrow, 5, &[1024; 8]) > 1 && chunks(wide, 4, &[1024; 8]) > 1);
        // The chain of one block takes less time than the loads of all.
        assert_eq!((chunks(narrow, 5, &[1024; 32]), chunks(wide, 4, &[1024; 32])), (1, 1));
        // One is as long as these, and the others are not.
        let mut one_long = [10; 32];
        one_long[9] = 1024;
        assert_eq!((chunks(narrow, 5, &one_long), chunks(wide, 4, &one_long)), (2, 2));
    }
}
