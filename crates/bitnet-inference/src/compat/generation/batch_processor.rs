//! Collects requests for single tokens into batches.
//! A batch starts when it is full, or when its first request has waited long enough.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bitnet_model::ForwardError;
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError, at, bounded, never, select};

use super::super::batches;
use super::super::padded_batch::PaddedBatch;
use super::super::stateless_forward::StatelessForward;
use crate::engine::{Engine, EngineConfig, StartError};
use crate::request::{GenerationConfig, GenerationError, Request};

/// Maximum number of sequences in one call of a function.
const MAX_SEQUENCES: usize = 1024;

/// A request for one token.
#[derive(Debug)]
pub struct BatchRequest {
    /// The text so far.
    pub tokens: Vec<u32>,
    /// How many of the last tokens were generated.
    pub step: usize,
    /// How to draw the token.
    pub config: GenerationConfig,
    /// Receives the token once, or `None` if the text ends here.
    pub reply: Sender<Result<Option<u32>, GenerationError>>,
    /// Time of submission.
    pub submitted_at: Instant,
}

/// The maximum batch size is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("max_batch_size is 0: it must be at least 1")]
pub struct InvalidBatching;

/// Why a request did not enter the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue is full.
    #[error("the batch queue is full")]
    Full,
    /// The processor has stopped.
    #[error("the batch processor has stopped")]
    Stopped,
}

/// Collects single-token requests of many generators into batches, and computes each batch in one step.
#[derive(Debug)]
pub struct BatchProcessor {
    max_batch_size: usize,
    max_wait_time: Duration,
    requests: Receiver<BatchRequest>,
    queue: BatchQueue,
}

/// The submitting side of a [`BatchProcessor`]; it can be cloned.
#[derive(Debug, Clone)]
pub struct BatchQueue {
    requests: Sender<BatchRequest>,
    stopped: Arc<AtomicBool>,
}

/// A handle on a running processor: its queue and its engine. Dropping the last handle closes the queue, waits until
/// all pending requests are answered, and joins the thread.
#[derive(Debug, Clone)]
pub struct BatchHandle {
    /// The queue. A clone can outlive the handles; it then returns [`QueueError::Stopped`].
    pub queue: BatchQueue,
    /// The engine.
    pub engine: Arc<Engine>,
    _thread: Arc<Running>,
}

#[derive(Debug)]
struct Running {
    stopped: Arc<AtomicBool>,
    /// Dropped to tell the thread to stop.
    open: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopped.store(true, SeqCst);
        self.open = None;
        // If it panicked, the waiting callers have already got an error.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl BatchProcessor {
    /// Creates a processor with batches of up to `max_batch_size`. A batch that is not full starts when its first
    /// request has waited `max_wait_time`. The queue holds four batches.
    pub fn new(max_batch_size: usize, max_wait_time: Duration) -> Result<Self, InvalidBatching> {
        Self::with_capacity(max_batch_size, max_wait_time, max_batch_size.saturating_mul(4))
    }

    /// As [`BatchProcessor::new`], with a queue of `capacity`.
    pub fn with_capacity(
        max_batch_size: usize,
        max_wait_time: Duration,
        capacity: usize,
    ) -> Result<Self, InvalidBatching> {
        if max_batch_size == 0 {
            return Err(InvalidBatching);
        }
        let (sender, requests) = bounded(capacity.clamp(1, 1 << 16));
        let queue = BatchQueue { requests: sender, stopped: Arc::default() };
        Ok(BatchProcessor { max_batch_size, max_wait_time, requests, queue })
    }

    /// The queue, for submitting requests.
    pub fn queue(&self) -> BatchQueue {
        self.queue.clone()
    }

    /// Waits for a request, then collects more until the batch is full or the first has waited long enough. Returns
    /// `None` when no one can submit any more.
    pub fn collect_batch(&self) -> Option<Vec<BatchRequest>> {
        collect(&self.requests, &never(), self.max_batch_size, self.max_wait_time)
    }

    /// Computes one token for each request, all in the same step, and replies to each. A failure affects only its
    /// request.
    pub fn process_batch(engine: &Engine, batch: Vec<BatchRequest>) {
        let mut replies = Vec::with_capacity(batch.len());
        let requests = batch.into_iter().map(|b| {
            replies.push(b.reply);
            one_token(b.tokens, b.step, b.config)
        });
        let handles = batches::submit_valid(engine, requests);
        for (reply, handle) in replies.into_iter().zip(handles) {
            let token = handle.and_then(batches::tokens).map(|tokens| tokens.first().copied());
            // An error means that no one waits for the token any more.
            let _ = reply.send(token);
        }
    }

    /// Processes batches on a new thread until the last handle is dropped; requests submitted before that are
    /// answered. The engine computes both batches and single tokens, so they cannot differ.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_processing(self, engine: Arc<Engine>) -> Result<BatchHandle, StartError> {
        let BatchProcessor { max_batch_size, max_wait_time, requests, queue } = self;
        let (on, (open, closed)) = (Arc::clone(&engine), bounded(0));
        let work = move || {
            while let Some(batch) = collect(&requests, &closed, max_batch_size, max_wait_time) {
                Self::process_batch(&on, batch);
            }
        };
        let thread = std::thread::Builder::new().name("bitnet-batches".into()).spawn(work);
        let thread = thread.map_err(|e| StartError::Thread { message: e.to_string() })?;
        let stopped = Arc::clone(&queue.stopped);
        let running = Running { stopped, open: Some(open), thread: Some(thread) };
        Ok(BatchHandle { queue, engine, _thread: Arc::new(running) })
    }

    /// As [`BatchProcessor::start_processing`], on a new engine that computes with `forward`, which maps a batch of
    /// at most 1,024 sequences to the logits after each. [`crate::names::blocking`] makes one from an async function.
    ///
    /// # Errors
    /// If the vocabulary or the context is 0 or too large, or a thread cannot be started.
    pub fn start_processing_with<F>(
        self,
        vocab: usize,
        context: usize,
        forward: F,
    ) -> Result<BatchHandle, StartError>
    where
        F: FnMut(&PaddedBatch) -> Result<Vec<Vec<f32>>, ForwardError> + Send + 'static,
    {
        let max_batch_size = self.max_batch_size.min(MAX_SEQUENCES);
        let model = StatelessForward::new(vocab, context, max_batch_size, forward);
        let config = EngineConfig { max_batch_size, ..EngineConfig::default() };
        self.start_processing(Arc::new(Engine::start(model, config)?))
    }
}

/// The next batch, or `None` when nothing is left and `closed` is disconnected or the queue has no senders.
fn collect(
    requests: &Receiver<BatchRequest>,
    closed: &Receiver<Infallible>,
    most: usize,
    wait: Duration,
) -> Option<Vec<BatchRequest>> {
    let next = |deadline: &Receiver<Instant>| {
        // Requests that are already there need no waiting, even after the deadline.
        requests.try_recv().ok().or_else(|| {
            select! {
                recv(requests) -> request => request.ok(),
                recv(closed) -> _ => requests.try_recv().ok(),
                recv(deadline) -> _ => None,
            }
        })
    };
    let first = next(&never())?;
    let deadline = first.submitted_at.checked_add(wait).map_or(never(), at);
    let mut batch = vec![first];
    while batch.len() < most
        && let Some(request) = next(&deadline)
    {
        batch.push(request);
    }
    Some(batch)
}

/// A request for the token after `tokens`, of which the last `step` were generated. The caller, who sees the whole
/// text, looks for stop strings.
pub(super) fn one_token(tokens: Vec<u32>, step: usize, config: GenerationConfig) -> Request {
    // The text may continue up to the configured length, but this request generates one token.
    let max_new_tokens = config.max_new_tokens.min(step.saturating_add(1));
    let config = GenerationConfig {
        max_new_tokens,
        min_new_tokens: config.min_new_tokens.min(max_new_tokens),
        ..config
    };
    Request { generated: step, ..Request::new(tokens, config) }
}

impl BatchQueue {
    fn open(&self) -> Result<&Sender<BatchRequest>, QueueError> {
        if self.stopped.load(SeqCst) { Err(QueueError::Stopped) } else { Ok(&self.requests) }
    }

    /// Submits a request, waiting for room.
    pub fn submit(&self, request: BatchRequest) -> Result<(), QueueError> {
        self.open()?.send(request).map_err(|_| QueueError::Stopped)
    }

    /// Submits a request if there is room.
    pub fn try_submit(&self, request: BatchRequest) -> Result<(), QueueError> {
        self.open()?.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => QueueError::Full,
            TrySendError::Disconnected(_) => QueueError::Stopped,
        })
    }

    /// Submits a request, waiting at most `timeout` for room.
    pub fn submit_timeout(&self, request: BatchRequest, timeout: Duration) -> Result<(), QueueError> {
        self.open()?.send_timeout(request, timeout).map_err(|error| match error {
            SendTimeoutError::Timeout(_) => QueueError::Full,
            SendTimeoutError::Disconnected(_) => QueueError::Stopped,
        })
    }
}
