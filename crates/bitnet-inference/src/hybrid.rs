/// Decides whether a matrix product is worth the way to a GPU. Both sides give the same integers, so the choice is
/// one of time only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HybridScheduler {
    gpu: bool,
    threshold: Option<u64>,
}

/// What one product took on both sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crossing {
    /// Multiplications: `m * k * n`.
    pub work: u64,
    /// Seconds on the CPU.
    pub cpu: f64,
    /// Seconds on the GPU, transfers included.
    pub gpu: f64,
}

impl HybridScheduler {
    /// A scheduler that has measured nothing, and so uses the CPU.
    pub fn new(has_gpu: bool) -> Self {
        HybridScheduler { gpu: has_gpu, threshold: None }
    }

    /// A scheduler that uses the GPU from `threshold` multiplications on, if there is one.
    pub fn with_threshold(has_gpu: bool, threshold: u64) -> Self {
        HybridScheduler { gpu: has_gpu, threshold: Some(threshold) }
    }

    /// A scheduler whose threshold is the least work from which on the GPU won every time.
    pub fn from_measurements(has_gpu: bool, measured: &[Crossing]) -> Self {
        let lost = measured.iter().filter(|c| c.gpu >= c.cpu).map(|c| c.work).max();
        let won = measured.iter().filter(|c| lost.is_none_or(|lost| c.work > lost)).map(|c| c.work).min();
        HybridScheduler { gpu: has_gpu, threshold: won }
    }

    /// Whether there is a GPU.
    pub fn has_gpu(&self) -> bool {
        self.gpu
    }

    /// Multiplications from which on the GPU is used; `None` before any was measured.
    pub fn gpu_threshold(&self) -> Option<u64> {
        self.threshold
    }

    /// Whether the product of `[m][k]` and `[k][n]` goes to the GPU.
    pub fn should_use_gpu(&self, m: usize, k: usize, n: usize) -> bool {
        let work = (m as u64).saturating_mul(k as u64).saturating_mul(n as u64);
        self.gpu && self.threshold.is_some_and(|threshold| work >= threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f26_without_a_gpu_or_a_measurement_the_cpu_computes() {
        // Mistakes 35 and 37 of the originals: a threshold of 1000 that nobody measured.
        assert!(!HybridScheduler::with_threshold(false, 1).should_use_gpu(9, 9, 9));
        assert!(!HybridScheduler::new(true).should_use_gpu(1 << 20, 1 << 20, 1));
        assert_eq!(HybridScheduler::new(true).gpu_threshold(), None);
    }

    #[test]
    fn f26_work_beyond_64_bits_is_large_and_not_small() {
        let scheduler = HybridScheduler::with_threshold(true, 1000);
        assert!(scheduler.should_use_gpu(usize::MAX, usize::MAX, 3));
        assert!(scheduler.should_use_gpu(10, 10, 10));
        assert!(!scheduler.should_use_gpu(10, 10, 9));
    }

    #[test]
    fn f26_the_threshold_lies_where_the_gpu_begins_to_win() {
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
