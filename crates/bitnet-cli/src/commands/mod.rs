//! One command a file.

pub mod batch;
pub mod bench;
mod bench_url;
pub mod chat;
pub mod convert;
pub mod detokenize;
pub mod doctor;
pub mod inspect;
mod judge;
pub mod logits;
pub mod perplexity;
pub mod run;
pub mod serve;
pub mod tokenize;
