//! Errors of tensors whose parts do not fit together.

use crate::{DType, Shape};

/// An error in making or reading a tensor.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum TensorError {
    /// The number of elements or bytes of a shape does not fit in `usize`.
    #[error("shape {shape} of {dtype} is larger than the address space")]
    Overflow { shape: Shape, dtype: DType },
    /// A block-quantised type needs rows of whole blocks.
    #[error("shape {shape} of {dtype}: the last dimension must be a multiple of {block}")]
    PartialBlock { shape: Shape, dtype: DType, block: usize },
    /// The length of the byte buffer does not match shape and type.
    #[error("shape {shape} of {dtype} needs {expected} bytes, got {actual}")]
    ByteLength { shape: Shape, dtype: DType, expected: usize, actual: usize },
    /// A 2-bit code is 3, which stands for no trit.
    #[error("row {row}, column {col}: code 3 is not a ternary value")]
    InvalidCode { row: usize, col: usize },
    /// A trit is not -1, 0 or 1.
    #[error("row {row}, column {col}: {value} is not a ternary value")]
    InvalidTrit { row: usize, col: usize, value: i8 },
    /// Parts with different numbers of columns cannot be stacked.
    #[error("cannot stack a part of {actual} columns on one of {expected}")]
    ColumnMismatch { expected: usize, actual: usize },
    /// Parts with scales of rows and parts with scales of groups of columns cannot be stacked.
    #[error("cannot stack parts with scales of rows and parts with scales of groups of columns")]
    ScaleMismatch,
    /// A ternary tensor has no rows or no columns.
    #[error("a ternary tensor needs at least one row and one column, got {rows} x {cols}")]
    Empty { rows: usize, cols: usize },
    /// Groups must have 64 or 128 columns.
    #[error("groups of {group} columns: a group must have 64 or 128")]
    Group { group: usize },
    /// The system gives no memory for the result.
    #[error("no memory for {bytes} bytes of a tensor")]
    OutOfMemory { bytes: usize },
    /// A weight scale is NaN or infinite.
    #[error("weight scale {scale} is not finite")]
    Scale { scale: f32 },
}
