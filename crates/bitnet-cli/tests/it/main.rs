//! The binary as its users see it: each test runs it as a process.

mod bench;
mod bitnet;
mod demo;
mod doctor;
mod failures;
mod inspect;
mod logits;
mod memory;
mod perplexity;
mod run;
mod tokens;
