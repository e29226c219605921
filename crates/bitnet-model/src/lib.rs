//! What a model is: files, tokenizer, chat template, weights, and one forward pass for all families.

mod batch;
mod spec;

pub use batch::{Batch, Logits, Run};
pub use spec::{Activation, ModelSpec, Rope, RopeScaling};
