//! Who makes a request, for the lines in the log.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// The maker of a request, as the log names it.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The request's id: the client's `X-Request-Id` or a fresh one; in a batch, that of the line.
    pub id: Arc<str>,
    /// The other end of the connection, which may be a proxy. `None` in a batch, or if the app that holds the routes
    /// does not say.
    pub address: Option<SocketAddr>,
    /// When the request arrived.
    pub begun: Instant,
}

impl Caller {
    /// A request that begins now.
    pub fn new(id: &str, address: Option<SocketAddr>) -> Self {
        Caller { id: id.into(), address, begun: Instant::now() }
    }

    /// Milliseconds since the request arrived, in tenths.
    pub fn millis(&self) -> f64 {
        millis(self.begun.elapsed())
    }
}

/// Milliseconds in tenths: more digits are noise in a log.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_in_tenths() {
        for (nanos, shown) in [(8_945_387, "8.9"), (167_662, "0.2"), (0, "0"), (60_000_049_999, "60000")] {
            assert_eq!(millis(Duration::from_nanos(nanos)).to_string(), shown);
        }
    }
}
