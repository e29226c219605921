//! One way to answer, for every API: a dialect reads a body into a job, the engine generates, and the dialect writes what
//! comes. Nothing here belongs to one API.

pub(crate) mod answer;
mod constraint;
pub(crate) mod content;
pub(crate) mod conversation;
pub(crate) mod dialect;
pub(crate) mod endpoint;
pub(crate) mod grammar;
pub(crate) mod job;
mod limits;
pub(crate) mod parsed;
pub(crate) mod pieces;
mod position;
pub(crate) mod prompt;
pub(crate) mod read;
mod round_robin;
pub(crate) mod sampling;
mod stream;
pub(crate) mod thinking;
pub(crate) mod tools;
pub(crate) mod turn;
pub(crate) mod usage;
