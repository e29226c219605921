//! The engine: a thread that owns a model and computes many requests together, a step at a time.
//! `step.rs` is the loop, `worker.rs` the thread; `submit.rs` and `handle.rs` are what callers hold.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bitnet_kernels::BackendInfo;
use bitnet_model::{ForwardError, Model};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use parking_lot::{Mutex, RwLock};
mod arrivals;
mod batcher;
mod config;
mod drafter;
mod generate;
mod handle;
mod live;
mod mailbox;
/// An engine's counters and measurements, and how to record them elsewhere.
pub mod metrics;
mod park;
mod queue;
mod readers;
mod shared;
mod status;
mod step;
mod stepper;
mod submit;
mod watchdog;
mod worker;

pub use arrivals::Arrivals;
pub use config::{EngineConfig, StartError};
pub use drafter::{Asked, DraftModelError, Drafter, Drafting, HeadDrafter, ModelDrafter};
pub use generate::{Generated, GenerationError, generate, generate_drafting};
pub use handle::{Choice, Completion, Elapsed, RequestHandle};
pub use mailbox::Update;
pub use park::{block_on, block_until};
pub use queue::Queue;
pub use status::EngineStatus;
pub use step::{Reader, StepLoop};
pub use stepper::{Draws, StepFaults, StepTimes, Stepper};

pub(crate) use batcher::Batcher;
#[cfg(test)]
pub(crate) use stepper::panic_message;
pub(crate) use submit::Submitter;

use crate::request::{InvalidRequest, Request, SubmitError};
use crate::schedule::{Scheduler, WindowCache};
use crate::tier::Tier;
use config::check;
use metrics::{Metrics, Recorder};
use shared::{Command, Shared};
use submit::Bounds;
use worker::Worker;

/// Time between two checks of a thread that should end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How an engine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// Whether every request was finished.
    pub complete: bool,
}

/// The engine's thread; after it ends, its result says whether every request was finished.
struct EngineThread {
    running: Option<JoinHandle<bool>>,
    /// Disconnects when the thread ends.
    alive: Receiver<()>,
    complete: bool,
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StartError> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|e| StartError::Thread { message: e.to_string() })
}

/// Reports steps that run longer than `limit`, until the engine is dropped.
fn watch(shared: &Shared, limit: Duration, engine: &Receiver<()>) {
    let pause = (limit / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
    while engine.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let report = shared.watchdog.lock().report(limit);
        report.into_iter().for_each(|(age, plans)| shared.stalled(age, &plans));
    }
}

/// Runs many requests through one model, a step at a time, on its own thread. Dropping it ends all requests.
pub struct Engine {
    submitter: Submitter,
    thread: Mutex<EngineThread>,
    /// Dropped with the engine, to end the thread that watches its steps.
    _watched: Sender<()>,
    step_limit: Duration,
    max_batch: usize,
    backend: BackendInfo,
}

impl Engine {
    /// Starts an engine with `model`. Allocates all memory that steps need.
    pub fn start(model: impl Model + 'static, config: EngineConfig) -> Result<Engine, StartError> {
        Self::start_boxed(Box::new(model), config)
    }

    /// Like [`Engine::start`], with a boxed model.
    pub fn start_boxed(model: Box<dyn Model>, config: EngineConfig) -> Result<Engine, StartError> {
        Self::start_drafting(model, None, config)
    }

    /// Like [`Engine::start_boxed`], with a drafter of up to [`EngineConfig::max_draft`] tokens.
    pub fn start_drafting(
        model: Box<dyn Model>,
        drafter: Option<Box<dyn Drafter>>,
        config: EngineConfig,
    ) -> Result<Engine, StartError> {
        let (vocab, backend) = (model.spec().vocab, model.backend());
        let scheduler = config.scheduler(&*model);
        check(&config, &scheduler, vocab)?;
        let (max_batch, context) = (scheduler.max_running, scheduler.context);
        let shared = Arc::new(Shared {
            recorders: RwLock::new(config.recorder.iter().cloned().collect()),
            status: Mutex::new(EngineStatus {
                kv_blocks: scheduler.kv_blocks,
                window_blocks: model.window_blocks(),
                state_slots: scheduler.state_slots,
                device: model.device(),
                ..EngineStatus::default()
            }),
            ..Shared::default()
        });
        let scheduler = Scheduler::new(scheduler).with_windows(WindowCache::of(&*model));
        // The limits of the queue bound this channel, because every request is first counted there.
        let (ingress, submissions) = unbounded();
        let (control, commands) = unbounded();
        let steps = StepLoop::new(scheduler, Stepper::new(model)).drafting(drafter).with_logs();
        let no_logs =
            |error: ForwardError| StartError::NoLogs { drafts: config.max_draft, message: error.to_string() };
        let mut steps = steps.map_err(no_logs)?;
        let wake = control.clone();
        steps.keep_cache(&config, Arc::new(move || drop(wake.send(Command::Look))))?;
        // Those who ask before the first step already see that there is a tier.
        shared.status.lock().tier = steps.tier.as_ref().map(Tier::counts);
        let worker =
            Worker::new(steps, submissions, commands, Arc::clone(&shared), max_batch, config.max_wait_time);
        let (watched, engine) = bounded(0);
        let limit = config.step_limit;
        let seen = Arc::clone(&shared);
        spawn("bitnet-watch", move || watch(&seen, limit, &engine))?;
        let (held, alive) = bounded(0);
        let running = spawn("bitnet-engine", move || {
            let complete = worker.run();
            drop(held);
            complete
        })?;
        let thread = Mutex::new(EngineThread { running: Some(running), alive, complete: false });
        let bounds = Bounds {
            vocab,
            context,
            text: config.text.is_some(),
            sequences: config.max_queued_requests,
            tokens: config.max_queued_tokens,
            mailbox: config.mailbox,
        };
        let submitter = Submitter { ingress, control, shared, next_id: Arc::default(), bounds };
        Ok(Engine { submitter, thread, _watched: watched, step_limit: limit, max_batch, backend })
    }

    /// Submits a request without waiting.
    pub fn submit(&self, request: Request) -> Result<RequestHandle, SubmitError> {
        self.submit_timeout(request, Duration::ZERO)
    }

    /// Submits a request, waiting at most `timeout` for room in the queue.
    pub fn submit_timeout(&self, request: Request, timeout: Duration) -> Result<RequestHandle, SubmitError> {
        let handles = self.submit_together_timeout(vec![request], timeout);
        handles.map(|mut handles| handles.pop().expect("one request gives one handle"))
    }

    /// Submits all requests or none, without waiting. Requests that together exceed the queue's limits are refused with
    /// [`SubmitError::NeverFits`], even if the engine is idle.
    pub fn submit_together(&self, requests: Vec<Request>) -> Result<Vec<RequestHandle>, SubmitError> {
        self.submit_together_timeout(requests, Duration::ZERO)
    }

    /// Like [`Engine::submit_together`], waiting at most `timeout` for room in the queue.
    pub fn submit_together_timeout(
        &self,
        requests: Vec<Request>,
        timeout: Duration,
    ) -> Result<Vec<RequestHandle>, SubmitError> {
        self.submitter.together(requests, Instant::now().checked_add(timeout))
    }

    /// Submits requests in order, waiting for room in the queue as often as necessary; those that fit at the same time
    /// start together. Each pauses when it is not read, so read all of them as their tokens come, or only answers
    /// shorter than [`EngineConfig::mailbox`].
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<RequestHandle>, SubmitError> {
        block_on(self.submitter.clone().in_turn(requests))
    }

    /// Like [`Engine::submit_all`], on any executor and without blocking its thread. Requests that fit immediately are
    /// submitted before this returns; dropping the future cancels all.
    pub fn submit_all_async(
        &self,
        requests: Vec<Request>,
    ) -> impl Future<Output = Result<Vec<RequestHandle>, SubmitError>> + Send + use<> {
        self.submitter.clone().in_turn(requests)
    }

    /// The submitting side.
    pub(crate) fn submitter(&self) -> &Submitter {
        &self.submitter
    }

    /// Checks that a request is valid.
    pub fn validate(&self, request: &Request) -> Result<(), InvalidRequest> {
        self.submitter.validate(request)
    }

    /// The engine's counts and measurements.
    pub fn metrics(&self) -> &Metrics {
        &self.submitter.shared.metrics
    }

    /// Adds a recorder, to which the engine reports from now on. A recorder must not call this method.
    pub fn add_recorder(&self, recorder: Arc<dyn Recorder>) {
        self.submitter.shared.recorders.write().push(recorder);
    }

    /// The state after the last step.
    pub fn status(&self) -> EngineStatus {
        let status = *self.submitter.shared.status.lock();
        EngineStatus { step_age: self.submitter.shared.watchdog.lock().age(), ..status }
    }

    /// Age of the running step, if it exceeds [`EngineConfig::step_limit`].
    pub fn stalled(&self) -> Option<Duration> {
        self.submitter.shared.watchdog.lock().age().filter(|&age| age > self.step_limit)
    }

    /// The queue now, including requests on their way to the engine's thread.
    pub fn queue(&self) -> Queue {
        self.submitter.shared.waiting.now()
    }

    /// Whether requests are accepted; false once the engine shuts down or its thread has ended.
    pub fn is_open(&self) -> bool {
        !self.submitter.shared.waiting.is_closed()
    }

    /// The device's error, if the device has failed; the engine then accepts no requests.
    pub fn lost(&self) -> Option<ForwardError> {
        self.submitter.shared.lost.lock().clone()
    }

    /// Maximum number of sequences in a step.
    pub fn max_batch_size(&self) -> usize {
        self.max_batch
    }

    /// Maximum number of waiting sequences.
    pub fn max_queued_requests(&self) -> usize {
        self.submitter.bounds.sequences
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.submitter.bounds.vocab
    }

    /// Maximum length of a sequence, in tokens.
    pub fn context(&self) -> usize {
        self.submitter.bounds.context
    }

    /// The backend that the model runs on.
    pub fn backend(&self) -> &BackendInfo {
        &self.backend
    }

    /// Refuses new requests, lets the others finish for at most `timeout`, ends the rest and joins the thread. If two
    /// callers shut down, the shorter timeout applies, and both get the same report. If a step is stalled, this does
    /// not wait longer than `timeout` and abandons the thread.
    pub fn shutdown(&self, timeout: Duration) -> DrainReport {
        self.submitter.shared.waiting.close();
        let until = Instant::now().checked_add(timeout);
        let _ = self.submitter.control.send(Command::Drain(until));
        let mut thread = self.thread.lock();
        // A callback on the engine's own thread may drop the engine; that thread cannot join itself.
        let elsewhere = |t: &mut JoinHandle<bool>| t.thread().id() != std::thread::current().id();
        if let Some(running) = thread.running.take_if(elsewhere) {
            let over = || until.is_some_and(|until| Instant::now() >= until);
            let mut abandoned = false;
            while !abandoned && thread.alive.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                abandoned = over() && self.stalled().is_some();
            }
            thread.complete = !abandoned && running.join().unwrap_or(false);
        }
        DrainReport { complete: thread.complete }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

bitnet_tensor::opaque_debug!(Engine { backend });
