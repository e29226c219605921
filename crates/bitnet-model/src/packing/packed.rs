//! The packed uint8 layout of Hugging Face checkpoints (`pack_weights` in transformers'
//! `integrations/bitnet.py`).
//!
//! ```text
//! [ceil(rows / 4)][cols] u8    with R = ceil(rows / 4), bits 2i..2i+2 of byte [r][c] hold row i R + r, column c,
//!                              as trit + 1
//! ```
//!
//! The scale is a separate tensor.

use bitnet_tensor::TernaryTensor;

use super::{gather, scatter};

/// Canonical codes of a tensor of `rows` x `cols` from its `ceil(rows / 4) * cols` bytes.
pub(crate) fn unpack(bytes: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let (quarter, stride) = (rows.div_ceil(4), TernaryTensor::row_bytes(cols));
    let mut codes = vec![0; rows * stride];
    for (row, to) in codes.chunks_exact_mut(stride).enumerate() {
        let shift = 2 * (row / quarter) as u32;
        let from = &bytes[row % quarter * cols..][..cols];
        let (words, rest) = from.as_chunks::<4>();
        for (o, w) in to.iter_mut().zip(words) {
            *o = gather(u32::from_le_bytes(*w) >> shift);
        }
        for (i, b) in rest.iter().enumerate() {
            to[stride - 1] |= (b >> shift & 3) << (2 * i);
        }
    }
    codes
}

/// The bytes of a tensor, `[ceil(rows / 4)][cols]`.
pub(crate) fn pack(tensor: &TernaryTensor) -> Vec<u8> {
    let (quarter, cols) = (tensor.rows().div_ceil(4), tensor.cols());
    let mut bytes = vec![0; quarter * cols];
    for row in 0..tensor.rows() {
        let shift = 2 * (row / quarter) as u32;
        let to = &mut bytes[row % quarter * cols..][..cols];
        for (four, byte) in to.chunks_mut(4).zip(tensor.row_codes(row)) {
            for (o, code) in four.iter_mut().zip(scatter(*byte).to_le_bytes()) {
                *o |= code << shift;
            }
        }
    }
    bytes
}
