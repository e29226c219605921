//! The server, asked over TCP.

mod answers;
mod endings;
mod limits;
mod streams;
mod support;
