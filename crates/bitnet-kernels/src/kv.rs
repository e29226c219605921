//! Shapes and types of cached keys and values, and the bytes that they take.

use std::{fmt, str::FromStr};

use crate::KernelError;

/// Tokens in one block of the key-value cache, on every backend.
pub const BLOCK_TOKENS: usize = 64;

/// Type in which cached keys and values are stored; a GPU has bf16 and int8. Attention uses the stored values, in the
/// order of [`crate::order`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvType {
    /// Exact.
    #[default]
    F32,
    /// Rounded to nearest even: 11 bits of precision; magnitudes of 65520 and more become infinite.
    F16,
    /// Rounded to nearest even: 8 bits of precision, the range of f32.
    Bf16,
    /// `scale = absmax / 127` in f32 for each token and head, and `x / scale` rounded to nearest even. Reading gives
    /// their product, rounded to f32. A key or value that contains a NaN or an infinity reads as all NaN.
    Int8,
}

impl KvType {
    /// All types, most exact first.
    pub const ALL: [KvType; 4] = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Int8];

    /// Name of the type: `f32`, `f16`, `bf16` or `int8`.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Int8 => "int8",
        }
    }

    /// Whether each key and value has an f32 scale.
    pub(crate) const fn scaled(self) -> bool {
        matches!(self, KvType::Int8)
    }

    /// Bytes of [`BLOCK_TOKENS`] keys or values of `width` numbers, followed by their scales.
    pub(crate) const fn panel(self, width: usize) -> usize {
        let number = match self {
            KvType::F32 => 4,
            KvType::F16 | KvType::Bf16 => 2,
            KvType::Int8 => 1,
        };
        BLOCK_TOKENS * (number * width + if self.scaled() { 4 } else { 0 })
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvType {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        let found = KvType::ALL.into_iter().find(|kv| kv.name() == name);
        found.ok_or_else(|| KernelError::UnknownKv { name: name.chars().take(40).collect() })
    }
}

/// Sizes of the key-value cache of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Number of blocks, of [`BLOCK_TOKENS`] tokens each.
    pub blocks: usize,
    /// Number of key heads, equal to the number of value heads.
    pub kv_heads: usize,
    /// Width of a head; must be even.
    pub head_dim: usize,
}

impl KvShape {
    /// Bytes of one layer on the CPU.
    pub fn cpu_bytes(&self, kv: KvType) -> usize {
        self.blocks * self.kv_heads * (kv.panel(self.head_dim) + kv.panel(self.value_stride()))
    }

    /// Bytes of one layer on a GPU.
    pub fn gpu_bytes(&self, kv: KvType) -> usize {
        2 * self.blocks * self.kv_heads * kv.panel(self.gpu_stride(kv))
    }

    /// Numbers of a key or value on a GPU: padded to 16 bytes.
    pub(crate) fn gpu_stride(&self, kv: KvType) -> usize {
        self.head_dim.next_multiple_of(if kv == KvType::Int8 { 16 } else { 8 })
    }

    /// Width of a value on the CPU, padded to whole vectors.
    pub(crate) fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }
}
