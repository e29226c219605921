//! Receives the body of a request and reads it on a thread that may block, within bounds for all clients together.
//! Reading a body means parsing it, encoding its texts and compiling its grammar.
//!
//! Reading can take many times the memory of a body. Large bodies are therefore read one at a time and small ones a few
//! at a time, so that neither kind waits for the other. Requests that wait here count as waiting in the engine's queue,
//! the wait counts as time of the request, and a request is dropped when its client has gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{extract::Request, http::HeaderMap};
use bitnet::inference::SubmitError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    http::{body::receive, error::ApiError},
    service::{App, Service},
};

/// Maximum bytes of a small body.
const SMALL: usize = 64 << 10;
/// Number of small bodies that are read at the same time.
const SMALL_AT_ONCE: usize = 4;
/// Number of larger bodies that are read at the same time.
const LARGE_AT_ONCE: usize = 1;

/// The places in which bodies are read, a limited number at a time.
#[derive(Debug)]
pub(crate) struct Readers {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    waiting: AtomicUsize,
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
    async fn place(
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
            return Err(service.overload.honest(&service.engine, SubmitError::QueueFull { limit }.into()));
        }
        let acquired = Arc::clone(places).acquire_owned();
        match tokio::time::timeout(reading.remaining().min(FAR), acquired).await {
            Ok(place) => Ok(place.expect("the semaphore is never closed")),
            Err(_) => Err(reading.late()),
        }
    }
}

/// Maximum time for which a timer is set.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

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

/// The conditions under which reading goes on: the request has time left, and its client is still there.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    begun: Instant,
    /// The total time that the request may take.
    limit: Duration,
    /// Whether the client has set that limit.
    pub hurried: bool,
    gone: Arc<AtomicBool>,
}

impl Reading {
    /// Starts to read within a time limit.
    pub fn within(limit: Duration) -> Self {
        Reading { begun: Instant::now(), limit, hurried: false, gone: Arc::default() }
    }

    /// Starts to read within the server's limit, or within the client's `X-Deadline-Ms` if that is shorter.
    fn of(headers: &HeaderMap, limit: Duration) -> Result<Self, ApiError> {
        let Some(value) = headers.get("x-deadline-ms") else { return Ok(Reading::within(limit)) };
        let millis: Option<u64> = value.to_str().ok().and_then(|text| text.parse().ok());
        match millis.map(Duration::from_millis) {
            Some(time) if !time.is_zero() => {
                Ok(Reading { hurried: time < limit, ..Reading::within(limit.min(time)) })
            }
            _ => Err(ApiError::field("X-Deadline-Ms", "it must be a positive number of milliseconds")),
        }
    }

    /// The time that is left.
    pub fn remaining(&self) -> Duration {
        match self.limit {
            Duration::MAX => Duration::MAX,
            limit => limit.saturating_sub(self.begun.elapsed()),
        }
    }

    /// Returns an error if the client has gone or the time is over; called between long parts of the work.
    pub fn go_on(&self) -> Result<(), ApiError> {
        if self.gone.load(Relaxed) {
            return Err(ApiError::malformed("the client has gone"));
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

/// When dropped, tells the thread that reads a body that the client has gone.
struct HangUp(Arc<AtomicBool>);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Receives the body of a request, and reads it on a thread that may block.
pub(crate) async fn read<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    work: impl FnOnce(&Service, &HeaderMap, &[u8], &Reading) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let service = app.service()?;
    let (head, body) = request.into_parts();
    let received = receive(app, &head.headers, body).await?;
    let reading = Reading::of(&head.headers, app.config.request_timeout)?;
    let place = app.readers.place(received.bytes.len(), service, &reading).await;
    let place =
        place.inspect_err(|refused| service.metrics.rejected(refused.body.code.unwrap_or("other")))?;
    let _hang_up = HangUp(Arc::clone(&reading.gone));
    let app = Arc::clone(app);
    let worked = blocking(move || {
        let worked = work(app.service()?, &head.headers, &received.bytes, &reading);
        // Free the memory before the place, so that the next request finds both.
        drop(received);
        drop(place);
        worked
    });
    worked.await?
}

/// Runs long work on a thread that may block. A panic there is an error of this request only.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::fault("the request made a handler panic"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use axum::body::Body;
    use bitnet::inference::{EngineConfig, sim::HashModel};
    use bitnet::model::{Checkpoint, Limits, Model, Synthetic};

    use super::*;
    use crate::service::ServerConfig;

    const SOON: Duration = Duration::from_secs(20);

    fn app(max_queued_requests: usize) -> Arc<App> {
        let model = HashModel::new(50, 100, Limits { max_tokens: 8, max_logit_rows: 8, kv_blocks: 8 });
        let engine = EngineConfig { max_queued_requests, ..EngineConfig::default() };
        let checkpoint = Checkpoint::synthetic("hash", Synthetic::of(model.spec().clone()));
        let model = bitnet::Model::start(checkpoint, Box::new(model), engine).unwrap();
        App::ready(Service::new(model, ServerConfig::default()))
    }

    fn request(deadline: &str) -> Request {
        let request = Request::post("/").header("content-type", "application/json");
        request.header("x-deadline-ms", deadline).body(Body::from("{}")).unwrap()
    }

    #[tokio::test]
    async fn reading_ends_when_its_client_is_gone_and_its_place_is_free_again() {
        let app = app(1);
        let (ended, end) = mpsc::channel();
        let reading = read(&app, request("60000"), move |_, _, _, reading| {
            while reading.go_on().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.send(()).map_err(ApiError::fault)
        });
        assert!(tokio::time::timeout(Duration::from_millis(100), reading).await.is_err(), "it goes on");
        end.recv_timeout(SOON).unwrap();
        let free = app.readers.small.acquire_many(SMALL_AT_ONCE as u32);
        drop(tokio::time::timeout(SOON, free).await.unwrap().unwrap());
    }

    #[tokio::test]
    async fn what_finds_no_place_waits_within_its_time_and_the_bounds_of_the_queue() {
        let app = app(2);
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(parking_lot::Mutex::new(released));
        let hold = |deadline: &str| {
            let (app, request, released) = (Arc::clone(&app), request(deadline), Arc::clone(&released));
            tokio::spawn(async move {
                let work = move |_: &Service, _: &HeaderMap, _: &[u8], _: &Reading| {
                    released.lock().recv_timeout(SOON).map_err(ApiError::fault)
                };
                read(&app, request, work).await
            })
        };
        let held: Vec<_> = (0..SMALL_AT_ONCE).map(|_| hold("60000")).collect();
        while app.readers.small.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let late = hold("50").await.unwrap().unwrap_err();
        assert_eq!((late.status.as_u16(), late.body.code), (429, Some("deadline")));
        let waiting = [hold("60000"), hold("60000")];
        while app.readers.waiting.load(Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
        let full = hold("60000").await.unwrap().unwrap_err();
        assert_eq!((full.status.as_u16(), full.body.code), (429, Some("queue_full")));
        (0..SMALL_AT_ONCE + 2).for_each(|_| release.send(()).unwrap());
        for reading in held.into_iter().chain(waiting) {
            assert_eq!(reading.await.unwrap(), Ok(()));
        }
        assert_eq!(app.readers.waiting.load(Relaxed), 0);
    }
}
