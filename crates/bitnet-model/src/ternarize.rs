//! Float weights that become trits when they are read.

use bitnet_tensor::{BitNetTensor, TensorError, TernaryTensor};

/// The smallest mean that is divided by.
const MIN_MEAN: f32 = 1e-5;

/// Quantises master weights as training did: `s = mean |w|`, `t = clamp(round_half_even(w / s), -1, 1)`, one `s` a
/// tensor.
///
/// Source: `WeightQuant` in transformers' `integrations/bitnet.py`, and 1bitLLM's `weight_quant`: both multiply
/// by the f32 reciprocal and divide by it again, which is repeated here.
pub(crate) fn masters(weights: &BitNetTensor) -> Result<TernaryTensor, TensorError> {
    let mut row = vec![0.0; weights.cols()];
    let mut sum = 0.0;
    for r in 0..weights.rows() {
        weights.decode_row(r, &mut row);
        sum += row.iter().map(|&w| f64::from(w.abs())).sum::<f64>();
    }
    let mean = (sum / (weights.rows() * weights.cols()).max(1) as f64) as f32;
    if !mean.is_finite() {
        return Err(TensorError::Scale { scale: mean });
    }
    let reciprocal = 1.0 / mean.max(MIN_MEAN);
    // Rounding half to even sends 0.5 to 0, so a trit is not zero exactly when the product exceeds one half.
    let code = |w: f32| {
        let x = w * reciprocal;
        1 + u8::from(x > 0.5) - u8::from(x < -0.5)
    };
    encode(weights, 1.0 / reciprocal, code)
}

/// Reads weights that already are ternary: every value is `-s`, `0` or `s`. `Err(None)` if they are not.
pub(crate) fn exact(weights: &BitNetTensor) -> Result<TernaryTensor, Option<TensorError>> {
    let mut row = vec![0.0f32; weights.cols()];
    let mut scale = 0.0f32;
    for r in 0..weights.rows() {
        weights.decode_row(r, &mut row);
        for magnitude in row.iter().map(|w| w.abs()).filter(|&m| m != 0.0) {
            if scale == 0.0 {
                scale = magnitude;
            }
            if magnitude != scale {
                return Err(None);
            }
        }
    }
    let code = |w: f32| 1 + u8::from(w > 0.0) - u8::from(w < 0.0);
    encode(weights, scale, code).map_err(Some)
}

fn encode(
    weights: &BitNetTensor,
    scale: f32,
    code: impl Fn(f32) -> u8,
) -> Result<TernaryTensor, TensorError> {
    let (rows, cols) = (weights.rows(), weights.cols());
    let mut row = vec![0.0; cols];
    let mut codes = Vec::with_capacity(rows * TernaryTensor::row_bytes(cols));
    for r in 0..rows {
        weights.decode_row(r, &mut row);
        codes.extend(row.chunks(4).map(|four| four.iter().rev().fold(0, |byte, &w| byte << 2 | code(w))));
    }
    TernaryTensor::from_codes(rows, cols, codes, scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_round_half_to_even() {
        // The mean magnitude is 1: 0.5 is a tie and goes to zero, 0.6 does not.
        let w = BitNetTensor::from_f32([1, 6], &[0.5, -0.5, 0.6, -0.6, 1.8, -2.0]).unwrap();
        let t = masters(&w).unwrap();
        assert_eq!(t.row_trits(0).collect::<Vec<_>>(), [0, 0, 1, -1, 1, -1]);
        assert_eq!(t.scales()[0].scale, 1.0);
    }

    #[test]
    fn exact_refuses_a_second_magnitude() {
        let three = BitNetTensor::from_f32([1, 3], &[0.25, 0.0, -0.25]).unwrap();
        assert_eq!(exact(&three).unwrap().row_trits(0).collect::<Vec<_>>(), [1, 0, -1]);
        let four = BitNetTensor::from_f32([1, 3], &[0.25, 0.0, -0.26]).unwrap();
        assert_eq!(exact(&four), Err(None));
        let nan = BitNetTensor::from_f32([1, 2], &[0.25, f32::NAN]).unwrap();
        assert_eq!(exact(&nan), Err(None));
    }
}
