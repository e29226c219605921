//! MLX's 4 bits (affine, groups of 64): `w = scale * q + bias`, eight codes in 32 bits, lowest first. A group is two blocks
//! of Q4_1 where f16 holds its scale and its bias; tables with other scales are decoded to floats.

use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TensorError, f16};

/// Weights that share a scale and a bias.
pub(crate) const GROUP: usize = 64;
/// Weights of a block of Q4_1, and bytes of their codes.
const BLOCK: usize = DType::Q4_1.block_elements();
const CODES: usize = BLOCK / 2;

/// The type of a table when it is read, which holds every weight.
pub(crate) fn dtype(bytes: &[u8], scales: &BitNetTensor, biases: &BitNetTensor) -> DType {
    let exact = |value: f32| f16::from_f32(value).to_f32() == value;
    let groups = bytes.chunks_exact(GROUP / 2).zip(scales.to_f32().into_iter().zip(biases.to_f32()));
    // Groups of equal weights have the tiniest scale, which no code multiplies.
    let unused =
        |codes: &[u8], scale| f16::from_f32(scale).is_finite() && codes.iter().all(|&byte| byte == 0);
    let held = |codes: &[u8], scale, bias| exact(bias) && (exact(scale) || unused(codes, scale));
    let held = groups.into_iter().all(|(codes, (scale, bias))| held(codes, scale, bias));
    if held { DType::Q4_1 } else { DType::F32 }
}

/// A table of rows of `cols` weights.
pub(crate) fn read(
    bytes: &[u8],
    scales: &BitNetTensor,
    biases: &BitNetTensor,
    cols: usize,
) -> Result<BitNetTensor, TensorError> {
    let dtype = dtype(bytes, scales, biases);
    let (scales, biases) = (scales.to_f32(), biases.to_f32());
    let groups = bytes.chunks_exact(GROUP / 2).zip(scales.iter().zip(&biases));
    let mut out = Vec::with_capacity(dtype.row_bytes(2 * bytes.len()));
    for (codes, (&scale, &bias)) in groups {
        if dtype == DType::F32 {
            let codes = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
            out.extend(codes.flat_map(|q| (scale * f32::from(q) + bias).to_le_bytes()));
            continue;
        }
        for codes in codes.as_chunks::<CODES>().0 {
            out.extend([scale, bias].into_iter().flat_map(|v| f16::from_f32(v).to_le_bytes()));
            // A byte of Q4_1 holds codes j and j + 16.
            let code = |j: usize| codes[j / 2] >> (4 * (j % 2)) & 15;
            out.extend((0..CODES).map(|j| code(j) | code(j + CODES) << 4));
        }
    }
    BitNetTensor::new(dtype, [2 * bytes.len() / cols.max(1), cols], SharedBytes::new(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_q4_1_where_f16_holds_its_scales_and_every_type_has_the_same_weights() {
        let pair = |values: [f32; 2]| BitNetTensor::from_f32([2, 1], &values).unwrap();
        for (scale, bias, most, dtype) in [
            (0.5, -4.0, 15, DType::Q4_1),
            (-2f32.powi(-24), 0.375, 15, DType::Q4_1),
            (-1e-7, 0.375, 0, DType::Q4_1),
            (-1e-7, 0.375, 1, DType::F32),
            (1e30, 0.375, 0, DType::F32),
            (0.1, -4.0, 15, DType::F32),
            (0.5, 1e30, 15, DType::F32),
        ] {
            let bytes: Vec<u8> = (0..32u8).map(|i| i.wrapping_mul(37) ^ 0x2F).collect();
            let second = bytes.iter().map(|byte| (byte & 15).min(most) | (byte >> 4).min(most) << 4);
            let bytes = [bytes.clone(), second.collect()].concat();
            let table = read(&bytes, &pair([0.25, scale]), &pair([1.0, bias]), 64).unwrap();
            let codes = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(f32::from);
            let expected =
                codes.enumerate().map(|(i, q)| if i < 64 { 0.25 * q + 1.0 } else { scale * q + bias });
            assert_eq!((table.dtype(), table.rows()), (dtype, 2), "{scale} {bias} {most}");
            assert_eq!(table.to_f32(), expected.collect::<Vec<_>>(), "{scale} {bias} {most}");
        }
    }
}
