//! The engine's thread: receives requests, computes steps, and delivers tokens to readers.
//! It survives panics outside the work of a single request.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select};

use super::arrivals::Arrivals;
use super::live::Live;
use super::metrics::{Counter, Measure, Recorder};
use super::readers::Readers;
use super::shared::{Command, Shared};
use super::step::{Reader, StepLoop};
use super::stepper::panic_message;
use crate::request::RequestError;
use crate::schedule::Plan;
use crate::tier::Tier;

/// Check the scheduler's invariants every this many steps; rare enough to be free.
const INSPECTION: u64 = 1024;

/// The engine's thread, which owns the model, the cache and the scheduler.
pub(crate) struct Worker {
    steps: StepLoop<'static>,
    readers: Readers,
    submissions: Receiver<Vec<Live>>,
    commands: Receiver<Command>,
    /// Requests received from the channel but not yet passed to the scheduler.
    arriving: VecDeque<Live>,
    arrivals: Arrivals,
    max_batch: usize,
    /// How long to wait for company when idle.
    max_wait: Duration,
    /// Whether to stop when all requests are finished.
    draining: bool,
    /// Latest time to stop.
    until: Option<Instant>,
}

impl Worker {
    pub fn new(
        steps: StepLoop<'static>,
        submissions: Receiver<Vec<Live>>,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
        max_batch: usize,
        max_wait: Duration,
    ) -> Self {
        Worker {
            readers: Readers::new(shared, steps.start()),
            steps,
            submissions,
            commands,
            arriving: VecDeque::new(),
            arrivals: Arrivals::default(),
            max_batch,
            max_wait,
            draining: false,
            until: None,
        }
    }

    /// Works until told to stop; returns true if every request was finished.
    pub fn run(mut self) -> bool {
        self.calibrate();
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(None) => {}
                Ok(Some(complete)) => return complete,
                Err(panic) => self.restart(panic_message(panic.as_ref())),
            }
        }
    }

    /// Measures steps if decisions depend on their times.
    fn calibrate(&mut self) {
        let StepLoop { scheduler, stepper, .. } = &mut self.steps;
        if scheduler.paces_itself() {
            let rows = self.max_batch.max(1 + scheduler.config().max_draft);
            self.readers.begin(0, &Plan::default());
            stepper.calibrate(rows, |load, micros| scheduler.learn(load, micros));
            self.readers.shared.watchdog.lock().end();
            self.readers.skip_times(stepper);
        }
    }

    /// Listens, then computes a step or waits. At the end of the thread's work, returns whether every request was
    /// finished; otherwise `None`.
    fn turn(&mut self) -> Option<bool> {
        self.listen();
        if self.draining {
            // Requests that are counted but have not arrived yet are on their way.
            let complete =
                self.steps.scheduler.is_empty() && self.readers.shared.waiting.now().sequences == 0;
            if complete || self.until.is_some_and(|until| Instant::now() >= until) {
                self.abort(RequestError::Stopped);
                let now = Instant::now();
                self.steps.drain_tier(self.until.map_or(now, |until| until.max(now)));
                return Some(complete);
            }
        }
        if self.steps.step(&mut self.readers) {
            let delivered = self.steps.times().deliver;
            self.readers.shared.observe(Measure::StepDistribute, delivered.as_secs_f64());
            self.inspect();
        } else {
            self.wait();
        }
        let lost = self.steps.stepper.lost()?.clone();
        self.abort(RequestError::Forward(lost));
        Some(false)
    }

    /// Ends all requests with `error`.
    fn abort(&mut self, error: RequestError) {
        self.steps.scheduler.abort(error);
        self.deliver();
    }

    /// Delivers what has happened outside a step. A reader who sees an end finds it in the published status.
    fn deliver(&mut self) {
        self.readers.changed |= self.steps.scheduler.has_events();
        self.readers.publish_changes(&self.steps);
        self.readers.deliver_events(&mut self.steps.scheduler, &mut self.steps.stepper);
    }

    /// Recovers from a panic outside the work of a single request. The bookkeeping is no longer trusted: requests in
    /// the scheduler fail, and the others are served by a new scheduler on an empty cache.
    fn restart(&mut self, message: String) {
        self.readers.shared.watchdog.lock().end();
        self.readers.shared.add(Counter::Restarts, 1);
        self.steps.restart();
        // Readers who see the failure find the new scheduler in the status.
        self.readers.publish(&self.steps);
        self.readers.fail(&RequestError::Panic { message });
    }

    /// Restarts if the scheduler has broken one of its rules, because sequences might then read others' blocks.
    fn inspect(&mut self) {
        if !self.steps.steps().is_multiple_of(INSPECTION) {
            return;
        }
        if let Err(rule) = self.steps.scheduler.check() {
            self.readers.shared.add(Counter::BrokenRules, 1);
            self.restart(format!("a rule of the scheduler is broken: {rule}"));
        }
    }

    /// Receives commands, then requests.
    fn listen(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        self.arriving.extend(self.submissions.try_iter().flatten());
        self.accept();
        self.readers.start_batches(self.draining, &mut self.steps);
        self.steps.scheduler.tick(self.steps.now());
        self.deliver();
    }

    fn execute(&mut self, command: Command) {
        self.readers.changed = true;
        match command {
            Command::Cancel(id) => self.steps.scheduler.cancel(id),
            Command::Resume(id) => self.readers.resume(id, &mut self.steps),
            Command::StartBatches | Command::Look => {}
            Command::Drain(until) => self.drain(until),
        }
    }

    fn drain(&mut self, until: Option<Instant>) {
        self.draining = true;
        self.until = self.until.into_iter().chain(until).min();
    }

    /// Passes new requests to the scheduler, one at a time, so that a panic loses only one.
    fn accept(&mut self) {
        while let Some(live) = self.arriving.pop_front() {
            if live.batcher.is_none() {
                self.arrivals.note(self.steps.now(), self.readers.is_empty());
            }
            self.readers.open(live, &mut self.steps);
        }
    }

    /// Sleeps until something happens; then waits a little longer if more requests are likely.
    fn wait(&mut self) {
        if self.steps.tier.as_ref().is_some_and(Tier::is_busy) {
            self.readers.changed = true;
            return;
        }
        let idle = self.steps.scheduler.is_empty();
        let tier = self.steps.tier.as_ref().and_then(Tier::deadline);
        let deadline = self.steps.scheduler.next_deadline().into_iter().chain(tier).min();
        let deadline = deadline.map(Duration::from_micros);
        let deadline = deadline.and_then(|at| self.steps.start().checked_add(at));
        let wake = deadline.into_iter().chain(self.readers.next_batch()).chain(self.until).min();
        self.receive(wake);
        if !idle || self.draining {
            return;
        }
        let linger = Instant::now() + Duration::from_micros(self.arrivals.linger(self.max_wait));
        while self.has_company_to_wait_for() && self.receive(Some(linger)) {}
    }

    /// Whether a request waits for a step that has room for others.
    fn has_company_to_wait_for(&self) -> bool {
        let scheduler = &self.steps.scheduler;
        scheduler.waiting() > scheduler.paused() && scheduler.waiting() < self.max_batch
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
}

impl Drop for Worker {
    /// Refuses further requests, however the thread ends.
    fn drop(&mut self) {
        self.readers.shared.waiting.close();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Poll, Waker};

    use bitnet_model::Limits;
    use crossbeam_channel::unbounded;

    use super::*;

    use super::super::mailbox::{Mailbox, Update};
    use super::super::queue::Queue;
    use super::super::stepper::Stepper;
    use crate::request::{GenerationConfig, Request};
    use crate::schedule::{BatchSizing, Scheduler, SchedulerConfig};
    use bitnet_hash_model::HashModel;

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
        let steps = StepLoop::new(scheduler, stepper);
        let shared = Arc::new(Shared::default());
        let (ingress, submissions) = unbounded();
        let (_control, commands) = unbounded();
        let mut worker = Worker::new(steps, submissions, commands, Arc::clone(&shared), 8, Duration::ZERO);
        let counted = Queue { sequences: 1, tokens: 2 };
        let enter = |queue: &mut Queue| {
            *queue = counted;
            Ok(())
        };
        shared.waiting.try_enter(enter).unwrap();
        let mailbox = Arc::new(Mailbox::new(1, 64, 64));
        let request = Arc::new(Request::new([1, 2], GenerationConfig::default()));
        let live = Live::new(0, 0, request, Arc::clone(&mailbox), counted, Arc::clone(&shared));
        ingress.send(vec![live]).unwrap();
        worker.turn();
        worker.steps.scheduler.lose_a_block();
        worker.steps.count_to(INSPECTION - 1);
        worker.turn();
        let counted = |counter| shared.metrics.snapshot().get(counter);
        assert_eq!([Counter::BrokenRules, Counter::Restarts, Counter::Failed].map(counted), [1, 1, 1]);
        assert_eq!(worker.steps.scheduler.check(), Ok(()));
        let status = shared.status.lock();
        assert_eq!((status.running, status.kv_used), (0, 0), "the status is that of the new scheduler");
        drop(status);
        let mut last = None;
        while let Poll::Ready(Some((update, _))) = mailbox.poll(Waker::noop()) {
            last = Some(update);
        }
        assert!(
            matches!(&last, Some(Update::Ended { end: Err(RequestError::Panic { message }), .. })
                if message.contains("rule")),
            "{last:?}"
        );
    }
}
