//! Requests for single tokens, computed in batches by the engine that serves everything else.
//! A batch starts when it is full, or when its first request has waited long enough.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bitnet_model::ForwardError;
use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::super::batches;
use super::super::padded_batch::PaddedBatch;
use super::super::stateless_forward::StatelessForward;
use crate::engine::{Batcher, Engine, EngineConfig, GenerationError, RequestHandle, StartError, Submitter};
use crate::request::{GenerationConfig, Request, SubmitError};

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
    /// Receives the token once, or `None` if the text ends here. The channel must have room for it: the engine does not
    /// wait for its receiver.
    pub reply: Sender<Result<Option<u32>, GenerationError>>,
    /// Time of submission, from which the wait for a full batch counts.
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

/// Lets single-token requests of many generators wait for each other, so that each batch is computed in one step. It is a
/// part of an engine's own queue: it has no thread and no queue of its own.
#[derive(Debug, Clone, Copy)]
pub struct BatchProcessor {
    max_batch_size: usize,
    max_wait_time: Duration,
    capacity: usize,
}

/// The submitting side of a [`BatchProcessor`]; it can be cloned.
#[derive(Clone)]
pub struct BatchQueue {
    submitter: Submitter,
    batcher: Arc<Batcher>,
}

/// A handle on a running processor: its queue and its engine. Dropping the last handle closes the queue and waits until
/// all pending requests are answered.
#[derive(Debug, Clone)]
pub struct BatchHandle {
    /// Dropped before the engine, which answers what is pending.
    _open: Arc<Open>,
    /// The queue. A clone can outlive the handles; it then returns [`QueueError::Stopped`].
    pub queue: BatchQueue,
    /// The engine.
    pub engine: Arc<Engine>,
}

/// Closes a queue when the last handle is dropped.
#[derive(Debug)]
struct Open(BatchQueue);

impl Drop for Open {
    fn drop(&mut self) {
        let BatchQueue { submitter, batcher } = &self.0;
        batcher.close();
        submitter.start_batches();
        batcher.finish();
    }
}

impl BatchProcessor {
    /// Creates a processor with batches of up to `max_batch_size`. A batch that is not full starts when its first
    /// request has waited `max_wait_time`. The queue holds four batches.
    pub fn new(max_batch_size: usize, max_wait_time: Duration) -> Result<Self, InvalidBatching> {
        Self::with_capacity(max_batch_size, max_wait_time, max_batch_size.saturating_mul(4))
    }

    /// Like [`BatchProcessor::new`], with a queue of `capacity`.
    pub fn with_capacity(
        max_batch_size: usize,
        max_wait_time: Duration,
        capacity: usize,
    ) -> Result<Self, InvalidBatching> {
        if max_batch_size == 0 {
            return Err(InvalidBatching);
        }
        Ok(BatchProcessor { max_batch_size, max_wait_time, capacity: capacity.clamp(1, 1 << 16) })
    }

    /// Computes one token for each request, all in the same step, and replies to each. A failure affects only its
    /// request.
    pub fn process_batch(engine: &Engine, batch: Vec<BatchRequest>) {
        let mut replies = Vec::with_capacity(batch.len());
        let requests = batch.into_iter().map(|b| {
            replies.push(b.reply);
            one_token(b.tokens, b.step, b.config)
        });
        let requests = requests.collect();
        let tokens = crate::engine::block_on(batches::new_tokens_of(engine, requests));
        for (reply, tokens) in replies.into_iter().zip(tokens) {
            // An error means that no one waits for the token any more.
            let _ = reply.send(tokens.map(|tokens| tokens.first().copied()));
        }
    }

    /// Opens the queue on an engine, which computes batches beside its other requests. The engine computes both batches
    /// and single tokens, so they cannot differ.
    ///
    /// # Errors
    /// Never at present.
    pub fn start_processing(self, engine: Arc<Engine>) -> Result<BatchHandle, StartError> {
        let BatchProcessor { max_batch_size, max_wait_time, capacity } = self;
        let batcher = Arc::new(Batcher::new(max_batch_size, max_wait_time, capacity));
        let queue = BatchQueue { submitter: engine.submitter().clone(), batcher };
        Ok(BatchHandle { _open: Arc::new(Open(queue.clone())), queue, engine })
    }

    /// Like [`BatchProcessor::start_processing`], on a new engine that computes with `forward`, which maps a batch of
    /// at most 1,024 sequences to the logits after each. [`crate::names::blocking`] makes one from an async function.
    ///
    /// # Errors
    /// If the vocabulary or the context is 0 or too large, or the engine's threads cannot be started.
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
    /// Number of requests that wait for a batch: new ones, not texts that are read token by token.
    pub fn waiting(&self) -> usize {
        self.batcher.queued()
    }

    /// Submits a request, waiting for room.
    pub fn submit(&self, request: BatchRequest) -> Result<(), QueueError> {
        self.submit_until(request, None)
    }

    /// Submits a request if there is room.
    pub fn try_submit(&self, request: BatchRequest) -> Result<(), QueueError> {
        self.submit_timeout(request, Duration::ZERO)
    }

    /// Submits a request, waiting at most `timeout` for room.
    pub fn submit_timeout(&self, request: BatchRequest, timeout: Duration) -> Result<(), QueueError> {
        self.submit_until(request, Instant::now().checked_add(timeout))
    }

    /// Submits a text, of which a token is computed whenever the one before has been read.
    pub(super) fn text(&self, request: Request) -> Result<RequestHandle, SubmitError> {
        self.submitter.batched(&self.batcher, request, Instant::now(), None)
    }

    fn submit_until(&self, request: BatchRequest, deadline: Option<Instant>) -> Result<(), QueueError> {
        let BatchRequest { tokens, step, config, reply, submitted_at } = request;
        let request = match batches::new_tokens(&self.submitter, one_token(tokens, step, config)) {
            Ok(request) => request,
            Err(error) => {
                answer(&reply, Err(error.into()));
                return Ok(());
            }
        };
        match self.submitter.batched(&self.batcher, request, submitted_at, deadline) {
            Ok(handle) => {
                reply_with(handle, reply);
                Ok(())
            }
            Err(SubmitError::QueueFull { .. } | SubmitError::BacklogFull { .. }) => Err(QueueError::Full),
            Err(SubmitError::Draining | SubmitError::Stopped | SubmitError::Lost(_)) => {
                Err(QueueError::Stopped)
            }
            Err(error) => {
                answer(&reply, Err(error.into()));
                Ok(())
            }
        }
    }
}

bitnet_tensor::opaque_debug!(BatchQueue);

type Reply = Sender<Result<Option<u32>, GenerationError>>;

/// Replies once, without waiting: an error means that no one waits for the token any more.
fn answer(reply: &Reply, token: Result<Option<u32>, GenerationError>) {
    let _ = reply.try_send(token);
}

/// Replies when the token has been computed, on the thread that computed it.
fn reply_with(handle: RequestHandle, reply: Reply) {
    let task = async move {
        let token = handle.wait_async().await.map(|done| batches::only_choice(done).first().copied());
        answer(&reply, token.map_err(GenerationError::from));
    };
    Arc::new(Task(Mutex::new(Some(Box::pin(task))))).wake();
}

/// A future that is polled by whoever wakes it; it never blocks.
struct Task(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut future = self.0.lock();
        if let Some(running) = &mut *future
            && let Poll::Ready(()) = running.as_mut().poll(&mut Context::from_waker(&waker))
        {
            *future = None;
        }
    }
}
