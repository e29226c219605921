//! The requests at the engine's thread and their readers: delivers tokens and ends, counts and measures.
//! It also knows which requests wait for a batch of single tokens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bitnet_kernels::gpu::Times;

use super::batcher::Gathering;
use super::live::Live;
use super::mailbox::Update;
use super::metrics::{Counter, Measure, Recorder};
use super::shared::Shared;
use super::status::EngineStatus;
use super::step::{Reader, StepLoop};
use super::stepper::Stepper;
use crate::request::{End, FinishReason, RequestError, TokenLogprobs};
use crate::schedule::{Event, Plan, Scheduler, SeqId};

/// All requests that have reached the engine's thread and have not ended.
pub(super) struct Readers {
    pub shared: Arc<Shared>,
    live: HashMap<u64, Live>,
    batches: Vec<Gathering>,
    /// Whether something other than a step has changed the scheduler since its status was published.
    pub changed: bool,
    /// Times between tokens in seconds, to be observed together.
    between: Vec<f64>,
    /// The device's times before the last step.
    times: Times,
    /// When the scheduler's clock was 0.
    start: Instant,
}

impl Readers {
    pub fn new(shared: Arc<Shared>, start: Instant) -> Self {
        Readers {
            start,
            shared,
            live: HashMap::new(),
            batches: Vec::new(),
            changed: true,
            between: Vec::new(),
            times: Times::default(),
        }
    }

    /// Ignores what the device has done so far.
    pub fn skip_times(&mut self, stepper: &Stepper<'_>) {
        self.times = stepper.device().map_or(Times::default(), |device| device.counts.times);
    }

    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Passes a request to the scheduler. One with a batcher starts with its batch.
    pub fn open(&mut self, live: Live, steps: &mut StepLoop<'_>) {
        self.changed = true;
        let id = live.id;
        let live = self.live.entry(id).insert_entry(live).into_mut();
        // A cancel command that came before the request found nothing to cancel.
        let cancelled = live.mailbox.cancelled().is_some();
        self.shared.add(Counter::PromptTokens, live.request.prompt.len() as u64);
        let at = live.at.saturating_duration_since(steps.start()).as_micros() as u64;
        steps.scheduler.submit(at, id, Arc::clone(&live.request), live.seed);
        if let Some(batcher) = &live.batcher {
            if batch_of(&mut self.batches, live).is_none() {
                self.batches.push(Gathering::new(Arc::clone(batcher)));
            }
            let batch = batch_of(&mut self.batches, live).expect("it was added if it was missing");
            batch.open(id, live.at, live.is_text());
            steps.scheduler.hold(id);
        }
        if cancelled {
            steps.scheduler.cancel(id);
        }
    }

    /// Lets a paused request go on, unless its reader has fallen behind again. A text of a batcher goes on with its
    /// next batch.
    pub fn resume(&mut self, id: u64, steps: &mut StepLoop<'_>) {
        self.changed = true;
        let Some(live) = self.live.get(&id).filter(|live| !live.mailbox.is_paused()) else { return };
        match batch_of(&mut self.batches, live) {
            Some(batch) => {
                batch.ask(id, Instant::now());
                steps.scheduler.hold(id);
            }
            None => steps.scheduler.resume(steps.now(), id),
        }
    }

    /// Starts the batches that are full or have waited long enough; with `hurry`, all.
    pub fn start_batches(&mut self, hurry: bool, steps: &mut StepLoop<'_>) {
        let now = steps.now();
        for batch in &mut self.batches {
            batch.start(Instant::now(), hurry, |id| {
                self.changed = true;
                steps.scheduler.resume(now, id);
            });
        }
        self.batches.retain(|batch| !batch.is_over());
    }

    /// The next time at which a batch starts although it is not full.
    pub fn next_batch(&self) -> Option<Instant> {
        self.batches.iter().filter_map(Gathering::deadline).min()
    }

    /// Fails all requests.
    pub fn fail(&mut self, error: &RequestError) {
        self.live.drain().for_each(|(_, mut live)| live.fail(error));
        self.batches.clear();
    }

    /// Publishes the status if something other than a step has changed it.
    pub fn publish_changes(&mut self, steps: &StepLoop<'_>) {
        if std::mem::take(&mut self.changed) {
            self.publish(steps);
        }
    }

    /// Publishes the status.
    pub fn publish(&self, steps: &StepLoop<'_>) {
        *self.shared.status.lock() = EngineStatus::of(steps);
    }

    /// Reports the measurements of a step.
    fn report(&mut self, steps: &StepLoop<'_>) {
        let shared = &self.shared;
        let plan = steps.last_plan();
        let times = steps.times();
        let seconds = times.compute.as_secs_f64();
        shared.add(Counter::Steps, 1);
        shared.add(Counter::PrefillTokens, plan.load.prefill as u64);
        shared.observe(Measure::BatchSize, plan.runs.len() as f64);
        shared.observe(Measure::StepTokens, plan.tokens() as f64);
        shared.observe(Measure::StepPlan, times.plan.as_secs_f64());
        shared.observe(Measure::StepPack, times.pack.as_secs_f64());
        shared.observe(Measure::StepForward, times.forward.as_secs_f64());
        shared.observe(Measure::StepSample, times.sample.as_secs_f64());
        shared.observe(Measure::StepCommit, times.commit.as_secs_f64());
        if let Some(padding) = steps.stepper.model().padding() {
            shared.observe(Measure::Padding, padding);
        }
        if let Some(micros) = steps.predicted().filter(|_| seconds > 0.0) {
            shared.observe(Measure::StepModelError, (micros / 1e6 - seconds).abs() / seconds);
        }
        if plan.load.prefill == 0 {
            shared.add(Counter::DecodeTokens, steps.drawn() as u64);
            shared.observe(Measure::DecodeCompute, seconds);
        }
        if let Some(device) = steps.stepper.device() {
            let (now, before) = (device.counts.times, self.times);
            shared.observe(Measure::KernelLaunch, (now.launch - before.launch).as_secs_f64());
            shared.observe(Measure::MemoryTransfer, (now.transfer - before.transfer).as_secs_f64());
            shared.observe(Measure::DeviceCompute, (now.compute - before.compute).as_secs_f64());
            self.times = now;
        }
    }

    /// Delivers a token. A reader that is too far behind pauses the request.
    fn token(&mut self, id: SeqId, token: u32, logprobs: Option<TokenLogprobs>, scheduler: &mut Scheduler) {
        let Some(live) = self.live.get_mut(&id.request) else { return };
        let now = Instant::now();
        match live.replace_last(id.choice, now) {
            Some(last) => self.between.push((now - last).as_secs_f64()),
            None => self.shared.observe(Measure::FirstToken, (now - live.at).as_secs_f64()),
        }
        if !live.mailbox.push(Update::Token { choice: id.choice, index: 0, token, logprobs }) {
            return;
        }
        self.changed = true;
        match batch_of(&mut self.batches, live) {
            // Its reader has not asked for another token yet.
            Some(batch) => batch.answered(id.request),
            None => self.shared.add(Counter::Pauses, 1),
        }
        scheduler.pause(self.start.elapsed().as_micros() as u64, id.request);
    }

    /// Delivers the end of a choice, and forgets the request with its last one.
    fn ended(&mut self, id: SeqId, end: Result<End, RequestError>) {
        let Some(live) = self.live.get_mut(&id.request) else { return };
        let counter = match &end {
            Ok(end) if end.finish == FinishReason::Cancelled => Counter::Cancelled,
            Ok(_) => Counter::Finished,
            Err(_) => Counter::Failed,
        };
        self.shared.add(counter, 1);
        live.open -= 1;
        live.leave_queue(id.choice);
        let over = live.open == 0;
        if over {
            self.shared.observe(Measure::EndToEnd, live.at.elapsed().as_secs_f64());
            let cancelled = live.mailbox.cancelled();
            if let Some(at) = cancelled.filter(|_| counter == Counter::Cancelled) {
                self.shared.observe(Measure::CancelToFree, at.elapsed().as_secs_f64());
            }
        }
        let logits = live.logits.take();
        live.mailbox.push(Update::Ended { choice: id.choice, end, logits });
        if over {
            let is_text = live.is_text();
            if let Some(batch) = batch_of(&mut self.batches, live) {
                batch.close(id.request, is_text);
            }
            self.live.remove(&id.request);
        }
    }

    /// Delivers all events of the scheduler.
    pub fn deliver_events(&mut self, scheduler: &mut Scheduler, stepper: &mut Stepper<'_>) {
        for (id, logits) in stepper.wanted_logits.drain(..) {
            if let Some(live) = self.live.get_mut(&id.request) {
                live.logits = Some(logits);
            }
        }
        for (request, position, state) in stepper.pooled.drain(..) {
            if let Some(live) = self.live.get_mut(&request) {
                live.pool(position, &state);
            }
        }
        for (request, position, logprobs) in stepper.scored.drain(..) {
            if let Some(live) = self.live.get(&request) {
                live.mailbox.score(position, logprobs);
            }
        }
        let mut tokens = 0;
        while let Some(event) = scheduler.next_event() {
            match event {
                Event::Admitted(id, micros) => {
                    if let Some(live) = self.live.get_mut(&id.request) {
                        live.leave_queue(id.choice);
                        self.shared.observe(Measure::QueueTime, micros as f64 / 1e6);
                    }
                }
                Event::Token(id, token, logprobs) => {
                    tokens += 1;
                    self.token(id, token, logprobs, scheduler);
                }
                Event::Ended(id, end) => {
                    // Count tokens and end before the reader can see the end. The reader then finds them counted, and
                    // finds room in the queue.
                    self.count(&mut tokens);
                    self.ended(id, end);
                }
            }
        }
        self.count(&mut tokens);
    }

    /// Counts tokens that have been delivered.
    fn count(&mut self, tokens: &mut u64) {
        if *tokens > 0 {
            self.shared.add(Counter::GeneratedTokens, std::mem::take(tokens));
        }
        self.shared.observe_all(Measure::InterToken, &self.between);
        self.between.clear();
    }
}

impl Reader for Readers {
    fn begin(&mut self, step: u64, plan: &Plan) {
        self.shared.watchdog.lock().begin(step, plan);
    }

    fn committed(&mut self, steps: &StepLoop<'_>) {
        self.shared.watchdog.lock().end();
        // Refuse further requests before any reader learns that the device failed.
        steps.stepper.lost().into_iter().for_each(|lost| self.shared.lose(lost));
        // A reader who sees the end of a request finds that its last step has been counted.
        self.publish(steps);
        self.report(steps);
    }

    fn deliver(&mut self, scheduler: &mut Scheduler, stepper: &mut Stepper<'_>) {
        self.deliver_events(scheduler, stepper);
    }
}

/// The gathering of a request's batcher.
fn batch_of<'b>(batches: &'b mut [Gathering], live: &Live) -> Option<&'b mut Gathering> {
    let batcher = live.batcher.as_ref()?;
    batches.iter_mut().find(|batch| Arc::ptr_eq(&batch.batcher, batcher))
}
