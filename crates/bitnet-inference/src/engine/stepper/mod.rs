//! Computes plans: packs the batch, runs the forward pass, and draws the tokens.
//! A failed pass is tried again and halved until the sequence at fault is alone.

mod cache;
mod calibrate;
mod counts;
mod draw;
mod propose;
mod want;

use std::fmt;
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use bitnet_kernels::DeviceStatus;
use bitnet_model::{Batch, CachePlace, ForwardError, Logits, Model};

pub use counts::{Draws, StepFaults, StepTimes};

use super::drafter::Drafter;
use crate::request::{RequestError, TokenLogprobs, TokenSet};
use crate::sample::{Changes, Sampler};
use crate::schedule::{Plan, PlannedRun, RunOutcome, Scheduler, SeqId, StepOutcome, needed};

/// Maximum number of times that a sequence is computed again because a failed pass has left its state undefined. After
/// the first failure the sequence is computed alone, so it is at fault if that fails too.
const MAX_LOSSES: u32 = 2;

/// Executes plans: owns the model, the sampler, and the memory that all steps reuse.
pub struct Stepper<'m> {
    /// Owned or borrowed.
    model: Box<dyn DerefMut<Target = dyn Model + 'm> + Send + 'm>,
    drafter: Option<Box<dyn Drafter + 'm>>,
    batch: Batch,
    logits: Logits,
    draws: Draws,
    sampler: Sampler,
    banned: Vec<u32>,
    changes: Changes,
    allowed: TokenSet,
    /// The bytes of a token.
    spelled: Vec<u8>,
    /// A generated text, with tokens that its constraint forces.
    generated: Vec<u32>,
    faults: StepFaults,
    /// The error of a lost device, after which no step can run.
    lost: Option<ForwardError>,
    times: StepTimes,
    /// Rows of the last step for sequences that requested only logits or a hidden state.
    pub wanted_logits: Vec<(SeqId, Vec<f32>)>,
    /// Hidden states of prompt tokens computed in the last step whose mean is requested: the request, the position and the
    /// values.
    pub pooled: Vec<(u64, usize, Vec<f32>)>,
    /// Log-probabilities of prompt tokens computed in the last step: the request, the position of the preceding token,
    /// and the values.
    pub scored: Vec<(u64, usize, TokenLogprobs)>,
}

impl<'m> Stepper<'m> {
    /// Allocates memory for the model's largest step.
    pub fn new(model: Box<dyn Model + 'm>) -> Self {
        Stepper::over(model)
    }

    /// As [`Stepper::new`], with a borrowed model.
    pub fn borrowing(model: &'m mut (dyn Model + 'm)) -> Self {
        Stepper::over(model)
    }

    fn over(model: impl DerefMut<Target = dyn Model + 'm> + Send + 'm) -> Self {
        let limits = model.limits();
        let vocab = model.spec().vocab;
        let most_blocks = limits.max_logit_rows * model.spec().context.div_ceil(Batch::BLOCK_TOKENS);
        Stepper {
            drafter: None,
            batch: Batch::with_capacity(limits.max_tokens, limits.max_logit_rows, most_blocks.min(1 << 20)),
            logits: Logits::with_capacity(limits.max_logit_rows, vocab),
            draws: Draws::default(),
            sampler: Sampler::new(vocab),
            banned: Vec::with_capacity(64),
            changes: Changes::new(vocab),
            allowed: TokenSet::new(vocab),
            spelled: Vec::new(),
            generated: Vec::new(),
            faults: StepFaults::default(),
            lost: None,
            times: StepTimes::default(),
            wanted_logits: Vec::new(),
            pooled: Vec::new(),
            scored: Vec::new(),
            model: Box::new(model),
        }
    }

    /// The model.
    pub fn model(&self) -> &(dyn Model + 'm) {
        &**self.model
    }

    /// Makes room for logs of up to `drafts` drafts, and returns how many fit ([`Model::reserve_log`]).
    pub fn reserve_log(&mut self, drafts: usize) -> Result<usize, ForwardError> {
        self.model.reserve_log(drafts)
    }

    /// Counts of failures so far.
    pub fn faults(&self) -> StepFaults {
        self.faults
    }

    /// Counts of drawn tokens so far.
    pub fn draws(&self) -> Draws {
        self.draws
    }

    /// Device status, or `None` on the CPU.
    pub fn device(&self) -> Option<DeviceStatus> {
        self.model.device()
    }

    /// How often a device was given launches without replaying a recording that was there before.
    pub fn unrecorded(&self) -> u64 {
        self.device().map_or(0, |device| device.counts.first + device.counts.recordings)
    }

    /// The error of a device that failed and lost its memory, so that no further step can run.
    pub fn lost(&self) -> Option<&ForwardError> {
        self.lost.as_ref()
    }

    /// Times of the parts of the last step.
    pub fn times(&self) -> StepTimes {
        self.times
    }

    /// Computes a plan and draws its tokens. A failed pass is tried again, then halved until the sequence at fault is
    /// alone; only that sequence fails. If the device is lost, all fail.
    ///
    /// A pass updates recurrent states in place, so after a failure midway, runs that continue from a state cannot be
    /// tried again. Their sequences are [`RunOutcome::RolledBack`], and later steps compute them again.
    pub fn run(&mut self, scheduler: &Scheduler, plan: &Plan, outcome: &mut StepOutcome) {
        outcome.runs.clear();
        outcome.drawn.clear();
        outcome.forced.clear();
        outcome.failed_copies.clear();
        self.wanted_logits.clear();
        self.pooled.clear();
        self.scored.clear();
        self.times = StepTimes::default();
        let mut failed_blocks = Vec::new();
        for &(from, to) in &plan.copies {
            if let Err(error) = self.model.copy_block(from, to) {
                failed_blocks.push((CachePlace::Block(to), error));
            }
            self.copy_drafted_block(from, to);
        }
        for &(from, to) in &plan.window_copies {
            if let Err(error) = self.model.copy_window(from, to) {
                failed_blocks.push((CachePlace::Window(to), error));
            }
        }
        let failed_states = self.copy_states(plan);
        self.passes(scheduler, &plan.runs, outcome);
        for (place, error) in failed_blocks {
            let reads = |run: &PlannedRun| scheduler.sequence(run).reads(place);
            let at = plan.runs.iter().position(reads).expect("a copy is made for a run");
            outcome.runs[at] = self.failed(error.into());
        }
        for (state, error) in failed_states {
            let reads = |run: &PlannedRun| run.start > 0 && scheduler.sequence(run).state == Some(state);
            match plan.runs.iter().position(reads) {
                Some(at) => {
                    let id = scheduler.sequence(&plan.runs[at]).id;
                    self.wanted_logits.retain(|(of, _)| *of != id);
                    self.pooled.retain(|(request, ..)| *request != id.request);
                    self.scored.retain(|(request, ..)| (*request, 0) != (id.request, id.choice));
                    outcome.runs[at] = self.rolled_back(scheduler, &plan.runs[at], &error.into());
                }
                None => outcome.failed_copies.push(state),
            }
        }
    }

    /// Copies states in the order of the plan; returns the slots whose content is wrong because a copy failed, with the
    /// error.
    fn copy_states(&mut self, plan: &Plan) -> Vec<(u32, ForwardError)> {
        let mut failed: Vec<(u32, ForwardError)> = Vec::new();
        for &(from, to) in &plan.states {
            let source = failed.iter().find(|(slot, _)| *slot == from).map(|(_, error)| error.clone());
            failed.retain(|(slot, _)| *slot != to);
            let copied = source.map_or_else(|| self.model.copy_state(from, to), Err);
            failed.extend(copied.err().map(|error| (to, error)));
        }
        failed
    }

    /// Computes each suspect in a separate pass, and the runs between suspects together.
    fn passes(&mut self, scheduler: &Scheduler, mut runs: &[PlannedRun], outcome: &mut StepOutcome) {
        while !runs.is_empty() {
            let alone = runs.iter().position(|run| run.alone);
            let (now, later) = runs.split_at(alone.unwrap_or(runs.len()).max(1));
            self.attempt(scheduler, now, true, outcome);
            runs = later;
        }
    }

    fn attempt(
        &mut self,
        scheduler: &Scheduler,
        runs: &[PlannedRun],
        again: bool,
        outcome: &mut StepOutcome,
    ) {
        match self.forward(scheduler, runs) {
            Ok(()) => {
                self.read_drafted(scheduler, runs);
                self.draw(scheduler, runs, outcome);
            }
            Err(error) if self.lost.is_some() => {
                let failed = runs.iter().map(|_| self.failed(error.clone()));
                outcome.runs.extend(failed);
            }
            Err(error) if self.may_change_states(&error) && runs.iter().any(|run| run.start > 0) => {
                self.retry_beginnings(scheduler, runs, &error, outcome);
            }
            Err(_) if again => {
                self.faults.retries += 1;
                self.attempt(scheduler, runs, false, outcome);
            }
            Err(error) if runs.len() == 1 => {
                let failed = self.failed(error);
                outcome.runs.push(failed);
            }
            Err(_) => {
                self.faults.retries += 2;
                let (left, right) = runs.split_at(runs.len() / 2);
                self.attempt(scheduler, left, left.len() == 1, outcome);
                self.attempt(scheduler, right, right.len() == 1, outcome);
            }
        }
    }

    /// Whether a pass that failed with `error` may have changed the states of its runs.
    fn may_change_states(&self, error: &RequestError) -> bool {
        let refused = matches!(error, RequestError::Forward(error) if error.is_refusal());
        self.model.limits().state_slots > 0 && !refused
    }

    /// Handles a failed pass that may have changed the states of its runs. Runs that begin a text need no state, so
    /// they are tried again, each alone; the others are rolled back.
    fn retry_beginnings(
        &mut self,
        scheduler: &Scheduler,
        runs: &[PlannedRun],
        error: &RequestError,
        outcome: &mut StepOutcome,
    ) {
        for run in runs {
            if run.start == 0 {
                self.faults.retries += 1;
                self.attempt(scheduler, std::slice::from_ref(run), true, outcome);
            } else {
                let outcome_of_run = self.rolled_back(scheduler, run, error);
                outcome.runs.push(outcome_of_run);
            }
        }
    }

    /// The outcome of a run whose state is lost: its sequence is computed again, unless that has been tried before.
    fn rolled_back(&mut self, scheduler: &Scheduler, run: &PlannedRun, error: &RequestError) -> RunOutcome {
        if scheduler.sequence(run).losses >= MAX_LOSSES {
            return self.failed(error.clone());
        }
        self.faults.rolled_back += 1;
        RunOutcome::RolledBack
    }

    fn forward(&mut self, scheduler: &Scheduler, runs: &[PlannedRun]) -> Result<(), RequestError> {
        let vocab = self.model.spec().vocab;
        let begun = Instant::now();
        self.batch.clear();
        for run in runs {
            let s = scheduler.sequence(run);
            let end = run.start + run.len;
            let table = &s.table[..end.div_ceil(Batch::BLOCK_TOKENS)];
            self.batch.push(&s.tokens[run.start..end], run.start, table, run.len - run.rows..run.len);
            if !s.windows.is_empty() {
                self.batch.set_windows(&s.windows[..table.len()]);
            }
            if let Some(state) = s.state {
                self.batch.set_state(state);
                self.batch.set_log(scheduler.log(run));
            }
            self.batch.want(|row| needed(s, end + 1 + row - run.rows, vocab, scheduler.eos()));
            let mut reached = true;
            for row in 0..run.rows {
                reached = self.want_changed(scheduler, s, end + 1 + row - run.rows, row, reached);
            }
        }
        let packed = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| self.model.forward(&self.batch, &mut self.logits)));
        self.times.pack += packed - begun;
        self.times.forward += packed.elapsed();
        let result = match result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => {
                self.lost = error.is_lost().then(|| error.clone());
                RequestError::Forward(error)
            }
            Err(panic) => RequestError::Panic { message: panic_message(panic.as_ref()) },
        };
        self.faults.failed_forwards += 1;
        Err(result)
    }

    fn failed(&mut self, error: RequestError) -> RunOutcome {
        self.faults.count(&error);
        RunOutcome::Failed(error)
    }
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}

impl fmt::Debug for Stepper<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stepper { draws, faults, lost, .. } = self;
        let mut shown = f.debug_struct("Stepper");
        shown.field("draws", draws).field("faults", faults).field("lost", lost).finish_non_exhaustive()
    }
}
