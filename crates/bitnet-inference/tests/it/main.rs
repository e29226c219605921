//! Behaviour of the crate through its public names.
#![allow(clippy::print_stdout, reason = "tests report what they covered")]

mod constraint;
mod demanding_load;
mod drafts;
mod engine;
mod faults;
mod generate;
mod host_cache;
mod limits;
mod mixes;
mod names;
mod overhead;
mod processor;
mod races;
mod real_kernels;
mod recurrent;
mod sampler;
mod scheduler;
mod support;
mod thought;
mod tier;
mod traces;
mod windows;
