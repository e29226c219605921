//! OpenAI's API: from a body to requests of the engine, and from the engine's updates to JSON and events.

pub(crate) mod answers;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod generate;
pub(crate) mod grammar;
pub(crate) mod harmless;
pub(crate) mod job;
pub(crate) mod messages;
pub(crate) mod models;
mod position;
pub(crate) mod prompt;
pub(crate) mod sampling;
pub(crate) mod shape;
pub(crate) mod stream;
pub(crate) mod tokens;
pub(crate) mod tools;
mod turns;
