use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bitnet_kernels::{Ask, DeviceStatus};
use bitnet_model::{Batch, ForwardError, Logits};

use crate::pace::StepLoad;
use crate::scheduler::{Drawn, Plan, PlannedRun, RunOutcome, Scheduler, StepOutcome};
use crate::{Draw, Model, RequestError, Sampler, SeqId, Sequence, TokenSet, ask};

/// Tokens before those of a calibrating step: within the first block.
const CALIBRATED: usize = 32;
/// How long calibration may take, a step more or less.
const PATIENCE: Duration = Duration::from_secs(1);

/// Times that a step did not go as planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepFaults {
    /// Forward passes that failed.
    pub failed_forwards: u64,
    /// Forward passes tried again after that, whole or halved.
    pub retries: u64,
    /// Sequences that failed because the forward pass did, with them alone too.
    pub forward: u64,
    /// Sequences whose logits gave no token.
    pub sampling: u64,
    /// Sequences whose constraint failed.
    pub constraint: u64,
    /// Sequences on which something panicked.
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

    /// Sequences that failed.
    pub fn failed_sequences(&self) -> u64 {
        self.forward + self.sampling + self.constraint + self.panics
    }
}

/// What the parts of a step took, tries that failed included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTimes {
    /// Writing it down for the model.
    pub pack: Duration,
    /// The forward pass.
    pub forward: Duration,
    /// Drawing tokens.
    pub sample: Duration,
}

/// Where tokens were drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Draws {
    /// On the device, where the logits were made.
    pub device: u64,
    /// On the host, from logits that were read back if there is a device.
    pub host: u64,
}

/// Carries out plans: the model, the sampler, and the memory that steps use again and again.
pub struct Stepper<'m> {
    model: Box<dyn Model + 'm>,
    batch: Batch,
    logits: Logits,
    /// How each row of logits is drawn from on a device, and what came of it.
    asks: Vec<Option<Ask>>,
    drawn: Vec<Option<bitnet_kernels::Drawn>>,
    draws: Draws,
    sampler: Sampler,
    banned: Vec<u32>,
    allowed: TokenSet,
    faults: StepFaults,
    /// Why no further step can run.
    lost: Option<ForwardError>,
    times: StepTimes,
    /// Logits of sequences that asked for nothing else, in the last step.
    pub wanted_logits: Vec<(SeqId, Vec<f32>)>,
}

impl<'m> Stepper<'m> {
    /// Takes the memory for the largest step that the model bears.
    pub fn new(model: Box<dyn Model + 'm>) -> Self {
        let (limits, vocab) = (model.limits(), model.spec().vocab);
        let most_blocks = limits.max_logit_rows * model.spec().context.div_ceil(Batch::BLOCK_TOKENS);
        Stepper {
            batch: Batch::with_capacity(limits.max_tokens, limits.max_logit_rows, most_blocks.min(1 << 20)),
            logits: Logits::with_capacity(limits.max_logit_rows, vocab),
            asks: Vec::with_capacity(limits.max_logit_rows),
            drawn: Vec::with_capacity(limits.max_logit_rows),
            draws: Draws::default(),
            sampler: Sampler::new(vocab),
            banned: Vec::with_capacity(64),
            allowed: TokenSet::new(vocab),
            faults: StepFaults::default(),
            lost: None,
            times: StepTimes::default(),
            wanted_logits: Vec::new(),
            model,
        }
    }

    /// The model.
    pub fn model(&self) -> &(dyn Model + 'm) {
        self.model.as_ref()
    }

    /// What has gone wrong so far.
    pub fn faults(&self) -> StepFaults {
        self.faults
    }

    /// Where tokens have been drawn so far.
    pub fn draws(&self) -> Draws {
        self.draws
    }

    /// What the device says of itself; nothing, if that is the host.
    pub fn device(&self) -> Option<DeviceStatus> {
        self.model.device()
    }

    /// Why no further step can run: the device has failed with all it held.
    pub fn lost(&self) -> Option<&ForwardError> {
        self.lost.as_ref()
    }

    /// What the parts of the last step took.
    pub fn times(&self) -> StepTimes {
        self.times
    }

    /// Times steps of several sizes, of up to `rows` rows of logits, on an idle model, with whatever the cache holds:
    /// what they compute is not kept. A slow model is shown fewer steps.
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
        // The first step finds cold caches, and is not counted.
        let shown = loads.first().into_iter().chain(loads.iter().cycle().take(2 * loads.len()));
        for (step, &load) in shown.enumerate() {
            if start.elapsed() > PATIENCE {
                return;
            }
            self.batch.clear();
            // Rows of one sequence take the time of as many sequences, and need its block only.
            match load.decodes {
                0 => self.batch.push(&[0; 48][..load.prefill], 0, &[0], load.prefill - 1..load.prefill),
                rows => self.batch.push(&[0; 16][..rows], CALIBRATED, &[0], 0..rows),
            }
            // As most requests look at their logits; what the others add is learnt when they come.
            self.batch.only_top(1);
            let begun = Instant::now();
            let forward = || self.model.forward(&self.batch, &mut self.logits);
            // A model that fails here fails its requests by name later.
            let Ok(Ok(())) = catch_unwind(AssertUnwindSafe(forward)) else { return };
            if step > 0 {
                observe(load, begun.elapsed().as_micros() as u64);
            }
        }
    }

    /// Computes a plan and draws its tokens. What fails is tried again, then halved until the sequence at fault is
    /// alone; it fails, and no other. With a lost device all fail.
    pub fn run(&mut self, scheduler: &Scheduler, plan: &Plan, outcome: &mut StepOutcome) {
        outcome.runs.clear();
        outcome.drawn.clear();
        self.wanted_logits.clear();
        self.times = StepTimes::default();
        let mut lost = Vec::new();
        for &(from, to) in &plan.copies {
            if let Err(error) = self.model.copy_block(from, to) {
                lost.push((to, error));
            }
        }
        self.attempt(scheduler, &plan.runs, true, outcome);
        for (block, error) in lost {
            let reads = |run: &PlannedRun| scheduler.sequence(run).table.contains(&block);
            let at = plan.runs.iter().position(reads).expect("a copy is made for a run");
            outcome.runs[at] = self.failed(error.into());
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

    fn forward(&mut self, scheduler: &Scheduler, runs: &[PlannedRun]) -> Result<(), RequestError> {
        let vocab = self.model.spec().vocab;
        let begun = Instant::now();
        self.batch.clear();
        self.asks.clear();
        for run in runs {
            let s = scheduler.sequence(run);
            let end = run.start + run.len;
            self.asks.extend((0..run.rows).map(|row| ask::of(s, end - run.drafts + row, vocab)));
            let table = &s.table[..end.div_ceil(Batch::BLOCK_TOKENS)];
            self.batch.push(&s.tokens[run.start..end], run.start, table, run.len - run.rows..run.len);
            if s.draws() && s.request.constraint.is_none() {
                let config = &s.request.config;
                self.batch.only_top(config.looks_at(scheduler.eos().len() + config.stop_tokens.len()));
            }
        }
        self.drawn.clear();
        self.drawn.resize(self.asks.len(), None);
        let packed = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.model.forward_drawing(&self.batch, &self.asks, &mut self.logits, &mut self.drawn)
        }));
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
                    // Its scratch memory may be half written.
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

    /// Draws the token after a run's last one; where that is what was drafted, the next one too, and so on.
    fn draw_run(
        &mut self,
        scheduler: &Scheduler,
        run: &PlannedRun,
        row: usize,
        drawn: &mut Vec<Drawn>,
    ) -> Result<(), RequestError> {
        let s = scheduler.sequence(run);
        if run.rows > 0 && !s.draws() {
            self.wanted_logits.push((s.id, self.logits.row(row).to_vec()));
            return Ok(());
        }
        for i in 0..run.rows {
            let tokens = &s.tokens[..run.start + run.len - run.drafts + i];
            let next = match self.drawn[row + i] {
                Some(token) => {
                    self.draws.device += 1;
                    Drawn { token: ask::token(token)?, logprobs: None }
                }
                None => {
                    self.draws.host += 1;
                    self.draw_on_host(scheduler, s, tokens, row + i)?
                }
            };
            let token = next.token;
            drawn.push(next);
            if s.tokens.get(tokens.len()) != Some(&token) {
                break;
            }
        }
        Ok(())
    }

    /// Draws the token after `tokens` of a sequence from a row of logits.
    fn draw_on_host(
        &mut self,
        scheduler: &Scheduler,
        s: &Sequence,
        tokens: &[u32],
        row: usize,
    ) -> Result<Drawn, RequestError> {
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
        let logits = self.logits.row(row);
        let token = self.sampler.draw(logits, &at)?;
        let logprobs = match config.logprobs {
            Some(top) => Some(self.sampler.logprobs(logits, token, top)?),
            None => None,
        };
        Ok(Drawn { token, logprobs })
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}
