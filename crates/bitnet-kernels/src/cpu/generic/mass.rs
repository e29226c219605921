//! What the tokens of a row add to the sum that says whether top-p keeps a token, between two bounds, from bounds of their
//! logits.
//!
//! A token is kept if the weight `b` before it in the order of tokens is below the part `p` of all weight. With `a` for the
//! other weight, its own included, that is `(1 - p) b - p a < 0`. A token of the row with weight `w` so adds `(1 - p) w` if
//! it is before, and `-p w` if not.
//!
//! Sums have 16 partials, which become f64 after every panel, so that a rounding error is below [`SLACK`].

use std::ops::Range;

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
    /// Which of them are logits: a bit a token, a word a panel.
    pub(crate) known: &'a [u64],
    /// See [`crate::cpu::head::HeadCopy`]; the same for the next.
    pub(crate) errors: &'a [f32],
    pub(crate) norms: &'a [f32],
    /// [`crate::cpu::generic::shortlist::Limits::weights`].
    pub(crate) by_error: f32,
    pub(crate) by_norm: f32,
    /// The highest logit.
    pub(crate) max: f32,
    pub(crate) temperature: f32,
    /// The logit of the token that may be kept, and the part of all weight.
    pub(crate) at: f32,
    pub(crate) top_p: f32,
}

/// What tokens add: at least, if their logits are in the middle of their bounds, and at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    /// Sums over all panels.
    pub(crate) least: f64,
    pub(crate) middle: f64,
    pub(crate) most: f64,
    /// The tokens of the last panel, with 1 for the highest weight.
    pub(crate) rows: [[f32; PANEL_ROWS]; 3],
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

/// Adds up what the tokens of `panels` add.
#[allow(clippy::needless_range_loop, reason = "sums share their lanes")]
#[inline(always)]
pub(crate) unsafe fn shares<L: Lanes>(a: &Rows<'_>, panels: Range<usize>) -> Shares {
    let inverse = 1.0 / a.temperature;
    let (before, other) = (1.0 - a.top_p, -a.top_p);
    let weight_at = exp(below(a.at, a.max) * inverse);
    let mut rows = [[0.0f32; PANEL_ROWS]; 3];
    let mut totals = [0.0f64; 4];
    // Errors and norms are padded to whole panels. Arrays of known sizes, one loop for each value: so they become vectors.
    let errors = a.errors.as_chunks::<PANEL_ROWS>().0;
    let norms = a.norms.as_chunks::<PANEL_ROWS>().0;
    for panel in panels.clone() {
        let upper = &a.upper[panel * PANEL_ROWS..a.upper.len().min((panel + 1) * PANEL_ROWS)];
        let (errors, norms) = (&errors[panel], &norms[panel]);
        let mut highs = [f32::NEG_INFINITY; PANEL_ROWS];
        highs[..upper.len()].copy_from_slice(upper);
        let (mut lows, mut light, mut heavy) = (highs, highs, highs);
        for row in 0..PANEL_ROWS {
            lows[row] = lower(highs[row], errors[row], norms[row], a.by_error, a.by_norm);
        }
        let known = a.known[panel];
        if known != 0 {
            for row in (0..PANEL_ROWS).filter(|row| known >> row & 1 == 1) {
                lows[row] = highs[row];
            }
        }
        for row in 0..PANEL_ROWS {
            // No logit is above the highest, and a lower bound that is not a number has no weight.
            let weight = exp(below(lows[row], a.max) * inverse);
            light[row] = if lows[row] > f32::NEG_INFINITY { weight } else { 0.0 };
        }
        for row in 0..PANEL_ROWS {
            heavy[row] = exp(below(highs[row], a.max) * inverse);
        }
        let [least, middle, most] = &mut rows;
        for row in 0..PANEL_ROWS {
            let (low, high) = (lows[row], highs[row]);
            // A token that is not before the one in question weighs no more than that.
            let after = if heavy[row] < weight_at { heavy[row] } else { weight_at };
            least[row] = if low > a.at { before * light[row] } else { other * after };
            most[row] = if high < a.at { other * light[row] } else { before * heavy[row] };
            let between = (light[row] * heavy[row]).sqrt();
            middle[row] = if low + high > 2.0 * a.at { before * between } else { other * between };
        }
        let mut sums = [[0.0f32; 16]; 4];
        for group in 0..PANEL_ROWS / 16 {
            for lane in 0..16 {
                let row = 16 * group + lane;
                sums[0][lane] += least[row];
                sums[1][lane] += middle[row];
                sums[2][lane] += most[row];
                sums[3][lane] += heavy[row];
            }
        }
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total += sum.iter().map(|&x| f64::from(x)).sum::<f64>();
        }
    }
    // Sums are off by a part of all weight, and the weights themselves are rounded down to integers.
    let [least, middle, most] = [totals[0], totals[1], totals[2]].map(|total| total * ONE as f64);
    let off = ONE as f64 * totals[3] * SLACK + (panels.len() * PANEL_ROWS) as f64;
    Shares { least: least - off, middle, most: most + off, rows }
}
