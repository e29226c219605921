//! The server, asked over TCP.

mod answers;
mod anthropic;
mod bounds;
mod cache;
mod choices;
mod clients;
mod constraints;
mod description;
mod embeddings;
mod endings;
mod faults;
mod fields;
mod hang_ups;
mod hostile;
mod limits;
mod ollama;
mod origins;
mod responses;
mod scripted;
mod streams;
mod support;
mod thoughts;
mod tools;
