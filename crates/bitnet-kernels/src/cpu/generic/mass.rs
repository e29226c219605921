//! What the tokens of a row add to the sum that says whether top-p keeps a token, between two bounds, from bounds of their
//! logits.
//!
//! A token is kept if the weight `b` before it in the order of tokens is below the part `p` of all weight. With `a` for the
//! other weight, its own included, that is `(1 - p) b - p a < 0`. A token of the row with weight `w` so adds `(1 - p) w` if
//! it is before, and `-p w` if not.
//!
//! Sums have 16 partials, which become f64 after every panel, so that a rounding error is below [`SLACK`].

#![allow(clippy::needless_range_loop, reason = "several arrays share their lanes")]

use std::ops::Range;

use crate::{
    cpu::{generic::shortlist::TINY, lanes::Lanes, panels::PANEL_ROWS},
    draw::{ONE, exp, ln},
};

/// Relative error of a sum of weights, rounded up.
const SLACK: f64 = 1e-5;

/// The weight, in those of the highest logit, that all panels may have together that are left out of a sum.
const LIGHT: f32 = 1e-4;

/// Bounds of the logits of a row.
pub(crate) struct Rows<'a> {
    /// Upper bounds, `[vocab]`; negative infinity for tokens that do not count.
    pub(crate) upper: &'a [f32],
    /// The highest of each panel.
    pub(crate) high: &'a [f32],
    /// Which of them are logits: a bit a token, a word a panel; or nothing if none is.
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

/// What tokens add if their logits are in the middle of their bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    /// Sum over all panels.
    pub(crate) middle: f64,
    /// What each token of the last panel adds at least, in the middle and at most, with 1 for the highest weight.
    pub(crate) rows: [[f32; PANEL_ROWS]; 3],
}

impl Rows<'_> {
    /// A lower bound of the logit of a row.
    #[inline(always)]
    pub(crate) fn lower(&self, row: usize) -> f32 {
        lower(self.upper[row], self.errors[row], self.norms[row], self.by_error, self.by_norm)
    }

    /// Lower bounds of the logits of a panel; negative infinity where there is none.
    #[inline(always)]
    pub(crate) fn lows(&self, panel: usize) -> [f32; PANEL_ROWS] {
        Panel::of(self, panel).lows
    }
}

/// The upper bound minus twice the distance that [`crate::cpu::generic::shortlist`] added, and what roundings may have added.
#[inline(always)]
pub(crate) fn lower(upper: f32, error: f32, norm: f32, by_error: f32, by_norm: f32) -> f32 {
    let off = norm * by_norm + TINY + error * by_error;
    upper - off * 2.00001 - upper.abs() * 2e-7
}

/// A bound minus the highest logit, which no logit exceeds.
#[inline(always)]
fn below(bound: f32, max: f32) -> f32 {
    let below = bound - max;
    if below < 0.0 { below } else { 0.0 }
}

/// The bounds of a panel's logits, padded with tokens that have no weight.
struct Panel {
    lows: [f32; PANEL_ROWS],
    highs: [f32; PANEL_ROWS],
}

impl Panel {
    #[inline(always)]
    fn of(a: &Rows<'_>, panel: usize) -> Self {
        let upper = &a.upper[panel * PANEL_ROWS..a.upper.len().min((panel + 1) * PANEL_ROWS)];
        // Errors and norms are padded to whole panels. Arrays of known sizes, one loop for each value: so they become vectors.
        let (errors, norms) =
            (&a.errors.as_chunks::<PANEL_ROWS>().0[panel], &a.norms.as_chunks::<PANEL_ROWS>().0[panel]);
        let mut highs = [f32::NEG_INFINITY; PANEL_ROWS];
        highs[..upper.len()].copy_from_slice(upper);
        let mut lows = highs;
        for row in 0..PANEL_ROWS {
            let low = lower(highs[row], errors[row], norms[row], a.by_error, a.by_norm);
            // One that is not a number has no weight.
            lows[row] = if low > f32::NEG_INFINITY { low } else { f32::NEG_INFINITY };
        }
        let known = a.known.get(panel).copied().unwrap_or(0);
        if known != 0 {
            for row in (0..PANEL_ROWS).filter(|row| known >> row & 1 == 1) {
                lows[row] = highs[row];
            }
        }
        Panel { lows, highs }
    }
}

/// Adds up what all tokens add at most. If that is below `enough`, some that make it less may be left out.
#[inline(always)]
pub(crate) unsafe fn most<L: Lanes>(a: &Rows<'_>, enough: f64) -> f64 {
    let of = |low, high| if high < a.at { (low, -a.top_p) } else { (high, 1.0 - a.top_p) };
    let [total, off] = total(a, enough, of);
    total + off
}

/// Adds up what all tokens add at least.
#[inline(always)]
pub(crate) unsafe fn least<L: Lanes>(a: &Rows<'_>) -> f64 {
    // A token that is not before the one in question weighs no more than that.
    let after = |high| (if high < a.at { high } else { a.at }, -a.top_p);
    let of = |low, high| if low > a.at { (low, 1.0 - a.top_p) } else { after(high) };
    let [total, off] = total(a, f64::NEG_INFINITY, of);
    total - off
}

/// Adds up the weights of logits times factors, both of which `of` gives for the bounds of a token, and says how far the sum
/// may be off. It ends early once only tokens are left that make it less, and it is below `enough`.
#[inline(always)]
fn total(a: &Rows<'_>, enough: f64, of: impl Fn(f32, f32) -> (f32, f32)) -> [f64; 2] {
    let inverse = 1.0 / a.temperature;
    let (tokens, one) = (a.known.len() * PANEL_ROWS, ONE as f64);
    // Panels of which no token weighs more than this are left out, so that all they add is between zero and minus `LIGHT`.
    let light = a.max - a.temperature * (ln(tokens as f32) - ln(LIGHT));
    // Sums are off by a part of all weight, and the weights themselves are rounded down to integers.
    let off = |mass: f64| one * (mass * SLACK + f64::from(LIGHT)) + tokens as f64;
    // A NaN bound rules out nothing.
    let is_after = |panel: &usize| a.high[*panel] < a.at;
    let is_light = |panel: &usize| a.high[*panel] < light;
    let first = (0..a.known.len()).filter(|panel| !is_after(panel));
    let others = (0..a.known.len()).filter(|panel| is_after(panel) && !is_light(panel));
    let (mut sum, mut mass) = (0.0, 0.0);
    for panel in first.chain(others) {
        if is_after(&panel) && one * sum + off(mass) < enough {
            break;
        }
        let Panel { lows, highs } = Panel::of(a, panel);
        let (mut weights, mut factors) = (lows, lows);
        for row in 0..PANEL_ROWS {
            (weights[row], factors[row]) = of(lows[row], highs[row]);
        }
        for row in 0..PANEL_ROWS {
            weights[row] = exp(below(weights[row], a.max) * inverse);
        }
        let mut sums = [[0.0f32; 16]; 2];
        for group in 0..PANEL_ROWS / 16 {
            for lane in 0..16 {
                let row = 16 * group + lane;
                sums[0][lane] += factors[row] * weights[row];
                sums[1][lane] += weights[row];
            }
        }
        let [own, weight] = sums.map(|sum| sum.iter().map(|&x| f64::from(x)).sum::<f64>());
        sum += own;
        mass += weight;
    }
    [one * sum, off(mass)]
}

/// What the tokens of `panels` add, and which part of that is open.
#[inline(always)]
pub(crate) unsafe fn shares<L: Lanes>(a: &Rows<'_>, panels: Range<usize>) -> Shares {
    let inverse = 1.0 / a.temperature;
    let (before, other) = (1.0 - a.top_p, -a.top_p);
    let weight_at = exp(below(a.at, a.max) * inverse);
    let mut rows = [[0.0f32; PANEL_ROWS]; 3];
    let mut total = 0.0f64;
    for panel in panels {
        let Panel { lows, highs } = Panel::of(a, panel);
        let (mut light, mut heavy) = (highs, highs);
        for row in 0..PANEL_ROWS {
            light[row] = exp(below(lows[row], a.max) * inverse);
        }
        for row in 0..PANEL_ROWS {
            heavy[row] = exp(below(highs[row], a.max) * inverse);
        }
        let [least, middle, most] = &mut rows;
        for row in 0..PANEL_ROWS {
            let (low, high) = (lows[row], highs[row]);
            let after = if heavy[row] < weight_at { heavy[row] } else { weight_at };
            least[row] = if low > a.at { before * light[row] } else { other * after };
            most[row] = if high < a.at { other * light[row] } else { before * heavy[row] };
            let between = (light[row] * heavy[row]).sqrt();
            middle[row] = if low + high > 2.0 * a.at { before * between } else { other * between };
        }
        total += middle.iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    Shares { middle: total * ONE as f64, rows }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cpu::{generic::FloatKernels, scalar},
        draw::philox4x32,
    };

    #[test]
    fn sums_are_bounds_and_end_early_only_where_that_decides_nothing() {
        const VOCAB: usize = 300;
        let random = |i: usize, j: u32| {
            let [word, ..] = philox4x32([i as u32, j, 0, 0], [1, 2]);
            word as f32 / u32::MAX as f32
        };
        // Later panels have lower logits, down to -26; bounds have different widths.
        let logits: Vec<f32> =
            (0..VOCAB).map(|i| -24.0 * i as f32 / VOCAB as f32 - 2.0 * random(i, 0)).collect();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let padded = VOCAB.next_multiple_of(PANEL_ROWS);
        let errors: Vec<f32> = (0..padded).map(|i| 0.4 * random(i, 1)).collect();
        let norms = vec![0.1f32; padded];
        let upper: Vec<f32> =
            (0..VOCAB).map(|i| logits[i] + (errors[i] + 0.05 + TINY) * (0.3 + random(i, 2))).collect();
        let high: Vec<f32> = upper
            .chunks(PANEL_ROWS)
            .map(|upper| upper.iter().copied().fold(f32::NEG_INFINITY, f32::max))
            .collect();
        let known = vec![0; high.len()];
        let mut ended_early = 0;
        let FloatKernels { least, most, .. } = scalar::KERNELS.floats;
        for (temperature, top_p) in [(0.7, 0.9), (1.0, 0.5), (0.3, 0.95), (5.0, 0.2)] {
            // Also with all tokens after the one in question, and with all before it.
            let all = [max + 10.0, -100.0];
            for at in (0..VOCAB).step_by(7).map(|i| logits[i]).chain(all) {
                let a = Rows {
                    upper: &upper,
                    high: &high,
                    known: &known,
                    errors: &errors,
                    norms: &norms,
                    by_error: 1.0,
                    by_norm: 0.5,
                    max,
                    temperature,
                    at,
                    top_p,
                };
                let exact: f64 = logits
                    .iter()
                    .map(|&logit| {
                        let factor = if logit > at { 1.0 - top_p } else { -top_p };
                        let weight = f64::from((logit - max) / temperature).exp();
                        f64::from(factor) * weight * ONE as f64
                    })
                    .sum();
                // SAFETY: every processor has what the scalar kernels need; so in the next.
                let least = unsafe { least(&a) };
                // SAFETY: see above.
                let most_of = |enough| unsafe { most(&a, enough) };
                let most = most_of(f64::NEG_INFINITY);
                assert!(least <= exact && exact <= most, "{least} {exact} {most}");
                for enough in [most / 2.0, most - 1.0, most, most + 1e9, most * 2.0, 0.0] {
                    let early = most_of(enough);
                    assert_eq!(early < enough, most < enough, "{at}: {early}, not {most}, for {enough}");
                    ended_early += u32::from(early != most);
                }
            }
        }
        assert!(ended_early > 50, "{ended_early}");
    }
}
