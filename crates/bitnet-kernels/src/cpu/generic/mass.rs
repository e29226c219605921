//! The weight of a row's tokens before and after one of them in the order of tokens, between two bounds, from bounds of
//! their logits. Where top-p cuts depends on these sums.
//!
//! Sums have 16 partials, which become f64 after every panel, so that a rounding error is below [`SLACK`].

use crate::{
    cpu::{generic::shortlist::TINY, lanes::Lanes, panels::PANEL_ROWS},
    draw::{ONE, exp},
};

/// Relative error of a sum of weights, rounded up.
const SLACK: f64 = 1e-5;

/// Bounds of the logits of a row.
pub(crate) struct Rows<'a> {
    /// Upper bounds, `[vocab]`; negative infinity for tokens that do not count.
    pub(crate) upper: &'a [f32],
    /// See [`crate::cpu::head::HeadCopy`]; the same for the next.
    pub(crate) errors: &'a [f32],
    pub(crate) norms: &'a [f32],
    /// [`crate::cpu::generic::shortlist::Limits::weights`].
    pub(crate) by_error: f32,
    pub(crate) by_norm: f32,
    /// The highest logit.
    pub(crate) max: f32,
    pub(crate) temperature: f32,
    /// The logit of the token.
    pub(crate) at: f32,
    /// Whether upper bounds of `at` and more are logits.
    pub(crate) exact: bool,
}

/// Sums of weights, each with a lower and an upper bound.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mass {
    pub(crate) before: [f64; 2],
    pub(crate) after: [f64; 2],
}

impl Rows<'_> {
    /// A lower bound of the logit of a row.
    #[inline(always)]
    pub(crate) fn lower(&self, row: usize) -> f32 {
        lower(self.upper[row], self.errors[row], self.norms[row], self.by_error, self.by_norm)
    }
}

/// The upper bound minus twice the distance that [`crate::cpu::generic::shortlist`] added, and what roundings may have added.
#[inline(always)]
fn lower(upper: f32, error: f32, norm: f32, by_error: f32, by_norm: f32) -> f32 {
    let off = norm * by_norm + TINY + error * by_error;
    upper - off * 2.00001 - upper.abs() * 2e-7
}

/// A bound minus the highest logit, which no logit exceeds.
#[inline(always)]
fn below(bound: f32, max: f32) -> f32 {
    let below = bound - max;
    if below < 0.0 { below } else { 0.0 }
}

/// Sums the weights of a row's tokens.
#[allow(clippy::needless_range_loop, reason = "four sums share their lanes")]
#[inline(always)]
pub(crate) unsafe fn mass<L: Lanes>(a: &Rows<'_>) -> Mass {
    let inverse = 1.0 / a.temperature;
    let mut total = Mass::default();
    // Errors and norms are padded to whole panels. Arrays of known sizes, one loop for each value: so they become vectors.
    let errors = a.errors.as_chunks::<PANEL_ROWS>().0;
    let norms = a.norms.as_chunks::<PANEL_ROWS>().0;
    // Upper bounds of this and more are logits; no number is as much as NaN.
    let exact = if a.exact { a.at } else { f32::NAN };
    for ((upper, errors), norms) in a.upper.chunks(PANEL_ROWS).zip(errors).zip(norms) {
        let mut highs = [f32::NEG_INFINITY; PANEL_ROWS];
        highs[..upper.len()].copy_from_slice(upper);
        let (mut lows, mut least, mut most) = (highs, highs, highs);
        for row in 0..PANEL_ROWS {
            let low = lower(highs[row], errors[row], norms[row], a.by_error, a.by_norm);
            lows[row] = if highs[row] >= exact { highs[row] } else { low };
        }
        for row in 0..PANEL_ROWS {
            // No logit is above the highest, and a lower bound that is not a number has no weight.
            let weight = exp(below(lows[row], a.max) * inverse);
            least[row] = if lows[row] > f32::NEG_INFINITY { weight } else { 0.0 };
        }
        for row in 0..PANEL_ROWS {
            most[row] = exp(below(highs[row], a.max) * inverse);
        }
        // before from below and above, after from below and above
        let mut sums = [[0.0f32; 16]; 4];
        for group in 0..PANEL_ROWS / 16 {
            for lane in 0..16 {
                let row = 16 * group + lane;
                let (low, high) = (lows[row], highs[row]);
                sums[0][lane] += if low > a.at { least[row] } else { 0.0 };
                sums[1][lane] += if high >= a.at { most[row] } else { 0.0 };
                sums[2][lane] += if high < a.at { least[row] } else { 0.0 };
                sums[3][lane] += if low > a.at { 0.0 } else { most[row] };
            }
        }
        let [least_before, most_before, least_after, most_after] =
            sums.map(|sum| sum.iter().map(|&x| f64::from(x)).sum::<f64>());
        total.before[0] += least_before;
        total.before[1] += most_before;
        total.after[0] += least_after;
        total.after[1] += most_after;
    }
    // The weights themselves are rounded down to integers.
    let units = |[least, most]: [f64; 2]| {
        let one = ONE as f64;
        let least = one * least * (1.0 - SLACK) - a.upper.len() as f64;
        [least.max(0.0), one * most * (1.0 + SLACK)]
    };
    Mass { before: units(total.before), after: units(total.after) }
}
