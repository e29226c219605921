//! The model's own head as a drafter. It pairs the hidden state of a token with the token after it; pair `p`, of the
//! hidden state at position `p` and the token at `p + 1`, has slot `p` of the head's cache.
//!
//! The last pair of a block has the first token of the next one. Texts that share a block share this pair, even where
//! they go on differently: one slightly worse key in the memory of a drafter.

use bitnet_model::{Batch, ForwardError, HiddenRows, Logits, Model};

use super::{Drafter, Drafting};
use crate::schedule::{PlannedRun, Scheduler, SeqId};

/// Drafts with the head of the model that computes the texts.
#[derive(Default)]
pub struct HeadDrafter {
    batch: Batch,
    /// For each token of the batch, the row of its hidden state.
    rows: Vec<usize>,
    logits: Logits,
    /// For each slot of a sequence, the hidden states of its last run whose next tokens were not known yet.
    held: Vec<Option<Held>>,
    /// The runs in the batch whose logits are wanted, in order.
    wanting: Vec<usize>,
}

/// Hidden states of a run that the model still has.
#[derive(Debug, Clone, Copy)]
struct Held {
    id: SeqId,
    /// Position of the first.
    start: usize,
    /// Its row in the model's last pass.
    row: usize,
    len: usize,
}

impl HeadDrafter {
    /// A drafter for a model with a head ([`Model::has_draft_head`]).
    pub fn new() -> Self {
        HeadDrafter::default()
    }

    /// The positions of a sequence's pairs that can be made now, and the row of the first: all that end with a token of
    /// a text of `len`.
    fn pairs(&self, slot: usize, id: SeqId, len: usize) -> Option<(std::ops::Range<usize>, usize)> {
        let held = self.held.get(slot).copied().flatten().filter(|held| held.id == id)?;
        let pairs = held.start..len - 1;
        (1..=held.len).contains(&pairs.len()).then_some((pairs, held.row))
    }

    fn push(&mut self, tokens: &[u32], start: usize, row: usize, table: &[u32], wanted: usize) {
        let table = &table[..(start + tokens.len()).div_ceil(Batch::BLOCK_TOKENS)];
        self.batch.push(tokens, start, table, tokens.len() - wanted..tokens.len());
        self.rows.extend(row..row + tokens.len());
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.rows.clear();
    }
}

impl Drafter for HeadDrafter {
    /// Makes the pairs of all tokens confirmed since the last step, then goes on from the head's own hidden states, for
    /// all sequences together. What it writes from these is overwritten by the pairs of confirmed tokens.
    fn draft(&mut self, body: &mut dyn Model, asked: &mut Drafting<'_>) -> Result<(), ForwardError> {
        self.clear();
        self.wanting.clear();
        for (at, run) in asked.runs().iter().enumerate() {
            let Some((pairs, row)) = self.pairs(run.slot, run.id, run.len) else { continue };
            let wanted = usize::from(run.depth > 0);
            let tokens = &asked.text(at)[pairs.start + 1..];
            self.push(tokens, pairs.start, row, asked.table(at), wanted);
            if run.depth > 0 {
                let wanted = asked.wanted(at);
                self.batch.want(|_| wanted);
                self.wanting.push(at);
            }
        }
        let mut first = true;
        while !self.wanting.is_empty() {
            let hidden =
                if first { HiddenRows::Forward(&self.rows) } else { HiddenRows::Drafted(&self.rows) };
            body.draft(&self.batch, hidden, &mut self.logits)?;
            first = false;
            self.clear();
            // The pair of a token has the position of the hidden state before it.
            asked.go_on(&mut self.wanting, &self.logits, &mut self.batch, 1, |row| self.rows.push(row));
        }
        Ok(())
    }

    /// Makes the pairs whose tokens are known, those of a prompt, and keeps the rows of the others.
    fn read(
        &mut self,
        body: &mut dyn Model,
        scheduler: &Scheduler,
        runs: &[PlannedRun],
    ) -> Result<(), ForwardError> {
        self.clear();
        self.held.clear();
        let mut row = 0;
        for run in runs {
            let s = scheduler.sequence(run);
            let known = run.len.min(s.confirmed() - 1 - run.start);
            if known > 0 {
                self.push(&s.tokens[run.start + 1..][..known], run.start, row, &s.table, 0);
            }
            let slot = run.slot as usize;
            if self.held.len() <= slot {
                self.held.resize(slot + 1, None);
            }
            let held = Held { id: s.id, start: run.start + known, row: row + known, len: run.len - known };
            self.held[slot] = Some(held);
            row += run.len;
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        body.draft(&self.batch, HiddenRows::Forward(&self.rows), &mut self.logits)
    }
}

bitnet_tensor::opaque_debug!(HeadDrafter { held });
