//! One choice of one request, as the scheduler sees it: its tokens, its blocks and its place.
//! The fields that every step reads come first, so that they share cache lines.

use std::collections::VecDeque;
use std::sync::Arc;

use bitnet_kernels::Wanted;
use bitnet_model::CachePlace;

use super::blocks::Chain;
use super::draft::{Rates, Source};
use super::prediction::Prediction;
use crate::request::{Priority, Request, TokenLogprobs};
use crate::sample::StopMatcher;
use crate::thought::ThoughtReader;

/// Identifies a choice of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId {
    /// The request.
    pub request: u64,
    /// Index of the choice.
    pub choice: u32,
}

/// Whether a tier below memory has been asked about a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fetch {
    /// Not yet.
    #[default]
    Unasked,
    /// It has, and may still take parts in.
    Asked,
    /// Nothing more comes.
    Done,
}

const BLOCK: usize = bitnet_model::Batch::BLOCK_TOKENS;

/// One choice of one request.
///
/// `tokens.len() - computed` tokens are pending: the rest of a prompt, or the last drawn token. This is the only
/// difference between prefill and decode.
///
/// A sequence either has a place in the batch (`running`) or waits for one. If it waits because its reader paused, it
/// is parked: it keeps its blocks and its state until others need them.
///
/// Several passes of each step go over all sequences. The fields that they read come first, in few cache lines, and
/// include what a step needs to know of the request.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Sequence {
    /// The request and choice.
    pub id: SeqId,
    /// Prompt and generated tokens, and drafts between plan and commit. Empty until the sequence first gets a place,
    /// so that the waiting choices of a request share its prompt.
    pub tokens: Vec<u32>,
    /// Number of tokens whose keys and values are in the cache.
    pub(crate) computed: usize,
    /// Number of drafts at the end of `tokens`.
    pub(crate) drafted: usize,
    /// Number of prompt tokens, without the first, whose log-probabilities have been computed, or of those whose hidden
    /// states have been.
    pub(crate) scored: usize,
    /// How many prompt log-probabilities or hidden states to compute; only a request's first choice computes them.
    pub(crate) to_score: usize,
    /// Block table: token `p` is in block `table[p / BLOCK_TOKENS]`.
    pub table: Vec<u32>,
    /// Maximum length of the sequence, in tokens.
    pub(crate) end: usize,
    /// Compute this sequence in passes of its own until it has this many tokens, because a pass with it failed; 0 if none
    /// has.
    pub(crate) suspect: usize,
    /// The length from which the text may end.
    pub(crate) may_end: usize,
    /// Whether tokens are drawn from its logits.
    pub(crate) draws: bool,
    /// Whether the model's end tokens end the text.
    pub(crate) ends_at_eos: bool,
    /// Whether the request has stop tokens or stop strings.
    pub(crate) stops: bool,
    /// Whether `end` is set by the context rather than the request.
    pub(crate) end_is_context: bool,
    /// Whether it holds a place in the batch.
    pub(crate) running: bool,
    /// What is needed of its logits once the text may end.
    pub(crate) wanted: Wanted,
    /// The chain after each published block.
    pub(crate) chains: Vec<Chain>,
    /// The slot with the recurrent state after the computed tokens, without those in its log. A sequence that runs or is
    /// parked owns one, if the model has any.
    pub(crate) state: Option<u32>,
    /// How many of the drafts in the log of the state's slot were accepted: the last of the computed tokens, which the
    /// state has not seen.
    pub(crate) logged: usize,
    /// The request.
    pub request: Arc<Request>,
    /// Block table of sliding layers, as long as `table`, if these have blocks of their own.
    pub(crate) windows: Vec<u32>,
    /// Number of blocks at the beginning of `windows` that were given back.
    pub(crate) passed: usize,
    /// Seed of the random numbers.
    pub seed: u64,
    /// How many tokens were in the prefix cache when the sequence first ran.
    pub(crate) cached: Option<usize>,
    /// Number of tokens shared with another cached text, if no snapshot was found after them; a snapshot is then taken
    /// there.
    pub(crate) branch: usize,
    /// How often its recurrent state was lost since it last got past `suspect` tokens.
    pub(crate) losses: u32,
    /// Place in the order of arrival; kept through preemption.
    pub(crate) rank: u64,
    /// When the request was submitted.
    pub(crate) arrived: u64,
    /// When the request fails if it has not ended, if it has a time limit.
    pub(crate) deadline: Option<u64>,
    /// When it last began to wait for a place: on arrival, or when its reader resumed. The maximum time that its
    /// priority can be passed over counts from here.
    pub(crate) since: u64,
    /// When it fails unless its reader reads on, if its reader has stopped. `u64::MAX` is never.
    pub(crate) paused: Option<u64>,
    /// Whether it has waited longer than its priority allows, and so goes first.
    pub(crate) aged: bool,
    /// Whether a tier below memory has been asked about its text.
    pub(crate) fetch: Fetch,
    /// Whether its admission has been reported.
    pub(crate) admitted: bool,
    /// How often a later request was admitted ahead of it.
    pub(crate) bypassed: u32,
    /// Whether it waits for the first choice of its request to compute their common prompt.
    pub(crate) follows: bool,
    /// Looks for the request's stop strings.
    pub(crate) matcher: StopMatcher,
    /// Log-probabilities of the tokens that the matcher holds back.
    pub(crate) held_logprobs: VecDeque<TokenLogprobs>,
    /// The drawn token that ends the text, with its log-probabilities if requested.
    pub(crate) end_token: Option<(u32, Option<TokenLogprobs>)>,
    /// The reader of its thought, which has read all generated tokens but no drafts.
    pub(crate) thought: Option<ThoughtReader>,
    /// How often its drafts were right, for each [`Source`].
    pub(crate) rates: [Rates; Source::ALL.len()],
    /// The only tokens that its constraint allows next, one after the other; no end tokens.
    pub(crate) forced: Vec<u32>,
    /// Where it is in the text that its request predicts.
    pub(crate) prediction: Option<Prediction>,
}

const _: () = assert!(std::mem::offset_of!(Sequence, request) <= 4 * 64, "a step reads four cache lines");

impl Sequence {
    /// Number of the request's tokens that were not generated.
    pub fn prompt_len(&self) -> usize {
        self.request.prompt.len() - self.request.generated
    }

    /// Its tokens, or the request's prompt before it first gets a place.
    pub(crate) fn text(&self) -> &[u32] {
        if self.tokens.is_empty() { &self.request.prompt } else { &self.tokens }
    }

    /// Copies the prompt and allocates the memory that the sequence may need, before it first gets a place.
    pub(crate) fn own_text(&mut self, max_draft: usize, windows: bool) {
        if self.tokens.is_empty() {
            let prompt = &self.request.prompt;
            self.tokens.reserve_exact(self.end.max(prompt.len()) + max_draft + 1);
            self.tokens.extend_from_slice(prompt);
            let blocks = self.end.div_ceil(BLOCK);
            self.table.reserve_exact(blocks + 1);
            self.chains.reserve_exact(blocks);
            if windows {
                self.windows.reserve_exact(blocks + 1);
            }
        }
    }

    /// The last block boundary in the request's prompt: the longest prefix that another text can share and still have a
    /// token to compute.
    pub(crate) fn boundary(&self) -> usize {
        (self.request.prompt.len() - 1) / BLOCK * BLOCK
    }

    /// Whether it holds blocks but has no place.
    pub(crate) fn parked(&self) -> bool {
        !self.running && !self.table.is_empty()
    }

    /// Whether it reads what is in a block.
    pub(crate) fn reads(&self, place: CachePlace) -> bool {
        match place {
            CachePlace::Block(block) => self.table.contains(&block),
            CachePlace::Window(block) => self.windows.contains(&block),
            CachePlace::State(_) => false,
        }
    }

    /// Number of tokens to compute before the next one can be drawn.
    pub(crate) fn pending(&self) -> usize {
        self.text().len() - self.computed
    }

    /// Its generated tokens, without drafts.
    pub(crate) fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_len()..self.confirmed()]
    }

    /// Number of its tokens without drafts.
    pub(crate) fn confirmed(&self) -> usize {
        self.tokens.len() - self.drafted
    }

    /// Whether log-probabilities or hidden states of its prompt are still to be computed: every token then has a row.
    pub(crate) fn scores(&self) -> bool {
        self.scored < self.to_score
    }

    /// Key for the order of admission: aged sequences first, then by priority, then by arrival.
    pub(crate) fn admission_key(&self) -> (bool, Priority, u64) {
        let priority = if self.aged { Priority::Interactive } else { self.request.priority };
        (!self.aged, priority, self.rank)
    }
}
