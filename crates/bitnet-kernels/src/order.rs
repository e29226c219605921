//! Defines the order of float operations that every backend of this crate follows.
//!
//! - **Sums along a row** use `n` partial sums: element `i` is added to partial `i % n` by fused multiply-add, in index
//!   order, as if the row were padded with zeros to a multiple of `n`; [`tree`] adds the partials. Work may be split by
//!   matrix rows and tokens, but never along a row. Dense dot products have 16 partials in f32. The squares of an
//!   RMSNorm have [`SQUARES`] partials in f64, one per thread of a GPU's block; their sum is multiplied by `1 / width`
//!   and rounded once to f32, because its last bit affects the whole row. Norms of query and key heads do the same.
//! - **Attention** of one query and head takes keys in segments of [`SEGMENT`] tokens. Within a segment: scores by
//!   fused multiply-add over the head's dimensions in order, times `1 / sqrt(head_dim)`; their maximum; `exp` of the
//!   differences; the sum of those in 16 partials by key index, then [`tree`]; values by fused multiply-add in key
//!   order. Segments are merged in order by [`merge`], and the result is divided by the total.
//! - **exp** is [`exp`], never the platform's.
//! - **Rotary embedding**: `x' = fma(x, cos, -(y sin))`, `y' = fma(y, cos, x sin)`.
//! - **BitLinear**: the exact integer as f32, divided by the activation's multiplier, times the weight's scale. If
//!   added to a residual, it is first multiplied by the factor; a factor of 1 changes no bit.
//! - **BitLinear with groups**: see [`grouped`]. Adding to a residual is as above.
//! - **Embedding**: the value of the row (if ternary, the scale times the code's value), then times the factor.

use std::ops::Add;

/// Keys in one attention segment.
pub const SEGMENT: usize = 256;

/// Number of partial sums for the squares of a row.
pub const SQUARES: usize = 256;

/// Adds one group to the total of a row, in ascending order of columns: `sum` is the group's exact integer,
/// `activation` and `weight` are its scales.
///
/// A group has as many columns as the weights' groups; the last one of a row may have fewer.
pub fn grouped(total: f32, sum: i32, activation: f32, weight: f32) -> f32 {
    (sum as f32).mul_add(activation * weight, total)
}

/// Adds `N` partial sums, a power of two: adds the upper half to the lower half until one value is left.
pub fn tree<T: Copy + Add<Output = T>, const N: usize>(mut partial: [T; N]) -> T {
    let mut half = N / 2;
    while half > 0 {
        for lane in 0..half {
            partial[lane] = partial[lane] + partial[lane + half];
        }
        half /= 2;
    }
    partial[0]
}

pub(crate) const EXP_MIN: f32 = -87.0;
pub(crate) const EXP_MAX: f32 = 88.0;
pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the upper has trailing zeros, so that `n * LN2_HIGH` is exact.
pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Polynomial for `(exp(r) - 1 - r) / r^2` on `|r| <= ln(2) / 2`, highest power first (Cephes `expf`).
pub(crate) const EXP_POLY: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5];

/// Returns `e^x` within 2 units in the last place, with `x` clamped to -87..88; NaN stays NaN.
pub fn exp(x: f32) -> f32 {
    // These comparisons pass a NaN through, as the vector instructions do.
    let x = if EXP_MIN > x { EXP_MIN } else { x };
    let x = if EXP_MAX < x { EXP_MAX } else { x };
    let n = (x * LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let p = EXP_POLY[1..].iter().fold(EXP_POLY[0], |p, &c| p.mul_add(r, c));
    let y = p.mul_add(r * r, r) + 1.0;
    y * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

/// Merges the running maximum of an attention row with that of its next segment.
///
/// Returns the new maximum, and the factors by which to scale the running sum and values and those of the segment.
pub fn merge(running_max: f32, segment_max: f32) -> (f32, f32, f32) {
    let max = if running_max > segment_max { running_max } else { segment_max };
    (max, exp(running_max - max), exp(segment_max - max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0;
        for i in 0..2_000_000 {
            let x = -86.9 + 174.8 * (i as f32 / 2e6);
            let exact = f64::from(x).exp() as f32;
            worst = worst.max(exp(x).to_bits().abs_diff(exact.to_bits()));
        }
        assert!(worst <= 2, "{worst} units");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(-1e30), exp(-87.0));
        assert!(exp(f32::INFINITY).is_finite());
    }

    #[test]
    fn tree_adds_halves_onto_each_other() {
        let mut p = [0.0f32; 16];
        p[0] = 1e8;
        p[1] = 1.0;
        p[9] = 3.0;
        p[8] = -1e8;
        assert_eq!(tree(p), 4.0);
    }
}
