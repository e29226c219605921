//! Says whether a matrix product is worth sending to a GPU.
//! The threshold is measured on the machine, or set by hand.

use std::time::Instant;

use bitnet_kernels::{Grouping, Inspect, KernelError, RowOrder, RowsKind};
use bitnet_tensor::TernaryTensor;

use crate::sample::random_u64;

/// Says whether a matrix product is worth sending to a GPU. Both sides give the same integers, so only the time
/// differs. It only advises: the weights of a model are in the memory of one device, and sending a single product to
/// another would copy them or keep them twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HybridScheduler {
    gpu: bool,
    threshold: Option<u64>,
}

/// The times of a product on both sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crossing {
    /// Number of multiplications, `m * k * n`.
    pub work: u64,
    /// Seconds on the CPU.
    pub cpu: f64,
    /// Seconds on the GPU, including transfers.
    pub gpu: f64,
}

impl Crossing {
    /// Times the product of `[m][k]` and `[k][n]` on both backends, including the transfer of activations and
    /// results; the minimum of several runs.
    pub fn measure<C: Inspect, G: Inspect>(
        cpu: &mut C,
        gpu: &mut G,
        [m, k, n]: [usize; 3],
    ) -> Result<Self, KernelError> {
        let work = (m as u64).saturating_mul(k as u64).saturating_mul(n as u64);
        Ok(Crossing { work, cpu: time(cpu, [m, k, n])?, gpu: time(gpu, [m, k, n])? })
    }
}

/// Minimum seconds of several runs of a product, after one to warm up.
fn time<B: Inspect>(backend: &mut B, [m, k, n]: [usize; 3]) -> Result<f64, KernelError> {
    let trits = (0..n * k).map(|i| (random_u64(i as u64, 0, 0) % 3) as i8 - 1).collect::<Vec<_>>();
    let matrix = TernaryTensor::from_trits(n, k, &trits, 1.0).expect("every trit is one");
    let weights = backend.linear(&matrix, RowOrder::Plain)?;
    let mut x = backend.rows(m, k, RowsKind::Residual)?;
    let mut quants = backend.int8_rows(m, k, Grouping::Row)?;
    let mut y = backend.rows(m, n, RowsKind::Intermediate)?;
    let values: Vec<f32> = (0..m * k).map(|i| (i % 255) as f32 - 127.0).collect();
    let mut least = f64::INFINITY;
    for run in 0..4 {
        let begun = Instant::now();
        backend.write(&mut x, &values)?;
        backend.norm_quantize(m, &x, [None, None], None, &mut quants)?;
        backend.bit_linear(m, &quants, &weights, &mut y, 0, None)?;
        let read = backend.read(&y, m)?;
        if run > 0 {
            least = least.min(begun.elapsed().as_secs_f64());
        }
        drop(read);
    }
    Ok(least)
}

impl HybridScheduler {
    /// The products that [`HybridScheduler::measured`] measures, from a decoded token to a long prompt, in the shapes
    /// of a large layer.
    pub const SHAPES: [[usize; 3]; 6] = [
        [1, 2560, 640],
        [1, 2560, 6912],
        [8, 2560, 6912],
        [32, 2560, 6912],
        [128, 2560, 6912],
        [512, 2560, 6912],
    ];

    /// Creates a scheduler whose threshold is measured now on the two backends.
    pub fn measured<C: Inspect, G: Inspect>(cpu: &mut C, gpu: &mut G) -> Result<Self, KernelError> {
        let measured: Result<Vec<_>, _> =
            Self::SHAPES.into_iter().map(|shape| Crossing::measure(cpu, gpu, shape)).collect();
        Ok(Self::from_measurements(true, &measured?))
    }

    /// Creates a scheduler without measurements, which always uses the CPU.
    pub fn new(has_gpu: bool) -> Self {
        HybridScheduler { gpu: has_gpu, threshold: None }
    }

    /// Creates a scheduler that uses the GPU, if there is one, for `threshold` multiplications or more.
    pub fn with_threshold(has_gpu: bool, threshold: u64) -> Self {
        HybridScheduler { gpu: has_gpu, threshold: Some(threshold) }
    }

    /// Creates a scheduler whose threshold is the smallest measured work from which the GPU always won.
    pub fn from_measurements(has_gpu: bool, measured: &[Crossing]) -> Self {
        let lost = measured.iter().filter(|c| c.gpu >= c.cpu).map(|c| c.work).max();
        let won = measured.iter().filter(|c| lost.is_none_or(|lost| c.work > lost)).map(|c| c.work).min();
        HybridScheduler { gpu: has_gpu, threshold: won }
    }

    /// Whether there is a GPU.
    pub fn has_gpu(&self) -> bool {
        self.gpu
    }

    /// Minimum number of multiplications for the GPU; `None` without measurements.
    pub fn gpu_threshold(&self) -> Option<u64> {
        self.threshold
    }

    /// Whether to compute the product of `[m][k]` and `[k][n]` on the GPU.
    pub fn should_use_gpu(&self, m: usize, k: usize, n: usize) -> bool {
        let work = (m as u64).saturating_mul(k as u64).saturating_mul(n as u64);
        self.gpu && self.threshold.is_some_and(|threshold| work >= threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitnet_kernels::{Cpu, Isa, Reference};

    #[test]
    fn without_a_gpu_or_a_measurement_the_cpu_computes() {
        assert!(!HybridScheduler::with_threshold(false, 1).should_use_gpu(9, 9, 9));
        assert!(!HybridScheduler::new(true).should_use_gpu(1 << 20, 1 << 20, 1));
        assert_eq!(HybridScheduler::new(true).gpu_threshold(), None);
    }

    #[test]
    fn work_beyond_64_bits_is_large_and_not_small() {
        let scheduler = HybridScheduler::with_threshold(true, 1000);
        assert!(scheduler.should_use_gpu(usize::MAX, usize::MAX, 3));
        assert!(scheduler.should_use_gpu(10, 10, 10));
        assert!(!scheduler.should_use_gpu(10, 10, 9));
    }

    #[test]
    fn a_product_is_timed_on_both_backends() {
        let mut fast = Cpu::new(Isa::best(), 1).unwrap();
        let mut slow = Reference::default();
        let shapes = [[1, 256, 64], [9, 256, 300]];
        let measured = shapes.map(|shape| Crossing::measure(&mut fast, &mut slow, shape).unwrap());
        assert_eq!(measured.map(|c| c.work), [256 * 64, 9 * 256 * 300]);
        assert!(measured.iter().all(|c| c.cpu > 0.0 && c.gpu > 0.0), "{measured:?}");
    }

    #[test]
    fn the_threshold_lies_where_the_gpu_begins_to_win() {
        let at = |work, cpu, gpu| Crossing { work, cpu, gpu };
        let measured = [
            at(10, 1.0, 5.0),
            at(100, 4.0, 3.0),
            at(1000, 9.0, 9.5),
            at(5000, 20.0, 10.0),
            at(9000, 40.0, 11.0),
        ];
        assert_eq!(HybridScheduler::from_measurements(true, &measured).gpu_threshold(), Some(5000));
        assert_eq!(HybridScheduler::from_measurements(true, &measured[..1]).gpu_threshold(), None);
    }
}
