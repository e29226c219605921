//! OpenAI's API: from a body to requests of the engine, and from the engine's updates to JSON and events.

pub(crate) mod answers;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod generate;
mod grammar;
mod harmless;
pub(crate) mod job;
mod messages;
mod position;
pub(crate) mod prompt;
mod sampling;
pub(crate) mod shape;
mod stream;
mod tools;
mod turns;
