//! Submits requests to an engine: validates them, counts them into the queue, and sends them to the engine's thread.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::batcher::Batcher;
use super::handle::RequestHandle;
use super::live::Live;
use super::mailbox::Mailbox;
use super::metrics::{Counter, Recorder};
use super::queue::Queue;
use super::shared::{Command, Shared};
use crate::request::{GenerationConfig, InvalidRequest, Priority, Request, SubmitError};
use crate::sample::fresh_seed;

const _: () =
    assert!(GenerationConfig::MAX_CHOICES <= Mailbox::MAX_CHOICES, "a mailbox has room for all choices");

/// What requests are validated against, and how many may wait.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub vocab: usize,
    pub context: usize,
    /// Whether the engine knows the text of tokens.
    pub text: bool,
    pub sequences: usize,
    pub tokens: usize,
    /// Number of unread updates at which a request pauses.
    pub mailbox: usize,
}

/// The submitting side of an engine; clones submit to the same engine.
#[derive(Clone)]
pub(crate) struct Submitter {
    pub ingress: Sender<Vec<Live>>,
    pub control: Sender<Command>,
    pub shared: Arc<Shared>,
    pub next_id: Arc<AtomicU64>,
    pub bounds: Bounds,
}

/// The room that requests take in the queue.
fn size_of(requests: &[Request]) -> Queue {
    let add = |all: Queue, r: &Request| Queue {
        sequences: all.sequences.saturating_add(r.config.n),
        tokens: all.tokens.saturating_add(r.prompt.len()),
    };
    requests.iter().fold(Queue::default(), add)
}

impl Submitter {
    pub fn validate(&self, request: &Request) -> Result<(), InvalidRequest> {
        request.validate(self.bounds.vocab, self.bounds.context, self.bounds.text)
    }

    /// Submits all requests together or none, waiting for room until `deadline`, or without limit if it is `None`.
    pub fn together(
        &self,
        requests: Vec<Request>,
        deadline: Option<Instant>,
    ) -> Result<Vec<RequestHandle>, SubmitError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let valid = requests.iter().try_for_each(|request| self.validate(request));
        let room = valid.map_err(SubmitError::from).and_then(|()| self.can_fit(&requests));
        let entered =
            room.and_then(|()| self.shared.waiting.enter(deadline, |queue| self.enter(queue, &requests)));
        if let Err(refusal) = entered {
            self.shared.add(Counter::Rejected, requests.len() as u64);
            return Err(refusal);
        }
        self.send_all(requests, self.bounds.mailbox)
    }

    /// Submits requests in order, as many at a time as fit, waiting for room as often as necessary. Requests that fit
    /// immediately are submitted before this returns. They pause when unread only once the caller has the handles.
    pub fn in_turn(
        self,
        mut requests: Vec<Request>,
    ) -> impl Future<Output = Result<Vec<RequestHandle>, SubmitError>> + Send + use<> {
        let mut begun = self.check_each(&requests).map(|()| Vec::with_capacity(requests.len()));
        if let Ok(handles) = &mut begun
            && !requests.is_empty()
            && let Ok(entered) = self.shared.waiting.try_enter(|queue| self.enter_first(queue, &requests))
        {
            match self.send_first(&mut requests, entered) {
                Ok(first) => handles.extend(first),
                Err(error) => begun = Err(error),
            }
        }
        async move {
            let mut handles = begun?;
            while !requests.is_empty() {
                let enter = |queue: &mut Queue| self.enter_first(queue, &requests);
                let entered = poll_fn(|cx| self.shared.waiting.poll_enter(cx, enter));
                let entered = entered.await.inspect_err(|_| self.reject(&requests))?;
                handles.extend(self.send_first(&mut requests, entered)?);
            }
            handles.iter().for_each(|handle| handle.mailbox.limit(self.bounds.mailbox));
            Ok(handles)
        }
    }

    /// Submits a request that starts with a batch of `batcher`, waiting for room until `deadline`.
    pub fn batched(
        &self,
        batcher: &Arc<Batcher>,
        request: Request,
        since: Instant,
        deadline: Option<Instant>,
    ) -> Result<RequestHandle, SubmitError> {
        let alone = std::slice::from_ref(&request);
        self.check_each(alone)?;
        batcher.enter(deadline).inspect_err(|_| self.reject(alone))?;
        let entered = self.shared.waiting.enter(deadline, |queue| self.enter(queue, alone));
        if let Err(refusal) = entered {
            batcher.leave_queue();
            batcher.ended();
            self.reject(alone);
            return Err(refusal);
        }
        let (mut live, handle) = self.both_ends(request, usize::MAX);
        live.at = since;
        live.batcher = Some(Arc::clone(batcher));
        if live.is_text() {
            // Its next token is computed when this one has been read.
            live.mailbox.limit(1);
        }
        self.send(vec![live], 1)?;
        Ok(handle)
    }

    /// Tells the engine's thread that a batcher has been closed.
    pub fn start_batches(&self) {
        let _ = self.control.send(Command::StartBatches);
    }

    /// Checks that each request is valid and could enter an empty queue by itself.
    fn check_each(&self, requests: &[Request]) -> Result<(), SubmitError> {
        let check = |request: &Request| {
            self.validate(request)?;
            self.can_fit(std::slice::from_ref(request))
        };
        requests.iter().try_for_each(check).inspect_err(|_| self.reject(requests))
    }

    fn reject(&self, requests: &[Request]) {
        self.shared.add(Counter::Rejected, requests.len() as u64);
    }

    /// Checks that the requests fit together into an empty queue, which accepts any single prompt that fits the
    /// context.
    fn can_fit(&self, requests: &[Request]) -> Result<(), SubmitError> {
        let Queue { sequences, tokens } = size_of(requests);
        let Bounds { sequences: limit, tokens: limit_tokens, .. } = self.bounds;
        if sequences > limit {
            return Err(SubmitError::NeverFits { what: "choices", asked: sequences, limit });
        }
        if requests.len() > 1 && tokens > limit_tokens {
            return Err(SubmitError::NeverFits { what: "prompt tokens", asked: tokens, limit: limit_tokens });
        }
        Ok(())
    }

    /// Counts all requests into the queue or none. Requests in the background leave half of the queue to others.
    fn enter(&self, queue: &mut Queue, requests: &[Request]) -> Result<(), SubmitError> {
        if self.shared.waiting.is_closed() {
            let lost = self.shared.lost.lock().clone();
            return Err(lost.map_or(SubmitError::Draining, SubmitError::Lost));
        }
        let Queue { sequences, tokens } = size_of(requests);
        let background = requests.iter().any(|request| request.priority == Priority::Background);
        let part = if background { 2 } else { 1 };
        let limit = self.bounds.sequences / part;
        let limit_tokens = self.bounds.tokens / part;
        // An empty queue accepts whatever can ever fit, also what is longer than the limit.
        if queue.sequences > 0 && queue.sequences.saturating_add(sequences) > limit {
            return Err(SubmitError::QueueFull { limit });
        }
        if queue.sequences > 0 && queue.tokens.saturating_add(tokens) > limit_tokens {
            return Err(SubmitError::BacklogFull { queued: queue.tokens, tokens, limit: limit_tokens });
        }
        *queue = Queue { sequences: queue.sequences + sequences, tokens: queue.tokens + tokens };
        Ok(())
    }

    /// Counts as many of the first requests into the queue as fit, at least one.
    fn enter_first(&self, queue: &mut Queue, requests: &[Request]) -> Result<usize, SubmitError> {
        let mut entered = 0;
        for request in requests.chunks(1) {
            match self.enter(queue, request) {
                Ok(()) => entered += 1,
                Err(refusal) if entered == 0 => return Err(refusal),
                Err(_) => break,
            }
        }
        Ok(entered)
    }

    /// Sends the first requests, which are already counted.
    fn send_first(
        &self,
        requests: &mut Vec<Request>,
        entered: usize,
    ) -> Result<Vec<RequestHandle>, SubmitError> {
        let later = requests.split_off(entered);
        self.send_all(std::mem::replace(requests, later), usize::MAX)
    }

    fn send_all(&self, requests: Vec<Request>, mailbox: usize) -> Result<Vec<RequestHandle>, SubmitError> {
        let (group, handles): (Vec<_>, Vec<_>) =
            requests.into_iter().map(|request| self.both_ends(request, mailbox)).unzip();
        self.send(group, handles.len())?;
        Ok(handles)
    }

    fn send(&self, group: Vec<Live>, requests: usize) -> Result<(), SubmitError> {
        // Count them before the engine can count their ends.
        self.shared.add(Counter::Requests, requests as u64);
        self.ingress.send(group).map_err(|_| SubmitError::Stopped)
    }

    /// Creates both ends of a request that is already counted.
    fn both_ends(&self, request: Request, mailbox: usize) -> (Live, RequestHandle) {
        let id = self.next_id.fetch_add(1, Relaxed);
        let seed = request.config.seed.unwrap_or_else(fresh_seed);
        let mailbox = Arc::new(Mailbox::new(request.config.n, request.config.max_new_tokens, mailbox));
        let counted = size_of(std::slice::from_ref(&request));
        let request = Arc::new(request);
        let engine = Arc::clone(&mailbox);
        let caller = Arc::clone(&request);
        let live = Live::new(id, seed, request, engine, counted, Arc::clone(&self.shared));
        let control = self.control.clone();
        (live, RequestHandle { id, seed, request: caller, mailbox, control })
    }
}
