//! Accepts connections and serves their requests, within limits of number and time, until the server is told to end.

use std::{io, net::TcpListener, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request, State},
    http::{HeaderValue, header},
    middleware::{Next, from_fn_with_state},
    response::Response,
};
use bitnet::inference::DrainReport;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_io_timeout::TimeoutStream;

use crate::http::{app::App, host::Hosts, routes::router_for};

/// Limits of connections. Begin with `..ConnectionLimits::default()`: fields may be added.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Maximum number of connections; further ones wait to be accepted.
    pub connections: usize,
    /// Maximum time that the head of a request may take to arrive, and that a connection may be idle between requests.
    pub header_timeout: Duration,
    /// Maximum time that a client may go without reading any of what is written to it.
    pub write_timeout: Duration,
    /// Bytes that the system buffers for a client that does not read; its requests pause when the buffer is full.
    pub send_buffer: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits {
            connections: 4096,
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(120),
            send_buffer: 64 << 10,
        }
    }
}

/// Maximum part of a drain's time that is reserved for writing answers.
const WRITING: Duration = Duration::from_secs(2);
/// Maximum part of that reserve that the engine may use if it overruns its own time.
const GRACE: Duration = Duration::from_millis(500);
/// Maximum time for which a timer is set.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Serves until `end` completes; then refuses new requests, finishes the others, and closes all connections. This takes
/// at most `drain`, even if a step of the model hangs, and at least the time that `end` returns. Until then, probes and
/// new requests still get answers, so that a proxy notices the shutdown before the port closes.
///
/// # Errors
/// If the listener cannot be used with the async runtime.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    limits: ConnectionLimits,
    drain: Duration,
    end: impl Future<Output = Duration>,
) -> io::Result<DrainReport> {
    let hosts = Hosts::of(listener.local_addr()?.ip(), &app.config.allow_hosts);
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(limits.connections));
    let open = GracefulShutdown::new();
    let routes = router_for(Arc::clone(&app), hosts).layer(from_fn_with_state(Arc::clone(&app), last_answer));
    let drained = pin!(async {
        let linger = end.await.min(drain);
        let noticed = Instant::now() + linger.min(FOREVER);
        let last = Instant::now() + drain.min(FOREVER);
        // The rest is for writing the last answers, including errors for requests that ran out of time.
        let compute = drain - (drain / 5).min(WRITING);
        let served = app.loaded().is_some();
        let ending = Arc::clone(&app);
        let drained = tokio::task::spawn_blocking(move || ending.drain(compute));
        // A step that hangs blocks the engine's thread, and therefore also the drain that joins it.
        let report = tokio::time::timeout(compute.min(FOREVER) + GRACE.min(drain / 20), drained).await;
        if served {
            tokio::time::sleep_until(noticed).await;
        }
        (report.ok().and_then(Result::ok), last)
    });
    let accepting = async {
        loop {
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, _)) => accept(stream, place, routes.clone(), limits, open.watcher()),
                // Out of file handles, or the client has disconnected: the next connection may succeed.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let (report, last) = tokio::select! {
        () = accepting => unreachable!("accepting never ends"),
        drained = drained => drained,
    };
    // All answers are complete; only writing them remains, and telling clients that are already connected.
    let listener = listener.into_std()?;
    while let (Ok((stream, _)), Ok(place)) = (listener.accept(), Arc::clone(&places).try_acquire_owned()) {
        if let Ok(stream) = TcpStream::from_std(stream) {
            accept(stream, place, routes.clone(), limits, open.watcher());
        }
    }
    drop(listener);
    let written = tokio::time::timeout_at(last, open.shutdown()).await;
    Ok(DrainReport { complete: report.is_some_and(|report| report.complete) && written.is_ok() })
}

/// Tells clients of a server that ends to send their next request on another connection.
async fn last_answer(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if app.loaded().is_some() && app.service().is_err() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn accept(
    stream: TcpStream,
    place: OwnedSemaphorePermit,
    routes: Router,
    limits: ConnectionLimits,
    watcher: Watcher,
) {
    // Send each token as soon as it is written.
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(&stream).set_send_buffer_size(limits.send_buffer);
    let address = stream.peer_addr().ok().map(ConnectInfo);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let service = TowerToHyperService::new(tower::ServiceExt::map_request(
        routes,
        move |mut request: hyper::Request<hyper::body::Incoming>| {
            if let Some(address) = address {
                request.extensions_mut().insert(address);
            }
            request.map(Body::new)
        },
    ));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let connection = watcher.watch(connection);
    tokio::spawn(async move {
        // A broken connection concerns only its own client.
        let _ = connection.await;
        drop(place);
    });
}
