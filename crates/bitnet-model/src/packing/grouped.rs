//! Packings with a scale for every group of weights. They are read into and written from the codes and scales of
//! [`bitnet_tensor::TernaryTensor`]. Rows are whole blocks.
//!
//! ```text
//! Q2_0     64 weights in 18 bytes    f16 scale, 16 bytes of codes         llama.cpp, type 42
//! PQ2_0   128 weights in 34 bytes    f16 scale, 32 bytes of codes         PrismML's fork, type 142, once 42
//! Q1_0    128 weights in 18 bytes    f16 scale, 16 bytes of signs         llama.cpp, type 41
//! PTQ1_0  128 weights in 28 bytes    26 bytes in base 3, f16 scale        PrismML's fork, type 143
//! MLX      16 weights in a u32       scales and biases in other tensors   mlx-lm, 2 bits, affine
//! ```
//!
//! Two-bit codes are already canonical: weight `j` is in byte `j / 4` at bits `2 (j % 4)`, as value + 1. A sign is in
//! byte `j / 8` at bit `j % 8`, 1 for plus. Bytes in base 3 are those of [`super::tq1_0`], in other runs.

use bitnet_tensor::TernaryTensor;
use half::f16;

use super::{ZEROS, tq1_0, tq2_0};
use crate::files::ggml_type::GgmlType;

/// Possible numbers of weights that share a scale.
pub(crate) const GROUPS: [usize; 2] = [128, 64];

#[derive(Debug, PartialEq)]
pub(crate) struct Parts {
    pub group: usize,
    pub codes: Vec<u8>,
    pub scales: Vec<f16>,
}

/// Runs of base 3 bytes in a block of PTQ1_0: first byte, number of bytes, first weight, weights in a byte.
const PTQ1_0_RUNS: [(usize, usize, usize, usize); 3] = [(0, 16, 0, 5), (16, 8, 80, 5), (24, 2, 120, 4)];

/// Codes and scales of a tensor stored in a TQ type or a type for which [`GgmlType::group`] is `Some`.
pub(crate) fn unpack(kind: GgmlType, bytes: &[u8], cols: usize) -> Parts {
    let first = |from: &[u8]| f16::from_le_bytes([from[0], from[1]]);
    let last = |from: &[u8]| f16::from_le_bytes([from[from.len() - 2], from[from.len() - 1]]);
    match kind {
        GgmlType::Q2_0 => {
            let read = |from: &[u8; 18], to: &mut [u8]| {
                to.copy_from_slice(&from[2..]);
                first(from)
            };
            share_with_zeros(blocks::<18, 64>(64, bytes, read), cols)
        }
        GgmlType::Ptq1_0 => blocks::<28, 128>(128, bytes, |from, to| {
            tq1_0::digits::<128>(from, &PTQ1_0_RUNS, to);
            last(from)
        }),
        GgmlType::Q1_0 => blocks::<18, 128>(128, bytes, |from, to| {
            for (i, code) in to.iter_mut().enumerate() {
                let signs = from[2 + i / 2] >> (4 * (i % 2));
                // 2 for plus, 0 for minus.
                *code = (0..4).fold(0, |byte, j| byte | (signs >> j & 1) << (2 * j + 1));
            }
            first(from)
        }),
        GgmlType::Tq1_0 => blocks::<54, 256>(128, bytes, |from, to| {
            tq1_0::decode(from, to);
            last(from)
        }),
        GgmlType::Tq2_0 => blocks::<66, 256>(128, bytes, |from, to| {
            tq2_0::decode(from, to);
            last(from)
        }),
        _ => blocks::<34, 128>(128, bytes, |from, to| {
            to.copy_from_slice(&from[2..]);
            first(from)
        }),
    }
}

/// Reads blocks of `N` bytes that hold `W` weights. `decode` writes the codes of a block and returns its scale. A block
/// with scale zero holds zeros, whatever its codes say.
fn blocks<const N: usize, const W: usize>(
    group: usize,
    bytes: &[u8],
    decode: impl Fn(&[u8; N], &mut [u8]) -> f16,
) -> Parts {
    let (from, _) = bytes.as_chunks::<N>();
    let mut codes = vec![0; from.len() * W / 4];
    let mut scales = Vec::with_capacity(from.len() * W / group);
    for (from, to) in from.iter().zip(codes.chunks_exact_mut(W / 4)) {
        let scale = decode(from, to);
        if scale == f16::ZERO {
            to.fill(ZEROS);
        }
        scales.extend(std::iter::repeat_n(scale, W / group));
    }
    Parts { group, codes, scales }
}

/// Gives a group of 64 zeros the scale of the other half of its 128, if that makes all groups of the tensor 128 wide:
/// writers give zeros the scale 0, which would hide that all other halves are equal.
fn share_with_zeros(mut parts: Parts, cols: usize) -> Parts {
    let zeros = |i: usize| parts.codes[16 * i..][..16].iter().all(|&byte| byte == ZEROS);
    let (groups, mut shared) = (cols / 64, parts.scales.clone());
    for (row, scales) in shared.chunks_exact_mut(groups).enumerate() {
        for (pair, scales) in scales.chunks_exact_mut(2).enumerate() {
            let at = row * groups + 2 * pair;
            match [zeros(at), zeros(at + 1)] {
                [true, _] => scales[0] = scales[1],
                [_, true] => scales[1] = scales[0],
                _ => {}
            }
            if scales[0].to_bits() != scales[1].to_bits() {
                return parts;
            }
        }
    }
    parts.scales = shared;
    parts
}

/// Codes and scales of MLX's layout; `scales` and `biases` have one for each group.
pub(crate) fn mlx(bytes: &[u8], scales: &[f32], biases: &[f32]) -> Result<Parts, String> {
    for (i, (scale, bias)) in scales.iter().zip(biases).enumerate() {
        if -scale != *bias {
            return Err(format!(
                "group {i} has scale {scale} and bias {bias}, so its weights are not -s, 0, s or 2 s"
            ));
        }
    }
    let group = 4 * bytes.len() / scales.len().max(1);
    let scales = exact_f16s(scales)?;
    let mut codes = bytes.to_vec();
    for (codes, scale) in codes.chunks_exact_mut((group / 4).max(1)).zip(&scales) {
        if *scale == f16::ZERO {
            codes.fill(ZEROS);
        }
    }
    Ok(Parts { group, codes, scales })
}

/// Codes and scales of MLX's layout with a scale for every row.
pub(crate) fn mlx_rows(bytes: &[u8], scales: &[f32], cols: usize) -> Result<Parts, String> {
    let scales = exact_f16s(scales)?;
    let mut codes = bytes.to_vec();
    for (codes, scale) in codes.chunks_exact_mut(cols.div_ceil(4).max(1)).zip(&scales) {
        if *scale == f16::ZERO {
            codes.fill(ZEROS);
        }
    }
    let group = TernaryTensor::WIDE;
    let of_row = |scale| std::iter::repeat_n(scale, TernaryTensor::groups(cols, group));
    Ok(Parts { group, codes, scales: scales.into_iter().flat_map(of_row).collect() })
}

/// The scales as f16, which must hold each of them.
fn exact_f16s(scales: &[f32]) -> Result<Vec<f16>, String> {
    let exact = |(i, &scale): (usize, &f32)| {
        let stored = f16::from_f32(scale);
        if stored.to_f32() == scale {
            Ok(stored)
        } else {
            Err(format!("scale {i} is {scale}, which is no f16"))
        }
    };
    scales.iter().enumerate().map(exact).collect()
}

pub(crate) fn pack_q2_0(tensor: &TernaryTensor) -> Result<Vec<u8>, String> {
    pack(tensor, 64)
}

pub(crate) fn pack_pq2_0(tensor: &TernaryTensor) -> Result<Vec<u8>, String> {
    if tensor.group() == Some(64) {
        return Err("it has a scale for every 64 weights, but this type has one for every 128".into());
    }
    pack(tensor, 128)
}

fn pack(tensor: &TernaryTensor, group: usize) -> Result<Vec<u8>, String> {
    let Some(width) = tensor.group() else {
        return Err("its rows have scales, but this type has one for every group of weights".into());
    };
    if !tensor.cols().is_multiple_of(group) {
        return Err(format!("rows of {} weights are not whole blocks of {group}", tensor.cols()));
    }
    let mut bytes = Vec::with_capacity(tensor.codes().len() / (group / 4) * (2 + group / 4));
    for row in 0..tensor.rows() {
        let scales = tensor.group_scales(row);
        for (i, codes) in tensor.row_codes(row).chunks_exact(group / 4).enumerate() {
            bytes.extend(scales[i * group / width].to_le_bytes());
            bytes.extend(codes);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tensor(parts: Parts, cols: usize) -> TernaryTensor {
        let rows = 4 * parts.codes.len() / cols;
        TernaryTensor::from_groups(rows, cols, parts.group, parts.codes, parts.scales).unwrap()
    }

    fn values(parts: Parts, cols: usize) -> Vec<i8> {
        let tensor = tensor(parts, cols);
        (0..tensor.rows()).flat_map(|row| tensor.row_trits(row).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn ptq1_0_reads_the_digits_of_its_bytes_in_their_order() {
        // Digit n of a byte, by the formula of the specification.
        let digit = |byte: u8, n: u32| ((((u32::from(byte) * 3u32.pow(n)) & 255) * 3) >> 8) as i8 - 1;
        let mut block: Vec<u8> = (0..26u8).map(|i| i.wrapping_mul(37).wrapping_add(11)).collect();
        block.extend(f16::from_f32(0.5).to_le_bytes());
        let mut expected = vec![9; 128];
        for m in 0..16 {
            (0..5).for_each(|n| expected[16 * n + m] = digit(block[m], n as u32));
        }
        for m in 0..8 {
            (0..5).for_each(|n| expected[80 + 8 * n + m] = digit(block[16 + m], n as u32));
        }
        for h in 0..2 {
            (0..4).for_each(|n| expected[120 + 2 * n + h] = digit(block[24 + h], n as u32));
        }
        assert_eq!(values(unpack(GgmlType::Ptq1_0, &block, 128), 128), expected);
    }

    #[test]
    fn q1_0_reads_a_bit_as_a_sign() {
        let mut block = f16::from_f32(0.25).to_le_bytes().to_vec();
        block.extend((0..16).map(|i| 0b1010_0110u8.rotate_left(i)));
        let values = values(unpack(GgmlType::Q1_0, &block, 128), 128);
        for (j, value) in values.into_iter().enumerate() {
            assert_eq!(value, if block[2 + j / 8] >> (j % 8) & 1 == 1 { 1 } else { -1 }, "{j}");
        }
    }

    #[test]
    fn a_block_with_scale_zero_holds_zeros() {
        let mut block = vec![0u8; 34];
        block[2..].fill(0b1100_1010);
        assert!(values(unpack(GgmlType::Pq2_0, &block, 128), 128).iter().all(|&v| v == 0));
    }

    #[test]
    fn a_half_of_zeros_does_not_keep_groups_of_64_from_being_groups_of_128() {
        let block = |scale: f32, code: u8| [&f16::from_f32(scale).to_le_bytes()[..], &[code; 16]].concat();
        let read = |blocks: &[Vec<u8>]| tensor(unpack(GgmlType::Q2_0, &blocks.concat(), 256), 256);
        let pairs = [block(0.5, 0x42), block(0.5, 0x24), block(0.0, ZEROS), block(0.25, 0x42)];
        assert_eq!(read(&pairs).group(), Some(128));
        assert_eq!(read(&pairs).group_scales(0), [f16::from_f32(0.5), f16::from_f32(0.25)]);
        let apart = [block(0.5, 0x42), block(1.0, 0x24), block(0.0, ZEROS), block(0.25, 0x42)];
        assert_eq!(read(&apart).group(), Some(64));
    }

    #[test]
    fn mlx_with_a_bias_that_is_not_minus_its_scale_is_refused() {
        let told = mlx(&[0; 32], &[0.5], &[-0.25]).unwrap_err();
        assert!(told.contains("scale 0.5 and bias -0.25"), "{told}");
        let parts = mlx(&[0x42; 32], &[0.5], &[-0.5]).unwrap();
        assert_eq!((parts.group, parts.scales), (128, vec![f16::from_f32(0.5)]));
        assert!(mlx(&[0; 32], &[1e-9], &[-1e-9]).unwrap_err().contains("no f16"));
    }

    proptest! {
        #[test]
        fn two_bit_types_survive_a_round_trip(
            codes in prop::collection::vec(any::<u8>(), 2 * 3 * 32),
            scales in prop::collection::vec(1u16..0x7C00, 2 * 6),
        ) {
            let narrow = scales.iter().map(|&bits| f16::from_bits(bits)).collect();
            let tensor = TernaryTensor::from_groups(2, 384, 64, codes.clone(), narrow).unwrap();
            prop_assert_eq!(&self::tensor(unpack(GgmlType::Q2_0, &pack_q2_0(&tensor).unwrap(), 384), 384), &tensor);
            prop_assert_eq!(pack_pq2_0(&tensor).is_err(), tensor.group() == Some(64));

            let wide = scales[..6].iter().map(|&bits| f16::from_bits(bits)).collect();
            let tensor = TernaryTensor::from_groups(2, 384, 128, codes, wide).unwrap();
            for kind in [GgmlType::Pq2_0, GgmlType::Q2_0Fork] {
                prop_assert_eq!(&self::tensor(unpack(kind, &pack_pq2_0(&tensor).unwrap(), 384), 384), &tensor);
            }
            prop_assert_eq!(&self::tensor(unpack(GgmlType::Q2_0, &pack_q2_0(&tensor).unwrap(), 384), 384), &tensor);
        }
    }
}
