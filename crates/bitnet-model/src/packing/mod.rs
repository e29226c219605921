//! Ternary encodings of files. Each is read into and written from the canonical codes of
//! [`bitnet_tensor::TernaryTensor`].

pub(crate) mod grouped;
pub(crate) mod i2_s;
pub(crate) mod mlx4;
pub(crate) mod packed;
pub(crate) mod tq1_0;
pub(crate) mod tq2_0;

use bitnet_tensor::{DType, TernaryScales, TernaryTensor};
use half::f16;

/// Packs four codes, one in the two low bits of each byte, into one canonical byte, first byte lowest.
///
/// The product moves the byte at bit `8 i` to bit `24 + 2 i`. All other partial products stay below bit 24 or overflow,
/// and no two meet, so there is no carry.
#[inline(always)]
fn gather(word: u32) -> u8 {
    ((word & 0x0303_0303).wrapping_mul(1 << 24 | 1 << 18 | 1 << 12 | 1 << 6) >> 24) as u8
}

/// The inverse of [`gather`].
#[inline(always)]
fn scatter(byte: u8) -> u32 {
    let b = u32::from(byte);
    (b | b << 6 | b << 12 | b << 18) & 0x0303_0303
}

/// Gathers the codes at bits `shift..shift + 2` of each byte of `from` into `to`, which is a quarter as long.
#[inline(always)]
fn gather_plane(from: &[u8], shift: u32, to: &mut [u8]) {
    let (words, _) = from.as_chunks::<4>();
    for (o, w) in to.iter_mut().zip(words) {
        *o = gather(u32::from_le_bytes(*w) >> shift);
    }
}

/// Puts the codes of `from` at bits `shift..shift + 2` of each byte of `to`; the inverse of [`gather_plane`].
#[inline(always)]
fn scatter_plane(from: &[u8], shift: u32, to: &mut [u8]) {
    let (words, _) = to.as_chunks_mut::<4>();
    for (w, b) in words.iter_mut().zip(from) {
        *w = (u32::from_le_bytes(*w) | scatter(*b) << shift).to_le_bytes();
    }
}

/// The canonical byte of four zeros.
const ZEROS: u8 = 0b01_01_01_01;

/// Finds the one scale of a tensor whose blocks of 256 weights (64 canonical bytes) each carry their own.
///
/// A block of zeros may carry any scale, and a block with scale zero holds zeros whatever its codes say. Any other
/// difference is an error: the kernels use one scale a tensor, and an average would be a different model.
struct BlockScales {
    scale: Option<f16>,
}

impl BlockScales {
    fn new() -> Self {
        BlockScales { scale: None }
    }

    fn block(&mut self, d: f16, codes: &mut [u8]) -> Result<(), String> {
        if d == f16::ZERO {
            codes.fill(ZEROS);
        } else if codes.iter().any(|&c| c != ZEROS) {
            let first = *self.scale.get_or_insert(d);
            if first.to_bits() != d.to_bits() {
                return Err(format!("its blocks have different scales, {first} and {d}"));
            }
        }
        Ok(())
    }

    /// The common scale; zero if all weights are zero.
    fn finish(self) -> f32 {
        self.scale.unwrap_or(f16::ZERO).to_f32()
    }
}

/// Canonical codes and scale of a tensor in blocks of 256 weights. Each block has `N` bytes and ends in an f16 scale;
/// `decode` produces its codes.
fn unpack_blocks<const N: usize>(
    bytes: &[u8],
    rows: usize,
    cols: usize,
    decode: impl Fn(&[u8; N], &mut [u8; 64]),
) -> Result<(Vec<u8>, f32), String> {
    let mut codes = vec![0; rows * cols / 4];
    let mut scales = BlockScales::new();
    let (from, _) = bytes.as_chunks::<N>();
    let (to, _) = codes.as_chunks_mut::<64>();
    for (from, to) in from.iter().zip(to) {
        decode(from, to);
        scales.block(f16::from_le_bytes([from[N - 2], from[N - 1]]), to)?;
    }
    Ok((codes, scales.finish()))
}

/// The inverse of [`unpack_blocks`]: `encode` writes the codes into a zeroed block. Blocks of zero weights get scale
/// zero, as ggml writes them.
fn pack_blocks<const N: usize>(
    tensor: &TernaryTensor,
    encode: impl Fn(&[u8; 64], &mut [u8; N]),
) -> Result<Vec<u8>, String> {
    if !tensor.cols().is_multiple_of(256) {
        return Err(format!("rows of {} weights are not whole blocks of 256", tensor.cols()));
    }
    let d = one_f16_scale(tensor)?;
    let (from, _) = tensor.codes().as_chunks::<64>();
    let mut bytes = vec![0; from.len() * N];
    let (to, _) = bytes.as_chunks_mut::<N>();
    for (from, to) in from.iter().zip(to) {
        encode(from, to);
        let d = if from.iter().all(|&c| c == ZEROS) { f16::ZERO } else { d };
        to[N - 2..].copy_from_slice(&d.to_le_bytes());
    }
    Ok(bytes)
}

/// The weights as f16 or f32, for rows that are not whole blocks of a ternary type.
pub(crate) fn floats(tensor: &TernaryTensor, dtype: DType) -> Result<Vec<u8>, String> {
    let bytes = |value: f32| -> Vec<u8> {
        match dtype {
            DType::F16 => f16::from_f32(value).to_le_bytes().into(),
            _ => value.to_le_bytes().into(),
        }
    };
    let scale = if dtype == DType::F16 { one_f16_scale(tensor)?.to_f32() } else { one_scale(tensor)? };
    let values = [-scale, 0.0, scale].map(bytes);
    let trits = (0..tensor.rows()).flat_map(|row| tensor.row_trits(row));
    Ok(trits.flat_map(|trit| &values[(trit + 1) as usize]).copied().collect())
}

/// The scale of a tensor, which must be the same for all rows.
pub(crate) fn one_scale(tensor: &TernaryTensor) -> Result<f32, String> {
    let TernaryScales::Rows(ranges) = tensor.scales() else {
        return Err("its groups of weights have scales".into());
    };
    let first = ranges[0].scale;
    if ranges.iter().any(|range| range.scale.to_bits() != first.to_bits()) {
        return Err("its rows have different scales".into());
    }
    Ok(first)
}

/// The scale of a tensor as f16, as the TQ types store it.
fn one_f16_scale(tensor: &TernaryTensor) -> Result<f16, String> {
    let scale = one_scale(tensor)?;
    let d = f16::from_f32(scale);
    if !d.is_finite() || d == f16::ZERO && scale != 0.0 {
        return Err(format!("its scale {scale} does not fit in 16 bits"));
    }
    Ok(d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tensor(cols_of: usize) -> impl Strategy<Value = TernaryTensor> {
        (1usize..5, 1usize..4).prop_flat_map(move |(rows, blocks)| {
            let cols = blocks * cols_of;
            prop::collection::vec(-1i8..=1, rows * cols)
                .prop_map(move |trits| TernaryTensor::from_trits(rows, cols, &trits, 0.375).unwrap())
        })
    }

    fn same(t: &TernaryTensor, (codes, scale): (Vec<u8>, f32)) {
        let zero = t.codes().iter().all(|&c| c == ZEROS);
        let back = TernaryTensor::from_codes(t.rows(), t.cols(), codes, scale).unwrap();
        assert_eq!(back.codes(), t.codes());
        assert!(zero || back.scales() == t.scales());
    }

    proptest! {
        #[test]
        fn gather_undoes_scatter(byte: u8) {
            prop_assert_eq!(gather(scatter(byte)), byte);
        }

        #[test]
        fn i2_s_survives_a_round_trip(t in tensor(128)) {
            same(&t, i2_s::unpack(&i2_s::pack(&t).unwrap(), t.rows(), t.cols()).unwrap());
        }

        #[test]
        fn tq1_0_survives_a_round_trip(t in tensor(256)) {
            same(&t, tq1_0::unpack(&tq1_0::pack(&t).unwrap(), t.rows(), t.cols()).unwrap());
        }

        #[test]
        fn tq2_0_survives_a_round_trip(t in tensor(256)) {
            same(&t, tq2_0::unpack(&tq2_0::pack(&t).unwrap(), t.rows(), t.cols()).unwrap());
        }

        #[test]
        fn packed_survives_a_round_trip(t in tensor(7)) {
            let codes = packed::unpack(&packed::pack(&t), t.rows(), t.cols());
            same(&t, (codes, 0.375));
        }
    }
}
