//! The GPU backend on the simulator, and its errors without a GPU.

mod attention;
mod bit_linear;
mod ceilings;
mod conformance;
mod draw;
mod embed;
mod errors;
mod instructions;
mod layout;
mod litmus;
mod logits;
mod mutants;
mod recordings;
mod rows;
mod self_test;
mod small;
mod texts;
