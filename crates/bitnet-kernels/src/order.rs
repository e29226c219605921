//! Defines the order of float operations that every backend of this crate follows.
//!
//! - **Sums along a row** use `n` partial sums: element `i` is added to partial `i % n` by fused multiply-add, in index
//!   order, as if the row were padded with zeros to a multiple of `n`; [`tree`] adds the partials. Work may be split by
//!   matrix rows and tokens, but never along a row. Dense dot products have 16 partials in f32. The squares of an
//!   RMSNorm have [`SQUARES`] partials in f64, one per thread of a GPU's block; their sum is multiplied by `1 / width`
//!   and rounded once to f32, because its last bit affects the whole row. Norms of query and key heads do the same.
//! - **Attention** of one query and head takes keys in segments of [`SEGMENT`] tokens. Within a segment: scores by
//!   fused multiply-add over the head's dimensions in order, times the key's scale if the cache has scales, times
//!   `1 / sqrt(head_dim)`; their maximum; `exp` of the differences; the sum of those in 16 partials by key index, then
//!   [`tree`]; values by fused multiply-add in key order, the weight first multiplied by the value's scale if there is
//!   one. Segments are merged in order by [`merge`], and the result is divided by the total.
//! - **Attention over int8** has exact sums instead of those by fused multiply-add. A query becomes integers up to
//!   [`query`] by [`integers`], and so do, up to [`WEIGHT`], the weights of a segment times their values' scales. A score is
//!   the sum as f32, times the key's scale, times (the query's scale times `1 / sqrt(head_dim)`); a segment's value is the
//!   sum as f32, times the weights' scale.
//! - **exp** is [`exp`], never the platform's.
//! - **Rotary embedding**: `x' = fma(x, cos, -(y sin))`, `y' = fma(y, cos, x sin)`.
//! - **BitLinear**: the exact integer as f32, divided by the activation's multiplier, times the weight's scale. If
//!   added to a residual, it is first multiplied by the factor; a factor of 1 changes no bit.
//! - **BitLinear with groups**: see [`grouped`]. Adding to a residual is as above.
//! - **Embedding**: the value of the row (if ternary, the scale times the code's value), if the table contains a transform
//!   then the transform and the signs, then times the factor.
//! - **Walsh-Hadamard transform** of a block of `B` values: `(a, b)` becomes `(a + b, a - b)` for values 1 apart, then
//!   2, 4 and so on to `B / 2`; then every value is multiplied by `1 / sqrt(B)`, rounded to f32 once. Signs are a
//!   separate multiplication, before the transform (after it, for the rows of a table).
//! - **Gated delta rule**, token by token for prompts, chunks and single tokens alike, so that nothing depends on where a
//!   sequence is cut. With `dot` the dense dot product above:
//!   - Convolution: `s = fma(conv[c][j], u[t - taps + 1 + j], s)` from 0, oldest token first; tokens before the start are
//!     left out. Then `s / (1 + exp(-s))`.
//!   - Queries and keys: `x * r` with `r = 1 / sqrt(dot(x, x) + `[`L2_EPS`]`)`; for queries `r` is first multiplied by
//!     `1 / sqrt(head_dim)`, rounded to f32.
//!   - Decay and rate of a value head: `g = exp(a * softplus(x + dt_bias))` ([`softplus`]), `beta = `[`sigmoid`]`(b)`.
//!   - State `S` of a value head, one row for each value `i`: `d = beta * (v[i] - g * sum_k S[i][k] * key[k])`,
//!     `S[i][k] = fma(d, key[k], g * S[i][k])`, `o[i] = sum_k S[i][k] * query[k]`. Both sums have [`DELTA_PARTIALS`]
//!     partials over `k`, as sums along a row have.
//!   - Output: the RMSNorm of each head as for query and key heads, then times `z / (1 + exp(-z))`.
//! - **Gates**: SiLU is `g / (1 + exp(-g))`, then times `up`. Clamped, `g` and `up` are limited first. GELU is the same with
//!   `exp(-g * fma(g * g, c, b))` for `b` and `c` of [`GELU`].
//! - **Mixture of experts** of one token: the normed row is multiplied by the router's rows with the dense dot product
//!   above. The `used` experts with the largest logits are chosen, the lower of two with equal logits; if a logit is NaN, the
//!   first ones, with weights of NaN. With `m` the largest logit, the weight of expert `e` is `exp(logit - m) / sum`, the
//!   sum of the exponentials of the chosen in ascending order of expert. Each quantises the normed row, and its gated
//!   values, as any other product does; `y = fma(weight, down, y)` from 0 in ascending order of expert, then `x + y`.
//! - **Windows**: the segments of attention begin where they would without a window; keys before it are left out.
//! - **Gate of attention**: the value times [`sigmoid`] of the gate.

use std::ops::Add;

/// Version of what caches hold: raised with every change to a bit of a key, a value or a recurrent state, or to their
/// layout, on any backend. What was kept before is then not used any more.
pub const ARITHMETIC: u32 = 3;

/// Keys in one attention segment.
pub const SEGMENT: usize = 256;

/// Number of partial sums for the squares of a row.
pub const SQUARES: usize = 256;

/// Number of partial sums for the products of a row of a delta state with a key or query.
pub const DELTA_PARTIALS: usize = 4;

/// `2 sqrt(2 / pi)`, and the same times 0.044715.
pub const GELU: [f32; 2] = [1.595_769, 0.071_354_816];

/// Added to the sum of squares of a delta layer's query or key.
pub const L2_EPS: f32 = 1e-6;

/// Returns the factor by which floats, the largest of magnitude `absmax`, become integers up to `most` when they are
/// rounded to the nearest, halves to even; and the scale of these. Floats too small for a factor become zeros.
pub fn integers(absmax: f32, most: f32) -> (f32, f32) {
    let factor = most / absmax;
    (if factor.is_infinite() { 0.0 } else { factor }, absmax / most)
}

/// Largest magnitude of the weights that int8 values are multiplied by.
pub const WEIGHT: f32 = i16::MAX as f32;

/// A segment's sum of such products fits in 32 bits.
const _: () = assert!(SEGMENT * 127 * i16::MAX as usize <= i32::MAX as usize);

/// Largest magnitude of the dimensions of a query that int8 keys of width `head_dim` are multiplied by: 16 bits, or as
/// many as keep a score in 32 bits.
pub fn query(head_dim: usize) -> f32 {
    (i32::MAX as usize / (127 * head_dim)).min(i16::MAX as usize) as f32
}

/// Adds one group to the total of a row, in ascending order of columns: `sum` is the group's exact integer,
/// `activation` and `weight` are its scales.
///
/// A group has as many columns as the weights' groups; the last one of a row may have fewer.
pub fn grouped(total: f32, sum: i32, activation: f32, weight: f32) -> f32 {
    fused(sum as f32, activation * weight, total)
}

/// Returns `a * b + c`, rounded once.
#[inline]
pub fn fused(a: f32, b: f32, c: f32) -> f32 {
    // The C library of Windows' GNU tools rounds twice, and in other threads otherwise than in the first.
    #[cfg(all(windows, target_env = "gnu"))]
    return libm::fmaf(a, b, c);
    #[cfg(not(all(windows, target_env = "gnu")))]
    a.mul_add(b, c)
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
    let r = fused(n, -LN2_HIGH, x);
    let r = fused(n, -LN2_LOW, r);
    let p = EXP_POLY[1..].iter().fold(EXP_POLY[0], |p, &c| fused(p, r, c));
    let y = fused(p, r * r, r) + 1.0;
    y * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

/// Polynomial for `(ln((1 + s) / (1 - s)) - 2s) / s^3` in `s^2` for `s` up to 1/3, highest power first.
pub(crate) const LN_POLY: [f32; 6] = [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0];

/// Returns `ln(1 + x)` for `x` in 0..=1, within 2 units in the last place; NaN stays NaN.
pub fn ln_1p(x: f32) -> f32 {
    // ln(1 + x) = ln((1 + s) / (1 - s))
    let s = x / (2.0 + x);
    let z = s * s;
    let p = LN_POLY[1..].iter().fold(LN_POLY[0], |p, &c| fused(p, z, c));
    fused(s * z, p, s + s)
}

/// Returns `ln(1 + e^x)` as `max(x, 0) + ln(1 + e^-|x|)`; NaN stays NaN.
pub fn softplus(x: f32) -> f32 {
    let positive = if 0.0 > x { 0.0 } else { x };
    let negative = if x < -x { x } else { -x };
    positive + ln_1p(exp(negative))
}

/// Returns `1 / (1 + e^-x)`; NaN stays NaN.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
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
    fn ln_1p_is_within_two_units_in_the_last_place() {
        let tiny = (0..1000).map(|i| 1e-37 * 1.08f32.powi(i));
        let worst = (0..=2_000_000)
            .map(|i| i as f32 / 2e6)
            .chain(tiny.filter(|&x| x <= 1.0))
            .map(|x| ln_1p(x).to_bits().abs_diff((f64::from(x).ln_1p() as f32).to_bits()))
            .max();
        assert!(worst <= Some(2), "{worst:?} units");
        assert!(ln_1p(f32::NAN).is_nan());
    }

    #[test]
    fn softplus_and_sigmoid_are_close_to_exact_everywhere() {
        for i in -10_000..=10_000 {
            let x = i as f32 / 100.0;
            let wide = f64::from(x);
            let plus = wide.max(0.0) + (-wide.abs()).exp().ln_1p();
            let one = 1.0 / (1.0 + (-wide).exp());
            // Below -87, `exp` stops at its smallest value.
            assert!((f64::from(softplus(x)) - plus).abs() <= 4e-7 * plus + 2e-38, "softplus({x})");
            assert!((f64::from(sigmoid(x)) - one).abs() <= 4e-7 * one + 1e-38, "sigmoid({x})");
        }
        assert!(softplus(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
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
