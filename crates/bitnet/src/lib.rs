//! Ternary (BitNet b1.58) language models, on any CPU and on NVIDIA GPUs.
//!
//! ```
//! let model = bitnet::Model::open("demo")?;
//! println!("{}", model.complete("First Citizen:")?);
//! # Ok::<(), bitnet::Error>(())
//! ```
//!
//! [`Model::open`] takes the name of a model on Hugging Face (`microsoft/bitnet-b1.58-2B-4T`), a `.gguf` file, a folder
//! with `config.json` and safetensors, or `demo`, a small model inside this crate. [`Model::builder`] sets device,
//! threads, memory and batch size. A [`Request`] is a text, a conversation or token ids, with options for how to
//! continue:
//!
//! ```
//! use bitnet::{Memory, Model, Request};
//!
//! # fn main() -> Result<(), bitnet::Error> {
//! let model = Model::builder().memory(Memory::Percent(50.0)).threads(2).open("demo")?;
//!
//! // A text, as it is generated.
//! let verse = Request::new("ROMEO:").max_tokens(30).temperature(0.8).seed(7);
//! for piece in model.stream(&verse)? {
//!     print!("{}", piece?);
//! }
//!
//! // Many prompts in the same steps; each gets exactly what it would get alone.
//! let answers = model.batch([&verse, &Request::new("JULIET:").max_tokens(30)]);
//! assert!(answers.iter().all(Result::is_ok));
//! # Ok(())
//! # }
//! ```
//!
//! What a model thinks before it answers a conversation is apart from the answer: in [`Answer::thought`], and in pieces of
//! their own, [`Piece::Thought`]. [`Request::thinking`] says whether and how much to think.
//!
//! Every call has an async form for any executor: [`Model::complete_async`], [`Model::stream_async`],
//! [`Model::batch_async`], [`Model::embed_async`]. All calls, from all threads and clones of a model, share one engine,
//! which computes them together. Dropping a stream or a future cancels its request.
//!
//! For anything that this crate does not wrap, use the crates below it: [`inference`], [`model`], [`kernels`] and
//! [`tensor`]. The names that users of other BitNet engines know are in [`names`].

#![forbid(unsafe_code)]

mod answer;
mod builder;
pub mod cache;
mod cores;
mod draft;
mod embedding;
mod error;
pub mod load;
mod memory;
mod models;
pub mod names;
mod open;
pub mod prompt;
mod prompted;
mod request;
#[cfg(feature = "json")]
pub mod schema;
pub mod thought;

pub use answer::{Answer, Piece, Pieces};
pub use builder::Builder;
pub use cache::CacheDir;
pub use cores::{default_threads, physical_cores};
pub use draft::{Draft, OpenDraft};
pub use embedding::Embedding;
pub use error::Error;
pub use load::Device;
pub use memory::{Memory, SystemMemory, peak_memory_bytes};
pub use models::Model;
pub use open::{Opened, open_checkpoint};
pub use prompted::Prompted;
pub use request::{Request, sampling};
pub use thought::Thinking;

#[cfg(feature = "hub")]
pub use bitnet_hub as hub;
pub use bitnet_inference::{self as inference, Constraint, FinishReason, Priority, TokenSet};
pub use bitnet_kernels::{self as kernels, KvType};
pub use bitnet_model::{self as model, Effort, Message, TemplateInput};
pub use bitnet_tensor as tensor;
pub use futures_core::Stream;
