//! The parts of HTTP that do not depend on OpenAI's API: sockets and their limits, paths, bodies, errors, and the
//! small endpoints.

pub(crate) mod app;
mod body;
pub(crate) mod caller;
pub(crate) mod connections;
pub(crate) mod error;
pub(crate) mod fields;
mod host;
mod origins;
mod page;
mod probes;
pub(crate) mod reading;
pub(crate) mod routes;
