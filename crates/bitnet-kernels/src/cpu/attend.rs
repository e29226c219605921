//! Attention on the CPU: how its work is shared between threads.

use std::sync::atomic::AtomicU32;

use super::{
    Buffer, Cpu, Kv, ROW_UNIT, Rows, assert_apart,
    generic::attention::{self, Apart, Attention},
};
use crate::{KernelError, Step};

/// Items per thread below which segments are items of their own: with more, no thread waits long for another.
const FEW: usize = 8;
/// Floats per thread for the results of segments; more segments than fit are not computed apart.
const RESULTS: usize = 1 << 18;

/// Room for the results of segments that are computed apart. It takes memory when it is first used.
#[derive(Default)]
pub(super) struct Segments {
    results: Option<Buffer<f32>>,
    /// One for each item that may be divided.
    ended: Vec<AtomicU32>,
}

impl Segments {
    /// Room for a pool of `threads`; a single thread needs none.
    pub(super) fn new(threads: usize) -> Result<Self, KernelError> {
        if threads == 1 {
            return Ok(Segments::default());
        }
        let results = Buffer::zeroed(threads * RESULTS, "results of attention")?;
        let ended = (0..threads * FEW).map(|_| AtomicU32::new(0)).collect();
        Ok(Segments { results: Some(results), ended })
    }
}

impl Cpu {
    /// Computes [`crate::Backend::attention`].
    pub(super) fn attend(
        &mut self,
        Step { runs, blocks, window, .. }: Step<'_>,
        qkv: &Rows,
        kv: &Kv,
        out: &mut Rows,
    ) -> Result<(), KernelError> {
        let shape = kv.shape;
        let heads = out.width / shape.head_dim;
        assert_apart(runs);
        let parts = heads + 2 * shape.kv_heads;
        assert!(parts * shape.head_dim <= qkv.width, "the rows must hold queries, keys and values");
        let (qkv, stride, out_stride) = (&qkv.values, qkv.stride, out.stride);
        let out = out.values.shared();
        let mut a = Attention { window, runs, blocks, qkv, stride, heads, kv, out, out_stride, apart: None };
        let items: usize = runs.iter().map(|r| r.tokens.len() * shape.kv_heads).sum();
        let reads = |r: &crate::Run| {
            let keys = (r.start + r.tokens.len()).min(window.unwrap_or(usize::MAX));
            r.tokens.len() * keys * shape.kv_heads * shape.head_dim
        };
        let work = runs.iter().map(reads).sum::<usize>() / ROW_UNIT;
        let mut room = std::mem::take(&mut self.segments);
        let mut units = items;
        if let Some(results) = &mut room.results
            && items <= room.ended.len()
        {
            let segments = a.segments();
            let len = segments * heads / shape.kv_heads * attention::result(&shape);
            if segments > items && len <= results.len() {
                units = segments;
                a.apart = Some(Apart { results: results.shared(), ended: &room.ended });
            }
        }
        let kernel = self.isa.kernels().floats.attention;
        let done = self.parallel(work.min(units), attention::scratch(&shape), &|part, parts, scratch| {
            // SAFETY: `isa` proves the instruction set; every item, or every segment of one, belongs to one part; all
            // indices are checked where slices are taken.
            unsafe { kernel(&a, part, parts, scratch) }
        });
        self.segments = room;
        done
    }
}
