//! What an engine counts and measures, and who records it.
//! [`Metrics`] keeps everything in memory; other [`Recorder`]s send it elsewhere.

use std::fmt;

use parking_lot::Mutex;

/// What an engine counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counter {
    /// Requests accepted, among them those that a stop of the engine ends before they reach it.
    Requests,
    /// Requests refused at submission.
    Rejected,
    /// Choices that ended normally.
    Finished,
    /// Choices that were cancelled.
    Cancelled,
    /// Choices that failed.
    Failed,
    /// Prompt tokens of accepted requests.
    PromptTokens,
    /// Tokens delivered to readers.
    GeneratedTokens,
    /// Forward steps.
    Steps,
    /// Prompt tokens computed.
    PrefillTokens,
    /// Tokens drawn in steps without prompt tokens.
    DecodeTokens,
    /// Times that a request was paused because it was not read.
    Pauses,
    /// Times that the engine restarted after a panic in its bookkeeping or a broken rule.
    Restarts,
    /// Number of times that the bookkeeping was found to have broken one of its own rules.
    BrokenRules,
}

/// What an engine measures. Times are in seconds; unknown values are not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Measure {
    /// From submission to the first place in a batch.
    QueueTime,
    /// From submission to the first token of a choice.
    FirstToken,
    /// Between two consecutive tokens of a choice.
    InterToken,
    /// From submission to the end of the request.
    EndToEnd,
    /// From cancelling a request until its blocks are free.
    CancelToFree,
    /// Planning a step.
    StepPlan,
    /// Packing a step for the model.
    StepPack,
    /// The forward pass of a step.
    StepForward,
    /// Drawing a step's tokens.
    StepSample,
    /// Bookkeeping after a step.
    StepCommit,
    /// Delivering a step's results to readers.
    StepDistribute,
    /// Packing, forward pass and drawing of steps without prompt tokens.
    DecodeCompute,
    /// Difference between the predicted and the actual time of a step, as a fraction of the actual time.
    StepModelError,
    /// Fraction of positions in a step's forward pass that hold no token.
    Padding,
    /// Launching a step's kernels on a device, by the host's clock.
    KernelLaunch,
    /// Copying a step's inputs to a device and results back, by the device's clock.
    MemoryTransfer,
    /// Computing a step on a device, by the device's clock.
    DeviceCompute,
    /// Sequences in a step.
    BatchSize,
    /// Tokens in a step.
    StepTokens,
}

impl Counter {
    const COUNT: usize = Counter::BrokenRules as usize + 1;
}

impl Measure {
    const COUNT: usize = Measure::StepTokens as usize + 1;

    /// The start of the first bucket of its [`Distribution`].
    fn unit(self) -> f64 {
        if matches!(self, Measure::BatchSize | Measure::StepTokens) { 1.0 } else { 1e-6 }
    }
}

/// Receives an engine's counts and measurements.
pub trait Recorder: Send + Sync {
    /// Adds `by` to `counter`.
    fn add(&self, counter: Counter, by: u64);
    /// Records a `value` of `measure`.
    fn observe(&self, measure: Measure, value: f64);
    /// Reports that a step has been running for `age`, longer than [`EngineConfig::step_limit`](crate::EngineConfig).
    /// `plans` describes the last steps in one line. Called once for such a step, on a separate thread.
    fn stalled(&self, age: std::time::Duration, plans: &str) {
        let _ = (age, plans);
    }
}

impl fmt::Debug for dyn Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

/// The distribution of a measure's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The largest value.
    pub max: f64,
    /// Number of values in `[2^i, 2^(i+1))` millionths, or in whole units for [`Measure::BatchSize`] and
    /// [`Measure::StepTokens`].
    pub buckets: [u64; 40],
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution { count: 0, sum: 0.0, max: 0.0, buckets: [0; 40] }
    }
}

impl Distribution {
    fn add(&mut self, value: f64, unit: f64) {
        self.count += 1;
        self.sum += value;
        self.max = self.max.max(value);
        // The exponent of a float is the logarithm, rounded down.
        let bucket = ((value / unit).max(1.0).to_bits() >> 52) as usize - 1023;
        self.buckets[bucket.min(39)] += 1;
    }

    /// The mean, or `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// All counts and measurements at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    counters: [u64; Counter::COUNT],
    measures: [Distribution; Measure::COUNT],
}

impl Snapshot {
    /// The value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// The distribution of a measure.
    pub fn measure(&self, measure: Measure) -> &Distribution {
        &self.measures[measure as usize]
    }

    /// Mean milliseconds to launch a step's kernels on a device; `None` without a device.
    pub fn kernel_launch_overhead_ms(&self) -> Option<f64> {
        self.mean_ms(Measure::KernelLaunch)
    }

    /// Mean milliseconds to copy a step's inputs and results; `None` without a device.
    pub fn memory_transfer_time_ms(&self) -> Option<f64> {
        self.mean_ms(Measure::MemoryTransfer)
    }

    /// Mean milliseconds to compute a step on a device; `None` without a device.
    pub fn compute_time_ms(&self) -> Option<f64> {
        self.mean_ms(Measure::DeviceCompute)
    }

    fn mean_ms(&self, measure: Measure) -> Option<f64> {
        self.measure(measure).mean().map(|seconds| 1e3 * seconds)
    }

    /// Tokens per second in steps without prompt tokens; `None` before the first such step.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        let time = self.measure(Measure::DecodeCompute);
        (time.sum > 0.0).then(|| self.get(Counter::DecodeTokens) as f64 / time.sum)
    }
}

/// A [`Recorder`] that keeps everything in memory; every engine has one.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Snapshot>);

impl Metrics {
    /// The counts and measurements so far.
    pub fn snapshot(&self) -> Snapshot {
        self.0.lock().clone()
    }

    /// Records values of `measure`.
    pub(crate) fn observe_all(&self, measure: Measure, values: &[f64]) {
        let distribution = &mut self.0.lock().measures[measure as usize];
        values.iter().for_each(|&value| distribution.add(value, measure.unit()));
    }

    /// Resets all counts and measurements to zero.
    pub fn reset(&self) {
        *self.0.lock() = Snapshot::default();
    }
}

impl Recorder for Metrics {
    fn add(&self, counter: Counter, by: u64) {
        self.0.lock().counters[counter as usize] += by;
    }

    fn observe(&self, measure: Measure, value: f64) {
        self.observe_all(measure, &[value]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_unknown() {
        let metrics = Metrics::default();
        assert_eq!(metrics.snapshot().measure(Measure::FirstToken).mean(), None);
        assert_eq!(metrics.snapshot().decode_tokens_per_second(), None);
        metrics.observe(Measure::FirstToken, 0.25);
        metrics.observe(Measure::FirstToken, 0.0000001);
        let first = *metrics.snapshot().measure(Measure::FirstToken);
        assert_eq!((first.count, first.max), (2, 0.25));
        assert_eq!((first.buckets[0], first.buckets[17]), (1, 1));
        metrics.reset();
        assert_eq!(metrics.snapshot(), Snapshot::default());
    }
}
