//! Measures the limits of a GPU, with which `bench --kernels` compares the kernels: copies within device memory, and
//! the peak of the matrix units.

use std::time::Duration;

use super::{
    Arg, Driver, Gpu, GpuError,
    table::{Kernel, PEAK_BF16, PEAK_W2A8},
};
use crate::{BLOCK_TOKENS, KvShape};

/// Minimum time of a run, so that the overhead of a launch is small.
const LONG: Duration = Duration::from_micros(500);
/// Number of runs. The fastest counts, because the others were disturbed.
const RUNS: usize = 5;
/// Blocks per multiprocessor, so that each of its matrix units has several warps.
const BLOCKS_PER_PROCESSOR: usize = 4;
/// Width of the heads whose cache is copied.
const HEAD_DIM: usize = 128;
/// Maximum number of bytes to copy.
const MAX_BYTES: usize = 1 << 30;

/// Measured limits of this GPU, which no kernel can exceed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Bytes per second that a copy within device memory reads and writes together.
    pub copy: f64,
    /// Int8 operations per second of the matrix units from registers; a product counts as two.
    pub int8: f64,
    /// The same for bf16.
    pub bf16: f64,
}

impl<D: Driver> Gpu<D> {
    /// Measures the limits of this GPU, in some milliseconds and with up to four gigabytes of memory.
    pub fn ceilings(&mut self) -> Result<Ceilings, GpuError> {
        let int8 = self.multiplications(&PEAK_W2A8)?;
        let bf16 = self.multiplications(&PEAK_BF16)?;
        Ok(Ceilings {
            copy: self.copies()?,
            int8: int8 * f64::from(2 * 16 * 8 * 32),
            bf16: bf16 * f64::from(2 * 16 * 8 * 16),
        })
    }

    /// Measures bytes per second. The copies grow until they take long enough, and are then larger than any cache.
    fn copies(&mut self) -> Result<f64, GpuError> {
        let mut bytes = 1 << 20;
        loop {
            let kv_heads = bytes / (2 * BLOCK_TOKENS * HEAD_DIM);
            let mut kv = self.kv(KvShape { blocks: 2, kv_heads, head_dim: HEAD_DIM })?;
            let taken = self.best(|gpu| gpu.copy_block(&mut kv, 0, 1))?;
            if taken >= LONG || bytes >= MAX_BYTES {
                // Keys and values, read and written.
                return Ok(4.0 * bytes as f64 / taken.as_secs_f64());
            }
            bytes *= 2;
        }
    }

    /// Measures multiplications of the matrix units per second.
    fn multiplications(&mut self, kernel: &'static Kernel) -> Result<f64, GpuError> {
        let blocks = BLOCKS_PER_PROCESSOR * self.driver.info().processors as usize;
        let out = self.alloc(4 * blocks * kernel.block as usize, "totals of products")?;
        let mut rounds = 1u32;
        loop {
            let args = [Arg::u64(out.address()), Arg::u32(rounds)];
            let taken = self.best(|gpu| gpu.launch(kernel, [blocks, 1, 1], 0, &args))?;
            if taken >= LONG || rounds >= 1 << 24 {
                let warps = blocks * kernel.block as usize / 32;
                return Ok(8.0 * f64::from(rounds) * warps as f64 / taken.as_secs_f64());
            }
            rounds *= 2;
        }
    }

    /// Returns the shortest time of several runs, by the device's clock.
    fn best(&mut self, mut run: impl FnMut(&mut Self) -> Result<(), GpuError>) -> Result<Duration, GpuError> {
        let mut best = Duration::MAX;
        for _ in 0..RUNS {
            self.finish()?;
            let before = self.counts.times.compute;
            run(self)?;
            self.finish()?;
            best = best.min(self.counts.times.compute - before);
        }
        Ok(best)
    }
}
