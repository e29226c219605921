//! MLX's 4 bits (affine, groups of 64): `w = scale * q + bias`, eight codes in 32 bits, lowest first. Tables in this form
//! are decoded to floats.

use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TensorError};
use half::{bf16, f16};

/// Weights that share a scale and a bias.
pub(crate) const GROUP: usize = 64;

/// A table of rows of `cols` weights, in the narrowest float type that holds every weight.
pub(crate) fn decode(
    bytes: &[u8],
    scales: &BitNetTensor,
    biases: &BitNetTensor,
    cols: usize,
) -> Result<BitNetTensor, TensorError> {
    let (scales, biases) = (scales.to_f32(), biases.to_f32());
    let values = || {
        let groups = bytes.chunks_exact(GROUP / 2).zip(scales.iter().zip(&biases));
        groups.flat_map(|(codes, (&scale, &bias))| {
            codes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(move |q| scale * f32::from(q) + bias)
        })
    };
    let shape = [2 * bytes.len() / cols.max(1), cols];
    let made = |dtype, bytes: Vec<u8>| BitNetTensor::new(dtype, shape, SharedBytes::new(bytes));
    if values().all(|w| f16::from_f32(w).to_f32() == w) {
        return made(DType::F16, values().flat_map(|w| f16::from_f32(w).to_le_bytes()).collect());
    }
    if values().all(|w| bf16::from_f32(w).to_f32() == w) {
        return made(DType::BF16, values().flat_map(|w| bf16::from_f32(w).to_le_bytes()).collect());
    }
    made(DType::F32, values().flat_map(f32::to_le_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_low_nibble_first_into_the_narrowest_type_that_holds_them() {
        let one = |value: f32| BitNetTensor::from_f32([1, 1], &[value]).unwrap();
        let mut bytes = [0; 32];
        bytes[1] = 0x2F;
        let table = decode(&bytes, &one(0.5), &one(-4.0), 64).unwrap();
        let values = table.to_f32();
        assert_eq!((table.dtype(), &values[..4]), (DType::F16, &[-4.0, -4.0, 3.5, -3.0][..]));
        assert_eq!(decode(&bytes, &one(0.1), &one(-4.0), 64).unwrap().dtype(), DType::F32);
        assert_eq!(decode(&bytes, &one(1e30), &one(0.0), 64).unwrap().dtype(), DType::F32);
        assert_eq!(decode(&bytes, &one(2f32.powi(70)), &one(0.0), 64).unwrap().dtype(), DType::BF16);
    }
}
