//! Launches norms of heads, the rotary embedding and the store to the cache, for projections that could not include
//! them.

use crate::{
    HeadNorms, KvType, Norm, RowsKind, Step,
    gpu::{
        Arg, Driver, Gain, Gpu, GpuError, Kv, Rope, Rows,
        table::{NORM_ROPE_STORE, NORM_ROPE_STORE_INT8},
    },
};

/// Blocks of a launch for each processor, from which on more are no faster than longer ones.
const BLOCKS_PER_PROCESSOR: usize = 12;

impl<D: Driver> Gpu<D> {
    /// Applies the norms of query and key heads, if there are any, rotates queries and keys in their first dimensions by
    /// their positions, and stores keys and values. `qkv` may have further columns.
    pub fn norm_rope_store(
        &mut self,
        step: Step<'_>,
        heads: usize,
        rope: &Rope,
        norms: HeadNorms<'_, Gain>,
        qkv: &mut Rows,
        kv: &mut Kv,
    ) -> Result<(), GpuError> {
        let shape = kv.shape;
        assert!(rope.width <= shape.head_dim, "the rotary table must not be wider than the heads");
        assert!((heads + 2 * shape.kv_heads) * shape.head_dim <= qkv.width, "the heads must fit the rows");
        assert_eq!(qkv.kind, RowsKind::Intermediate, "queries, keys and values must be bf16");
        let all_fit = norms.is_none_or(|norms| norms.iter().all(|norm| norm.gain.width == shape.head_dim));
        assert!(all_fit, "gains must be as wide as the heads");
        let n = step.tokens();
        let (positions, slots) = self.upload_slots(step, rope, kv)?;
        if n == 0 {
            return Ok(());
        }
        let gain = |norm: &Norm<Gain>| Arg::u64(norm.gain.buffer.address());
        let gains = norms.map_or([Arg::u64(0); 2], |norms| norms.map(gain));
        let eps = norms.map_or([0.0; 2], |norms| norms.map(|norm| norm.eps));
        // A warp takes a head, or several in turn where tokens alone make blocks enough.
        let kernel = if kv.kv == KvType::Int8 { &NORM_ROPE_STORE_INT8 } else { &NORM_ROPE_STORE };
        let groups = (heads + 2 * shape.kv_heads).div_ceil(kernel.block as usize / 32);
        let places = BLOCKS_PER_PROCESSOR * self.driver.info().processors as usize;
        let turns = (n * groups).div_ceil(places).min(groups);
        let blocks = groups.div_ceil(turns);
        self.launch(
            kernel,
            [n, blocks, 1],
            0,
            &[
                Arg::u64(qkv.address()),
                Arg::u64(rope.cos.address()),
                Arg::u64(rope.sin.address()),
                Arg::u64(positions),
                Arg::u64(slots),
                Arg::u64(kv.keys.address()),
                Arg::u64(kv.values.address()),
                gains[0],
                gains[1],
                Arg::u32(qkv.stride as u32),
                Arg::u32(heads as u32),
                Arg::u32(shape.kv_heads as u32),
                Arg::u32(shape.head_dim as u32),
                Arg::u32(rope.width as u32),
                Arg::u32(kv.stride as u32),
                Arg::f32(eps[0]),
                Arg::f32(eps[1]),
                Arg::f64(1.0 / shape.head_dim as f64),
            ],
        )
    }
}
