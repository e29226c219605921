//! A model made from a function that maps whole sequences to logits.
//! [`blocking`] makes such a function from an async one.

use std::fmt;

use bitnet_kernels::BackendInfo;
use bitnet_model::{Batch, ForwardError, Limits, Logits, Model, ModelSpec};

use super::padded_batch::PaddedBatch;
use crate::engine::block_on;

/// A model made from a function that maps whole sequences to the logits after each of them. Its cache holds the tokens
/// themselves, and every step passes all sequences to the function from their beginning.
pub struct StatelessForward<F> {
    forward: F,
    spec: ModelSpec,
    limits: Limits,
    /// The token in each slot of the cache, up to the highest slot used so far.
    slots: Vec<u32>,
    /// Fraction of padding in the last batch.
    waste: Option<f64>,
}

impl<F> StatelessForward<F>
where
    F: FnMut(&PaddedBatch) -> Result<Vec<Vec<f32>>, ForwardError> + Send,
{
    /// Creates a model with `vocab` tokens, sequences of up to `context` tokens and steps of up to `max_batch`
    /// sequences.
    pub fn new(vocab: usize, context: usize, max_batch: usize, forward: F) -> Self {
        let spec = ModelSpec::without_layers("function", vocab, context);
        let blocks = context.div_ceil(Batch::BLOCK_TOKENS).saturating_add(1);
        let kv_blocks = max_batch.saturating_mul(blocks);
        let limits = Limits {
            max_tokens: max_batch.max(context),
            max_logit_rows: max_batch,
            kv_blocks,
            state_slots: 0,
        };
        StatelessForward { forward, spec, limits, slots: Vec::new(), waste: None }
    }
}

impl<F> Model for StatelessForward<F>
where
    F: FnMut(&PaddedBatch) -> Result<Vec<Vec<f32>>, ForwardError> + Send,
{
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn backend(&self) -> BackendInfo {
        BackendInfo { device: "function".into(), isa: "none", threads: 1, kv: "none" }
    }

    fn padding(&self) -> Option<f64> {
        self.waste
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        let mut sequences = Vec::with_capacity(batch.logit_rows().len());
        for run in batch.runs() {
            let table = batch.table(run);
            let slot = |p: usize| {
                table[p / Batch::BLOCK_TOKENS] as usize * Batch::BLOCK_TOKENS + p % Batch::BLOCK_TOKENS
            };
            for (index, p) in run.tokens.clone().zip(run.start..) {
                let at = slot(p);
                if self.slots.len() <= at {
                    self.slots.resize(at + 1, 0);
                }
                self.slots[at] = batch.tokens()[index];
                if batch.logit_rows().binary_search(&index).is_ok() {
                    sequences.push((0..=p).map(|p| self.slots[slot(p)]).collect::<Vec<u32>>());
                }
            }
        }
        let vocab = self.spec.vocab;
        let out = logits.resize(sequences.len(), vocab);
        self.waste = None;
        if sequences.is_empty() {
            return Ok(());
        }
        let padded = PaddedBatch::pack(&sequences, &[]).expect("every sequence has its own token");
        self.waste = padded.waste();
        let rows = (self.forward)(&padded)?;
        assert_eq!(rows.len(), sequences.len(), "the function gives one row of logits for each sequence");
        for (to, from) in out.chunks_exact_mut(vocab).zip(rows) {
            assert_eq!(from.len(), vocab, "a row of logits has one for each token of the vocabulary");
            to.copy_from_slice(&from);
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        let size = Batch::BLOCK_TOKENS;
        let (from, to) = (from as usize * size, to as usize * size);
        self.slots.resize(self.slots.len().max(from.max(to) + size), 0);
        self.slots.copy_within(from..from + size, to);
        Ok(())
    }
}

/// Makes an async function callable from blocking code: the calling thread sleeps until the future is ready.
pub fn blocking<F, Fut, T>(mut forward: F) -> impl FnMut(&PaddedBatch) -> T
where
    F: FnMut(PaddedBatch) -> Fut,
    Fut: Future<Output = T>,
{
    move |batch| block_on(forward(batch.clone()))
}

impl<F> fmt::Debug for StatelessForward<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatelessForward").field("limits", &self.limits).finish_non_exhaustive()
    }
}
