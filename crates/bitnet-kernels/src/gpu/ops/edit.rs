//! Launches changes of logits before tokens are drawn from them: penalties, biases, bans and masks.

use crate::{
    Change, Drawn, Edits, Wanted,
    gpu::{Arg, Driver, Gpu, GpuError, Rows, table::EDIT, upload::Upload},
};

/// The token of a row in which only one may be drawn, whatever the logits are.
pub(super) fn only_token(wanted: &Wanted, edits: Edits<'_>, vocab: usize) -> Option<Drawn> {
    let Wanted::Changed { from, to, mask: Some(at), .. } = *wanted else { return None };
    let mut words = (0..).step_by(32).zip(&edits.masks[at as usize..][..vocab.div_ceil(32)]);
    let mut next = || words.find(|(_, word)| **word != 0);
    let (first, word) = next()?;
    // A change may forbid the token.
    let only = word.is_power_of_two() && next().is_none() && from == to;
    only.then(|| Drawn::Token(first + word.trailing_zeros()))
}

/// The mask of a row without one.
const NONE: u32 = u32::MAX;
/// Tokens of a block.
const TOKENS: usize = 1024;

impl<D: Driver> Gpu<D> {
    /// Changes the first rows of logits as each of `wanted` says. Logits that are not numbers stay as they are.
    ///
    /// # Panics
    /// If an entry refers to changes or a mask that `edits` does not have, or a change to no token.
    pub fn edit(&mut self, wanted: &[Wanted], edits: Edits<'_>, logits: &Rows) -> Result<(), GpuError> {
        if !wanted.iter().any(|wanted| matches!(wanted, Wanted::Changed { .. })) {
            return Ok(());
        }
        let (n, vocab) = (wanted.len(), logits.width);
        assert!(n <= logits.rows, "every row must have logits");
        let words = vocab.div_ceil(32);
        let rows = wanted.iter().flat_map(|wanted| {
            let Wanted::Changed { from, to, mask, .. } = *wanted else { return [0, 0, NONE, 0] };
            let changes = &edits.changes[from as usize..to as usize];
            assert!(
                changes.iter().all(|change| (change.token as usize) < vocab),
                "a change must have a token"
            );
            assert!(mask.is_none_or(|at| at as usize + words <= edits.masks.len()), "a mask must be whole");
            [from, to, mask.unwrap_or(NONE), 0]
        });
        let rows_at = self.upload(Upload::Edits, rows)?;
        let changes = edits.changes.iter().flat_map(|&Change { token, repetition, less, more }| {
            [token, repetition.to_bits(), less.to_bits(), more.to_bits()]
        });
        let changes_at = self.upload(Upload::Changes, changes)?;
        let masks_at = self.upload(Upload::Masks, edits.masks.iter().copied())?;
        let args = [
            Arg::u64(logits.address()),
            Arg::u64(rows_at),
            Arg::u64(changes_at),
            Arg::u64(masks_at),
            Arg::u32(vocab as u32),
            Arg::u32(logits.stride as u32),
        ];
        self.launch(&EDIT, [vocab.div_ceil(TOKENS), n, 1], 0, &args)
    }
}
