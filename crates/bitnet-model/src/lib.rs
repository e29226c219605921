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

mod chat;
mod convert;
mod error;
mod files;
mod identity;
mod inspect;
mod names;
mod net;
mod packing;
mod spec;
mod synthetic;
mod ternarize;
mod tokenizer;

pub use chat::{
    CallForm, CallSyntax, ChatTemplate, Conventions, Effort, Efforts, Literals, Memory, Message, Roles,
    Switch, TemplateInput, ThoughtForm, ThoughtState, ToolCall, date,
};
pub use convert::{Target, convert};
pub use error::ModelError;
pub use files::{
    Checkpoint, GenerationDefaults, ModelFiles, OutputFile, PackedSource, TensorEntry, TensorKind,
    TensorSource,
};
pub use identity::{Hash, cache_identity, cache_salt, remembered_identity, weights_identity};
pub use inspect::{Inspection, Sizes, TensorInfo, TokenizerInfo, inspect, trits_sha256};
pub use net::{
    Batch, CacheBytes, CachePlace, DraftLog, ForwardError, HiddenRows, Limits, Logits, Model, ModelFootprint,
    Run, Transformer, WeightBytes,
};
pub use spec::{
    Activation, Experts, Grouped, Hybrid, ModelSpec, Multipliers, Pooling, Rope, RopeScaling, Rotation,
    Windows,
};
pub use synthetic::Synthetic;
pub use tokenizer::{DecodeStream, Tokenizer};
