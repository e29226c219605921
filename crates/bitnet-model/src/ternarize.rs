//! Converts float weights to trits when they are read: master weights as training did ([`masters`]), floats that are
//! already ternary without loss ([`exact`], [`recover`]).

use bitnet_tensor::{BitNetTensor, TensorError, TernaryTensor};
use half::f16;

use crate::packing::grouped::{GROUPS, Parts};

/// Lower bound of the mean magnitude, to avoid dividing by zero.
const MIN_MEAN: f32 = 1e-5;

/// Quantises master weights as training did: `s = mean |w|`, `t = clamp(round_half_even(w / s), -1, 1)`, with one `s`
/// for the tensor.
///
/// Source: `WeightQuant` in transformers' `integrations/bitnet.py`, and 1bitLLM's `weight_quant`. Both multiply by the
/// f32 reciprocal and divide by it again, so this does too.
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
    // Rounding half to even sends 0.5 to 0, so a trit is nonzero exactly when the product exceeds one half.
    let code = |w: f32| {
        let x = w * reciprocal;
        1 + u8::from(x > 0.5) - u8::from(x < -0.5)
    };
    encode(weights, 1.0 / reciprocal, code)
}

/// Reads weights that are already ternary: every value is `-s`, `0` or `s`. `Err(None)` if they are not.
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

/// One weight in this many may be off its group's grid.
const OFF_GRID: usize = 10_000;

/// Reads weights that are already ternary with a scale for every group: every value is `-s`, `0` or `s` of its group. A
/// scale for every 128 weights also covers models with a scale for every 256 or for the whole tensor.
///
/// Published files have a few weights that are off this grid. Up to one in [`OFF_GRID`] is rounded to the nearest
/// value; the second result is their number.
pub(crate) fn recover(weights: &BitNetTensor) -> Result<(Parts, usize), String> {
    let count = weights.rows() * weights.cols();
    let mut fewest = usize::MAX;
    for group in GROUPS {
        let (parts, off_grid) = by_groups(weights, 0..weights.rows(), group)?;
        if off_grid * OFF_GRID <= count {
            return Ok((parts, off_grid));
        }
        fewest = fewest.min(off_grid);
    }
    let percent = fewest as f64 / count as f64 * 100.0;
    Err(format!(
        "{fewest} of its {count} weights ({percent:.3} %) are not -s, 0 or s for a 16-bit scale s of their group: it is not ternary"
    ))
}

/// Whether a sample of a matrix is ternary with a scale for every group.
pub(crate) fn looks_ternary(weights: &BitNetTensor) -> bool {
    const ROWS: usize = 64;
    let rows = (0..weights.rows()).step_by((weights.rows() / ROWS).max(1)).take(ROWS);
    let sampled = rows.clone().count() * weights.cols();
    // Allow one in a hundred here: `recover` judges the whole matrix when it is read.
    GROUPS.into_iter().any(|group| {
        by_groups(weights, rows.clone(), group).is_ok_and(|(_, off_grid)| off_grid * 100 <= sampled)
    })
}

/// Codes and scales of some rows, and the number of weights off their group's grid.
fn by_groups(
    weights: &BitNetTensor,
    rows: impl Iterator<Item = usize>,
    group: usize,
) -> Result<(Parts, usize), String> {
    let mut row = vec![0.0f32; weights.cols()];
    let mut parts = Parts { group, codes: Vec::new(), scales: Vec::new() };
    let mut off_grid = 0;
    for r in rows {
        weights.decode_row(r, &mut row);
        if let Some(value) = row.iter().find(|w| !w.is_finite()) {
            return Err(format!("row {r} holds {value}, which is not a number"));
        }
        for values in row.chunks(group) {
            let scale = usual_magnitude(values);
            let stored = f16::from_f32(scale);
            let on_grid = |w: f32| w == 0.0 || w.abs() == stored.to_f32();
            off_grid += values.iter().filter(|w| !on_grid(**w)).count();
            let half = scale / 2.0;
            let code = |w: f32| 1 + u8::from(w > half) - u8::from(w < -half);
            parts.scales.push(stored);
            parts.codes.extend(
                values.chunks(4).map(|four| four.iter().rev().fold(0, |byte, &w| byte << 2 | code(w))),
            );
        }
    }
    Ok((parts, off_grid))
}

/// The most common magnitude of nonzero weights, the larger one in a tie; zero if all weights are zero.
fn usual_magnitude(values: &[f32]) -> f32 {
    let largest = values.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    if values.iter().all(|w| *w == 0.0 || w.abs() == largest) {
        return largest;
    }
    let mut magnitudes: Vec<f32> = values.iter().map(|w| w.abs()).filter(|&m| m != 0.0).collect();
    magnitudes.sort_by(f32::total_cmp);
    let runs = magnitudes.chunk_by(|a, b| a == b);
    runs.max_by_key(|run| run.len()).map_or(0.0, |run| run[0])
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
        assert_eq!(t.row_scale(0), Some(1.0));
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

    fn floats(values: &[f32]) -> BitNetTensor {
        BitNetTensor::from_f32([1, values.len()], values).unwrap()
    }

    #[test]
    fn the_scale_of_every_group_is_recovered() {
        let mut values = vec![0.0; 300];
        // The second group has no weights.
        for (group, scale) in [(0, 0.5), (1, 0.0), (2, 2.0)] {
            for (k, v) in values.iter_mut().enumerate().filter(|(k, _)| k / 128 == group) {
                *v = [scale, 0.0, -scale][k % 3];
            }
        }
        let (parts, off_grid) = recover(&floats(&values)).unwrap();
        assert_eq!((parts.group, off_grid), (128, 0));
        assert_eq!(parts.scales, [0.5, 0.0, 2.0].map(f16::from_f32));
        let codes: Vec<u8> =
            parts.codes.iter().flat_map(|b| [b & 3, b >> 2 & 3, b >> 4 & 3, b >> 6]).collect();
        for (k, v) in values.iter().enumerate() {
            let expected = if *v == 0.0 { 1 } else { 1 + v.signum() as i8 };
            assert_eq!(codes[k] as i8, expected, "{k}");
        }
    }

    #[test]
    fn groups_of_64_are_recovered_where_those_of_128_are_not_ternary() {
        let values: Vec<f32> =
            (0..256).map(|k| [1.0, 0.5, 0.25, 2.0][k / 64] * [1.0, 0.0, -1.0][k % 3]).collect();
        let (parts, off_grid) = recover(&floats(&values)).unwrap();
        assert_eq!((parts.group, off_grid, parts.scales.len()), (64, 0, 4));
    }

    #[test]
    fn few_weights_off_the_grid_are_rounded_and_counted_and_many_are_refused() {
        let mut values: Vec<f32> = (0..20_000).map(|k| [0.5, 0.0, -0.5][k % 3]).collect();
        // One lies above the scale, so that the largest magnitude is not the scale.
        (values[0], values[301]) = (0.625, 0.0625);
        let (parts, off_grid) = recover(&floats(&values)).unwrap();
        assert_eq!(off_grid, 2);
        assert!(parts.scales.iter().all(|&s| s == f16::from_f32(0.5)));
        assert_eq!((parts.codes[0] & 3, parts.codes[75] >> 2 & 3), (2, 1));
        values[7] = 0.125;
        let told = recover(&floats(&values)).unwrap_err();
        assert!(told.contains("3 of its 20000 weights (0.015 %)"), "{told}");
        assert!(looks_ternary(&floats(&values)));
        let dense: Vec<f32> = (0..512).map(|k| k as f32).collect();
        assert!(!looks_ternary(&floats(&dense)) && recover(&floats(&dense)).is_err());
        values[7] = f32::NAN;
        assert!(recover(&floats(&values)).unwrap_err().contains("NaN"));
    }
}
