//! I2_S, the format of bitnet.cpp (`quantize_i2_s` in `src/ggml-bitnet-mad.cpp`, x86 interleave).
//!
//! ```text
//! blocks of 128 weights in 32 bytes, one after another over the whole tensor:
//!   byte j    bits 7..6 weight j    5..4 weight j + 32    3..2 weight j + 64    1..0 weight j + 96    as trit + 1
//! then        f32 scale, 28 unused bytes
//! ```

use std::array;

use bitnet_tensor::{TernaryTensor, transpose_codes};

use super::{one_scale, scatter_plane};

/// Bytes after the codes: the scale and padding.
pub(crate) const TAIL: usize = 32;

/// Canonical codes and scale of a tensor of `rows` x `cols`.
pub(crate) fn unpack(bytes: &[u8], rows: usize, cols: usize) -> Result<(Vec<u8>, f32), String> {
    if !cols.is_multiple_of(4) {
        return Err(format!("I2_S rows of {cols} weights do not begin at a whole byte"));
    }
    let length = rows * cols / 4;
    let (packed, tail) = bytes
        .split_at_checked(length)
        .and_then(|(packed, tail)| Some((packed, tail.first_chunk()?)))
        .ok_or_else(|| format!("{} bytes are too few for {rows} x {cols} weights", bytes.len()))?;
    let mut codes = vec![0; length];
    let (from, _) = packed.as_chunks::<32>();
    let (to, _) = codes.as_chunks_mut::<32>();
    for (from, to) in from.iter().zip(to) {
        let (words, _) = from.as_chunks::<4>();
        // Four neighbouring bytes hold four columns of each of four groups; transposed, they are one byte of each.
        let words: [u32; 8] = array::from_fn(|i| transpose_codes(u32::from_le_bytes(words[i])));
        for (g, plane) in to.chunks_exact_mut(8).enumerate() {
            for (code, word) in plane.iter_mut().zip(words) {
                *code = (word >> (24 - 8 * g)) as u8;
            }
        }
    }
    Ok((codes, f32::from_le_bytes(*tail)))
}

/// The bytes of a tensor. Rows must be whole blocks, as bitnet.cpp's kernels expect.
pub(crate) fn pack(tensor: &TernaryTensor) -> Result<Vec<u8>, String> {
    if !tensor.cols().is_multiple_of(128) {
        return Err(format!("rows of {} weights are not whole blocks of 128", tensor.cols()));
    }
    let scale = one_scale(tensor)?;
    let length = tensor.codes().len();
    let mut bytes = vec![0; length + TAIL];
    let (to, _) = bytes[..length].as_chunks_mut::<32>();
    let (from, _) = tensor.codes().as_chunks::<32>();
    for (from, to) in from.iter().zip(to) {
        for (g, plane) in from.chunks_exact(8).enumerate() {
            scatter_plane(plane, 6 - 2 * g as u32, to);
        }
    }
    bytes[length..length + 4].copy_from_slice(&scale.to_le_bytes());
    Ok(bytes)
}
