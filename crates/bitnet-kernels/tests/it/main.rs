//! Behaviour of the kernels: every backend is compared with the reference, over the shared table of cases.

#![allow(clippy::print_stdout, reason = "what was run and what was skipped belongs into the output")]

mod conformance;
mod copies;
mod delta;
mod gpu;
mod near_ties;
