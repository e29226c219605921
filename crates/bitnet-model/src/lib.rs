//! Models: files, tokenizers, chat templates, weights, and one forward pass for all families.
//!
//! ```
//! use bitnet_kernels::{Cpu, Isa};
//! use bitnet_model::{Batch, Checkpoint, Limits, Logits, Model, Transformer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::demo()?;
//! let tokens = checkpoint.tokenizer.as_ref().ok_or("no tokenizer")?.encode("First Citizen:", true)?;
//! let limits = Limits { max_tokens: 16, max_logit_rows: 1, kv_blocks: 1, state_slots: 0 };
//! let cpu = Cpu::new(Isa::best(), 1)?;
//! let mut model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {})?;
//!
//! let mut batch = Batch::with_capacity(16, 1, 1);
//! batch.push(&tokens, 0, &[0], tokens.len() - 1..tokens.len());
//! let mut logits = Logits::with_capacity(1, checkpoint.spec.vocab);
//! model.forward(&batch, &mut logits)?;
//! assert_eq!(logits.row(0).len(), checkpoint.spec.vocab);
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod batch;
mod chat;
mod checkpoint;
mod config;
mod convert;
mod demo;
mod error;
mod family;
mod fields;
mod file_source;
mod files;
mod gguf_spec;
mod hadamard;
mod hybrid;
mod inspect;
mod layer;
mod model;
mod names;
mod output_file;
mod packing;
mod panels;
mod read_ahead;
mod reorder;
mod rope;
mod rope_freqs;
mod source;
mod spec;
mod synthetic;
mod ternarize;
mod tokenizer;
mod transformer;
mod weights;

pub use batch::{Batch, Logits, Run};
pub use chat::{ChatTemplate, Message, TemplateInput, ToolCall, date};
pub use checkpoint::{Checkpoint, GenerationDefaults, ModelFiles};
use config::Config;
pub use convert::{Target, convert};
pub use error::ModelError;
pub use hybrid::{Hybrid, Rotation};
pub use inspect::{Inspection, Sizes, TensorInfo, TokenizerInfo, inspect, trits_sha256};
pub use model::{ForwardError, Limits, Model};
pub use output_file::OutputFile;
pub use source::{PackedSource, TensorEntry, TensorKind, TensorSource};
pub use spec::{Activation, Grouped, ModelSpec, Multipliers, Rope, RopeScaling};
pub use synthetic::Synthetic;
pub use tokenizer::{DecodeStream, Tokenizer};
pub use transformer::Transformer;
