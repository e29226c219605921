use crate::{
    BLOCK_TOKENS,
    gpu::{Arg, Driver, Gpu, GpuError, Kv, table::COPY_BLOCK},
};

impl<D: Driver> Gpu<D> {
    /// Copies all keys and values of block `from` to block `to`.
    pub fn copy_block(&mut self, kv: &mut Kv, from: u32, to: u32) -> Result<(), GpuError> {
        assert!((from.max(to) as usize) < kv.shape.blocks, "blocks must be in the cache");
        let bytes = 2 * kv.shape.kv_heads * BLOCK_TOKENS * kv.stride;
        self.launch(
            &COPY_BLOCK,
            [bytes.div_ceil(16 * COPY_BLOCK.block as usize), 1, 1],
            0,
            &[
                Arg::u64(kv.keys.address()),
                Arg::u64(kv.values.address()),
                Arg::u32(bytes as u32),
                Arg::u32(from),
                Arg::u32(to),
            ],
        )
    }
}
