//! Copies a block of a layer's keys and values: on the device, to the host, and back.

use crate::gpu::{Arg, Driver, Gpu, GpuError, Kv, table::COPY_BLOCK};

impl<D: Driver> Gpu<D> {
    /// Copies all keys and values of block `from` to block `to`.
    pub fn copy_block(&mut self, kv: &mut Kv, from: u32, to: u32) -> Result<(), GpuError> {
        assert!((from.max(to) as usize) < kv.shape.blocks, "blocks must be in the cache");
        let bytes = kv.block_bytes();
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

    /// Copies the keys, then the values of a block to the host.
    pub(in crate::gpu) fn read_block(
        &mut self,
        kv: &mut Kv,
        block: u32,
        to: &mut [u8],
    ) -> Result<(), GpuError> {
        let (keys, values) = to.split_at_mut(kv.block_bytes());
        let at = kv.offset(block, [keys.len(), values.len()]);
        self.receive(kv.keys.address() + at, keys)?;
        self.receive(kv.values.address() + at, values)
    }

    /// Overwrites a block with what [`Gpu::read_block`] has copied.
    pub(in crate::gpu) fn write_block(
        &mut self,
        kv: &mut Kv,
        block: u32,
        from: &[u8],
    ) -> Result<(), GpuError> {
        let (keys, values) = from.split_at(kv.block_bytes());
        let at = kv.offset(block, [keys.len(), values.len()]);
        self.send(kv.keys.address() + at, keys)?;
        self.send(kv.values.address() + at, values)
    }
}

impl Kv {
    /// Bytes of the keys of a block, and of its values.
    pub(in crate::gpu) fn block_bytes(&self) -> usize {
        self.shape.kv_heads * self.kv.panel(self.stride)
    }

    /// Where a block begins among the keys, and among the values, if buffers of these sizes hold them.
    fn offset(&self, block: u32, sizes: [usize; 2]) -> u64 {
        assert!((block as usize) < self.shape.blocks, "blocks must be in the cache");
        assert_eq!(sizes, [self.block_bytes(); 2], "the bytes of a block");
        u64::from(block) * self.block_bytes() as u64
    }
}
