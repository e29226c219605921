//! The engine's thread: receives requests, computes steps, and delivers tokens to readers.
//! It survives panics outside the work of a single request.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bitnet_kernels::gpu::Times;
use crossbeam_channel::{Receiver, select};

use super::arrivals::Arrivals;
use super::live::{IdHasher, Live, Progress};
use super::mailbox::Update;
use super::metrics::{Counter, Measure, Recorder};
use super::shared::{Command, Shared};
use super::status::EngineStatus;
use super::stepper::{Stepper, panic_message};
use super::ticket::Submission;
use crate::request::{End, FinishReason, RequestError};
use crate::schedule::{Event, Plan, Scheduler, StepOutcome};

/// Steps between two checks of the scheduler's rules, rare enough that their cost does not matter.
const INSPECTION: u64 = 1024;

/// The engine's thread, which owns the model, the cache and the scheduler.
pub(crate) struct Worker {
    scheduler: Scheduler,
    stepper: Stepper<'static>,
    submissions: Receiver<Vec<Submission>>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    /// Requests received from the channel but not yet passed to the scheduler.
    arriving: VecDeque<Submission>,
    live: HashMap<u64, Live, BuildHasherDefault<IdHasher>>,
    /// Times between tokens in seconds, to be observed together.
    between: Vec<f64>,
    /// Whether commands, requests or slow readers have changed the scheduler since its status was published.
    changed: bool,
    start: Instant,
    steps: u64,
    plan: Plan,
    outcome: StepOutcome,
    arrivals: Arrivals,
    /// The device's times before the last step.
    times: Times,
    max_batch: usize,
    max_wait: Duration,
    /// Whether to stop when all requests are finished.
    draining: bool,
    /// Latest time to stop.
    until: Option<Instant>,
}

impl Worker {
    pub fn new(
        scheduler: Scheduler,
        stepper: Stepper<'static>,
        submissions: Receiver<Vec<Submission>>,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
        (max_batch, max_wait): (usize, Duration),
    ) -> Self {
        Worker {
            scheduler,
            stepper,
            submissions,
            commands,
            shared,
            arriving: VecDeque::new(),
            live: HashMap::default(),
            between: Vec::new(),
            changed: true,
            start: Instant::now(),
            steps: 0,
            plan: Plan::default(),
            outcome: StepOutcome::default(),
            arrivals: Arrivals::default(),
            times: Times::default(),
            max_batch,
            max_wait,
            draining: false,
            until: None,
        }
    }

    /// Works until told to stop; returns true if every request was finished.
    pub fn run(mut self) -> bool {
        // However this thread ends, it must refuse further requests.
        let shared = Arc::clone(&self.shared);
        let _stopping = Stopping(&shared);
        if self.scheduler.paces_itself() {
            let rows = self.max_batch.max(1 + self.scheduler.config().max_draft);
            self.shared.watchdog.begin(0, &Plan::default());
            self.stepper.calibrate(rows, |load, micros| self.scheduler.learn(load, micros));
            self.shared.watchdog.end();
            self.times = self.stepper.device().map_or(Times::default(), |device| device.counts.times);
        }
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(None) => {}
                Ok(Some(complete)) => return complete,
                Err(panic) => self.restart(panic_message(panic.as_ref())),
            }
        }
    }

    /// Listens, then computes a step or waits. At the end of the thread's work, returns whether every request was
    /// finished; otherwise `None`.
    fn turn(&mut self) -> Option<bool> {
        self.listen();
        if self.draining {
            // Requests that are counted but have not arrived yet are on their way.
            let complete = self.scheduler.is_empty() && self.shared.waiting.now().sequences == 0;
            if complete || self.until.is_some_and(|until| Instant::now() >= until) {
                self.scheduler.abort(RequestError::Stopped);
                self.deliver();
                return Some(complete);
            }
        }
        if !self.step() {
            self.wait();
        } else if self.steps.is_multiple_of(INSPECTION) {
            self.inspect();
        }
        let lost = self.stepper.lost()?.clone();
        self.scheduler.abort(RequestError::Forward(lost));
        self.deliver();
        Some(false)
    }

    /// Recovers from a panic outside the work of a single request. The bookkeeping is no longer trusted: requests in
    /// the scheduler fail, and the others are served by a new scheduler on an empty cache.
    fn restart(&mut self, message: String) {
        let error = RequestError::Panic { message };
        self.shared.watchdog.end();
        self.shared.add(Counter::Restarts, 1);
        self.live.drain().for_each(|(_, mut live)| live.ticket.fail(&error));
        self.stepper.wanted_logits.clear();
        self.stepper.scored.clear();
        self.scheduler = self.scheduler.restarted();
        (self.plan, self.outcome) = (Plan::default(), StepOutcome::default());
        self.changed = true;
    }

    /// Restarts if the scheduler has broken one of its rules, because sequences might then read others' blocks.
    fn inspect(&mut self) {
        if let Err(rule) = self.scheduler.check() {
            self.shared.add(Counter::BrokenRules, 1);
            self.restart(format!("a rule of the scheduler is broken: {rule}"));
        }
    }

    /// Plans, computes and commits a step; returns false if there is nothing to compute.
    fn step(&mut self) -> bool {
        let begun = Instant::now();
        if !self.scheduler.plan(self.now(), &mut self.plan) {
            return false;
        }
        self.deliver();
        let planned = Instant::now();
        self.shared.watchdog.begin(self.steps, &self.plan);
        self.stepper.run(&self.scheduler, &self.plan, &mut self.outcome);
        self.shared.watchdog.end();
        let computed = Instant::now();
        self.outcome.micros = (computed - planned).as_micros() as u64;
        // Refuse further requests before any reader learns that the device failed.
        self.stepper.lost().into_iter().for_each(|lost| self.shared.lose(lost));
        let drawn = self.outcome.drawn.len();
        let predicted = self.scheduler.pace().model.predict(self.plan.load);
        self.scheduler.commit(self.now(), &self.plan, &mut self.outcome);
        let committed = Instant::now();
        // Publish before delivery, so that a reader who sees the end of a request finds that its last step has been
        // counted.
        self.publish_status();
        self.shared.observe(Measure::StepPlan, (planned - begun).as_secs_f64());
        self.shared.observe(Measure::StepCommit, (committed - computed).as_secs_f64());
        self.report((computed - planned).as_secs_f64(), predicted, drawn);
        let reported = Instant::now();
        self.deliver();
        self.shared.observe(Measure::StepDistribute, reported.elapsed().as_secs_f64());
        self.steps += 1;
        true
    }

    /// Receives commands, then requests.
    fn listen(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        self.arriving.extend(self.submissions.try_iter().flatten());
        self.accept();
        self.scheduler.tick(self.now());
        // Otherwise the status is that of the last step.
        if self.deliver() | std::mem::take(&mut self.changed) {
            self.publish_status();
        }
    }

    fn execute(&mut self, command: Command) {
        self.changed = true;
        match command {
            Command::Cancel(id) => self.scheduler.cancel(id),
            // Resume, unless the reader has fallen behind again.
            Command::Resume(id) => {
                if self.live.get(&id).is_some_and(|live| !live.ticket.mailbox.is_paused()) {
                    self.scheduler.resume(self.now(), id);
                }
            }
            Command::Drain(until) => self.drain(until),
        }
    }

    fn drain(&mut self, until: Option<Instant>) {
        self.draining = true;
        self.until = self.until.into_iter().chain(until).min();
    }

    /// Passes new requests to the scheduler, one at a time, so that a panic loses only one.
    fn accept(&mut self) {
        while let Some(Submission { id, seed, request, ticket, at }) = self.arriving.pop_front() {
            self.changed = true;
            // A cancel command that came before the request found nothing to cancel.
            let cancelled = ticket.mailbox.cancelled().is_some();
            let (n, alone) = (request.config.n, self.live.is_empty());
            let choices = vec![Progress { queued: true, last: None }; n];
            self.live.insert(id, Live { ticket, at, choices, logits: None, open: n });
            self.arrivals.note(self.now(), alone);
            self.shared.add(Counter::PromptTokens, request.prompt.len() as u64);
            let at = at.saturating_duration_since(self.start).as_micros() as u64;
            self.scheduler.submit(at, id, request, seed);
            if cancelled {
                self.scheduler.cancel(id);
            }
        }
    }

    /// Sleeps until something happens; then waits a little longer if more requests are likely.
    fn wait(&mut self) {
        let idle = self.scheduler.is_empty();
        let deadline = self.scheduler.next_deadline().map(Duration::from_micros);
        let deadline = deadline.and_then(|at| self.start.checked_add(at));
        let wake = deadline.into_iter().chain(self.until).min();
        self.receive(wake);
        if !idle || self.draining {
            return;
        }
        let linger = Instant::now() + Duration::from_micros(self.arrivals.linger(self.max_wait));
        while !self.scheduler.is_empty()
            && self.scheduler.waiting() < self.max_batch
            && self.receive(Some(linger))
        {}
    }

    /// Waits for a command or a group of requests; returns false if none arrives by `until`.
    fn receive(&mut self, until: Option<Instant>) -> bool {
        let timeout = until.map_or(crossbeam_channel::never(), crossbeam_channel::at);
        let (commands, submissions) = (self.commands.clone(), self.submissions.clone());
        select! {
            recv(commands) -> command => match command {
                Ok(command) => self.execute(command),
                // The engine was dropped without a command: no one needs the results.
                Err(_) => self.drain(Some(Instant::now())),
            },
            recv(submissions) -> group => match group {
                Ok(group) => {
                    self.arriving.extend(group);
                    self.accept();
                }
                Err(_) => self.drain(Some(Instant::now())),
            },
            recv(timeout) -> _ => return false,
        }
        true
    }

    /// Delivers the scheduler's events to the readers; returns whether there were any.
    fn deliver(&mut self) -> bool {
        for (id, logits) in self.stepper.wanted_logits.drain(..) {
            if let Some(live) = self.live.get_mut(&id.request) {
                live.logits = Some(logits);
            }
        }
        for (request, position, logprobs) in self.stepper.scored.drain(..) {
            if let Some(live) = self.live.get(&request) {
                live.ticket.mailbox.score(position, logprobs);
            }
        }
        let (now, mut tokens, mut any) = (Instant::now(), 0, false);
        while let Some(event) = self.scheduler.next_event() {
            let (Event::Admitted(id, _) | Event::Token(id, ..) | Event::Ended(id, _)) = event;
            any = true;
            let Some(live) = self.live.get_mut(&id.request) else { continue };
            match event {
                Event::Admitted(_, micros) => {
                    live.leave_queue(id.choice);
                    self.shared.observe(Measure::QueueTime, micros as f64 / 1e6);
                }
                Event::Token(_, token, logprobs) => {
                    match live.choices[id.choice as usize].last.replace(now) {
                        Some(last) => self.between.push((now - last).as_secs_f64()),
                        None => self.shared.observe(Measure::FirstToken, (now - live.at).as_secs_f64()),
                    }
                    tokens += 1;
                    let update = Update::Token { choice: id.choice, index: 0, token, logprobs };
                    if live.ticket.mailbox.push(update) {
                        self.shared.add(Counter::Pauses, 1);
                        self.scheduler.pause(self.start.elapsed().as_micros() as u64, id.request);
                        self.changed = true;
                    }
                }
                Event::Ended(_, end) => {
                    // Count tokens and end before the reader can see the end. The reader then finds them counted, and
                    // finds room in the queue.
                    self.shared.add(Counter::GeneratedTokens, std::mem::take(&mut tokens));
                    self.shared.observe_all(Measure::InterToken, &self.between);
                    self.between.clear();
                    let counter = counter_of(&end);
                    self.shared.add(counter, 1);
                    live.open -= 1;
                    let over = live.open == 0;
                    live.leave_queue(id.choice);
                    if over {
                        self.shared.observe(Measure::EndToEnd, live.at.elapsed().as_secs_f64());
                        let cancelled = live.ticket.mailbox.cancelled();
                        if let Some(at) = cancelled.filter(|_| counter == Counter::Cancelled) {
                            self.shared.observe(Measure::CancelToFree, at.elapsed().as_secs_f64());
                        }
                    }
                    let logits = live.logits.take();
                    live.ticket.mailbox.push(Update::Ended { choice: id.choice, end, logits });
                    if over {
                        self.live.remove(&id.request);
                    }
                }
            }
        }
        if tokens > 0 {
            self.shared.add(Counter::GeneratedTokens, tokens);
        }
        self.shared.observe_all(Measure::InterToken, &self.between);
        self.between.clear();
        any
    }

    /// Reports a step that took `seconds` and was predicted to take `predicted` microseconds.
    fn report(&mut self, seconds: f64, predicted: Option<f64>, drawn: usize) {
        let (load, times, shared) = (self.plan.load, self.stepper.times(), &self.shared);
        shared.add(Counter::Steps, 1);
        shared.add(Counter::PrefillTokens, load.prefill as u64);
        shared.observe(Measure::BatchSize, self.plan.runs.len() as f64);
        shared.observe(Measure::StepTokens, self.plan.tokens() as f64);
        shared.observe(Measure::StepPack, times.pack.as_secs_f64());
        shared.observe(Measure::StepForward, times.forward.as_secs_f64());
        shared.observe(Measure::StepSample, times.sample.as_secs_f64());
        if let Some(padding) = self.stepper.model().padding() {
            shared.observe(Measure::Padding, padding);
        }
        if let Some(micros) = predicted.filter(|_| seconds > 0.0) {
            shared.observe(Measure::StepModelError, (micros / 1e6 - seconds).abs() / seconds);
        }
        if load.prefill == 0 {
            shared.add(Counter::DecodeTokens, drawn as u64);
            shared.observe(Measure::DecodeCompute, seconds);
        }
        if let Some(device) = self.stepper.device() {
            let (now, before) = (device.counts.times, self.times);
            shared.observe(Measure::KernelLaunch, (now.launch - before.launch).as_secs_f64());
            shared.observe(Measure::MemoryTransfer, (now.transfer - before.transfer).as_secs_f64());
            shared.observe(Measure::DeviceCompute, (now.compute - before.compute).as_secs_f64());
            self.times = now;
        }
    }

    fn publish_status(&self) {
        let pool = self.scheduler.pool();
        *self.shared.status.lock() = EngineStatus {
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            paused: self.scheduler.paused(),
            batch_size: self.scheduler.pace().batch_size(),
            kv_blocks: pool.total(),
            kv_used: pool.total() - pool.available(),
            kv_cached: pool.cached(),
            state_slots: self.scheduler.config().state_slots,
            states_used: self.scheduler.states_used(),
            states_saved: self.scheduler.states_saved(),
            scheduler: self.scheduler.counts(),
            faults: self.stepper.faults(),
            draws: self.stepper.draws(),
            device: self.stepper.device(),
            // `Engine::status` fills it in.
            step_age: None,
        };
    }

    /// Microseconds since the engine started.
    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

fn counter_of(end: &Result<End, RequestError>) -> Counter {
    match end {
        Ok(end) if end.finish == FinishReason::Cancelled => Counter::Cancelled,
        Ok(_) => Counter::Finished,
        Err(_) => Counter::Failed,
    }
}

/// Refuses further requests when the thread ends, however it ends.
struct Stopping<'a>(&'a Shared);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.waiting.close();
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;

    use super::*;
    use bitnet_model::Limits;

    use super::super::mailbox::{Mailbox, Popped};
    use super::super::queue::Queue;
    use super::super::ticket::Ticket;
    use crate::request::{GenerationConfig, Request};
    use crate::schedule::{BatchSizing, SchedulerConfig};
    use crate::sim::HashModel;

    #[test]
    fn a_broken_rule_fails_what_runs_and_the_scheduler_starts_again() {
        let limits = Limits { max_tokens: 64, max_logit_rows: 8, kv_blocks: 8, state_slots: 0 };
        let scheduler = Scheduler::new(SchedulerConfig {
            max_running: 8,
            max_tokens: limits.max_tokens,
            max_rows: limits.max_logit_rows,
            kv_blocks: limits.kv_blocks,
            state_slots: limits.state_slots,
            context: 500,
            max_draft: 0,
            sizing: BatchSizing::Fixed(8),
            slow_reader: u64::MAX,
            eos: vec![],
            text: None,
        });
        let stepper = Stepper::new(Box::new(HashModel::new(50, 500, limits)));
        let (shared, (ingress, submissions), (_control, commands)) =
            (Arc::new(Shared::default()), unbounded(), unbounded());
        let mut worker =
            Worker::new(scheduler, stepper, submissions, commands, Arc::clone(&shared), (8, Duration::ZERO));
        let counted = Queue { sequences: 1, tokens: 2 };
        let enter = |queue: &mut Queue| {
            *queue = counted;
            Ok(())
        };
        shared.waiting.try_enter(enter).unwrap();
        let mailbox = Arc::new(Mailbox::new(1, 64, 64));
        let ticket = Ticket::new(Arc::clone(&mailbox), Arc::clone(&shared), counted);
        let request = Arc::new(Request::new([1, 2], GenerationConfig::default()));
        ingress.send(vec![Submission { id: 0, seed: 0, request, ticket, at: Instant::now() }]).unwrap();
        worker.turn();
        worker.scheduler.lose_a_block();
        worker.steps = INSPECTION - 1;
        worker.turn();
        let counted = |counter| shared.metrics.snapshot().get(counter);
        assert_eq!([Counter::BrokenRules, Counter::Restarts, Counter::Failed].map(counted), [1, 1, 1]);
        assert_eq!(worker.scheduler.check(), Ok(()));
        let mut last = None;
        while let Popped::Update(update, _) = mailbox.pop(None) {
            last = Some(update);
        }
        assert!(
            matches!(&last, Some(Update::Ended { end: Err(RequestError::Panic { message }), .. })
                if message.contains("rule")),
            "{last:?}"
        );
    }
}
