//! APIs other than OpenAI's completions and chats. A dialect reads a body into the parts of a chat, and writes the answer
//! in its own form; the [`Job`](crate::openai::job::Job) in between is like any other.

pub(crate) mod anthropic;
mod dialect;
pub(crate) mod errors;
mod generate;
pub(crate) mod ollama;
pub(crate) mod responses;
mod stream;
mod turn;
