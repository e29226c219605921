use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bitnet_kernels::{BackendInfo, DeviceStatus};
use bitnet_model::ForwardError;
use crossbeam_channel::{Sender, unbounded};
use parking_lot::{Condvar, Mutex};

use crate::mailbox::Mailbox;
use crate::metrics::{Counter, Metrics, Recorder};
use crate::worker::{Submission, Ticket, Worker};
use crate::{
    BatchSizing, Draws, InvalidRequest, Model, Request, RequestError, RequestHandle, Scheduler,
    SchedulerConfig, SchedulerCounts, StepFaults, Stepper, SubmitError, TokenText,
};

/// How an engine works. None of it changes a token.
#[derive(Clone)]
pub struct EngineConfig {
    /// Most sequences in one forward pass; more wait.
    pub max_batch_size: usize,
    /// How many of them run, and how much of a step goes to prompts.
    pub sizing: BatchSizing,
    /// Longest that an idle engine waits for company of a request when company is likely.
    pub max_wait_time: Duration,
    /// Most requests that wait; further ones are refused.
    pub max_queued_requests: usize,
    /// Most prompt tokens that wait; further requests are refused.
    pub max_queued_tokens: usize,
    /// Most tokens guessed ahead for one sequence in one step; 0 guesses none.
    pub max_draft: usize,
    /// Updates that a request holds for its reader before it pauses.
    pub mailbox: usize,
    /// How long a request may be paused because nobody reads it.
    pub slow_reader_timeout: Duration,
    /// Tokens that end a text, from the model's metadata.
    pub eos: Vec<u32>,
    /// Text of tokens; needed for stop strings only.
    pub text: Option<Arc<dyn TokenText>>,
    /// Where to report to, beside [`Engine::metrics`].
    pub recorder: Option<Arc<dyn Recorder>>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_batch_size: 64,
            sizing: BatchSizing::Fixed(usize::MAX),
            max_wait_time: Duration::from_millis(5),
            max_queued_requests: 256,
            max_queued_tokens: 1 << 20,
            max_draft: 0,
            mailbox: 1024,
            slow_reader_timeout: Duration::from_secs(60),
            eos: Vec::new(),
            text: None,
            recorder: None,
        }
    }
}

/// Most blocks of a cache: a thousand million tokens.
const MOST_BLOCKS: usize = 1 << 24;

/// Why an engine did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A limit that must be positive is 0.
    #[error("{field} is 0: it must be at least 1")]
    Zero {
        /// The limit.
        field: &'static str,
    },
    /// An end token that the model does not have.
    #[error("end token {token} is not below the vocabulary of {vocab}")]
    UnknownEos {
        /// The token.
        token: u32,
        /// Tokens the model has.
        vocab: usize,
    },
    /// More blocks of the key-value cache than can be kept account of.
    #[error(
        "{blocks} key-value blocks, at most {MOST_BLOCKS} are possible: use fewer sequences or a shorter context"
    )]
    TooManyBlocks {
        /// How many there would be.
        blocks: usize,
    },
    /// The operating system gave no thread.
    #[error("no thread: {message}: close other programs, or raise the limit of threads")]
    Thread {
        /// What it said.
        message: String,
    },
}

/// Requests that have been taken and have had no place in a batch yet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// How many.
    pub requests: usize,
    /// Tokens of their prompts.
    pub tokens: usize,
}

/// What submitters and the engine's thread share.
#[derive(Default)]
pub(crate) struct Shared {
    pub queue: Mutex<Queue>,
    /// The queue has become shorter.
    pub room: Condvar,
    pub draining: AtomicBool,
    pub metrics: Metrics,
    pub recorder: Option<Arc<dyn Recorder>>,
    pub status: Mutex<EngineStatus>,
    /// Why the engine ended, if its device did.
    pub lost: Mutex<Option<ForwardError>>,
}

impl Shared {
    /// The device has failed: nothing is taken any more.
    pub fn lose(&self, error: &ForwardError) {
        *self.lost.lock() = Some(error.clone());
        let _queue = self.queue.lock();
        self.draining.store(true, Relaxed);
        self.room.notify_all();
    }

    /// Why what is still under way when the engine's thread ends has failed.
    pub fn end(&self) -> RequestError {
        self.lost.lock().clone().map_or(RequestError::Stopped, RequestError::Forward)
    }
}

impl Recorder for Shared {
    fn add(&self, counter: Counter, by: u64) {
        self.metrics.add(counter, by);
        self.recorder.iter().for_each(|r| r.add(counter, by));
    }

    fn observe(&self, measure: crate::Measure, value: f64) {
        self.metrics.observe(measure, value);
        self.recorder.iter().for_each(|r| r.observe(measure, value));
    }
}

/// What an engine holds after its last step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// Sequences that run.
    pub running: usize,
    /// Sequences that wait, those not yet taken out of the channel excluded.
    pub waiting: usize,
    /// Sequences that nobody reads, running or waiting.
    pub paused: usize,
    /// Sequences that the batch would hold now.
    pub batch_size: usize,
    /// Blocks of the key-value cache.
    pub kv_blocks: usize,
    /// Blocks in use.
    pub kv_used: usize,
    /// Free blocks that still hold what a later request may begin with.
    pub kv_cached: usize,
    /// What the scheduler has done.
    pub scheduler: SchedulerCounts,
    /// What went wrong.
    pub faults: StepFaults,
    /// Where tokens were drawn.
    pub draws: Draws,
    /// What the device says of itself; nothing, if that is the host.
    pub device: Option<DeviceStatus>,
}

/// Orders to the engine's thread that never wait behind requests.
pub(crate) enum Control {
    Cancel(u64),
    Resume(u64),
    /// Finish what there is, at most until then.
    Drain(Option<Instant>),
}

/// How an engine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// Whether every request came to its own end.
    pub complete: bool,
}

/// The engine's thread, and whether every request came to its own end when it is no more.
struct EngineThread {
    running: Option<JoinHandle<bool>>,
    complete: bool,
}

/// Runs many requests through one model, a step at a time, on a thread of its own. Dropping it ends all of them.
pub struct Engine {
    ingress: Sender<Vec<Submission>>,
    control: Sender<Control>,
    shared: Arc<Shared>,
    thread: Mutex<EngineThread>,
    next_id: AtomicU64,
    config: EngineConfig,
    vocab: usize,
    context: usize,
    max_batch: usize,
    backend: BackendInfo,
}

impl Engine {
    /// Takes the model and starts the thread. All memory that steps need is taken here.
    pub fn start(model: impl Model + 'static, config: EngineConfig) -> Result<Engine, StartError> {
        Self::start_boxed(Box::new(model), config)
    }

    /// As [`Engine::start`].
    pub fn start_boxed(model: Box<dyn Model>, config: EngineConfig) -> Result<Engine, StartError> {
        let (limits, vocab, backend) = (model.limits(), model.spec().vocab, model.backend());
        let context =
            model.spec().context.min(limits.kv_blocks.saturating_mul(bitnet_model::Batch::BLOCK_TOKENS));
        let max_batch = config.max_batch_size.min(limits.max_tokens).min(limits.max_logit_rows);
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
        if limits.kv_blocks > MOST_BLOCKS {
            return Err(StartError::TooManyBlocks { blocks: limits.kv_blocks });
        }
        if let Some(&token) = config.eos.iter().find(|&&t| t as usize >= vocab) {
            return Err(StartError::UnknownEos { token, vocab });
        }
        let shared = Arc::new(Shared {
            recorder: config.recorder.clone(),
            status: Mutex::new(EngineStatus {
                kv_blocks: limits.kv_blocks,
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
            context,
            max_draft: config.max_draft.min(limits.max_logit_rows),
            sizing: config.sizing,
            slow_reader: config.slow_reader_timeout.as_micros().try_into().unwrap_or(u64::MAX),
            eos: config.eos.clone(),
            text: config.text.clone(),
        });
        // Its bound is the queue that every request is counted into before it enters.
        let (ingress, submissions) = unbounded();
        let (control, orders) = unbounded();
        let worker = Worker::new(
            scheduler,
            Stepper::new(model),
            submissions,
            orders,
            Arc::clone(&shared),
            (max_batch, config.max_wait_time),
        );
        let thread = std::thread::Builder::new().name("bitnet-engine".into()).spawn(move || worker.run());
        let thread = thread.map_err(|e| StartError::Thread { message: e.to_string() })?;
        let thread = Mutex::new(EngineThread { running: Some(thread), complete: false });
        let next_id = AtomicU64::new(0);
        Ok(Engine { ingress, control, shared, thread, next_id, config, vocab, context, max_batch, backend })
    }

    /// Hands in a request, at once or not at all.
    pub fn submit(&self, request: Request) -> Result<RequestHandle, SubmitError> {
        self.submit_timeout(request, Duration::ZERO)
    }

    /// Hands in a request, waiting at most `timeout` for room in the queue.
    pub fn submit_timeout(&self, request: Request, timeout: Duration) -> Result<RequestHandle, SubmitError> {
        let handles = self.submit_by(vec![request], self.config.mailbox, Instant::now().checked_add(timeout));
        handles.map(|mut handles| handles.pop().expect("one request gives one handle"))
    }

    /// Hands in requests in order, waiting for room in the queue as often as it takes; those for which there is room
    /// at the same time start together. They do not pause when nobody reads them, so that they can be read in any
    /// order.
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<RequestHandle>, SubmitError> {
        self.submit_by(requests, usize::MAX, None)
    }

    fn submit_by(
        &self,
        mut requests: Vec<Request>,
        mailbox: usize,
        deadline: Option<Instant>,
    ) -> Result<Vec<RequestHandle>, SubmitError> {
        let mut handles = Vec::with_capacity(requests.len());
        let valid = requests.iter().try_for_each(|request| self.validate(request));
        let mut result = valid.map_err(SubmitError::from);
        while result.is_ok() && !requests.is_empty() {
            result = self.enter_queue(&requests, deadline).and_then(|entered| {
                let later = requests.split_off(entered);
                let now = std::mem::replace(&mut requests, later);
                let (group, theirs): (Vec<_>, Vec<_>) =
                    now.into_iter().map(|r| self.ticket(r, mailbox)).unzip();
                self.ingress.send(group).map_err(|_| SubmitError::Stopped)?;
                handles.extend(theirs);
                Ok(())
            });
        }
        self.shared.add(Counter::Requests, handles.len() as u64);
        self.shared.add(Counter::Rejected, requests.len() as u64);
        result.map(|()| handles)
    }

    /// Says whether a request could ever run.
    pub fn validate(&self, request: &Request) -> Result<(), InvalidRequest> {
        request.validate(self.vocab, self.context, self.config.text.is_some())
    }

    /// Counts requests into the queue: as many of the first as there is room for, at least one. It waits for that
    /// until `deadline`, or for ever if there is none.
    fn enter_queue(&self, requests: &[Request], deadline: Option<Instant>) -> Result<usize, SubmitError> {
        let (limit, limit_tokens) = (self.config.max_queued_requests, self.config.max_queued_tokens);
        let mut queue = self.shared.queue.lock();
        loop {
            if self.shared.draining.load(Relaxed) {
                let lost = self.shared.lost.lock().clone();
                return Err(lost.map_or(SubmitError::Draining, SubmitError::Lost));
            }
            let (mut entered, mut refusal) = (0, SubmitError::QueueFull { limit });
            for tokens in requests.iter().map(|r| r.prompt.len()) {
                if queue.requests == limit {
                    break;
                }
                // A prompt longer than the limit enters an empty queue.
                if queue.requests > 0 && queue.tokens + tokens > limit_tokens {
                    refusal = SubmitError::BacklogFull { queued: queue.tokens, tokens, limit: limit_tokens };
                    break;
                }
                *queue = Queue { requests: queue.requests + 1, tokens: queue.tokens + tokens };
                entered += 1;
            }
            if entered > 0 {
                return Ok(entered);
            }
            match deadline {
                None => self.shared.room.wait(&mut queue),
                Some(at) if self.shared.room.wait_until(&mut queue, at).timed_out() => return Err(refusal),
                Some(_) => {}
            }
        }
    }

    /// Both ends of a request that the queue counts.
    fn ticket(&self, request: Request, mailbox: usize) -> (Submission, RequestHandle) {
        let id = self.next_id.fetch_add(1, Relaxed);
        let seed = request.config.seed.unwrap_or_else(crate::random::fresh_seed);
        let mailbox = Arc::new(Mailbox::new(request.config.n, request.config.max_new_tokens, mailbox));
        let ticket = Ticket::new(Arc::clone(&mailbox), Arc::clone(&self.shared), request.prompt.len());
        let request = Arc::new(request);
        let control = self.control.clone();
        let handle = RequestHandle { id, seed, request: Arc::clone(&request), mailbox, control };
        (Submission { id, seed, request, ticket, at: Instant::now() }, handle)
    }

    /// What has been counted and measured.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// What the engine held after its last step.
    pub fn status(&self) -> EngineStatus {
        *self.shared.status.lock()
    }

    /// What waits now, requests on their way to the engine's thread included.
    pub fn queue(&self) -> Queue {
        *self.shared.queue.lock()
    }

    /// Whether requests are taken: not any more once it shuts down, or its thread has ended.
    pub fn is_open(&self) -> bool {
        !self.shared.draining.load(Relaxed)
    }

    /// Why the engine takes nothing any more, if its device has failed.
    pub fn lost(&self) -> Option<ForwardError> {
        self.shared.lost.lock().clone()
    }

    /// Most sequences in one step.
    pub fn max_batch_size(&self) -> usize {
        self.max_batch
    }

    /// Tokens the model has.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Longest sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What the model runs on.
    pub fn backend(&self) -> &BackendInfo {
        &self.backend
    }

    /// Takes no more requests, finishes those there are, at most for `timeout`, ends the rest and joins the thread. Who
    /// comes while another waits for that can only shorten it; both hear how it ended.
    pub fn shutdown(&self, timeout: Duration) -> DrainReport {
        {
            let _queue = self.shared.queue.lock();
            self.shared.draining.store(true, Relaxed);
        }
        self.shared.room.notify_all();
        let _ = self.control.send(Control::Drain(Instant::now().checked_add(timeout)));
        let mut thread = self.thread.lock();
        // Someone who is called back by the engine's own thread may drop the engine there.
        let elsewhere = |t: &mut JoinHandle<bool>| t.thread().id() != std::thread::current().id();
        if let Some(running) = thread.running.take_if(elsewhere) {
            thread.complete = running.join().unwrap_or(false);
        }
        DrainReport { complete: thread.complete }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}
