//! Files of every kind that are damaged at random, and the judge of what becomes of them: a model or one error, soon
//! and within memory.
//!
//! Tests run ten thousand of them, `cargo xtask fuzz` as many as it is told, and libFuzzer's targets in `fuzz/` start
//! from the same files. A program that judges must have [`MEMORY`] as its global allocator.

#![forbid(unsafe_code)]

mod judge;
mod kind;
mod mutate;

pub use judge::{Finding, Tally, judge, run};
pub use kind::{Grouped, Kind, Seed};

/// Counts what the process allocates.
pub static MEMORY: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;
