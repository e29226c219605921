//! Other APIs than completions and chats: a dialect reads a body into what a chat is made of, and writes the answer in
//! its own form. Everything between is a [`Job`](crate::openai::job::Job) like any other.

pub(crate) mod anthropic;
mod dialect;
pub(crate) mod errors;
mod generate;
pub(crate) mod ollama;
pub(crate) mod responses;
mod stream;
mod turn;
