//! Behaviour of the crate through its public names.

mod generate;
mod sampler;
