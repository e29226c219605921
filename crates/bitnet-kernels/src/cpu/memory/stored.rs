//! Weights that a file stores in the layout of the kernels: lines of 256 bytes, first codes, then floats for every row.

use bitnet_tensor::{DType, SharedBytes, TensorError};

use super::buffer::Buffer;
use crate::KernelError;

/// Bytes of a line: a block of a panel, a quad of a panel, or one float for every row of a panel.
pub(crate) const LINE: usize = 256;

/// Reads a stored matrix piece by piece; holds the rest of its bytes.
pub(crate) struct LineReader(SharedBytes);

impl LineReader {
    /// Starts reading `bytes`, which must have the number of lines given by `shape`.
    pub(crate) fn new(bytes: &SharedBytes, shape: [usize; 2]) -> Result<Self, TensorError> {
        let (expected, actual) = (shape[0].saturating_mul(shape[1]), bytes.len());
        if expected != actual {
            return Err(TensorError::ByteLength { shape: shape.into(), dtype: DType::I8, expected, actual });
        }
        Ok(LineReader(bytes.clone()))
    }

    /// Takes the next lines, without copying.
    pub(crate) fn codes(&mut self, lines: usize) -> SharedBytes {
        let part = |range| self.0.slice(range).expect("the number of lines was checked");
        let (codes, rest) = (part(0..lines * LINE), part(lines * LINE..self.0.len()));
        self.0 = rest;
        codes
    }

    /// Takes the rest, without copying.
    pub(crate) fn rest(self) -> SharedBytes {
        self.0
    }

    /// Reads the next lines as floats.
    pub(crate) fn floats(&mut self, lines: usize, what: &'static str) -> Result<Buffer<f32>, KernelError> {
        let bytes = self.codes(lines);
        let (words, _) = bytes.as_chunks();
        let mut floats = Buffer::zeroed(words.len(), what)?;
        for (float, word) in floats.iter_mut().zip(words) {
            *float = f32::from_le_bytes(*word);
        }
        Ok(floats)
    }
}

/// Converts floats to the bytes that a file holds.
pub(crate) fn float_bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}
