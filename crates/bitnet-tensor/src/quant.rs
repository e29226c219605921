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
//! Hugging Face transformers' `integrations/bitnet.py`. PyTorch divides a number by a tensor as `(1 / m) * 127`, with
//! two roundings, and this module does the same: values half-way between two steps are common (block-quantised
//! embeddings are full of them), and the last bit of the multiplier decides which way they round.
//!
//! A row that contains a NaN or an infinity quantises to zeros with a NaN multiplier: everything computed from it is
//! NaN, and no other row is affected.
//!
//! For weights with a scale per group of columns, activations are quantised in groups of [`GROUP`] columns instead,
//! whatever the size of the weights' groups:
//!
//! ```text
//! multiplier = (1 / absmax) * 127
//! q_i        = round_half_even(x_i * multiplier)
//! scale      = absmax / 127
//! ```
//!
//! and `x_i` is about `q_i * scale`. The scale is 0 if all values are 0 or if the absmax is so small that the
//! multiplier overflows (below 4e-37). A group that contains a NaN or an infinity quantises to zeros with a NaN scale.

/// Lower bound on the absmax that a row is divided by.
pub const MIN_ABSMAX: f32 = 1e-5;

/// Columns of activations that share a scale when the weights have a scale per group of columns.
pub const GROUP: usize = 128;

/// Multiplier and sum of a quantised row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowQuant {
    /// int8 steps per unit: `127 / max(absmax, 1e-5)`; NaN for a row that contains a NaN or an infinity.
    pub multiplier: f32,
    /// Sum of the quantised row: `dot(code - 1, q) = dot(code, q) - sum`.
    pub sum: i32,
}

/// Returns the multiplier of a row with this absolute maximum, or `None` if the maximum is not finite.
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
    // Comparing the bits of |x| as integers is exact and independent of order, and a NaN compares highest.
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

/// Scale and sums of a group of [`GROUP`] quantised values: four 32-bit words in this order.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct GroupQuant {
    /// Value of one int8 step: `absmax / 127`; NaN for a group that contains a NaN or an infinity.
    pub scale: f32,
    /// Sum of the quantised group.
    pub sum: i32,
    /// Sums of the first 64 and the last 64 values.
    pub halves: [i32; 2],
}

/// Returns the multiplier and the scale of a group with this absolute maximum. A multiplier of 0 means that every
/// value of the group quantises to 0, even a NaN.
pub fn group_scale(absmax: f32) -> (f32, f32) {
    if !absmax.is_finite() {
        return (0.0, f32::NAN);
    }
    let multiplier = 1.0 / absmax * 127.0;
    if multiplier.is_finite() { (multiplier, absmax / 127.0) } else { (0.0, 0.0) }
}

/// Quantises one row in groups; the last group may be shorter than [`GROUP`].
///
/// # Panics
/// If `q` is not as long as `x`, or `groups` does not have one element per group.
pub fn quantize_groups(x: &[f32], q: &mut [i8], groups: &mut [GroupQuant]) {
    assert_eq!(x.len(), q.len(), "quantize_groups: output must be as long as input");
    assert_eq!(x.len().div_ceil(GROUP), groups.len(), "quantize_groups: one result for every group");
    for ((x, q), group) in x.chunks(GROUP).zip(q.chunks_mut(GROUP)).zip(groups) {
        let absmax = f32::from_bits(x.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0));
        let (multiplier, scale) = group_scale(absmax);
        for (q, &x) in q.iter_mut().zip(x) {
            *q = if multiplier == 0.0 { 0 } else { (x * multiplier).round_ties_even() as i8 };
        }
        let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>();
        let (low, high) = q.split_at(q.len().min(GROUP / 2));
        *group = GroupQuant { scale, sum: sum(q), halves: [sum(low), sum(high)] };
    }
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

    #[test]
    fn groups_have_scales_and_sums_of_their_own() {
        let mut x = vec![0.0; 300];
        (x[0], x[63], x[64], x[127]) = (127.0, 0.5, 1.5, -2.5);
        (x[256], x[299]) = (-0.25, 0.25);
        let (mut q, mut groups) = ([7; 300], [GroupQuant::default(); 3]);
        quantize_groups(&x, &mut q, &mut groups);
        assert_eq!((q[0], q[63], q[64], q[127], q[256], q[299]), (127, 0, 2, -2, -127, 127));
        assert_eq!(groups[0], GroupQuant { scale: 1.0, sum: 127, halves: [127, 0] });
        assert_eq!((groups[1], &q[128..256]), (GroupQuant::default(), &[0; 128][..]));
        assert_eq!(groups[2], GroupQuant { scale: 0.25 / 127.0, sum: 0, halves: [0, 0] });
    }

    #[test]
    fn a_group_without_a_finite_multiplier_is_zero_and_touches_no_other() {
        for (bad, scale) in [(f32::NAN, f32::NAN), (f32::NEG_INFINITY, f32::NAN), (1e-38, 0.0), (1e-45, 0.0)]
        {
            let mut x = vec![0.0; 256];
            (x[5], x[200]) = (bad, -8.0);
            let (mut q, mut groups) = ([7; 256], [GroupQuant::default(); 2]);
            quantize_groups(&x, &mut q, &mut groups);
            assert_eq!((groups[0].scale.to_bits(), groups[0].sum), (scale.to_bits(), 0), "{bad}");
            assert!(q[..128] == [0; 128], "{bad}");
            assert_eq!((q[200], groups[1].scale, groups[1].halves), (-127, 8.0 / 127.0, [0, -127]), "{bad}");
        }
        // The largest and about the smallest absmax with a finite multiplier.
        for x in [f32::MAX, 3.8e-37] {
            let (mut q, mut groups) = ([0; 2], [GroupQuant::default(); 1]);
            quantize_groups(&[x, -x], &mut q, &mut groups);
            assert_eq!((q, groups[0].scale), ([127, -127], x / 127.0));
        }
    }

    proptest! {
        #[test]
        fn error_of_a_group_is_at_most_half_a_step(x in prop::collection::vec(-1e4f32..1e4, 1..400)) {
            let mut q = vec![0; x.len()];
            let mut groups = vec![GroupQuant::default(); x.len().div_ceil(GROUP)];
            quantize_groups(&x, &mut q, &mut groups);
            for (i, (&x, &q)) in x.iter().zip(&q).enumerate() {
                let step = groups[i / GROUP].scale;
                prop_assert!((x - f32::from(q) * step).abs() <= 0.501 * step);
            }
            for (group, q) in groups.iter().zip(q.chunks(GROUP)) {
                prop_assert_eq!(group.sum, q.iter().map(|&q| i32::from(q)).sum::<i32>());
                prop_assert_eq!(group.sum, group.halves[0] + group.halves[1]);
            }
        }

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
