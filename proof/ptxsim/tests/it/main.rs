//! One binary for all tests of the simulator.

mod collectives;
mod copies;
mod flow;
mod host;
mod matrices;
mod memory_model;
mod overlap;
mod parsing;
mod statistics;
mod support;
mod traps;
