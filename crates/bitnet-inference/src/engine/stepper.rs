//! Computes plans: packs the batch, runs the forward pass, and draws the tokens.
//! A failed pass is tried again and halved until the sequence at fault is alone.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bitnet_kernels::{DeviceStatus, Drawn, Wanted};
use bitnet_model::{Batch, ForwardError, Logits, Model};

use crate::request::{Output, RequestError, SampleError, TokenLogprobs, TokenSet};
use crate::sample::{Draw, Sampler};
use crate::schedule::{
    Plan, PlannedRun, RunOutcome, SampledToken, Scheduler, SeqId, Sequence, StepLoad, StepOutcome, needed,
    spell,
};
use crate::thought::ThoughtReader;

/// Number of tokens before those of a calibration step; all in the first block.
const CALIBRATED: usize = 32;
/// Maximum time for calibration; its last step may exceed it.
const CALIBRATION_TIME: Duration = Duration::from_secs(1);
/// Maximum number of times that a sequence is computed again because a failed pass has left its state undefined. After
/// the first failure the sequence is computed alone, so it is at fault if that fails too.
const MAX_LOSSES: u32 = 2;

/// Counts of failures in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepFaults {
    /// Forward passes that failed.
    pub failed_forwards: u64,
    /// Forward passes tried again after a failure, whole or halved.
    pub retries: u64,
    /// Sequences computed again because a failed pass left their recurrent states undefined.
    pub rolled_back: u64,
    /// Sequences that failed because the forward pass failed even with them alone.
    pub forward: u64,
    /// Sequences that failed because no token could be drawn.
    pub sampling: u64,
    /// Sequences whose constraint failed.
    pub constraint: u64,
    /// Sequences that failed because something panicked.
    pub panics: u64,
}

impl StepFaults {
    fn count(&mut self, error: &RequestError) {
        *match error {
            RequestError::Sample(_) => &mut self.sampling,
            RequestError::Constraint { .. } => &mut self.constraint,
            RequestError::Panic { .. } => &mut self.panics,
            _ => &mut self.forward,
        } += 1;
    }

    /// Total number of failed sequences.
    pub fn failed_sequences(&self) -> u64 {
        self.forward + self.sampling + self.constraint + self.panics
    }
}

/// Times of the parts of a step, including failed attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTimes {
    /// Packing the batch for the model.
    pub pack: Duration,
    /// The forward pass.
    pub forward: Duration,
    /// Drawing tokens.
    pub sample: Duration,
}

/// Where tokens were drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Draws {
    /// Tokens drawn on the device that computed the logits.
    pub device: u64,
    /// Tokens drawn on the host, from logits that a device, if any, copied back.
    pub host: u64,
}

/// Executes plans: owns the model, the sampler, and the memory that all steps reuse.
pub struct Stepper<'m> {
    model: Box<dyn Model + 'm>,
    batch: Batch,
    logits: Logits,
    draws: Draws,
    sampler: Sampler,
    banned: Vec<u32>,
    allowed: TokenSet,
    /// The bytes of a token.
    spelled: Vec<u8>,
    faults: StepFaults,
    /// The error of a lost device, after which no step can run.
    lost: Option<ForwardError>,
    times: StepTimes,
    /// Rows of the last step for sequences that requested only logits or a hidden state.
    pub wanted_logits: Vec<(SeqId, Vec<f32>)>,
    /// Log-probabilities of prompt tokens computed in the last step: the request, the position of the preceding token,
    /// and the values.
    pub scored: Vec<(u64, usize, TokenLogprobs)>,
}

impl<'m> Stepper<'m> {
    /// Allocates memory for the model's largest step.
    pub fn new(model: Box<dyn Model + 'm>) -> Self {
        let (limits, vocab) = (model.limits(), model.spec().vocab);
        let most_blocks = limits.max_logit_rows * model.spec().context.div_ceil(Batch::BLOCK_TOKENS);
        Stepper {
            batch: Batch::with_capacity(limits.max_tokens, limits.max_logit_rows, most_blocks.min(1 << 20)),
            logits: Logits::with_capacity(limits.max_logit_rows, vocab),
            draws: Draws::default(),
            sampler: Sampler::new(vocab),
            banned: Vec::with_capacity(64),
            allowed: TokenSet::new(vocab),
            spelled: Vec::new(),
            faults: StepFaults::default(),
            lost: None,
            times: StepTimes::default(),
            wanted_logits: Vec::new(),
            scored: Vec::new(),
            model,
        }
    }

    /// The model.
    pub fn model(&self) -> &(dyn Model + 'm) {
        self.model.as_ref()
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

    /// The error of a device that failed and lost its memory, so that no further step can run.
    pub fn lost(&self) -> Option<&ForwardError> {
        self.lost.as_ref()
    }

    /// Times of the parts of the last step.
    pub fn times(&self) -> StepTimes {
        self.times
    }

    /// Times steps of several sizes, with up to `rows` rows of logits, on an idle model. The cache's contents do not
    /// matter, and results are dropped. A slow model runs fewer steps.
    pub fn calibrate(&mut self, rows: usize, mut observe: impl FnMut(StepLoad, u64)) {
        let limits = self.model.limits();
        let (rows, room) = (rows.min(limits.max_logit_rows), self.model.spec().context);
        let decodes = [1, 2, 4, 8, 16].into_iter().filter(|&n| n <= rows && CALIBRATED + n <= room);
        let (nothing, own) = (StepLoad::default(), |n: usize| n * (n - 1) / 2);
        let loads = (decodes.map(|decodes| StepLoad { decodes, context: decodes * CALIBRATED, ..nothing }))
            .chain([16, 48].map(|prefill| StepLoad { prefill, attended: own(prefill), ..nothing }))
            .filter(|load| load.prefill <= room && load.decodes + load.prefill <= limits.max_tokens);
        let loads: Vec<StepLoad> = loads.collect();
        let start = Instant::now();
        // The first step runs with cold caches and is not counted.
        let shown = loads.first().into_iter().chain(loads.iter().cycle().take(2 * loads.len()));
        for (step, &load) in shown.enumerate() {
            if start.elapsed() > CALIBRATION_TIME {
                return;
            }
            self.batch.clear();
            // Rows of one sequence take as long as rows of as many sequences, but need only one block.
            match load.decodes {
                0 => self.batch.push(&[0; 48][..load.prefill], 0, &[0], load.prefill - 1..load.prefill),
                rows => self.batch.push(&[0; 16][..rows], CALIBRATED, &[0], 0..rows),
            }
            // Look only at the highest logits. The cost of all logits, and of drawing on a device, is learned when
            // requests arrive.
            self.batch.want(|_| Wanted::Top(1));
            let begun = Instant::now();
            let forward = || self.model.forward(&self.batch, &mut self.logits);
            // A model that fails here will also fail on requests, each of which then gets its own error.
            let Ok(Ok(())) = catch_unwind(AssertUnwindSafe(forward)) else { return };
            if step > 0 {
                observe(load, begun.elapsed().as_micros() as u64);
            }
        }
    }

    /// Computes a plan and draws its tokens. A failed pass is tried again, then halved until the sequence at fault is
    /// alone; only that sequence fails. If the device is lost, all fail.
    ///
    /// A pass updates recurrent states in place, so after a failure midway, runs that continue from a state cannot be
    /// tried again. Their sequences are [`RunOutcome::RolledBack`], and later steps compute them again.
    pub fn run(&mut self, scheduler: &Scheduler, plan: &Plan, outcome: &mut StepOutcome) {
        outcome.runs.clear();
        outcome.drawn.clear();
        outcome.failed_copies.clear();
        self.wanted_logits.clear();
        self.scored.clear();
        self.times = StepTimes::default();
        let mut failed_blocks = Vec::new();
        for &(from, to) in &plan.copies {
            if let Err(error) = self.model.copy_block(from, to) {
                failed_blocks.push((to, error));
            }
        }
        let failed_states = self.copy_states(plan);
        self.passes(scheduler, &plan.runs, outcome);
        for (block, error) in failed_blocks {
            let reads = |run: &PlannedRun| scheduler.sequence(run).table.contains(&block);
            let at = plan.runs.iter().position(reads).expect("a copy is made for a run");
            outcome.runs[at] = self.failed(error.into());
        }
        for (state, error) in failed_states {
            let reads = |run: &PlannedRun| {
                let s = scheduler.sequence(run);
                s.kept == Some(state) || s.state == Some(state) && run.start > 0
            };
            match plan.runs.iter().position(reads) {
                Some(at) => {
                    let id = scheduler.sequence(&plan.runs[at]).id;
                    self.wanted_logits.retain(|(of, _)| *of != id);
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
            Ok(()) => self.draw(scheduler, runs, outcome),
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
            s.state.into_iter().for_each(|state| self.batch.set_state(state));
            self.batch.want(|row| needed(s, end - run.drafts + row, vocab, scheduler.eos()));
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

    fn draw(&mut self, scheduler: &Scheduler, runs: &[PlannedRun], outcome: &mut StepOutcome) {
        let begun = Instant::now();
        let mut row = 0;
        for run in runs {
            let first = outcome.drawn.len();
            let drawn =
                catch_unwind(AssertUnwindSafe(|| self.draw_run(scheduler, run, row, &mut outcome.drawn)));
            outcome.runs.push(match drawn {
                Ok(Ok(())) => RunOutcome::Done(first..outcome.drawn.len()),
                Ok(Err(error)) => self.failed(error),
                Err(panic) => {
                    // The sampler's scratch memory may be inconsistent.
                    self.sampler = Sampler::new(self.model.spec().vocab);
                    self.failed(RequestError::Panic { message: panic_message(panic.as_ref()) })
                }
            });
            row += run.rows;
        }
        self.times.sample += begun.elapsed();
    }

    fn failed(&mut self, error: RequestError) -> RunOutcome {
        self.faults.count(&error);
        RunOutcome::Failed(error)
    }

    /// Draws the token after a run's last one, and the next one as long as the drawn token equals the draft.
    fn draw_run(
        &mut self,
        scheduler: &Scheduler,
        run: &PlannedRun,
        row: usize,
        drawn: &mut Vec<SampledToken>,
    ) -> Result<(), RequestError> {
        let s = scheduler.sequence(run);
        if run.rows > 0 && !s.draws {
            let row = match s.request.output {
                Output::Hidden => self.hidden(row)?,
                _ => self.logits.row(row),
            }
            .to_vec();
            self.wanted_logits.push((s.id, row));
            return Ok(());
        }
        let end = run.start + run.len;
        let first = if s.scores() { self.score(s, run, row)? } else { 0 };
        if s.tokens.len() >= s.end {
            // Only the scores are needed.
            return Ok(());
        }
        // With drafts, the reader of the thought has to follow the drawn tokens.
        let mut ahead = s.thought.clone().filter(|_| run.rows > first + 1);
        for i in first..run.rows {
            let tokens = &s.tokens[..end + 1 + i - run.rows];
            let forced = ahead.as_ref().or(s.thought.as_ref()).and_then(ThoughtReader::forced);
            let next = match (forced, self.logits.drawn(row + i)) {
                (Some(token), _) => self.with_logprobs(s, token, row + i)?,
                (None, Some(token)) => {
                    self.draws.device += 1;
                    SampledToken { token: token_of(token)?, logprobs: None }
                }
                (None, None) => {
                    self.draws.host += 1;
                    self.draw_on_host(scheduler, s, tokens, row + i)?
                }
            };
            let token = next.token;
            drawn.push(next);
            if s.tokens.get(tokens.len()) != Some(&token) {
                break;
            }
            if let Some(thought) = &mut ahead {
                thought.place(token, spell(scheduler.config().text.as_deref(), token, &mut self.spelled));
            }
        }
        Ok(())
    }

    /// The hidden state of a row, whose values are all finite.
    fn hidden(&self, row: usize) -> Result<&[f32], RequestError> {
        let hidden = self.logits.hidden(row).ok_or(ForwardError::NoHiddenState)?;
        match hidden.iter().position(|value| !value.is_finite()) {
            Some(index) => Err(RequestError::NotFinite { index }),
            None => Ok(hidden),
        }
    }

    /// Computes the log-probability of each prompt token that follows one of a run. Returns the first row to draw from.
    fn score(&mut self, s: &Sequence, run: &PlannedRun, row: usize) -> Result<usize, RequestError> {
        let (prompt, top) = (&s.request.prompt, s.request.config.logprobs.unwrap_or(0));
        for (i, position) in (run.start..run.start + run.len).enumerate() {
            if let Some(&next) = prompt.get(position + 1) {
                let logprobs = self.sampler.logprobs(self.logits.row(row + i), next, top)?;
                self.scored.push((s.id.request, position, logprobs));
            }
        }
        // Nothing is drawn within the prompt.
        Ok(run.rows - usize::from(run.start + run.len == s.tokens.len()))
    }

    /// Draws the token after `tokens` of a sequence, from a row of logits on the host.
    fn draw_on_host(
        &mut self,
        scheduler: &Scheduler,
        s: &Sequence,
        tokens: &[u32],
        row: usize,
    ) -> Result<SampledToken, RequestError> {
        let config = &s.request.config;
        self.banned.clear();
        if tokens.len() - s.prompt_len() < config.min_new_tokens {
            let eos = if config.ignore_eos { &[] } else { scheduler.eos() };
            self.banned.extend(eos.iter().chain(&config.stop_tokens));
        }
        let constraint = s.request.constraint.as_ref();
        if let Some(constraint) = constraint {
            self.allowed.clear();
            constraint.allow(s.id.choice, &tokens[s.prompt_len()..], &mut self.allowed)?;
        }
        let at = Draw {
            config,
            tokens,
            prompt_len: s.prompt_len(),
            banned: &self.banned,
            allowed: constraint.map(|_| &self.allowed),
            seed: s.seed,
            choice: s.id.choice,
        };
        let token = self.sampler.draw(self.logits.row(row), &at)?;
        self.with_logprobs(s, token, row)
    }

    /// A token with its log-probabilities in a row of logits, if the request wants them.
    fn with_logprobs(&mut self, s: &Sequence, token: u32, row: usize) -> Result<SampledToken, RequestError> {
        let logprobs = match s.request.config.logprobs {
            Some(top) => Some(self.sampler.logprobs(self.logits.row(row), token, top)?),
            None => None,
        };
        Ok(SampledToken { token, logprobs })
    }
}

/// The token that a device drew.
fn token_of(drawn: Drawn) -> Result<u32, SampleError> {
    match drawn {
        Drawn::Token(token) => Ok(token),
        Drawn::NotANumber(token) => Err(SampleError::NotANumber { token }),
        Drawn::NothingAllowed => Err(SampleError::NothingAllowed),
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
