//! What a scheduler reports: the events of each sequence, and counts of its own work.

use super::draft::Source;
use super::sequence::SeqId;
use crate::request::{End, RequestError, TokenLogprobs};

/// An event of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It got its first place in the batch, after this many microseconds; reported once.
    Admitted(SeqId, u64),
    /// It has a new token, with its log-probabilities if requested.
    Token(SeqId, u32, Option<TokenLogprobs>),
    /// It has ended; this is its last event.
    Ended(SeqId, Result<End, RequestError>),
}

/// Counts of what the scheduler has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedulerCounts {
    /// Number of times that a sequence had to give its blocks back.
    pub preemptions: u64,
    /// Computed tokens that were lost and must be computed again.
    pub recomputed_tokens: u64,
    /// Tokens that admitted sequences needed in the cache.
    pub prefix_tokens: u64,
    /// How many of them were already in the prefix cache.
    pub prefix_hits: u64,
    /// Prompts computed in more than one step.
    pub split_prompts: u64,
    /// Shared blocks copied before they were written.
    pub copied_blocks: u64,
    /// Recurrent states copied: as snapshots, from snapshots, and before drafts.
    pub copied_states: u64,
    /// Tokens drafted, without those that could not be rejected.
    pub drafted: u64,
    /// Drafted tokens that the sampler then drew.
    pub accepted: u64,
    /// Tokens drafted by each [`Source`], and how many of them were accepted.
    pub sources: [[u64; 2]; Source::ALL.len()],
    /// How often the first, second and third draft of a run, and any later one, was accepted.
    pub accepted_at: [u64; 4],
    /// Runs with drafts.
    pub drafted_runs: u64,
}
