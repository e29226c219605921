use std::fmt;

use crate::{DType, TensorError};

/// Dimensions of a tensor, outermost first. Elements along the last dimension are contiguous and form a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// Makes a shape from its dimensions, outermost first. An empty list is a scalar.
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Shape(dims.into())
    }

    /// Dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Length of the last dimension; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// Number of elements.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] if the product does not fit in `usize`; `dtype` is used only in the message.
    pub fn elements(&self, dtype: DType) -> Result<usize, TensorError> {
        self.0
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .ok_or_else(|| TensorError::Overflow { shape: self.clone(), dtype })
    }

    /// Size in bytes of a tensor of this shape and type.
    ///
    /// # Errors
    /// [`TensorError::Overflow`], or [`TensorError::PartialBlock`] if rows do not end on a block boundary.
    pub fn byte_len(&self, dtype: DType) -> Result<usize, TensorError> {
        let elements = self.elements(dtype)?;
        let block = dtype.block_elements();
        if !self.cols().is_multiple_of(block) {
            return Err(TensorError::PartialBlock { shape: self.clone(), dtype, block });
        }
        (elements / block)
            .checked_mul(dtype.block_bytes())
            .ok_or_else(|| TensorError::Overflow { shape: self.clone(), dtype })
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(dims.into())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
