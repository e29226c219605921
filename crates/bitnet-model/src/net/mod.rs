//! The network: one forward pass for all families on any backend, its weights, and what goes in and comes out.

mod batch;
mod draft_head;
mod footprint;
mod layer;
mod model;
mod transformer;
pub(crate) mod weights;

pub use batch::{Batch, DraftLog, Logits, Run};
pub use footprint::{ModelFootprint, WeightBytes};
pub use model::{CacheBytes, CachePlace, ForwardError, HiddenRows, Limits, Model};
pub use transformer::Transformer;
