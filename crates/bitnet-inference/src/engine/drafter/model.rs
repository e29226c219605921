//! A smaller model with the same vocabulary as a drafter. Its keys and values are in blocks with the numbers of the
//! model's, so that whatever shares, copies or frees a block does it for both.

use bitnet_model::{Batch, ForwardError, Limits, Logits, Model};

use super::{Drafter, Drafting};
use crate::schedule::{PlannedRun, Scheduler, SeqId};

/// Drafts with a smaller model.
pub struct ModelDrafter {
    model: Box<dyn Model>,
    batch: Batch,
    logits: Logits,
    /// For each slot of a sequence, how many of its tokens the model has computed.
    computed: Vec<Option<(SeqId, usize)>>,
    /// The runs in the batch whose logits are wanted, in order.
    wanting: Vec<usize>,
}

/// Why a model cannot draft for another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftModelError {
    /// It was loaded for other sizes.
    #[error(
        "the draft model has room for {has} {what}, the model for {needs}: load it with the limits of the model"
    )]
    Limits {
        /// What it has too few of.
        what: &'static str,
        /// How many it has.
        has: usize,
        /// How many the model has.
        needs: usize,
    },
    /// It has recurrent layers, whose states cannot go back to the tokens before a rejected draft.
    #[error("the draft model has recurrent layers: use one whose layers all attend")]
    Recurrent,
    /// A token id stands for different texts.
    #[error(
        "token {token} is {drafts:?} in the draft model and {model:?} in the model: use a draft model with the same \
         vocabulary"
    )]
    Vocabulary {
        /// The id.
        token: u32,
        /// Its text in the draft model.
        drafts: String,
        /// Its text in the model.
        model: String,
    },
}

impl ModelDrafter {
    /// A drafter by `model`, for an engine whose model has these limits.
    ///
    /// # Errors
    /// If `model` has recurrent layers or less room than `limits`.
    pub fn new(model: Box<dyn Model>, limits: Limits) -> Result<Self, DraftModelError> {
        let own = model.limits();
        if own.state_slots > 0 || model.spec().state_bytes() > 0 {
            return Err(DraftModelError::Recurrent);
        }
        for (what, has, needs) in [
            ("tokens in a step", own.max_tokens, limits.max_tokens),
            ("rows of logits", own.max_logit_rows, limits.max_logit_rows),
            ("blocks", own.kv_blocks, limits.kv_blocks),
        ] {
            if has < needs {
                return Err(DraftModelError::Limits { what, has, needs });
            }
        }
        let logits = Logits::with_capacity(own.max_logit_rows, model.spec().vocab);
        Ok(ModelDrafter { model, batch: Batch::new(), logits, computed: Vec::new(), wanting: Vec::new() })
    }

    /// Number of tokens of a sequence that have been computed, of which `known` are still those of its text. What this
    /// drafter has not seen, another sequence has computed, whose blocks this one uses.
    fn computed(&self, slot: usize, id: SeqId, known: usize) -> usize {
        let computed = self.computed.get(slot).copied().flatten().filter(|(of, _)| *of == id);
        computed.map_or(known, |(_, computed)| computed.min(known))
    }

    fn set_computed(&mut self, slot: usize, id: SeqId, computed: usize) {
        if self.computed.len() <= slot {
            self.computed.resize(slot + 1, None);
        }
        self.computed[slot] = Some((id, computed));
    }

    /// Adds tokens to the batch, computing what is in it first if they do not fit.
    fn push(&mut self, tokens: &[u32], start: usize, table: &[u32], rows: usize) -> Result<(), ForwardError> {
        let limits = self.model.limits();
        let tokens_left = limits.max_tokens - self.batch.tokens().len();
        let rows_left = limits.max_logit_rows - self.batch.logit_rows().len();
        if tokens.len() > tokens_left || rows > rows_left {
            self.flush()?;
        }
        let table = &table[..(start + tokens.len()).div_ceil(Batch::BLOCK_TOKENS)];
        self.batch.push(tokens, start, table, tokens.len() - rows..tokens.len());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ForwardError> {
        let computed = if self.batch.runs().is_empty() {
            Ok(())
        } else {
            self.model.forward(&self.batch, &mut self.logits)
        };
        self.batch.clear();
        computed
    }

    /// Whether these tokens are in the vocabulary and, up to position `end`, in the context of the model.
    fn reads(&self, tokens: &[u32], end: usize) -> bool {
        let spec = self.model.spec();
        end <= spec.context && tokens.iter().all(|&token| (token as usize) < spec.vocab)
    }
}

impl Drafter for ModelDrafter {
    /// Catches up with the text of each sequence, up to its pending token, and drafts token by token, for all sequences
    /// together.
    fn draft(&mut self, _: &mut dyn Model, asked: &mut Drafting<'_>) -> Result<(), ForwardError> {
        self.batch.clear();
        self.wanting.clear();
        let mut room = self.model.limits().max_tokens;
        for (at, run) in asked.runs().iter().enumerate() {
            let from = self.computed(run.slot, run.id, run.len - 1);
            // A text that this model is far behind of is read on with its next steps, without drafts.
            let text = &asked.text(at)[from..];
            if run.depth == 0 || text.len() > room || !self.reads(text, run.len + run.depth) {
                continue;
            }
            room -= text.len();
            self.push(text, from, asked.table(at), 1)?;
            let wanted = asked.wanted(at);
            self.batch.want(|_| wanted);
            self.wanting.push(at);
        }
        while !self.wanting.is_empty() {
            self.model.forward(&self.batch, &mut self.logits)?;
            self.batch.clear();
            for place in 0..self.wanting.len() {
                let run = asked.runs()[self.wanting[place]];
                self.set_computed(run.slot, run.id, run.len + run.made);
            }
            asked.go_on(&mut self.wanting, &self.logits, &mut self.batch, 0, |_| {});
        }
        Ok(())
    }

    /// Computes the same tokens, except those of runs with drafts: which of them are kept is not known yet.
    fn read(
        &mut self,
        _: &mut dyn Model,
        scheduler: &Scheduler,
        runs: &[PlannedRun],
    ) -> Result<(), ForwardError> {
        self.batch.clear();
        let most = self.model.limits().max_tokens;
        for run in runs {
            let s = scheduler.sequence(run);
            let (slot, end) = (run.slot as usize, run.start + run.len - run.drafts);
            let from = self.computed(slot, s.id, run.start);
            // What does not fit into a step stays unknown to this model, and its drafts are worse for it.
            let from = from.max(end.saturating_sub(most));
            if run.drafts > 0 || !self.reads(&s.tokens[from..end], end) {
                self.set_computed(slot, s.id, from.min(run.start));
                continue;
            }
            self.push(&s.tokens[from..end], from, &s.table, 0)?;
            self.set_computed(slot, s.id, end);
        }
        self.flush()
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.model.copy_block(from, to)
    }
}

bitnet_tensor::opaque_debug!(ModelDrafter);
