use crate::{DType, Shape};

/// Why a tensor could not be made or read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of elements or bytes of a shape does not fit in `usize`.
    #[error("shape {shape} of {dtype} is larger than the address space")]
    Overflow {
        /// The shape asked for.
        shape: Shape,
        /// The element type asked for.
        dtype: DType,
    },
    /// A block-quantised type needs rows of whole blocks.
    #[error("shape {shape} of {dtype}: the last dimension must be a multiple of {block}")]
    PartialBlock {
        /// The shape asked for.
        shape: Shape,
        /// The block-quantised type.
        dtype: DType,
        /// Elements in one block.
        block: usize,
    },
    /// The byte buffer does not hold what shape and type say.
    #[error("shape {shape} of {dtype} needs {expected} bytes, got {actual}")]
    ByteLength {
        /// The shape asked for.
        shape: Shape,
        /// The element type asked for.
        dtype: DType,
        /// Bytes that shape and type need.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A 2-bit code of 3 stands for no trit.
    #[error("row {row}, column {col}: code 3 is not a ternary value")]
    InvalidCode {
        /// Row of the first bad code.
        row: usize,
        /// Column of the first bad code.
        col: usize,
    },
    /// A trit outside -1, 0, 1.
    #[error("row {row}, column {col}: {value} is not a ternary value")]
    InvalidTrit {
        /// Row of the first bad value.
        row: usize,
        /// Column of the first bad value.
        col: usize,
        /// The value found.
        value: i8,
    },
    /// Parts with different numbers of columns cannot be stacked.
    #[error("cannot stack {actual} columns under {expected}")]
    ColumnMismatch {
        /// Columns of the first part.
        expected: usize,
        /// Columns of the part that disagrees.
        actual: usize,
    },
    /// A ternary tensor has at least one row, one column and one scale.
    #[error("a ternary tensor needs at least one row and one column, got {rows} x {cols}")]
    Empty {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// Weights have a scale for every 64 or every 128 columns.
    #[error("groups of {group} columns: groups must have 64 or 128")]
    Group {
        /// Columns of a group.
        group: usize,
    },
    /// A weight scale must be a finite number.
    #[error("weight scale {scale} is not finite")]
    Scale {
        /// The scale given.
        scale: f32,
    },
}
