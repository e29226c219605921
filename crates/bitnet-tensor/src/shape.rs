//! Sizes of a tensor's dimensions.

use std::fmt;

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
