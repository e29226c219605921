//! How many sequences run and how many prompt tokens a step takes, so that the time between tokens stays below a goal.
//! [`StepModel`] learns the time of a step from its load.

use std::time::Duration;

use crate::request::Priority;

/// How many sequences run at once, and how much of a step goes to prompts and drafts. It never changes an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchSizing {
    /// Up to this many sequences, with prompts as fast as a step allows.
    Fixed(usize),
    /// Up to this many sequences, with prompts in chunks that keep the time between a sequence's tokens below `itl`,
    /// based on the measured times of steps. A chunk has at least [`Pacer::MIN_CHUNK`] tokens, even on a slow machine.
    Paced {
        /// Maximum number of sequences.
        sequences: usize,
        /// Goal for the time between two tokens of one sequence.
        itl: Duration,
    },
    /// As many sequences as keep the time between a sequence's tokens below `itl`, based on the measured times of
    /// steps; prompts as with [`BatchSizing::Paced`].
    Auto {
        /// Goal for the time from a request to its first token. Only background requests are passed over for longer
        /// than half of this.
        ttft: Duration,
        /// Goal for the time between two tokens of one sequence.
        itl: Duration,
    },
}

impl BatchSizing {
    /// Default goal for the time between two tokens.
    pub const DEFAULT_ITL: Duration = Duration::from_millis(250);

    /// Up to `sequences` sequences, with the default goal for the time between tokens.
    pub const fn paced(sequences: usize) -> Self {
        BatchSizing::Paced { sequences, itl: Self::DEFAULT_ITL }
    }

    /// Goal for the time between two tokens of one sequence.
    fn itl(self) -> Option<Duration> {
        match self {
            BatchSizing::Fixed(_) => None,
            BatchSizing::Paced { itl, .. } | BatchSizing::Auto { itl, .. } => Some(itl),
        }
    }
}

/// The work of a step that determines how long it takes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepLoad {
    /// Number of sequences that decode one token, drafts not included.
    pub decodes: usize,
    /// Number of drafted tokens.
    pub drafts: usize,
    /// Number of passes of a drafter, each of which drafts a token for several sequences.
    pub passes: usize,
    /// How many of the drafted tokens come from these passes.
    pub drafted: usize,
    /// Tokens before those of the decoding sequences, which attention reads.
    pub context: usize,
    /// Number of prompt tokens.
    pub prefill: usize,
    /// Sum of the tokens before each prompt token, which attention reads; late in a long prompt this takes most of
    /// the time.
    pub attended: usize,
}

/// Number of terms of a [`StepModel`].
const N: usize = 8;

/// The time of a step as `a + b * (decodes + drafts) + c * context + d * prefill + e * attended + f * passes +
/// g * drafted`, and `h` more if it has more than one row, because a GPU has other kernels for those; fitted to the steps so far
/// by recursive least squares that slowly forgets.
#[derive(Debug, Clone)]
pub struct StepModel {
    weights: [f64; N],
    covariance: [[f64; N]; N],
    seen: usize,
}

impl Default for StepModel {
    fn default() -> Self {
        StepModel { weights: [0.0; N], covariance: Self::ignorance(), seen: 0 }
    }
}

impl StepModel {
    const FORGET: f64 = 0.995;

    fn ignorance() -> [[f64; N]; N] {
        std::array::from_fn(|i| std::array::from_fn(|j| if i == j { 1e4 } else { 0.0 }))
    }

    fn features(load: StepLoad) -> [f64; N] {
        let of = |count: usize, scale: f64| count as f64 / scale;
        let StepLoad { decodes, drafts, passes, drafted, context, prefill, attended } = load;
        [
            1.0,
            (decodes + drafts) as f64,
            of(context, 1024.0),
            of(prefill, 16.0),
            of(attended, 16384.0),
            passes as f64,
            drafted as f64,
            f64::from(u8::from(decodes + drafts + prefill > 1)),
        ]
    }

    /// Learns from a step that took `micros`.
    pub fn observe(&mut self, load: StepLoad, micros: u64) {
        let features = Self::features(load);
        let covariance = &mut self.covariance;
        let gains: [f64; N] = std::array::from_fn(|i| (0..N).map(|j| covariance[i][j] * features[j]).sum());
        let scale = Self::FORGET + (0..N).map(|i| features[i] * gains[i]).sum::<f64>();
        let error = micros as f64 / 1e3 - (0..N).map(|i| self.weights[i] * features[i]).sum::<f64>();
        for i in 0..N {
            self.weights[i] += gains[i] / scale * error;
            for j in 0..N {
                covariance[i][j] = (covariance[i][j] - gains[i] * gains[j] / scale) / Self::FORGET;
            }
        }
        // The covariance of terms that the steps never distinguish grows without limit: reset it before it overflows.
        if (0..N).any(|i| !(0.0..1e8).contains(&covariance[i][i])) {
            *covariance = Self::ignorance();
        }
        self.seen += 1;
    }

    /// Predicted time of a step in microseconds; `None` until a few steps have been observed.
    pub fn predict(&self, load: StepLoad) -> Option<f64> {
        self.time(Self::features(load))
    }

    /// The same for `load` in a step that has more rows than these.
    pub(crate) fn predict_among_others(&self, load: StepLoad) -> Option<f64> {
        let mut features = Self::features(load);
        features[N - 1] = 1.0;
        self.time(features)
    }

    fn time(&self, features: [f64; N]) -> Option<f64> {
        let milliseconds: f64 = (0..N).map(|i| self.weights[i].max(0.0) * features[i]).sum();
        (self.seen >= 8).then_some(milliseconds * 1e3)
    }

    /// Number of prompt tokens from `position` on that fit into `micros` in addition to `load`.
    fn prefill_within(&self, load: StepLoad, position: usize, micros: f64) -> Option<f64> {
        let rest = self.predict_among_others(load)?;
        let [_, _, _, token, read, ..] = self.weights.map(|w| w.max(0.0) * 1e3);
        let each = token / 16.0 + read / 16384.0 * position as f64;
        Some((micros - rest) / each.max(1e-4))
    }

    /// Microseconds that a draft takes as a row of the step, and, in addition, as a row of a drafter's pass.
    pub(crate) fn draft_costs(&self) -> [f64; 2] {
        [1, 6].map(|term| self.weights[term].max(0.0) * 1e3)
    }

    /// Number of further rows that fit into `micros` in addition to `load`.
    fn rows_within(&self, load: StepLoad, micros: f64) -> Option<f64> {
        let rest = self.predict_among_others(load)?;
        Some((micros - rest) / (self.weights[1].max(0.0) * 1e3).max(1e-4))
    }
}

/// Decides the batch size and how many prompt tokens and drafts a step computes.
#[derive(Debug, Clone)]
pub struct Pacer {
    sizing: BatchSizing,
    max_running: usize,
    target: usize,
    /// The largest number of prompt tokens in a timed step.
    largest_chunk: usize,
    /// The model of step times learned so far.
    pub model: StepModel,
}

impl Pacer {
    /// Minimum number of prompt tokens in a step, if there are any to compute.
    pub const MIN_CHUNK: usize = 16;

    /// Creates a pacer for at most `max_running` sequences, whatever `sizing` says.
    pub fn new(sizing: BatchSizing, max_running: usize) -> Self {
        let (max_running, target) = match sizing {
            BatchSizing::Fixed(n) | BatchSizing::Paced { sequences: n, .. } => {
                (n.clamp(1, max_running), n.clamp(1, max_running))
            }
            BatchSizing::Auto { .. } => (max_running, max_running.min(4)),
        };
        Pacer { sizing, max_running, target, largest_chunk: 0, model: StepModel::default() }
    }

    /// Number of sequences to run at once.
    pub fn batch_size(&self) -> usize {
        self.target
    }

    /// Maximum time that a request is passed over, in microseconds: the limit of its priority, but at most half of
    /// the goal for the first token, to leave the other half for the work still before it. Background work has no
    /// goal.
    pub fn patience(&self, priority: Priority) -> u64 {
        match self.sizing {
            BatchSizing::Auto { ttft, .. } if priority != Priority::Background => {
                priority.patience().min(ttft.as_micros().try_into().unwrap_or(u64::MAX) / 2)
            }
            _ => priority.patience(),
        }
    }

    /// Maximum time of a step in microseconds; a tenth of the goal is kept as a margin for errors of the model.
    fn step_limit(&self) -> Option<f64> {
        self.sizing.itl().map(|itl| itl.as_micros() as f64 * 0.9)
    }

    /// Maximum number of prompt tokens from `position` on in the next step, in addition to `decodes` sequences with
    /// `context` tokens before them.
    pub fn prefill_budget(&self, decodes: usize, context: usize, position: usize) -> usize {
        let Some(limit) = self.step_limit().filter(|_| decodes > 0) else { return usize::MAX };
        let load = StepLoad { decodes, context, ..StepLoad::default() };
        let fits = self.model.prefill_within(load, position, limit).map_or(0, |n| n.max(0.0) as usize);
        // Do not trust predictions far beyond anything timed so far.
        fits.min(2 * self.largest_chunk).max(Self::MIN_CHUNK)
    }

    /// Number of drafts that fit into a step in addition to `load` without missing the goal for the time between
    /// tokens.
    pub fn draft_budget(&self, load: StepLoad) -> usize {
        let Some(limit) = self.step_limit() else { return usize::MAX };
        self.model.rows_within(load, limit).map_or(0, |n| n.max(0.0) as usize)
    }

    /// Learns from the time of a step.
    pub fn learn(&mut self, load: StepLoad, micros: u64) {
        self.model.observe(load, micros);
        self.largest_chunk = self.largest_chunk.max(load.prefill);
    }

    /// Learns from a step and adjusts the batch size: up by one while requests wait and another sequence would keep
    /// the goal, down by a quarter when the running sequences miss it. Drafts never shrink the batch.
    pub fn after_step(&mut self, load: StepLoad, micros: u64, waiting: usize, oldest_wait: u64) {
        self.learn(load, micros);
        let BatchSizing::Auto { ttft, itl } = self.sizing else { return };
        let goal = itl.as_micros() as f64;
        let each = load.context / load.decodes.max(1);
        let load_of = |decodes| StepLoad { decodes, context: each * decodes, ..StepLoad::default() };
        let with = |decodes| self.model.predict(load_of(decodes));
        let (Some(now), Some(next)) = (with(load.decodes), with(self.target + 1)) else { return };
        // Use the whole goal while requests wait longer than their own goal.
        let margin = if u128::from(oldest_wait) > ttft.as_micros() { 1.0 } else { 0.9 };
        if load.decodes > 1 && now > goal {
            self.target = (load.decodes * 3 / 4).clamp(1, self.max_running);
        } else if waiting > 0 && next <= goal * margin {
            self.target = (self.target + 1).min(self.max_running);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(load: StepLoad) -> u64 {
        let StepLoad { decodes, drafts, context, prefill, attended, .. } = load;
        2000 + 500 * (decodes + drafts) as u64
            + 3 * context as u64 / 10
            + 100 * prefill as u64
            + attended as u64 / 10
    }

    fn auto() -> BatchSizing {
        BatchSizing::Auto { ttft: Duration::from_millis(200), itl: Duration::from_millis(10) }
    }

    /// Runs steps with `waiting` requests in the queue; the batch is always filled to its size.
    fn trace(pace: &mut Pacer, steps: usize, waiting: usize) -> Vec<usize> {
        let mut sizes = Vec::new();
        for i in 0..steps {
            let decodes = pace.batch_size().min(1 + waiting);
            let prefill = i % 3 * 32;
            let context = decodes * (100 + i % 50);
            let attended = prefill * (i * 37 % 2000);
            let load = StepLoad { decodes, context, prefill, attended, ..StepLoad::default() };
            pace.after_step(load, truth(load), waiting, 0);
            sizes.push(pace.batch_size());
        }
        sizes
    }

    #[test]
    fn the_step_model_finds_the_times_it_is_shown() {
        let mut model = StepModel::default();
        assert_eq!(model.predict(StepLoad::default()), None);
        for i in 0..200 {
            let prefill = i * 17 % 200;
            let (context, attended) = (i * 31 % 4000, prefill * (i * 41 % 1000));
            let drafts = i % 3;
            let load =
                StepLoad { decodes: i * 7 % 13, context, prefill, attended, drafts, ..StepLoad::default() };
            model.observe(load, truth(load));
        }
        let load =
            StepLoad { decodes: 20, context: 3000, prefill: 100, attended: 80_000, ..StepLoad::default() };
        let (got, want) = (model.predict(load).unwrap(), truth(load) as f64);
        assert!((got / want - 1.0).abs() < 0.02, "{got} {want}");
    }

    #[test]
    fn a_million_equal_steps_do_not_unsettle_the_model() {
        let mut model = StepModel::default();
        let load = StepLoad { decodes: 8, context: 800, ..StepLoad::default() };
        for i in 0..1_000_000 {
            model.observe(load, 6000 + i % 100);
        }
        let got = model.predict(load).unwrap();
        assert!((5900.0..6200.0).contains(&got), "{got}");
    }

    #[test]
    fn the_batch_grows_with_the_queue_up_to_the_goal() {
        let mut pace = Pacer::new(auto(), 64);
        assert_eq!(pace.batch_size(), 4);
        let flood = trace(&mut pace, 100, 50);
        // 2.0 + 0.5 n ms and a little context stay below 9 ms up to 13.
        let end = *flood.last().unwrap();
        assert!((12..=13).contains(&end), "{flood:?}");
        assert!(flood.windows(2).all(|w| w[1] <= w[0] + 1));
    }

    #[test]
    fn the_batch_shrinks_when_the_goal_is_broken() {
        let mut pace = Pacer::new(auto(), 64);
        trace(&mut pace, 100, 50);
        let before = pace.batch_size();
        for _ in 0..300 {
            let decodes = pace.batch_size();
            let load = StepLoad { decodes, context: decodes * 100, ..StepLoad::default() };
            pace.after_step(load, 2 * truth(load), 50, 0);
        }
        assert!(pace.batch_size() < before * 3 / 4, "{} of {before}", pace.batch_size());
        assert!(pace.batch_size() >= 1);
    }

    #[test]
    fn a_low_load_leaves_the_batch_size_alone() {
        let mut pace = Pacer::new(auto(), 64);
        assert!(trace(&mut pace, 100, 0).iter().all(|&size| size == 4));
    }

    #[test]
    fn prompts_get_what_decoding_leaves_of_the_goal() {
        let mut pace = Pacer::new(auto(), 64);
        trace(&mut pace, 100, 50);
        assert_eq!(pace.prefill_budget(0, 0, 0), usize::MAX);
        // 9 ms - 2 - 2 * 0.5 - a little context, at 0.1 ms a token and, late in a prompt, as much for attention.
        let budget = pace.prefill_budget(2, 200, 0);
        assert!((54..=62).contains(&budget), "{budget}");
        let late = pace.prefill_budget(2, 200, 1000);
        assert!((27..=31).contains(&late), "{late}");
        assert_eq!(pace.prefill_budget(60, 6000, 0), Pacer::MIN_CHUNK);
    }

    #[test]
    fn drafts_never_shrink_the_batch_and_fit_into_the_goal() {
        let mut pace = Pacer::new(auto(), 64);
        trace(&mut pace, 100, 50);
        let before = pace.batch_size();
        let draft =
            |decodes, drafts| StepLoad { decodes, drafts, context: 100 * decodes, ..Default::default() };
        for _ in 0..100 {
            // Few sequences with many drafts exceed the goal.
            pace.after_step(draft(2, 30), truth(draft(2, 30)), 0, 0);
        }
        assert_eq!(pace.batch_size(), before);
        // 9 ms - 2 - 4 * 0.5 - a little context, at half a millisecond a row.
        let budget = pace.draft_budget(draft(4, 0));
        assert!((8..=10).contains(&budget), "{budget}");
        assert_eq!(pace.draft_budget(draft(16, 0)), 0);
        assert_eq!(Pacer::new(BatchSizing::Fixed(8), 8).draft_budget(draft(8, 0)), usize::MAX);
    }

    #[test]
    fn a_chunk_is_at_most_twice_the_largest_that_was_timed() {
        let mut pace = Pacer::new(BatchSizing::paced(8), 8);
        assert_eq!(pace.batch_size(), 8);
        let mut chunks = Vec::new();
        for _ in 0..20 {
            let prefill = pace.prefill_budget(4, 400, 0);
            chunks.push(prefill);
            let load = StepLoad { decodes: 4, context: 400, prefill, ..StepLoad::default() };
            pace.after_step(load, truth(load), 9, 0);
        }
        assert_eq!(chunks[0], Pacer::MIN_CHUNK);
        assert!(chunks.windows(2).all(|w| w[1] <= 2 * w[0]), "{chunks:?}");
        // 225 ms - 4, at 0.1 ms a token.
        assert!((2000..2400).contains(chunks.last().unwrap()), "{chunks:?}");
        assert_eq!(pace.batch_size(), 8, "the batch is as large as was asked for");
    }

    #[test]
    fn fixed_sizing_is_fixed() {
        let mut pace = Pacer::new(BatchSizing::Fixed(7), 64);
        assert!(trace(&mut pace, 50, 100).iter().all(|&size| size == 7));
        assert_eq!(pace.prefill_budget(7, 700, 0), usize::MAX);
    }
}
