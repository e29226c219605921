use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use pyo3::prelude::*;

/// Time between two checks for Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for a future while other Python threads run. A signal whose handler raises, such as Ctrl-C, drops the future,
/// which cancels its requests.
pub(crate) fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let polled = py.detach(|| {
            let mut cx = Context::from_waker(&waker);
            let until = Instant::now() + SIGNAL_INTERVAL;
            loop {
                let polled = future.as_mut().poll(&mut cx);
                let left = until.saturating_duration_since(Instant::now());
                if polled.is_ready() || left.is_zero() {
                    return polled;
                }
                thread::park_timeout(left);
            }
        });
        match polled {
            Poll::Ready(output) => return Ok(output),
            Poll::Pending => py.check_signals()?,
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
