//! Bounds the reading of bodies for all clients together. Reading a body means parsing it, encoding its texts and
//! compiling its grammar.
//!
//! Reading can take many times the memory of a body. Large bodies are therefore read one at a time and small ones a few
//! at a time, so that neither kind waits for the other. Requests that wait here count as waiting in the engine's queue,
//! the wait counts as time of the request, and a request is dropped when its client disconnects.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::http::request::Parts;
use bitnet::inference::SubmitError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    http::{caller::Caller, error::ApiError},
    service::Service,
};

/// Maximum bytes of a small body.
const SMALL: usize = 64 << 10;
/// Number of small bodies that are read at the same time.
pub(super) const SMALL_AT_ONCE: usize = 4;
/// Number of larger bodies that are read at the same time.
const LARGE_AT_ONCE: usize = 1;

/// The places in which bodies are read, a limited number at a time.
#[derive(Debug)]
pub(crate) struct Readers {
    pub(super) small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    pub(super) waiting: AtomicUsize,
}

impl Readers {
    pub fn new() -> Self {
        Readers {
            small: Arc::new(Semaphore::new(SMALL_AT_ONCE)),
            large: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for a place for a body of this many bytes.
    pub async fn place(
        &self,
        bytes: usize,
        service: &Service,
        reading: &Reading,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let places = if bytes <= SMALL { &self.small } else { &self.large };
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return Ok(place);
        }
        let waiting = Waiting::one_more(&self.waiting);
        let limit = service.engine.max_queued_requests();
        if waiting.ahead + service.engine.queue().sequences >= limit {
            return Err(service
                .overload
                .with_retry_time(&service.engine, SubmitError::QueueFull { limit }.into()));
        }
        let acquired = Arc::clone(places).acquire_owned();
        match tokio::time::timeout(reading.remaining().min(MAX_TIMER), acquired).await {
            Ok(place) => Ok(place.expect("the semaphore is never closed")),
            Err(_) => Err(reading.late()),
        }
    }
}

/// Maximum time for which a timer is set.
const MAX_TIMER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A request that waits for a place, counted until this is dropped.
struct Waiting<'r> {
    count: &'r AtomicUsize,
    ahead: usize,
}

impl<'r> Waiting<'r> {
    fn one_more(count: &'r AtomicUsize) -> Self {
        Waiting { count, ahead: count.fetch_add(1, Relaxed) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

/// The limits within which a request is read: its time, and the presence of its client.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub caller: Caller,
    /// The total time that the request may take.
    limit: Duration,
    /// Whether that limit is the deadline of the client.
    pub has_deadline: bool,
    pub gone: Arc<AtomicBool>,
}

impl Reading {
    /// Starts to read the request of `caller` within a time limit.
    pub fn within(limit: Duration, caller: Caller) -> Self {
        Reading { caller, limit, has_deadline: false, gone: Arc::default() }
    }

    /// Starts to read within the server's limit, or within the client's `X-Deadline-Ms` if that is shorter.
    pub fn of(head: &Parts, limit: Duration) -> Result<Self, ApiError> {
        let caller = head.extensions.get().cloned().unwrap_or_else(|| Caller::new("", None));
        let within = |limit| Reading::within(limit, caller);
        let Some(value) = head.headers.get("x-deadline-ms") else { return Ok(within(limit)) };
        let millis: Option<u64> = value.to_str().ok().and_then(|text| text.parse().ok());
        match millis.map(Duration::from_millis) {
            Some(time) if !time.is_zero() => {
                Ok(Reading { has_deadline: time < limit, ..within(limit.min(time)) })
            }
            _ => Err(ApiError::field("X-Deadline-Ms", "it must be a positive number of milliseconds")),
        }
    }

    /// The time that is left.
    pub fn remaining(&self) -> Duration {
        match self.limit {
            Duration::MAX => Duration::MAX,
            limit => limit.saturating_sub(self.caller.begun.elapsed()),
        }
    }

    /// Returns an error if the client has disconnected or the time is over; called between long parts of the work.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.gone.load(Relaxed) {
            return Err(ApiError::malformed("the client disconnected before its request was read"));
        }
        if self.remaining().is_zero() {
            return Err(self.late());
        }
        Ok(())
    }

    fn late(&self) -> ApiError {
        let message = format!("the request's time of {:?} was over before it was read", self.limit);
        ApiError::busy("deadline", message, Duration::from_secs(1))
    }
}

/// Runs long work on a thread that may block. A panic there is an error of this request only.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::panicked())
}
