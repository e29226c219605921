//! The limits of a scheduler.

use std::sync::Arc;

use super::pace::BatchSizing;
use crate::sample::TokenText;

/// The limits of a scheduler, and what it knows about the model.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Maximum number of running sequences: the places of the batch.
    pub max_running: usize,
    /// Maximum number of tokens in a step.
    pub max_tokens: usize,
    /// Maximum number of rows of logits in a step.
    pub max_rows: usize,
    /// Number of blocks in the key-value cache.
    pub kv_blocks: usize,
    /// Number of slots of recurrent state, at least one for each place; 0 for a model without recurrent layers. Slots
    /// beyond the places keep snapshots.
    pub state_slots: usize,
    /// Maximum number of tokens in a sequence.
    pub context: usize,
    /// Maximum number of drafted tokens for a sequence in a step; 0 turns drafting off.
    pub max_draft: usize,
    /// How batch size and prompt budget are chosen.
    pub sizing: BatchSizing,
    /// Microseconds after which a paused sequence fails.
    pub slow_reader: u64,
    /// Tokens that end a text, from the model's metadata.
    pub eos: Vec<u32>,
    /// Maps tokens to text, for stop strings.
    pub text: Option<Arc<dyn TokenText>>,
}
