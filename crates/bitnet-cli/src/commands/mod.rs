//! The commands, one per file.

pub mod batch;
pub mod bench;
pub mod cache;
pub mod cache_folder;
pub mod chat;
pub mod convert;
pub mod detokenize;
pub mod doctor;
#[cfg(test)]
mod dry_run;
pub mod health;
pub mod inspect;
mod judge;
pub mod logits;
pub mod perplexity;
pub mod run;
pub mod serve;
pub mod shell;
pub mod tokenize;
