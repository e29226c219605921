//! A client that measures a running server: it sends requests, reads streams event by event, and times what it sees.
//! `bitnet bench --url`, the server's benchmark and the soak use it, so that their numbers mean the same.

#![forbid(unsafe_code)]

mod http;
mod seen;

pub use http::{Client, Event, Reply};
pub use seen::{Percentiles, Seen, percentile};
pub use ureq;
