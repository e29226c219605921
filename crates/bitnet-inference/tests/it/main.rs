//! Behaviour of the crate through its public names.
#![allow(clippy::print_stdout, reason = "tests report what they covered")]

mod constraint;
mod edges;
mod engine;
mod faults;
mod generate;
mod names;
mod overhead;
mod processor;
mod races;
mod real;
mod recurrent;
mod rude;
mod sampler;
mod scheduler;
mod support;
mod traces;
