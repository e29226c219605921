//! The loop that computes tokens: plan, draft, compute, commit, deliver.
//! The engine's thread, `generate` and the benchmarks run it, each with its own [`Reader`].

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use bitnet_model::ForwardError;

use super::config::{EngineConfig, StartError};
use super::drafter::Drafter;
use super::stepper::{StepTimes, Stepper};
use crate::schedule::{Plan, Scheduler, StepOutcome, WindowCache};
use crate::tier::{Disk, HostMemory, Shelf, Tier};

/// How long keeping the cache may take at the end.
const KEEPING: Duration = Duration::from_secs(10);
/// Bytes of the cache that are used once before parts are read into them, if a folder holds as many.
const PREPARED: u64 = 2 << 30;

/// A scheduler and the model that computes its plans. A steady step allocates no memory.
#[derive(Debug)]
pub struct StepLoop<'m> {
    /// Decides what each step computes.
    pub scheduler: Scheduler,
    /// Computes it.
    pub stepper: Stepper<'m>,
    /// Keeps parts of the cache elsewhere, if there is such a tier.
    pub tier: Option<Tier>,
    plan: Plan,
    outcome: StepOutcome,
    /// Number of steps so far.
    steps: u64,
    /// [`Stepper::unrecorded`] after the last step.
    unrecorded: u64,
    /// Tokens drawn in the last step.
    drawn: usize,
    /// Microseconds that the last step was predicted to take.
    predicted: Option<f64>,
    /// Times of the last step's parts.
    times: StepTimes,
    start: Instant,
    /// End of the last part.
    lap: Instant,
}

/// Receives what the steps of a [`StepLoop`] produce.
pub trait Reader {
    /// A step is about to be computed.
    fn begin(&mut self, step: u64, plan: &Plan) {
        let _ = (step, plan);
    }

    /// A step has been committed; its events follow.
    fn committed(&mut self, steps: &StepLoop<'_>) {
        let _ = steps;
    }

    /// Takes all events of the scheduler, and the rows that the stepper keeps for them.
    fn deliver(&mut self, scheduler: &mut Scheduler, stepper: &mut Stepper<'_>);
}

impl<'m> StepLoop<'m> {
    /// A loop that has computed nothing.
    pub fn new(scheduler: Scheduler, stepper: Stepper<'m>) -> Self {
        StepLoop {
            scheduler,
            stepper,
            tier: None,
            plan: Plan::default(),
            outcome: StepOutcome::default(),
            steps: 0,
            unrecorded: 0,
            drawn: 0,
            predicted: None,
            times: StepTimes::default(),
            start: Instant::now(),
            lap: Instant::now(),
        }
    }

    /// The same loop, with a drafter.
    #[must_use]
    pub fn drafting(self, drafter: Option<Box<dyn Drafter + 'm>>) -> Self {
        let Some(drafter) = drafter else { return self };
        let scheduler = self.scheduler.with_drafter();
        let stepper = self.stepper.with_drafter(drafter);
        StepLoop { scheduler, stepper, ..self }
    }

    /// Keeps parts of the cache in host memory and in a folder, as configured, and calls `wake` whenever these have
    /// answered.
    pub(super) fn keep_cache(
        &mut self,
        config: &EngineConfig,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<(), StartError> {
        let EngineConfig { folder, host_cache, .. } = config;
        let model = self.stepper.model();
        if *host_cache > 0 && model.device().is_none() {
            return Err(StartError::NoGpu);
        }
        if *host_cache == 0 && folder.is_none() {
            return Ok(());
        }
        let bytes = model.cache_bytes().ok_or(StartError::CacheStays)?;
        let bytes = WindowCache::of(model).map_or(bytes, |window| window.parts(bytes));
        let mut shelf: Option<Box<dyn Shelf>> = None;
        if let Some(folder) = folder {
            shelf = Some(Box::new(Disk::open(folder, bytes, model.device().is_none(), Arc::clone(&wake))?));
        }
        if *host_cache > 0 {
            shelf = Some(Box::new(HostMemory::new(*host_cache, shelf, wake)));
        }
        // A GPU has its memory before it is used.
        let prepared = if model.device().is_none() { PREPARED } else { 0 };
        let cores = available_parallelism().map_or(1, usize::from);
        self.tier = shelf.map(|shelf| Tier::new(shelf, bytes).on_cores(cores).preparing(prepared));
        // Without a folder, no other process reads what this one keeps.
        self.scheduler.keep_outside(folder.as_ref().map_or([0; 32], |folder| folder.identity));
        Ok(())
    }

    /// The same loop, with logs of drafts beside recurrent states. Without this, a model with such states gets no drafts
    /// that may be rejected.
    ///
    /// # Errors
    /// If there is not enough memory for them.
    pub fn with_logs(mut self) -> Result<Self, ForwardError> {
        let room = self.stepper.reserve_log(self.scheduler.config().max_draft)?;
        Ok(StepLoop { scheduler: self.scheduler.with_logs_of(room), ..self })
    }

    /// Runs a step; returns false if there is nothing to compute.
    pub fn step(&mut self, reader: &mut impl Reader) -> bool {
        if !self.plan(reader) {
            return false;
        }
        self.draft();
        self.compute();
        self.commit(reader);
        self.deliver(reader);
        true
    }

    fn plan(&mut self, reader: &mut impl Reader) -> bool {
        self.lap = Instant::now();
        self.poll_tier();
        if !self.scheduler.plan(self.now(), &mut self.plan) {
            return false;
        }
        if let Some(tier) = &mut self.tier {
            tier.before_step(&mut self.scheduler, &mut self.stepper);
        }
        // Readers learn that a request is admitted before its first step, which may be long.
        reader.deliver(&mut self.scheduler, &mut self.stepper);
        reader.begin(self.steps, &self.plan);
        self.times.plan = self.lap();
        true
    }

    fn draft(&mut self) {
        self.stepper.draft(&mut self.scheduler, &mut self.plan);
        self.times.draft = self.lap();
    }

    fn compute(&mut self) {
        self.stepper.run(&self.scheduler, &self.plan, &mut self.outcome);
        let StepTimes { plan, draft, .. } = self.times;
        let compute = self.lap();
        self.times = StepTimes { plan, draft, compute, ..self.stepper.times() };
        self.outcome.micros = (draft + compute).as_micros() as u64;
        let unrecorded = self.stepper.unrecorded();
        self.outcome.unrecorded = std::mem::replace(&mut self.unrecorded, unrecorded) < unrecorded;
        self.drawn = self.outcome.drawn.len();
        self.tier.iter_mut().for_each(|tier| tier.after_step(self.outcome.micros));
    }

    /// Lets the tier do what it can between two steps.
    fn poll_tier(&mut self) {
        let now = self.now();
        if let Some(tier) = &mut self.tier {
            tier.poll(now, &mut self.scheduler, &mut self.stepper);
        }
    }

    /// Lets the tier keep what is in memory, for a short time after `end` at most.
    pub(super) fn drain_tier(&mut self, end: Instant) {
        if let Some(tier) = &mut self.tier {
            tier.drain(end + KEEPING, &mut self.scheduler, &mut self.stepper);
        }
    }

    fn commit(&mut self, reader: &mut impl Reader) {
        self.predicted = self.scheduler.pace().model.predict(self.plan.load);
        self.scheduler.commit(self.now(), &self.plan, &mut self.outcome);
        self.times.commit = self.lap();
        self.steps += 1;
        reader.committed(self);
    }

    fn deliver(&mut self, reader: &mut impl Reader) {
        self.lap = Instant::now();
        reader.deliver(&mut self.scheduler, &mut self.stepper);
        self.times.deliver = self.lap();
    }

    /// Time since the end of the last part.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.lap, now)
    }

    /// Replaces the scheduler by a new one on an empty cache, because its bookkeeping is not trusted any more.
    pub(super) fn restart(&mut self) {
        self.stepper.wanted_logits.clear();
        self.stepper.pooled.clear();
        self.stepper.scored.clear();
        self.tier.iter_mut().for_each(|tier| tier.restart(&mut self.scheduler));
        self.scheduler = self.scheduler.restarted();
        self.plan = Plan::default();
        self.outcome = StepOutcome::default();
    }

    /// Pretends that this many steps have been computed.
    #[cfg(test)]
    pub(super) fn count_to(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Microseconds since the loop was made, the clock of its scheduler.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// The time at which [`StepLoop::now`] was 0.
    pub(super) fn start(&self) -> Instant {
        self.start
    }

    /// Number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The plan of the last step.
    pub fn last_plan(&self) -> &Plan {
        &self.plan
    }

    /// Number of tokens drawn in the last step.
    pub fn drawn(&self) -> usize {
        self.drawn
    }

    /// Microseconds that the last step was predicted to take; `None` before the first steps.
    pub fn predicted(&self) -> Option<f64> {
        self.predicted
    }

    /// Times of the last step's parts.
    pub fn times(&self) -> StepTimes {
        self.times
    }
}
