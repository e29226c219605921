use std::time::Duration;

/// How many sequences run at once, and how much of a step goes to prompts. No choice changes an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSizing {
    /// Up to this many sequences, and prompts as fast as a step bears.
    Fixed(usize),
    /// As many as keep the time between a sequence's tokens under `itl`, learned from the steps themselves.
    Auto {
        /// Goal for the time from a request to its first token.
        ttft: Duration,
        /// Goal for the time between two tokens of one sequence.
        itl: Duration,
    },
}

/// What a step has to do, as far as its time depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepLoad {
    /// Sequences that compute one token.
    pub decodes: usize,
    /// Tokens before those, which attention reads.
    pub context: usize,
    /// Prompt tokens.
    pub prefill: usize,
}

/// The time of a step as `a + b * decodes + c * context + d * prefill`, fitted to the steps seen so far by recursive
/// least squares that slowly forgets.
#[derive(Debug, Clone)]
pub struct StepModel {
    weights: [f64; 4],
    covariance: [[f64; 4]; 4],
    seen: usize,
}

impl Default for StepModel {
    fn default() -> Self {
        StepModel { weights: [0.0; 4], covariance: Self::ignorance(), seen: 0 }
    }
}

impl StepModel {
    const FORGET: f64 = 0.995;

    fn ignorance() -> [[f64; 4]; 4] {
        std::array::from_fn(|i| std::array::from_fn(|j| if i == j { 1e4 } else { 0.0 }))
    }

    fn features(load: StepLoad) -> [f64; 4] {
        [1.0, load.decodes as f64, load.context as f64 / 1024.0, load.prefill as f64 / 16.0]
    }

    /// Learns from a step that took `micros`.
    pub fn observe(&mut self, load: StepLoad, micros: u64) {
        let (x, p) = (Self::features(load), &mut self.covariance);
        let px: [f64; 4] = std::array::from_fn(|i| (0..4).map(|j| p[i][j] * x[j]).sum());
        let scale = Self::FORGET + (0..4).map(|i| x[i] * px[i]).sum::<f64>();
        let error = micros as f64 / 1e3 - (0..4).map(|i| self.weights[i] * x[i]).sum::<f64>();
        for i in 0..4 {
            self.weights[i] += px[i] / scale * error;
            for j in 0..4 {
                p[i][j] = (p[i][j] - px[i] * px[j] / scale) / Self::FORGET;
            }
        }
        // What the steps never tell apart is forgotten without end: start over before it overflows.
        if (0..4).any(|i| !(0.0..1e8).contains(&p[i][i])) {
            *p = Self::ignorance();
        }
        self.seen += 1;
    }

    /// Microseconds that a step will take; `None` until a few have been seen.
    pub fn predict(&self, load: StepLoad) -> Option<f64> {
        let x = Self::features(load);
        let ms: f64 = (0..4).map(|i| self.weights[i].max(0.0) * x[i]).sum();
        (self.seen >= 8).then_some(ms * 1e3)
    }

    /// Prompt tokens that fit in `micros` beside the rest of the step.
    fn prefill_within(&self, load: StepLoad, micros: f64) -> Option<f64> {
        let rest = self.predict(StepLoad { prefill: 0, ..load })?;
        let each = self.weights[3].max(1e-6) * 1e3 / 16.0;
        Some((micros - rest) / each)
    }
}

/// Decides batch size and prompt budget.
#[derive(Debug, Clone)]
pub struct Pace {
    sizing: BatchSizing,
    max_running: usize,
    target: usize,
    /// The step times learned so far.
    pub model: StepModel,
}

impl Pace {
    /// Fewest prompt tokens in a step that has any to compute.
    pub const MIN_CHUNK: usize = 16;

    /// At most `max_running` sequences, whatever is wanted.
    pub fn new(sizing: BatchSizing, max_running: usize) -> Self {
        let (max_running, target) = match sizing {
            BatchSizing::Fixed(n) => (n.clamp(1, max_running), n.clamp(1, max_running)),
            BatchSizing::Auto { .. } => (max_running, max_running.min(4)),
        };
        Pace { sizing, max_running, target, model: StepModel::default() }
    }

    /// Sequences to run at once.
    pub fn batch_size(&self) -> usize {
        self.target
    }

    /// Prompt tokens that the next step may compute beside `decodes` sequences with `context` tokens before them.
    pub fn prefill_budget(&self, decodes: usize, context: usize) -> usize {
        let BatchSizing::Auto { itl, .. } = self.sizing else { return usize::MAX };
        if decodes == 0 {
            return usize::MAX;
        }
        // A tenth is left for what the model does not foresee.
        let micros = itl.as_micros() as f64 * 0.9;
        let fits = self.model.prefill_within(StepLoad { decodes, context, prefill: 0 }, micros);
        fits.map_or(4 * Self::MIN_CHUNK, |n| (n.max(0.0) as usize).max(Self::MIN_CHUNK))
    }

    /// Learns from a step, and moves the batch size: one up while requests wait and another sequence would keep the
    /// goal, a quarter down when the sequences running break it.
    pub fn after_step(&mut self, load: StepLoad, micros: u64, waiting: usize, oldest_wait: u64) {
        self.model.observe(load, micros);
        let BatchSizing::Auto { ttft, itl } = self.sizing else { return };
        let goal = itl.as_micros() as f64;
        let each = load.context / load.decodes.max(1);
        let with = |decodes| self.model.predict(StepLoad { decodes, context: each * decodes, prefill: 0 });
        let (Some(now), Some(next)) = (with(load.decodes), with(self.target + 1)) else { return };
        // When requests wait longer than their goal, every sequence may take its full time.
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
        (2000.0 + 500.0 * load.decodes as f64 + 0.3 * load.context as f64 + 100.0 * load.prefill as f64)
            as u64
    }

    fn auto() -> BatchSizing {
        BatchSizing::Auto { ttft: Duration::from_millis(200), itl: Duration::from_millis(10) }
    }

    /// Steps with `waiting` requests in the queue; the batch is always as large as wanted.
    fn trace(pace: &mut Pace, steps: usize, waiting: usize) -> Vec<usize> {
        let mut sizes = Vec::new();
        for i in 0..steps {
            let decodes = pace.batch_size().min(1 + waiting);
            let load = StepLoad { decodes, context: decodes * (100 + i % 50), prefill: i % 3 * 32 };
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
            let load = StepLoad { decodes: i * 7 % 13, context: i * 31 % 4000, prefill: i * 17 % 200 };
            model.observe(load, truth(load));
        }
        let load = StepLoad { decodes: 20, context: 3000, prefill: 100 };
        let (got, want) = (model.predict(load).unwrap(), truth(load) as f64);
        assert!((got / want - 1.0).abs() < 0.02, "{got} {want}");
    }

    #[test]
    fn a_million_equal_steps_do_not_unsettle_the_model() {
        let mut model = StepModel::default();
        let load = StepLoad { decodes: 8, context: 800, prefill: 0 };
        for i in 0..1_000_000 {
            model.observe(load, 6000 + i % 100);
        }
        let got = model.predict(load).unwrap();
        assert!((5900.0..6200.0).contains(&got), "{got}");
    }

    #[test]
    fn f20_the_batch_grows_with_the_queue_up_to_the_goal() {
        let mut pace = Pace::new(auto(), 64);
        assert_eq!(pace.batch_size(), 4);
        let flood = trace(&mut pace, 100, 50);
        // 2.0 + 0.5 n ms and a little context stay under 9 ms up to 13.
        let end = *flood.last().unwrap();
        assert!((12..=13).contains(&end), "{flood:?}");
        assert!(flood.windows(2).all(|w| w[1] <= w[0] + 1));
    }

    #[test]
    fn f20_the_batch_shrinks_when_the_goal_is_broken() {
        let mut pace = Pace::new(auto(), 64);
        trace(&mut pace, 100, 50);
        let before = pace.batch_size();
        for _ in 0..300 {
            let decodes = pace.batch_size();
            let load = StepLoad { decodes, context: decodes * 100, prefill: 0 };
            pace.after_step(load, 2 * truth(load), 50, 0);
        }
        assert!(pace.batch_size() < before * 3 / 4, "{} of {before}", pace.batch_size());
        assert!(pace.batch_size() >= 1);
    }

    #[test]
    fn f20_a_trickle_leaves_the_batch_alone() {
        let mut pace = Pace::new(auto(), 64);
        assert!(trace(&mut pace, 100, 0).iter().all(|&size| size == 4));
    }

    #[test]
    fn f20_prompts_get_what_decoding_leaves_of_the_goal() {
        let mut pace = Pace::new(auto(), 64);
        trace(&mut pace, 100, 50);
        assert_eq!(pace.prefill_budget(0, 0), usize::MAX);
        // 9 ms - 2 - 8 * 0.5 - a little context, at 0.1 ms a token.
        let budget = pace.prefill_budget(8, 800);
        assert!((22..=30).contains(&budget), "{budget}");
        assert_eq!(pace.prefill_budget(60, 6000), Pace::MIN_CHUNK);
    }

    #[test]
    fn f20_fixed_sizing_is_fixed() {
        let mut pace = Pace::new(BatchSizing::Fixed(7), 64);
        assert!(trace(&mut pace, 50, 100).iter().all(|&size| size == 7));
        assert_eq!(pace.prefill_budget(7, 700), usize::MAX);
    }
}
