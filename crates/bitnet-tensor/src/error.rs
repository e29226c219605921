use crate::{DType, Shape};

/// An error in making or reading a tensor.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of elements or bytes of a shape does not fit in `usize`.
    #[error("shape {shape} of {dtype} is larger than the address space")]
    Overflow {
        /// Requested shape.
        shape: Shape,
        /// Requested element type.
        dtype: DType,
    },
    /// A block-quantised type needs rows of whole blocks.
    #[error("shape {shape} of {dtype}: the last dimension must be a multiple of {block}")]
    PartialBlock {
        /// Requested shape.
        shape: Shape,
        /// The block-quantised type.
        dtype: DType,
        /// Elements in one block.
        block: usize,
    },
    /// The length of the byte buffer does not match shape and type.
    #[error("shape {shape} of {dtype} needs {expected} bytes, got {actual}")]
    ByteLength {
        /// Requested shape.
        shape: Shape,
        /// Requested element type.
        dtype: DType,
        /// Length that shape and type require, in bytes.
        expected: usize,
        /// Length of the buffer, in bytes.
        actual: usize,
    },
    /// A 2-bit code is 3, which stands for no trit.
    #[error("row {row}, column {col}: code 3 is not a ternary value")]
    InvalidCode {
        /// Row of the first bad code.
        row: usize,
        /// Column of the first bad code.
        col: usize,
    },
    /// A trit is not -1, 0 or 1.
    #[error("row {row}, column {col}: {value} is not a ternary value")]
    InvalidTrit {
        /// Row of the first bad value.
        row: usize,
        /// Column of the first bad value.
        col: usize,
        /// The bad value.
        value: i8,
    },
    /// Parts with different numbers of columns cannot be stacked.
    #[error("cannot stack a part of {actual} columns on one of {expected}")]
    ColumnMismatch {
        /// Columns of the first part.
        expected: usize,
        /// Columns of the part that disagrees.
        actual: usize,
    },
    /// A ternary tensor has no rows or no columns.
    #[error("a ternary tensor needs at least one row and one column, got {rows} x {cols}")]
    Empty {
        /// Requested rows.
        rows: usize,
        /// Requested columns.
        cols: usize,
    },
    /// Groups must have 64 or 128 columns.
    #[error("groups of {group} columns: a group must have 64 or 128")]
    Group {
        /// Columns in a group, as requested.
        group: usize,
    },
    /// A weight scale is NaN or infinite.
    #[error("weight scale {scale} is not finite")]
    Scale {
        /// The bad scale.
        scale: f32,
    },
}
