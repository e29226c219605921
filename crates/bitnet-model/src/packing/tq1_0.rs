//! TQ1_0 of ggml (`block_tq1_0` in `ggml-common.h`, `dequantize_row_tq1_0` in `ggml-quants.c`).
//!
//! ```text
//! blocks of 256 weights in 54 bytes, rows are whole blocks:
//!   32 bytes  byte j holds weights j, j + 32, .. j + 128
//!   16 bytes  byte j holds weights 160 + j, 160 + j + 16, .. 160 + j + 64
//!    4 bytes  byte j holds weights 240 + j, 240 + j + 4, .. 240 + j + 12, and nothing
//!   f16       scale
//! ```
//!
//! Five values in base 3, most significant first, form a number `n` below 243, stored as `ceil(n * 256 / 243)`. Then
//! `byte * 3 >> 8` is the first value, and the low byte of the product holds the others in the same way.

use bitnet_tensor::TernaryTensor;

use super::{gather, pack_blocks, scatter, unpack_blocks};

/// Runs of bytes that are interleaved together: first byte, number of bytes, first weight, weights in a byte.
const RUNS: [(usize, usize, usize, usize); 3] = [(0, 32, 0, 5), (32, 16, 160, 5), (48, 4, 240, 4)];

/// Canonical codes and scale of a tensor of `rows` x `cols`, `cols` a multiple of 256.
pub(crate) fn unpack(bytes: &[u8], rows: usize, cols: usize) -> Result<(Vec<u8>, f32), String> {
    unpack_blocks::<54>(bytes, rows, cols, |from, to| decode(from, to))
}

/// The canonical codes of a block.
pub(super) fn decode(from: &[u8; 54], to: &mut [u8]) {
    digits::<256>(from, &RUNS, to);
}

/// The canonical codes of `W` weights stored in these runs of base 3 bytes.
pub(super) fn digits<const W: usize>(from: &[u8], runs: &[(usize, usize, usize, usize)], to: &mut [u8]) {
    let mut wide = [0u8; W];
    for &(byte, bytes, weight, depth) in runs {
        let mut rest = [0u8; 32];
        let rest = &mut rest[..bytes];
        rest.copy_from_slice(&from[byte..][..bytes]);
        for plane in wide[weight..][..bytes * depth].chunks_exact_mut(bytes) {
            for (w, r) in plane.iter_mut().zip(rest.iter_mut()) {
                let product = u16::from(*r) * 3;
                *w = (product >> 8) as u8;
                *r = product as u8;
            }
        }
    }
    let (words, _) = wide.as_chunks::<4>();
    for (o, w) in to.iter_mut().zip(words) {
        *o = gather(u32::from_le_bytes(*w));
    }
}

pub(crate) fn pack(tensor: &TernaryTensor) -> Result<Vec<u8>, String> {
    pack_blocks::<54>(tensor, |from, to| {
        let mut wide = [0u8; 256];
        let (words, _) = wide.as_chunks_mut::<4>();
        for (w, b) in words.iter_mut().zip(from) {
            *w = scatter(*b).to_le_bytes();
        }
        for (byte, bytes, weight, depth) in RUNS {
            for j in 0..bytes {
                let digits =
                    (0..5).map(|n| if n < depth { u16::from(wide[weight + n * bytes + j]) } else { 0 });
                let number = digits.fold(0, |q, digit| 3 * q + digit);
                to[byte + j] = (number * 256).div_ceil(243) as u8;
            }
        }
    })
}
