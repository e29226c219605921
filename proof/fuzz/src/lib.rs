//! Damages files of every kind at random, and checks that each gives a model or one error, quickly and within a limit
//! on memory.
//!
//! Tests run ten thousand mutations, `cargo xtask fuzz` runs any number, and libFuzzer's targets in `targets/` start from
//! the same files. A program that judges mutations must have [`MEMORY`] as its global allocator.

#![forbid(unsafe_code)]

#[allow(dead_code, reason = "tests of bitnet-model use all of it")]
#[path = "../../../crates/bitnet-model/tests/it/gguf_edit.rs"]
mod gguf_edit;
mod judge;
mod kind;
mod mutate;

pub use judge::{Finding, Tally, judge, run};
pub use kind::{Kind, Seed};

/// Counts the allocations of the process.
pub static MEMORY: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;
