//! What a row asks for: a token, how it is drawn, and which tokens may be.

use std::ops::Range;

use crate::{
    Edits, SamplingParams, Wanted,
    draw::{GROUP, MAX_CHANGES},
};

/// A token that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    /// How to draw it.
    pub(super) params: SamplingParams,
    /// Which of [`Edits::changes`] are made before.
    pub(super) changes: Range<usize>,
    /// Where the set of the only tokens that may be drawn begins in [`Edits::masks`].
    mask: Option<usize>,
}

impl Ask {
    /// A token drawn from the logits as they are.
    pub(super) fn plain(params: SamplingParams) -> Ask {
        Ask { params, changes: 0..0, mask: None }
    }

    /// Whether it is drawn from the logits as they are.
    pub(super) fn is_plain(&self) -> bool {
        self.changes.is_empty() && self.mask.is_none()
    }

    /// The token that `wanted` asks for, if it asks for one.
    pub(super) fn of(wanted: &Wanted) -> Option<Ask> {
        match *wanted {
            Wanted::Token(params) => Some(Ask::plain(params)),
            Wanted::Changed { params, from, to, mask } => {
                let mask = mask.map(|at| at as usize);
                Some(Ask { params, changes: from as usize..to as usize, mask })
            }
            _ => None,
        }
    }

    /// The set of the only tokens of `vocab` that may be drawn, unless all may be.
    pub(super) fn mask<'e>(&self, edits: Edits<'e>, vocab: usize) -> Option<&'e [u32]> {
        self.mask.map(|at| &edits.masks[at..][..vocab.div_ceil(32)])
    }

    /// Whether bounds of the logits of a table with this many rows decide more than they cost: where few [`group`]s of rows
    /// are left for the number of logits to keep, or many logits are changed, they rule out too little.
    pub(super) fn gains_by_bounds(&self, vocab: usize) -> bool {
        self.params.keep() <= vocab.div_ceil(group(vocab)) / 6 && self.changes.len() <= most_changes(vocab)
    }

    /// Whether so few tokens may be drawn that their logits are computed one by one.
    pub(super) fn allows_few(&self, edits: Edits<'_>, vocab: usize) -> bool {
        let count = |mask: &[u32]| mask.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        self.mask(edits, vocab).is_some_and(|mask| count(mask) <= most(vocab))
    }
}

/// The most changed logits of a row with bounds.
pub(super) fn most_changes(vocab: usize) -> usize {
    (vocab / 4).min(MAX_CHANGES)
}

/// The most logits that are computed one by one; more cost nearly as much as all.
pub(super) fn most(vocab: usize) -> usize {
    // Less than that costs little even where it is a large part of a small vocabulary.
    (vocab / 32).max(256).min(vocab)
}

/// How many rows of a panel count with the best of their lower bounds where the threshold of top-k is sought. There are at
/// most half a group a panel more than [`most`].
pub(super) fn group(vocab: usize) -> usize {
    let panels = vocab.div_ceil(GROUP);
    let parts = (most(vocab) + panels / 2) / panels;
    GROUP.div_ceil(parts.clamp(1, GROUP))
}
