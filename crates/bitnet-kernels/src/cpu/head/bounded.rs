//! What is known of the logits of a row before they are computed: bounds, changes, and which tokens are allowed.

use std::ops::Range;

use crate::{
    Change,
    cpu::{
        generic::mass::{Rows, Shares, lower},
        isa::Isa,
    },
    draw::{Arrivals, First, GROUP},
};

/// What bounds say about the logits of a row; all but the first are empty if few tokens are allowed.
pub(super) struct Bounded<'a> {
    /// Upper bounds, `[vocab]`; those of the tokens that were chosen last have been replaced by logits.
    pub(super) upper: &'a mut [f32],
    /// Highest lower bounds, `[panels]`.
    pub(super) best: &'a mut [f32],
    /// The changes of this row's logits.
    pub(super) changes: &'a [Change],
    /// The set of the only tokens that may be drawn, unless all may be; see [`crate::draw::Edits`].
    pub(super) mask: Option<&'a [u32]>,
    /// Highest upper bounds, `[panels]`.
    pub(super) high: &'a mut [f32],
    /// See [`Rows`], which the next three belong to.
    pub(super) errors: &'a [f32],
    pub(super) norms: &'a [f32],
    pub(super) weights: (f32, f32),
    pub(super) isa: Isa,
}

impl Bounded<'_> {
    /// What all tokens add to the sum that top-p depends on, at most; see [`crate::cpu::generic::mass::most`].
    pub(super) fn most(&self, rows: &Rows<'_>, enough: f64) -> f64 {
        // SAFETY: `isa` proves the instruction set; so in the next four.
        unsafe { (self.isa.kernels().floats.most)(rows, enough) }
    }

    /// What they add at least.
    pub(super) fn least(&self, rows: &Rows<'_>) -> f64 {
        // SAFETY: see above.
        unsafe { (self.isa.kernels().floats.least)(rows) }
    }

    /// What the tokens of some panels add, and which part of that is open.
    pub(super) fn shares(&self, rows: &Rows<'_>, panels: Range<usize>) -> Shares {
        // SAFETY: see above.
        unsafe { (self.isa.kernels().floats.shares)(rows, panels) }
    }

    /// Makes the first arrivals of all groups.
    pub(super) fn make_firsts(&self, arrivals: &Arrivals, firsts: &mut [First]) {
        // SAFETY: see above.
        unsafe { (self.isa.kernels().floats.first_arrivals)(arrivals, firsts) }
    }

    /// Says how much later than its group's first each token arrives, if it is not the first.
    pub(super) fn delays(&self, arrivals: &Arrivals, tokens: &[u32], delays: &mut [f32]) {
        // SAFETY: see above.
        unsafe { (self.isa.kernels().floats.delays)(arrivals, tokens, delays) }
    }

    /// Takes the tokens out that are not in `mask`.
    pub(super) fn forbid_others(&mut self, mask: &[u32]) {
        const WORDS: usize = GROUP / 32;
        for (panel, words) in mask.chunks(WORDS).enumerate() {
            let ids = panel * GROUP..self.upper.len().min((panel + 1) * GROUP);
            let uppers = &mut self.upper[ids];
            let allowed = words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            if allowed == uppers.len() {
                continue;
            }
            let mut high = f32::NEG_INFINITY;
            for (i, upper) in uppers.iter_mut().enumerate() {
                if words[i / 32] >> (i % 32) & 1 == 0 {
                    *upper = f32::NEG_INFINITY;
                }
                // A NaN bound rules out nothing.
                high = if *upper > high || upper.is_nan() { *upper } else { high };
            }
            self.high[panel] = high;
            self.best[panel] = f32::NEG_INFINITY;
            if allowed > 0 {
                self.bound_panel(panel, 0);
            }
        }
    }

    /// Changes the upper bounds of the tokens whose logits are changed, which no greater logit can make lower, and adds
    /// them to `pending`: a bit a token, a word a panel. Adds a lower bound of each changed logit to `lows`.
    pub(super) fn change(&mut self, pending: &mut [u64], lows: &mut Vec<f32>) {
        let (by_error, by_norm) = self.weights;
        for change in self.changes {
            let token = change.token as usize;
            let upper = &mut self.upper[token];
            let low = lower(*upper, self.errors[token], self.norms[token], by_error, by_norm);
            // A bound that is not a number is none.
            lows.push(change.apply(low).max(f32::NEG_INFINITY));
            *upper = change.apply(*upper);
            let upper = *upper;
            add(pending, change.token);
            // A NaN bound rules out nothing.
            let high = &mut self.high[token / GROUP];
            *high = if upper > *high || upper.is_nan() { upper } else { *high };
        }
    }

    /// Sets the highest lower bound of a panel again, without the tokens `except`, a bit each, and those that have been
    /// taken out.
    pub(super) fn bound_panel(&mut self, panel: usize, except: u64) {
        self.best[panel] = highest(&self.lows_except(panel, except));
    }

    /// The lower bounds of the logits of a panel; negative infinity for the tokens `except`.
    fn lows_except(&self, panel: usize, except: u64) -> [f32; GROUP] {
        let mut lows = self.rows(0.0, 1.0).lows(panel);
        if except != 0 {
            let rows = lows.iter_mut().enumerate().filter(|(row, _)| except >> row & 1 == 1);
            rows.for_each(|(_, low)| *low = f32::NEG_INFINITY);
        }
        lows
    }

    /// A logit that a row reaches: `reached`, or what one that is not `pending` reaches.
    pub(super) fn least_of_highest(&mut self, reached: f32, pending: &[u64]) -> f32 {
        let mut last = None;
        loop {
            let best = highest(self.best);
            if best <= reached {
                return reached;
            }
            let Some(panel) = self.best.iter().position(|&other| other == best) else { return best };
            // The same panel again has been bounded without what is pending.
            if pending[panel] == 0 || last == Some(panel) {
                return best;
            }
            self.bound_panel(panel, pending[panel]);
            last = Some(panel);
        }
    }

    /// A logit that `keep` rows that are not `pending` reach, one of each group of `group` rows of a panel; `scores` has room
    /// for the groups. Negative infinity if there are no such rows.
    pub(super) fn least_of(&self, keep: usize, group: usize, pending: &[u64], scores: &mut Vec<f64>) -> f32 {
        let nth = |scores: &mut Vec<f64>| {
            if scores.len() < keep {
                return f32::NEG_INFINITY;
            }
            *scores.select_nth_unstable_by(keep - 1, |a, b| b.total_cmp(a)).1 as f32
        };
        // What enough panels reach rules out the rows of most panels.
        let panels = || self.best.iter().zip(pending);
        scores.clear();
        let unchanged = panels().filter(|(_, pending)| **pending == 0);
        // A bound that is not a number is none.
        scores.extend(unchanged.map(|(best, _)| f64::from(best.max(f32::NEG_INFINITY))));
        let reached = nth(scores);
        scores.clear();
        for (panel, (best, &pending)) in panels().enumerate() {
            if *best < reached {
                continue;
            }
            let lows = self.lows_except(panel, pending);
            scores.extend(lows.chunks(group).map(|lows| f64::from(highest(lows))));
        }
        nth(scores).max(reached)
    }

    /// Whether the logit of a token may be this or more.
    pub(super) fn may_reach(&self, logit: f32) -> bool {
        // A NaN bound rules out nothing.
        let may = |upper: &f32| *upper >= logit || upper.is_nan();
        let mut panels = self.high.iter().zip(self.upper.chunks(GROUP));
        panels.any(|(high, uppers)| may(high) && uppers.iter().any(may))
    }

    /// The bounds, for a row with this highest logit that is drawn from at this temperature.
    pub(super) fn rows(&self, max: f32, temperature: f32) -> Rows<'_> {
        Rows {
            upper: self.upper,
            high: self.high,
            known: &[],
            errors: self.errors,
            norms: self.norms,
            by_error: self.weights.0,
            by_norm: self.weights.1,
            max,
            temperature,
            at: max,
            top_p: 1.0,
        }
    }
}

/// The highest bound that is a number.
pub(super) fn highest(bounds: &[f32]) -> f32 {
    bounds.iter().fold(f32::NEG_INFINITY, |best, &bound| if bound > best { bound } else { best })
}

/// The tokens of a set, which is one bit a token; see [`crate::draw::Edits`].
pub(super) fn tokens_of(mask: &[u32]) -> impl Iterator<Item = u32> + Clone {
    (0..).step_by(32).zip(mask).flat_map(|(first, &word)| {
        // Each step drops the lowest bit.
        let rests = std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
        rests.take_while(|&rest| rest != 0).map(move |rest| first + rest.trailing_zeros())
    })
}

/// Whether a token is in a set: a bit a token, a word a group.
pub(super) fn has(set: &[u64], token: u32) -> bool {
    set[token as usize / GROUP] >> (token as usize % GROUP) & 1 == 1
}

pub(super) fn add(set: &mut [u64], token: u32) {
    set[token as usize / GROUP] |= 1 << (token as usize % GROUP);
}

pub(super) fn drop_from(set: &mut [u64], token: u32) {
    set[token as usize / GROUP] &= !(1 << (token as usize % GROUP));
}
