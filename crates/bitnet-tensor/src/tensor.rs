//! [`BitNetTensor`]: a dense tensor of any float type, over bytes that it may share with a file.

use std::{fmt, ops::Range, sync::Arc};

use crate::{DType, Shape, TensorError, blocks};

/// Bytes that tensors share without copying: a memory-mapped file or a vector.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Shares all bytes of `owner`.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        SharedBytes { owner: Arc::new(owner), range }
    }

    /// Returns part of these bytes, or `None` if `range` reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end)
            .then(|| SharedBytes { owner: Arc::clone(&self.owner), range: start..end })
    }
}

impl std::ops::Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl Default for SharedBytes {
    /// No bytes.
    fn default() -> Self {
        SharedBytes::new([])
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.range.len())
    }
}

/// Sizes of tensors of this shape.
impl Shape {
    /// Number of elements.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] if the product does not fit in `usize`; `dtype` is used only in the message.
    pub fn elements(&self, dtype: DType) -> Result<usize, TensorError> {
        self.dims()
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

/// A dense tensor: type, shape, and little-endian bytes that may be in a memory-mapped file.
#[derive(Debug, Clone)]
pub struct BitNetTensor {
    dtype: DType,
    shape: Shape,
    bytes: SharedBytes,
}

impl BitNetTensor {
    /// Makes a tensor over existing bytes.
    ///
    /// # Errors
    /// If the length of `bytes` does not match `shape` and `dtype`, or [`Shape::byte_len`] fails.
    pub fn new(dtype: DType, shape: impl Into<Shape>, bytes: SharedBytes) -> Result<Self, TensorError> {
        let shape = shape.into();
        let expected = shape.byte_len(dtype)?;
        if bytes.len() != expected {
            return Err(TensorError::ByteLength { shape, dtype, expected, actual: bytes.len() });
        }
        Ok(BitNetTensor { dtype, shape, bytes })
    }

    /// Makes an f32 tensor that owns its values.
    ///
    /// # Errors
    /// If the length of `values` does not match `shape`.
    pub fn from_f32(shape: impl Into<Shape>, values: &[f32]) -> Result<Self, TensorError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        BitNetTensor::new(DType::F32, shape, SharedBytes::new(bytes))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Length of the last dimension.
    pub fn cols(&self) -> usize {
        self.shape.cols()
    }

    /// Number of rows: the product of all dimensions except the last.
    pub fn rows(&self) -> usize {
        match self.bytes.len() {
            0 => 0,
            len => len / self.row_bytes(),
        }
    }

    /// All bytes, row after row.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.cols())
    }

    /// Decodes row `row` to f32; exact wherever f32 can represent the stored value.
    ///
    /// # Panics
    /// If `row` is out of range, `out` is not one row long, or the type is not a float type ([`DType::is_float`]).
    /// Callers check these when they accept a tensor.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols(), "decode_row: output must hold one row");
        let n = self.row_bytes();
        blocks::decode(self.dtype, &self.bytes[row * n..][..n], out);
    }

    /// Decodes all values to f32.
    ///
    /// # Panics
    /// If the type is not a float type ([`DType::is_float`]).
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows() * self.cols()];
        blocks::decode(self.dtype, &self.bytes, &mut out);
        out
    }
}
