//! Types of tensor elements, plain and in blocks, and the bytes that they take.

use std::fmt;

/// Element type of stored data, including block-quantised types.
///
/// Block types follow ggml: a block of [`DType::block_elements`] consecutive elements of a row is stored in
/// [`DType::block_bytes`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Signed byte.
    I8,
    /// Unsigned byte.
    U8,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// Blocks of 32 elements: an f16 scale and 32 signed bytes.
    Q8_0,
    /// Blocks of 256 elements: 6-bit quants in 16 groups with 8-bit scales, and an f16 super-scale.
    Q6K,
    /// Blocks of 256 elements: 4-bit quants in 8 groups with 6-bit scales and minima, and two f16 super-scales.
    Q4K,
    /// Blocks of 256 elements: as [`DType::Q4K`], with 5-bit quants.
    Q5K,
    /// Blocks of 32 elements: an f16 scale and 4-bit quants around 8.
    Q4_0,
    /// Blocks of 32 elements: an f16 scale, an f16 minimum and 4-bit quants.
    Q4_1,
    /// Blocks of 32 elements: an f16 scale and 5-bit quants around 16.
    Q5_0,
    /// Blocks of 32 elements: an f16 scale, an f16 minimum and 5-bit quants.
    Q5_1,
}

impl DType {
    /// Elements in one block; 1 for plain types.
    pub const fn block_elements(self) -> usize {
        match self {
            DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => 32,
            DType::Q6K | DType::Q5K | DType::Q4K => 256,
            _ => 1,
        }
    }

    /// Bytes of a row of `cols` elements, which are whole blocks.
    pub const fn row_bytes(self, cols: usize) -> usize {
        cols / self.block_elements() * self.block_bytes()
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::I64 => 8,
            DType::Q8_0 => 34,
            DType::Q6K => 210,
            DType::Q4K => 144,
            DType::Q5K => 176,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
        }
    }

    /// Whether [`crate::BitNetTensor::decode_row`] can decode this type to `f32`.
    pub const fn is_float(self) -> bool {
        !matches!(self, DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::Q8_0 => "q8_0",
            DType::Q6K => "q6_k",
            DType::Q4K => "q4_k",
            DType::Q5K => "q5_k",
            DType::Q4_0 => "q4_0",
            DType::Q4_1 => "q4_1",
            DType::Q5_0 => "q5_0",
            DType::Q5_1 => "q5_1",
        })
    }
}
