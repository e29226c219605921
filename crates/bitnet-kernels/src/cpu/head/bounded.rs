//! What is known of the logits of a row before they are computed: bounds, changes, and which tokens are allowed.

use crate::{
    Change,
    cpu::generic::mass::{Mass, Rows},
    draw::GROUP,
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
    /// Sums weights.
    pub(super) mass: &'a dyn Fn(&Rows<'_>) -> Mass,
}

impl Bounded<'_> {
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
                self.bound_panel(panel);
            }
        }
    }

    /// Sets the highest lower bound of a panel again, after some of its tokens have been taken out.
    pub(super) fn bound_panel(&mut self, panel: usize) {
        let ids = panel * GROUP..self.upper.len().min((panel + 1) * GROUP);
        let rows = self.rows(0.0, 1.0);
        let best = ids.map(|id| rows.lower(id)).fold(f32::NEG_INFINITY, f32::max);
        self.best[panel] = best;
    }

    /// The bounds, for a row with this highest logit that is drawn from at this temperature.
    pub(super) fn rows(&self, max: f32, temperature: f32) -> Rows<'_> {
        Rows {
            upper: self.upper,
            errors: self.errors,
            norms: self.norms,
            by_error: self.weights.0,
            by_norm: self.weights.1,
            max,
            temperature,
            at: max,
            exact: false,
        }
    }
}

/// The tokens of a set, which is one bit a token; see [`crate::draw::Edits`].
pub(super) fn tokens_of(mask: &[u32]) -> impl Iterator<Item = u32> + Clone {
    (0..).step_by(32).zip(mask).flat_map(|(first, &word)| {
        // Each step drops the lowest bit.
        let rests = std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
        rests.take_while(|&rest| rest != 0).map(move |rest| first + rest.trailing_zeros())
    })
}
