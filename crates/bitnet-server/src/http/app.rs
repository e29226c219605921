//! What all routes share, and the way from a body to a parsed request on a thread that may block.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::Request,
    http::{HeaderMap, StatusCode},
};
use bitnet::{inference::DrainReport, kernels::gpu::Recorded};

use crate::{
    config::ServerConfig,
    http::{
        body::{Bodies, receive},
        error::ApiError,
        reading::{Readers, Reading, blocking},
    },
    service::Service,
};

/// The state that all routes share. Until the model is loaded there is no service, and only the page and the probes
/// answer.
pub struct App {
    pub(crate) config: ServerConfig,
    bodies: Bodies,
    readers: Readers,
    service: OnceLock<Service>,
}

impl App {
    /// An app without a service, for [`App::install`].
    pub fn new(config: ServerConfig) -> Arc<App> {
        let bodies = Bodies::new(config.bodies_limit.max(config.body_limit));
        Arc::new(App { config, bodies, readers: Readers::new(), service: OnceLock::new() })
    }

    /// An app with a service.
    pub fn ready(service: Service) -> Arc<App> {
        let app = App::new(service.config.clone());
        app.install(service);
        app
    }

    /// Adds the service, once its model is loaded.
    ///
    /// # Panics
    /// If the app already has a service.
    pub fn install(&self, service: Service) {
        assert!(self.service.set(service).is_ok(), "an app serves one model");
    }

    /// The service, or an error that says why no requests are accepted.
    pub(crate) fn service(&self) -> Result<&Service, ApiError> {
        match self.service.get() {
            None => Err(ApiError::unavailable("loading", "the model is being loaded")),
            Some(service) if !service.engine.is_open() => Err(match service.engine.lost() {
                Some(lost) => ApiError::unavailable("device_lost", lost),
                None => ApiError::unavailable("stopped", "the engine accepts no more requests"),
            }),
            Some(service) => Ok(service),
        }
    }

    /// Why the model's device is lost, if it is. Only a new process cures that.
    pub fn lost(&self) -> Option<String> {
        self.service.get()?.engine.lost().map(|lost| lost.to_string())
    }

    /// Number of recordings of launches at which the GPU's driver failed, and how launches are recorded since.
    pub(crate) fn recording_failures(&self) -> Option<(u64, Recorded)> {
        let device = self.service.get()?.engine.status().device?;
        Some((device.counts.unrecorded, device.recorded))
    }

    /// The service, whether or not it accepts requests.
    pub(crate) fn loaded(&self) -> Option<&Service> {
        self.service.get()
    }

    /// Refuses new requests, finishes the others for at most `timeout`, and ends the rest. Blocks.
    pub fn drain(&self, timeout: Duration) -> DrainReport {
        self.service.get().map_or(DrainReport { complete: true }, |s| s.engine.shutdown(timeout))
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("service", &self.service.get()).finish_non_exhaustive()
    }
}

/// When dropped, tells the thread that reads a body that the client has disconnected.
struct HangUp(Arc<AtomicBool>);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
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
    let count = |refused: &ApiError| {
        if refused.status == StatusCode::TOO_MANY_REQUESTS {
            service.metrics.rejected(refused.body.code.unwrap_or("other"));
        }
    };
    let received = receive(&app.bodies, &app.config, &head, body).await.inspect_err(count)?;
    let reading = Reading::of(&head, app.config.request_timeout)?;
    let place = app.readers.place(received.bytes.len(), service, &reading).await.inspect_err(count)?;
    let _hang_up = HangUp(Arc::clone(&reading.gone));
    let app = Arc::clone(app);
    let worked = blocking(move || {
        let worked = work(app.service()?, &head.headers, &received.bytes, &reading);
        // Free the memory before the place, so that the next request finds both.
        drop(received);
        drop(place);
        worked
    });
    worked.await?.inspect_err(count)
}

#[cfg(test)]
mod tests {
    use std::sync::{atomic::Ordering::Relaxed, mpsc};

    use axum::body::Body;
    use bitnet::inference::EngineConfig;
    use bitnet::model::{Checkpoint, Limits, Model, Synthetic};
    use bitnet_hash_model::HashModel;

    use super::*;
    use crate::http::reading::SMALL_AT_ONCE;

    const SOON: Duration = Duration::from_secs(20);

    fn app(max_queued_requests: usize) -> Arc<App> {
        let model = HashModel::new(
            50,
            100,
            Limits { max_tokens: 8, max_logit_rows: 8, kv_blocks: 8, state_slots: 0 },
        );
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
            while reading.check().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.send(()).map_err(ApiError::fault)
        });
        assert!(tokio::time::timeout(Duration::from_millis(100), reading).await.is_err(), "it goes on");
        end.recv_timeout(SOON).unwrap();
        let free = app.readers.small.acquire_many(SMALL_AT_ONCE as u32);
        drop(tokio::time::timeout(SOON, free).await.unwrap().unwrap());
    }

    /// How many requests were refused for this reason.
    fn refused(app: &App, reason: &str) -> u64 {
        let service = app.service().unwrap();
        let text = service.metrics.text(&service.engine);
        let reason = format!("reason=\"{reason}\"");
        let mut lines = text.lines().filter(|line| line.starts_with("bitnet_requests_rejected_total{"));
        let line = lines.find(|line| line.contains(&reason));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    #[tokio::test]
    async fn a_request_whose_time_is_over_while_it_is_read_is_counted_as_refused() {
        let app = app(1);
        let reading = read(&app, request("20"), |_, _, _, reading| -> Result<(), ApiError> {
            loop {
                reading.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let late = reading.await.unwrap_err();
        assert_eq!((late.status.as_u16(), late.body.code), (429, Some("deadline")));
        assert_eq!(refused(&app, "deadline"), 1);
        let wrong = |_: &Service, _: &HeaderMap, _: &[u8], _: &Reading| -> Result<(), ApiError> {
            Err(ApiError::field("n", "no"))
        };
        assert_eq!(read(&app, request("60000"), wrong).await.unwrap_err().status.as_u16(), 400);
        assert_eq!(refused(&app, "other"), 0);
    }

    #[tokio::test]
    async fn a_body_without_a_place_waits_within_its_time_and_the_bounds_of_the_queue() {
        let app = app(2);
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(parking_lot::Mutex::new(released));
        let hold = |deadline: &str| {
            let app = Arc::clone(&app);
            let request = request(deadline);
            let released = Arc::clone(&released);
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
        assert_eq!(refused(&app, "deadline"), 1);
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
