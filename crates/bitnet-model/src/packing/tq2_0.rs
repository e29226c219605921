//! TQ2_0 of ggml (`block_tq2_0` in `ggml-common.h`, `dequantize_row_tq2_0` in `ggml-quants.c`).
//!
//! ```text
//! blocks of 256 weights in 66 bytes, rows are whole blocks:
//!   32 bytes  weights 0..128:    byte j    bits 1..0 weight j    3..2 weight j + 32    5..4 j + 64    7..6 j + 96
//!   32 bytes  weights 128..256, the same
//!   f16       scale
//! ```

use bitnet_tensor::TernaryTensor;
use half::f16;

use super::{BlockScales, ZEROS, gather_plane, one_f16_scale, scatter_plane};

/// Canonical codes and scale of a tensor of `rows` x `cols`, `cols` a multiple of 256.
pub(crate) fn unpack(bytes: &[u8], rows: usize, cols: usize) -> Result<(Vec<u8>, f32), String> {
    let mut codes = vec![0; rows * cols / 4];
    let mut scales = BlockScales::new();
    let (from, _) = bytes.as_chunks::<66>();
    let (to, _) = codes.as_chunks_mut::<64>();
    for (from, to) in from.iter().zip(to) {
        for (half, to) in to.chunks_exact_mut(32).enumerate() {
            for (g, plane) in to.chunks_exact_mut(8).enumerate() {
                gather_plane(&from[32 * half..][..32], 2 * g as u32, plane);
            }
        }
        scales.block(f16::from_le_bytes([from[64], from[65]]), to)?;
    }
    Ok((codes, scales.finish()))
}

/// The bytes of a tensor; blocks of zeros get scale zero, as ggml writes them.
pub(crate) fn pack(tensor: &TernaryTensor) -> Result<Vec<u8>, String> {
    if !tensor.cols().is_multiple_of(256) {
        return Err(format!("rows of {} weights are not whole blocks of 256", tensor.cols()));
    }
    let d = one_f16_scale(tensor)?;
    let (from, _) = tensor.codes().as_chunks::<64>();
    let mut bytes = vec![0; from.len() * 66];
    let (to, _) = bytes.as_chunks_mut::<66>();
    for (from, to) in from.iter().zip(to) {
        for (half, from) in from.chunks_exact(32).enumerate() {
            for (g, plane) in from.chunks_exact(8).enumerate() {
                scatter_plane(plane, 2 * g as u32, &mut to[32 * half..][..32]);
            }
        }
        let d = if from.iter().all(|&c| c == ZEROS) { f16::ZERO } else { d };
        to[64..].copy_from_slice(&d.to_le_bytes());
    }
    Ok(bytes)
}
