use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, TrySendError, bounded};

use crate::batch::{self, GenerationError};
use crate::{
    Engine, EngineConfig, ForwardError, GenerationConfig, PaddedBatch, Request, StartError, StatelessForward,
};

/// One token wanted.
#[derive(Debug)]
pub struct BatchRequest {
    /// The text so far.
    pub tokens: Vec<u32>,
    /// How many of the last tokens were generated.
    pub step: usize,
    /// How to draw.
    pub config: GenerationConfig,
    /// Where the token goes, or `None` if the text ends here; told once.
    pub reply: Sender<Result<Option<u32>, GenerationError>>,
    /// When it was submitted.
    pub submitted_at: Instant,
}

/// A setting that could never collect a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("max_batch_size is 0: it must be at least 1")]
pub struct InvalidBatching;

/// Why a request did not enter the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// There is no room.
    #[error("the batch queue is full")]
    Full,
    /// Nobody collects any more.
    #[error("the batch processor has stopped")]
    Stopped,
}

/// Collects single-token requests of many generators into batches, and computes each batch in one step.
pub struct BatchProcessor {
    max_batch_size: usize,
    max_wait_time: Duration,
    requests: Receiver<BatchRequest>,
    queue: BatchQueue,
}

/// Where requests enter; any number of clones.
#[derive(Debug, Clone)]
pub struct BatchQueue(Sender<BatchRequest>);

/// A running processor as generators hold it: its queue, and the engine it computes on. It stops when the last
/// handle is gone.
#[derive(Clone)]
pub struct BatchHandle {
    /// The queue.
    pub queue: BatchQueue,
    /// The engine.
    pub engine: Arc<Engine>,
}

impl BatchProcessor {
    /// Batches of up to `max_batch_size`; one that is not full goes when its first member has waited
    /// `max_wait_time`. The queue holds four batches.
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
        Ok(BatchProcessor { max_batch_size, max_wait_time, requests, queue: BatchQueue(sender) })
    }

    /// Where requests enter.
    pub fn queue(&self) -> BatchQueue {
        self.queue.clone()
    }

    /// Sleeps until there is a request, then takes what is there and waits for more until the batch is full or the
    /// first has waited long enough. `None` when nobody can submit any more.
    pub fn collect_batch(&self) -> Option<Vec<BatchRequest>> {
        collect(&self.requests, self.max_batch_size, self.max_wait_time)
    }

    /// Computes one token for each request, all in the same step, and replies to each. A request fails alone.
    pub fn process_batch(engine: &Engine, batch: Vec<BatchRequest>) {
        let mut replies = Vec::with_capacity(batch.len());
        let requests = batch.into_iter().map(|b| {
            replies.push(b.reply);
            one_token(b.tokens, b.step, b.config)
        });
        let handles = batch::submit_valid(engine, requests);
        for (reply, handle) in replies.into_iter().zip(handles) {
            let token = handle.and_then(batch::tokens).map(|tokens| tokens.first().copied());
            // Someone who no longer waits for the token misses nothing.
            let _ = reply.send(token);
        }
    }

    /// Processes on a thread of its own until every handle and queue is dropped; what was submitted before is
    /// answered. The engine computes both batches and what a generator asks for alone, so that they cannot differ.
    pub fn start_processing(self, engine: Arc<Engine>) -> BatchHandle {
        let BatchProcessor { max_batch_size, max_wait_time, requests, queue } = self;
        let on = Arc::clone(&engine);
        std::thread::spawn(move || {
            while let Some(batch) = collect(&requests, max_batch_size, max_wait_time) {
                Self::process_batch(&on, batch);
            }
        });
        BatchHandle { queue, engine }
    }

    /// As [`BatchProcessor::start_processing`], on an engine of its own that computes with `forward`: the logits
    /// after each sequence of a batch. [`crate::blocking`] makes one of an async function.
    pub fn start_processing_with<F>(
        self,
        vocab: usize,
        context: usize,
        forward: F,
    ) -> Result<BatchHandle, StartError>
    where
        F: FnMut(&PaddedBatch) -> Result<Vec<Vec<f32>>, ForwardError> + Send + 'static,
    {
        let model = StatelessForward::new(vocab, context, self.max_batch_size, forward);
        let config = EngineConfig { max_batch_size: self.max_batch_size, ..EngineConfig::default() };
        Ok(self.start_processing(Arc::new(Engine::start(model, config)?)))
    }
}

fn collect(requests: &Receiver<BatchRequest>, most: usize, wait: Duration) -> Option<Vec<BatchRequest>> {
    let first = requests.recv().ok()?;
    let deadline = first.submitted_at.checked_add(wait);
    let mut batch = vec![first];
    while batch.len() < most {
        // What is there already costs no waiting, however late it is.
        let wait = || match deadline {
            Some(deadline) => requests.recv_deadline(deadline),
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match requests.try_recv().or_else(|_| wait()) {
            Ok(request) => batch.push(request),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Some(batch)
}

/// A request for the token that follows `tokens`, `step` of which were generated. Stop strings are left to whoever
/// sees the whole text.
pub(super) fn one_token(tokens: Vec<u32>, step: usize, config: GenerationConfig) -> Request {
    // The text may be continued for as long as is asked, but not by this request.
    let max_new_tokens = config.max_new_tokens.min(step.saturating_add(1));
    let config = GenerationConfig {
        max_new_tokens,
        min_new_tokens: config.min_new_tokens.min(max_new_tokens),
        ..config
    };
    Request { generated: step, ..Request::new(tokens, config) }
}

impl BatchQueue {
    /// Submits a request, waiting for room.
    pub fn submit(&self, request: BatchRequest) -> Result<(), QueueError> {
        self.0.send(request).map_err(|_| QueueError::Stopped)
    }

    /// Submits a request if there is room.
    pub fn try_submit(&self, request: BatchRequest) -> Result<(), QueueError> {
        self.0.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => QueueError::Full,
            TrySendError::Disconnected(_) => QueueError::Stopped,
        })
    }

    /// Submits a request, waiting at most `timeout` for room.
    pub fn submit_timeout(&self, request: BatchRequest, timeout: Duration) -> Result<(), QueueError> {
        self.0.send_timeout(request, timeout).map_err(|error| match error {
            SendTimeoutError::Timeout(_) => QueueError::Full,
            SendTimeoutError::Disconnected(_) => QueueError::Stopped,
        })
    }
}
