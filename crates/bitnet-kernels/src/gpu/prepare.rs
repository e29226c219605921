//! Allocates everything that the largest step needs, so that no step allocates.

use super::{
    Driver, Gpu, GpuError,
    layout::CopySize,
    ops::{DRAWN, RACE_WORDS},
    upload::Upload,
    work_items::FEW,
};
use crate::{Grouping, RowsKind, StepSize, draw::MAX_CHANGES};

/// Bytes of an id, a position or a slot.
const WORD: usize = 4;
/// Bytes of the description of a thread block's work item.
const ITEM: usize = 32;
/// Bytes of the description of a token or a run for gated-delta layers.
const DELTA: usize = 24;
/// Bytes of [`SamplingParams`](crate::SamplingParams).
const SAMPLING: usize = 32;
/// Bytes of what changes a row of logits.
const EDITS: usize = 16;
/// Bytes of a [`Change`](crate::Change).
const CHANGE: usize = 16;

/// Bytes of the small inputs of the largest step, of a model with or without recurrent layers, with the set of places
/// (1 for layers with windows).
pub(super) fn inputs(
    size: &StepSize,
    recurrent: bool,
) -> impl Iterator<Item = (usize, Upload, usize)> + use<> {
    let items = size.tokens * size.group.div_ceil(FEW);
    let delta = if recurrent { DELTA * size.tokens } else { 0 };
    let attention = [
        (Upload::Positions, WORD * size.tokens),
        (Upload::Slots, WORD * size.tokens),
        (Upload::Blocks, WORD * size.blocks),
        (Upload::FewRows, ITEM * items),
        (Upload::ManyRows, ITEM * items),
    ];
    let others = [
        (Upload::Tokens, WORD * size.tokens),
        (Upload::DeltaTokens, delta),
        (Upload::DeltaRuns, delta),
        (Upload::Rows, WORD * size.logit_rows),
        (Upload::Hidden, WORD * size.tokens),
        (Upload::Highest, WORD * size.logit_rows),
        (Upload::Sampling, SAMPLING * size.logit_rows),
        (Upload::Races, WORD * RACE_WORDS * size.logit_rows),
        (Upload::Edits, EDITS * size.logit_rows),
        (Upload::Changes, CHANGE * MAX_CHANGES * size.logit_rows),
        (Upload::Masks, WORD * size.vocab.div_ceil(32) * size.logit_rows),
    ];
    let windows = size.windows.then_some(attention).into_iter().flatten();
    let all = attention.into_iter().chain(others).map(|(what, bytes)| (0, what, bytes));
    all.chain(windows.map(|(what, bytes)| (1, what, bytes)))
}

impl<D: Driver> Gpu<D> {
    /// Allocates all memory that steps up to this size need in addition to their buffers, when all weights are loaded.
    pub fn prepare(&mut self, size: &StepSize) -> Result<(), GpuError> {
        self.end_conversion();
        for (set, what, bytes) in inputs(size, self.mixed_len > 0) {
            self.make_room(set, what, bytes)?;
        }
        self.logits = Some(self.rows(size.logit_rows, size.vocab, RowsKind::Residual)?);
        if self.largest_copy != CopySize::default() {
            self.shortlist = Some(self.shortlist(size.logit_rows.min(self.most_bounded()))?);
        }
        if self.head_width > 0 {
            self.head_input = Some(self.int8_rows(size.logit_rows, self.head_width, Grouping::Groups)?);
        }
        if self.mixed_len > 0 {
            self.make_mixed(size.tokens)?;
        }
        if let Some(shape) = self.mixes {
            self.mixture = Some(self.make_mixture(size.tokens, shape)?);
        }
        self.drawn = Some(self.alloc(DRAWN * size.logit_rows, "drawn tokens")?);
        self.free = self.driver.free_memory()?;
        Ok(())
    }
}
