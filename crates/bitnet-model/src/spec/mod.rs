//! What a model is, apart from its weights: sizes and switches, from `config.json` or from a GGUF file's metadata.

mod config;
pub(crate) mod experts;
pub(crate) mod family;
pub(crate) mod fields;
pub(crate) mod hadamard;
pub(crate) mod hybrid;
mod model_spec;
pub(crate) mod rope;

pub(crate) use config::Config;
pub use experts::{Experts, Pooling, Windows};
pub use hybrid::{Hybrid, Rotation};
pub use model_spec::{Activation, Grouped, ModelSpec, Multipliers, Rope, RopeScaling};
