use parking_lot::Mutex;

/// Things that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Requests taken.
    Requests,
    /// Requests refused at submission.
    Rejected,
    /// Choices that ended as they should.
    Finished,
    /// Choices that were cancelled.
    Cancelled,
    /// Choices that failed.
    Failed,
    /// Tokens of prompts taken.
    PromptTokens,
    /// Tokens told to readers.
    GeneratedTokens,
    /// Forward steps.
    Steps,
    /// Tokens computed for prompts.
    PrefillTokens,
    /// Tokens drawn in steps that hold no prompt tokens.
    DecodeTokens,
    /// Times that a request was paused because nobody read it.
    Pauses,
    /// Times that the engine began anew after a panic in its bookkeeping, or a broken rule.
    Restarts,
    /// Times that the bookkeeping was found to have broken a rule of its own.
    BrokenRules,
}

/// Things that are measured. Times are in seconds; what is not known is not observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// From submission to the first place in a batch.
    QueueTime,
    /// From submission to the first token of a choice.
    FirstToken,
    /// Between two tokens of a choice.
    InterToken,
    /// From submission to the end.
    EndToEnd,
    /// From the wish to cancel a request until its blocks are free.
    CancelToFree,
    /// Planning a step.
    StepPlan,
    /// Writing a step down for the model.
    StepPack,
    /// Forward pass of a step.
    StepForward,
    /// Drawing a step's tokens.
    StepSample,
    /// Bookkeeping after a step.
    StepCommit,
    /// Telling readers what a step gave.
    StepDistribute,
    /// Packing, forward pass and drawing of steps that hold no prompt tokens.
    DecodeCompute,
    /// How far the time of a step was from the prediction, as a part of that time.
    StepModelError,
    /// Part of the positions in a step's forward pass that hold no token.
    Padding,
    /// Handing a step's kernels to a device, on the host.
    KernelLaunch,
    /// Copying a step's inputs to a device and its results back, by the device's clock.
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

    /// What the buckets of its [`Distribution`] begin at.
    fn unit(self) -> f64 {
        if matches!(self, Measure::BatchSize | Measure::StepTokens) { 1.0 } else { 1e-6 }
    }
}

/// Where an engine reports to.
pub trait Recorder: Send + Sync {
    /// `counter` went up by `by`.
    fn add(&self, counter: Counter, by: u64);
    /// `measure` was `value`.
    fn observe(&self, measure: Measure, value: f64);
    /// A step has been running for `age`, which is over [`EngineConfig::step_limit`](crate::EngineConfig); `plans`
    /// says what the last steps had to do, on one line. Reported once a step, on a thread of its own.
    fn stalled(&self, age: std::time::Duration, plans: &str) {
        let _ = (age, plans);
    }
}

/// Values of one measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distribution {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The largest.
    pub max: f64,
    /// How many lie in `[2^i, 2^(i+1))` millionths, or single units for [`Measure::BatchSize`] and
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
        let bucket = (value / unit).max(1.0).log2() as usize;
        self.buckets[bucket.min(39)] += 1;
    }

    /// Their mean; `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// All that has been reported, at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    counters: [u64; Counter::COUNT],
    measures: [Distribution; Measure::COUNT],
}

impl Snapshot {
    /// A counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// A measure.
    pub fn measure(&self, measure: Measure) -> &Distribution {
        &self.measures[measure as usize]
    }

    /// Milliseconds that handing a step's kernels to a device takes on average; `None` without a device.
    pub fn kernel_launch_overhead_ms(&self) -> Option<f64> {
        self.mean_ms(Measure::KernelLaunch)
    }

    /// Milliseconds that a device copies inputs and results of a step on average; `None` without a device.
    pub fn memory_transfer_time_ms(&self) -> Option<f64> {
        self.mean_ms(Measure::MemoryTransfer)
    }

    /// Milliseconds that a device computes a step on average; `None` without a device.
    pub fn compute_time_ms(&self) -> Option<f64> {
        self.mean_ms(Measure::DeviceCompute)
    }

    fn mean_ms(&self, measure: Measure) -> Option<f64> {
        self.measure(measure).mean().map(|seconds| 1e3 * seconds)
    }

    /// Tokens per second while only text was computed; `None` before that happened.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        let time = self.measure(Measure::DecodeCompute);
        (time.sum > 0.0).then(|| self.get(Counter::DecodeTokens) as f64 / time.sum)
    }
}

/// Keeps what it is told; every engine has one.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Snapshot>);

impl Metrics {
    /// What has been reported so far.
    pub fn snapshot(&self) -> Snapshot {
        self.0.lock().clone()
    }

    /// Forgets it.
    pub fn reset(&self) {
        *self.0.lock() = Snapshot::default();
    }
}

impl Recorder for Metrics {
    fn add(&self, counter: Counter, by: u64) {
        self.0.lock().counters[counter as usize] += by;
    }

    fn observe(&self, measure: Measure, value: f64) {
        self.0.lock().measures[measure as usize].add(value, measure.unit());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f29_what_was_not_measured_is_unknown() {
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
