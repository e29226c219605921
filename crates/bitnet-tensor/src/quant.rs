//! Per-token absmax int8 quantisation of activations, as BitNet b1.58 defines it.
//!
//! For a row `x` with `absmax = max |x_i|`:
//!
//! ```text
//! multiplier = 127 / max(absmax, 1e-5)
//! q_i        = clamp(round_half_even(x_i * multiplier), -128, 127)
//! ```
//!
//! and `x_i` is about `q_i / multiplier`. Source: "The Era of 1-bit LLMs" (arXiv 2402.17764) and `ActQuant` in
//! Hugging Face transformers' `integrations/bitnet.py`. There the quotient is computed as PyTorch divides a number
//! by a tensor, `(1 / m) * 127` with two roundings, and so it is here: values that lie half-way between two steps
//! are not rare (block-quantised embeddings are full of them), and the last bit decides where they go.
//!
//! A row with a NaN or an infinity quantises to zeros with a NaN multiplier, so that everything computed from it
//! is NaN and no other row is touched.

/// The smallest absmax that is divided by.
pub const MIN_ABSMAX: f32 = 1e-5;

/// What a quantised row is divided by, and what the ternary identity subtracts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowQuant {
    /// int8 steps a unit: `127 / max(absmax, 1e-5)`; NaN for a row that holds a NaN or an infinity.
    pub multiplier: f32,
    /// Sum of the quantised row: `dot(code - 1, q) = dot(code, q) - sum`.
    pub sum: i32,
}

/// The multiplier of a row with this absolute maximum; `None` if it is not finite.
pub fn multiplier(absmax: f32) -> Option<f32> {
    let m = if absmax < MIN_ABSMAX { MIN_ABSMAX } else { absmax };
    m.is_finite().then(|| 1.0 / m * 127.0)
}

/// Quantises one row.
///
/// # Panics
/// If `q` is not as long as `x`.
pub fn quantize_row(x: &[f32], q: &mut [i8]) -> RowQuant {
    assert_eq!(x.len(), q.len(), "quantize_row: output must be as long as input");
    // Comparing the bits of |x| as integers is exact, does not depend on the order, and lets a NaN win.
    let absmax = f32::from_bits(x.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0));
    let Some(multiplier) = multiplier(absmax) else {
        q.fill(0);
        return RowQuant { multiplier: f32::NAN, sum: 0 };
    };
    let mut sum = 0;
    for (q, &x) in q.iter_mut().zip(x) {
        *q = (x * multiplier).round_ties_even().clamp(-128.0, 127.0) as i8;
        sum += i32::from(*q);
    }
    RowQuant { multiplier, sum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn halves_round_to_even() {
        let mut q = [0; 5];
        let r = quantize_row(&[127.0, 0.5, 1.5, -0.5, -2.5], &mut q);
        assert_eq!(q, [127, 0, 2, 0, -2]);
        assert_eq!(r, RowQuant { multiplier: 1.0, sum: 127 });
    }

    #[test]
    fn tiny_rows_divide_by_the_floor() {
        let mut q = [0; 2];
        let r = quantize_row(&[1e-6, 0.0], &mut q);
        assert_eq!(q, [13, 0]);
        assert_eq!(r.multiplier, 1.0 / 1e-5 * 127.0);
    }

    #[test]
    fn a_nan_or_infinity_poisons_the_row_and_only_the_row() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut q = [7; 3];
            let r = quantize_row(&[1.0, bad, 2.0], &mut q);
            assert!(r.multiplier.is_nan() && r.sum == 0 && q == [0; 3]);
        }
    }

    proptest! {
        #[test]
        fn error_is_at_most_half_a_step(x in prop::collection::vec(-1e4f32..1e4, 1..300)) {
            let mut q = vec![0; x.len()];
            let r = quantize_row(&x, &mut q);
            prop_assert_eq!(r.sum, q.iter().map(|&q| i32::from(q)).sum::<i32>());
            for (&x, &q) in x.iter().zip(&q) {
                prop_assert!((x * r.multiplier - f32::from(q)).abs() <= 0.501);
            }
        }
    }
}
