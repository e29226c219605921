//! The APIs that the server speaks. A dialect reads a body into a job, which is generated like any other, and writes the
//! answer in its own form: a folder with `input`, `answer` and `mod`.

pub(crate) mod anthropic;
pub(crate) mod errors;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod responses;
