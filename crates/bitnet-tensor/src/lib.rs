//! What data is: dtypes, shapes, tensors, the one canonical ternary layout, and the definition of per-token
//! int8 activation quantisation.
//!
//! No I/O, no threads, no `unsafe`: everything above builds on these definitions, and every kernel is judged
//! against them.

#![forbid(unsafe_code)]

mod blocks;
mod dtype;
mod error;
pub mod quant;
mod shape;
mod tensor;
mod ternary;

pub use dtype::DType;
pub use error::TensorError;
pub use shape::Shape;
pub use tensor::{BitNetTensor, SharedBytes};
pub use ternary::{RowScale, TernaryTensor, transpose_codes};
