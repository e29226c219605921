//! End to end, on fixtures and demo.

mod determinism;
mod goldens;
