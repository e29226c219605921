/// Tokens in one block of the key-value cache, on every backend.
pub const BLOCK_TOKENS: usize = 64;

/// Sizes of the key-value cache of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Blocks of [`BLOCK_TOKENS`] tokens.
    pub blocks: usize,
    /// Key (and value) heads.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
}

impl KvShape {
    /// Bytes that one layer of this shape takes as f32 keys and values on the CPU.
    pub fn cpu_bytes(&self) -> usize {
        4 * self.blocks * (self.key_block() + self.value_block())
    }

    /// Bytes that one layer of this shape takes as bf16 keys and values on a GPU.
    pub fn gpu_bytes(&self) -> usize {
        4 * self.blocks * self.kv_heads * BLOCK_TOKENS * self.head_dim.next_multiple_of(8)
    }

    /// Floats of keys in a block: `[kv_head][BLOCK_TOKENS / 16][head_dim][16 tokens]`.
    pub(crate) fn key_block(&self) -> usize {
        self.kv_heads * self.head_dim * BLOCK_TOKENS
    }

    /// Floats of values in a block: `[kv_head][BLOCK_TOKENS][value_stride]`.
    pub(crate) fn value_block(&self) -> usize {
        self.kv_heads * self.value_stride() * BLOCK_TOKENS
    }

    /// Width of a value row, padded to whole vectors.
    pub(crate) fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Where the first dimension of a token's key lies; dimension `d` follows at `+ 16 d`.
    pub(crate) fn key_at(&self, block: usize, kv_head: usize, slot: usize) -> usize {
        block * self.key_block()
            + (kv_head * (BLOCK_TOKENS / 16) + slot / 16) * self.head_dim * 16
            + slot % 16
    }

    /// Where a token's value lies.
    pub(crate) fn value_at(&self, block: usize, kv_head: usize, slot: usize) -> usize {
        block * self.value_block() + (kv_head * BLOCK_TOKENS + slot) * self.value_stride()
    }
}
