use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bitnet_kernels::BackendInfo;
use bitnet_model::{Batch, ForwardError, Limits};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use parking_lot::{Mutex, RwLock};

use crate::metrics::{Metrics, Recorder};
use crate::queue::Queue;
use crate::shared::{Command, EngineStatus, Shared};
use crate::submit::{Bounds, Submitter};
use crate::worker::Worker;
use crate::{
    BatchSizing, InvalidRequest, Model, Request, RequestHandle, Scheduler, SchedulerConfig, Stepper,
    SubmitError, TokenText,
};

/// Configuration of an engine. No setting changes a token; only `eos` decides where a text ends. Take the other fields
/// from `..EngineConfig::default()`, because fields may be added.
#[derive(Clone)]
pub struct EngineConfig {
    /// Maximum number of sequences in a forward pass; others wait. With recurrent layers, at most seven eighths of the
    /// state slots are for running sequences; the others keep snapshots for the prefix cache.
    pub max_batch_size: usize,
    /// How many of these sequences run, and how much of a step goes to prompts. By default all of them run, and prompt
    /// chunks are small enough that the time between two tokens of a sequence stays below [`BatchSizing::DEFAULT_ITL`].
    pub sizing: BatchSizing,
    /// How long an idle engine waits for a second request before it starts a step, if one is likely to come.
    pub max_wait_time: Duration,
    /// Maximum number of waiting sequences, each choice of a request counted as one; further requests are refused.
    pub max_queued_requests: usize,
    /// Maximum number of waiting prompt tokens; further requests are refused.
    pub max_queued_tokens: usize,
    /// Maximum number of drafted tokens for a sequence in a step; 0 turns drafting off. With recurrent layers, each
    /// sequence that drafts needs a second state slot during the step.
    pub max_draft: usize,
    /// Number of unread updates at which a request pauses.
    pub mailbox: usize,
    /// Maximum time that a request stays paused because it is not read; then it fails.
    pub slow_reader_timeout: Duration,
    /// How long a step may run before the engine counts as stalled ([`Engine::stalled`]) and its last plans are
    /// reported. When the time of a shutdown is over, it does not wait for a stalled step.
    pub step_limit: Duration,
    /// Tokens that end a text, instead of the model's own.
    pub eos: Option<Vec<u32>>,
    /// Maps tokens to text; needed only for stop strings.
    pub text: Option<Arc<dyn TokenText>>,
    /// Recorder to report to, in addition to [`Engine::metrics`].
    pub recorder: Option<Arc<dyn Recorder>>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_batch_size: 64,
            sizing: BatchSizing::paced(usize::MAX),
            max_wait_time: Duration::from_millis(5),
            max_queued_requests: 256,
            max_queued_tokens: 1 << 20,
            max_draft: 0,
            mailbox: 1024,
            slow_reader_timeout: Duration::from_secs(60),
            step_limit: Duration::from_secs(120),
            eos: None,
            text: None,
            recorder: None,
        }
    }
}

/// Time between two checks of a thread that should end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum number of blocks in a cache: enough for a billion tokens.
const MAX_BLOCKS: usize = 1 << 24;

/// Why an engine did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum StartError {
    /// A limit that must be positive is 0.
    #[error("{field} is 0: it must be at least 1")]
    Zero { field: &'static str },
    /// An end token is not in the vocabulary.
    #[error("end token {token} is not in the vocabulary of {vocab} tokens")]
    UnknownEos { token: u32, vocab: usize },
    /// The key-value cache has too many blocks.
    #[error(
        "{blocks} key-value blocks, the maximum is {MAX_BLOCKS}: use fewer sequences or a shorter context"
    )]
    TooManyBlocks { blocks: usize },
    /// The operating system could not start a thread.
    #[error("cannot start a thread: {message}: close other programs, or raise the limit on threads")]
    Thread { message: String },
}

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
        if let Some((age, plans)) = shared.watch.report(limit) {
            shared.stalled(age, &plans);
        }
    }
}

/// Number of sequences that can run side by side if `wanted` are requested.
fn places(wanted: usize, limits: Limits) -> usize {
    match limits.state_slots {
        0 => wanted,
        slots => wanted.min(slots - slots / 8),
    }
}

/// Checks that an engine can run with these limits.
fn check(
    config: &EngineConfig,
    limits: Limits,
    vocab: usize,
    context: usize,
    eos: &[u32],
) -> Result<(), StartError> {
    for (field, value) in [
        ("max_batch_size", config.max_batch_size),
        ("max_queued_requests", config.max_queued_requests),
        ("max_queued_tokens", config.max_queued_tokens),
        ("mailbox", config.mailbox),
        ("the model's vocabulary", vocab),
        ("the model's context", context),
        ("the model's token limit", limits.max_tokens),
        ("the model's limit of logit rows", limits.max_logit_rows),
        ("the model's number of key-value blocks", limits.kv_blocks),
    ] {
        if value == 0 {
            return Err(StartError::Zero { field });
        }
    }
    if limits.kv_blocks > MAX_BLOCKS {
        return Err(StartError::TooManyBlocks { blocks: limits.kv_blocks });
    }
    match eos.iter().find(|&&token| token as usize >= vocab) {
        Some(&token) => Err(StartError::UnknownEos { token, vocab }),
        None => Ok(()),
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

    /// As [`Engine::start`], with a boxed model.
    pub fn start_boxed(model: Box<dyn Model>, config: EngineConfig) -> Result<Engine, StartError> {
        let (limits, vocab, backend) = (model.limits(), model.spec().vocab, model.backend());
        let context = model.spec().context.min(limits.kv_blocks.saturating_mul(Batch::BLOCK_TOKENS));
        let eos = config.eos.clone().unwrap_or_else(|| model.spec().eos.clone());
        check(&config, limits, vocab, context, &eos)?;
        let max_batch =
            places(config.max_batch_size, limits).min(limits.max_tokens).min(limits.max_logit_rows);
        let shared = Arc::new(Shared {
            recorders: RwLock::new(config.recorder.iter().cloned().collect()),
            status: Mutex::new(EngineStatus {
                kv_blocks: limits.kv_blocks,
                state_slots: limits.state_slots,
                device: model.device(),
                ..EngineStatus::default()
            }),
            ..Shared::default()
        });
        let scheduler = Scheduler::new(SchedulerConfig {
            max_running: max_batch,
            max_tokens: limits.max_tokens,
            max_rows: limits.max_logit_rows,
            kv_blocks: limits.kv_blocks,
            state_slots: limits.state_slots,
            context,
            max_draft: config.max_draft.min(limits.max_logit_rows),
            sizing: config.sizing,
            slow_reader: config.slow_reader_timeout.as_micros().try_into().unwrap_or(u64::MAX),
            eos,
            text: config.text.clone(),
        });
        // The limits of the queue bound this channel, because every request is first counted there.
        let (ingress, submissions) = unbounded();
        let (control, commands) = unbounded();
        let worker = Worker::new(
            scheduler,
            Stepper::new(model),
            submissions,
            commands,
            Arc::clone(&shared),
            (max_batch, config.max_wait_time),
        );
        let (watched, engine) = bounded(0);
        let (limit, seen) = (config.step_limit, Arc::clone(&shared));
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

    /// As [`Engine::submit_together`], waiting at most `timeout` for room in the queue.
    pub fn submit_together_timeout(
        &self,
        requests: Vec<Request>,
        timeout: Duration,
    ) -> Result<Vec<RequestHandle>, SubmitError> {
        self.submitter.together(requests, Instant::now().checked_add(timeout))
    }

    /// Submits requests in order, waiting for room in the queue as often as necessary; those that fit at the same time
    /// start together. They do not pause when unread, so they can be read in any order.
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<RequestHandle>, SubmitError> {
        self.submitter.in_turn(requests)
    }

    /// As [`Engine::submit_all`], on any executor and without blocking its thread. Requests that fit immediately are
    /// submitted before this returns; dropping the future cancels all.
    pub fn submit_all_async(
        &self,
        requests: Vec<Request>,
    ) -> impl Future<Output = Result<Vec<RequestHandle>, SubmitError>> + Send + use<> {
        self.submitter.clone().in_turn_async(requests)
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
        EngineStatus { step_age: self.submitter.shared.watch.age(), ..status }
    }

    /// Age of the running step, if it exceeds [`EngineConfig::step_limit`].
    pub fn stalled(&self) -> Option<Duration> {
        self.submitter.shared.watch.age().filter(|&age| age > self.step_limit)
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl fmt::Debug for EngineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineConfig")
            .field("max_batch_size", &self.max_batch_size)
            .field("sizing", &self.sizing)
            .field("max_wait_time", &self.max_wait_time)
            .field("max_queued_requests", &self.max_queued_requests)
            .field("max_queued_tokens", &self.max_queued_tokens)
            .field("max_draft", &self.max_draft)
            .field("mailbox", &self.mailbox)
            .field("slow_reader_timeout", &self.slow_reader_timeout)
            .field("step_limit", &self.step_limit)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}
