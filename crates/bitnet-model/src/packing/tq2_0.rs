//! TQ2_0 of ggml (`block_tq2_0` in `ggml-common.h`, `dequantize_row_tq2_0` in `ggml-quants.c`).
//!
//! ```text
//! blocks of 256 weights in 66 bytes, rows are whole blocks:
//!   32 bytes  weights 0..128:    byte j    bits 1..0 weight j    3..2 weight j + 32    5..4 j + 64    7..6 j + 96
//!   32 bytes  weights 128..256, the same
//!   f16       scale
//! ```

use bitnet_tensor::TernaryTensor;

use super::{gather_plane, pack_blocks, scatter_plane, unpack_blocks};

/// Canonical codes and scale of a tensor of `rows` x `cols`, `cols` a multiple of 256.
pub(crate) fn unpack(bytes: &[u8], rows: usize, cols: usize) -> Result<(Vec<u8>, f32), String> {
    unpack_blocks::<66>(bytes, rows, cols, |from, to| decode(from, to))
}

/// The canonical codes of a block.
pub(super) fn decode(from: &[u8; 66], to: &mut [u8]) {
    for (half, to) in to.chunks_exact_mut(32).enumerate() {
        for (g, plane) in to.chunks_exact_mut(8).enumerate() {
            gather_plane(&from[32 * half..][..32], 2 * g as u32, plane);
        }
    }
}

pub(crate) fn pack(tensor: &TernaryTensor) -> Result<Vec<u8>, String> {
    pack_blocks::<66>(tensor, |from, to| {
        for (half, from) in from.chunks_exact(32).enumerate() {
            for (g, plane) in from.chunks_exact(8).enumerate() {
                scatter_plane(plane, 2 * g as u32, &mut to[32 * half..][..32]);
            }
        }
    })
}
