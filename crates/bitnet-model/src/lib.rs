//! What a model is: files, tokenizer, chat template, weights, and one forward pass for all families.

#![deny(unsafe_code)]

mod batch;
mod chat;
mod checkpoint;
mod config;
mod convert;
mod demo;
mod error;
mod files;
mod gguf_spec;
mod inspect;
mod layer;
mod model;
mod names;
mod packing;
mod rope;
mod rope_freqs;
mod source;
mod spec;
mod synthetic;
mod ternarize;
mod tokenizer;
mod transformer;

pub use batch::{Batch, Logits, Run};
pub use chat::{ChatTemplate, Message};
pub use checkpoint::{Checkpoint, GenerationDefaults, ModelFiles};
use config::Config;
pub use convert::{Target, convert};
pub use error::ModelError;
pub use inspect::{Inspection, Sizes, TensorInfo, TokenizerInfo, inspect, trits_sha256};
pub use model::{ForwardError, Limits, Model};
pub use source::{TensorEntry, TensorKind, TensorSource};
pub use spec::{Activation, ModelSpec, Rope, RopeScaling};
pub use synthetic::Synthetic;
pub use tokenizer::{DecodeStream, Tokenizer};
pub use transformer::Transformer;
