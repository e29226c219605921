//! The binary as its users see it: each test runs it as a process.

mod batch;
mod bench;
mod bitnet;
mod cache;
mod chat;
mod convert;
mod demo;
mod doctor;
mod failures;
mod faults;
mod hub;
mod inspect;
mod logits;
mod memory;
mod perplexity;
mod run;
mod serve;
mod shell;
mod signals;
mod thoughts;
mod tokens;
