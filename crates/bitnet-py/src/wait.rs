use std::{
    future::Future,
    pin::pin,
    time::{Duration, Instant},
};

use bitnet::inference::block_until;
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
    loop {
        let until = Instant::now() + SIGNAL_INTERVAL;
        let ready = py.detach(|| block_until(Some(until), |cx| future.as_mut().poll(cx)));
        match ready {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}
