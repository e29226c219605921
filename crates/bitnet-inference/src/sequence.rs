use std::collections::VecDeque;
use std::sync::Arc;

use crate::blocks::Chain;
use crate::{Request, StopMatcher, TokenLogprobs};

/// Names one choice of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId {
    /// The request.
    pub request: u64,
    /// Which of its choices.
    pub choice: u32,
}

/// One choice of one request.
///
/// `tokens.len() - computed` tokens are pending: a prompt, a chunk of one, or the one token drawn last. There is no
/// other difference between prefill and decode.
///
/// A sequence has a place in the batch (`running`) or waits for one. One that waits because its reader paused keeps
/// its blocks until others need them: it is parked.
#[derive(Debug)]
pub struct Sequence {
    /// Whose it is.
    pub id: SeqId,
    /// What was asked.
    pub request: Arc<Request>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Prompt and generated tokens; between plan and commit also the drafted ones. Empty until the sequence first has
    /// a place, so that the choices of a request that wait share its prompt.
    pub tokens: Vec<u32>,
    /// Drafted tokens at the end of `tokens`.
    pub(crate) drafted: usize,
    /// Tokens whose keys and values are in the cache.
    pub(crate) computed: usize,
    /// Block table: token `p` is in block `table[p / BLOCK_TOKENS]`.
    pub table: Vec<u32>,
    /// Chains after the first blocks, as far as they are published.
    pub(crate) chains: Vec<Chain>,
    /// Length at which the sequence ends at the latest.
    pub(crate) end: usize,
    /// Whether `end` is the context's rather than the request's.
    pub(crate) end_is_context: bool,
    /// Place in the order of arrival; kept through preemption.
    pub(crate) rank: u64,
    pub(crate) arrived: u64,
    pub(crate) deadline: Option<u64>,
    /// When it last began to wait for a place: on arrival, or when its reader went on. Its priority's patience counts
    /// from there.
    pub(crate) since: u64,
    /// Since when nobody reads its tokens.
    pub(crate) paused: Option<u64>,
    /// Whether it has waited so long that it goes before all that have not.
    pub(crate) aged: bool,
    /// Whether its leaving of the queue has been told.
    pub(crate) admitted: bool,
    /// How often a later request was admitted before it.
    pub(crate) bypassed: u32,
    /// Whether the first choice of its request is to compute the prompt for it.
    pub(crate) follows: bool,
    /// Whether it holds a place in the batch.
    pub(crate) running: bool,
    pub(crate) matcher: StopMatcher,
    /// Log-probabilities of tokens that the matcher holds back.
    pub(crate) held_logprobs: VecDeque<TokenLogprobs>,
    /// Drafted tokens tried and accepted recently; older ones count less.
    pub(crate) drafts_tried: f32,
    pub(crate) drafts_accepted: f32,
}

impl Sequence {
    /// Tokens that came with the request and were not generated.
    pub fn prompt_len(&self) -> usize {
        self.request.prompt.len() - self.request.generated
    }

    /// Tokens generated so far, those that came with the request as generated included.
    pub fn generated(&self) -> usize {
        self.text().len() - self.drafted - self.prompt_len()
    }

    /// Its tokens, wherever they are stored.
    pub(crate) fn text(&self) -> &[u32] {
        if self.tokens.is_empty() { &self.request.prompt } else { &self.tokens }
    }

    /// Takes a copy of the prompt and the memory that the sequence may need, before its first place.
    pub(crate) fn own_text(&mut self, max_draft: usize) {
        if self.tokens.is_empty() {
            let prompt = &self.request.prompt;
            self.tokens.reserve_exact(self.end.max(prompt.len()) + max_draft + 1);
            self.tokens.extend_from_slice(prompt);
            let blocks = self.end.div_ceil(bitnet_model::Batch::BLOCK_TOKENS);
            self.table.reserve_exact(blocks + 1);
            self.chains.reserve_exact(blocks);
        }
    }

    /// Whether it holds blocks without a place.
    pub(crate) fn parked(&self) -> bool {
        !self.running && !self.table.is_empty()
    }

    /// Tokens to compute before the next one can be drawn.
    pub(crate) fn pending(&self) -> usize {
        self.text().len() - self.computed
    }

    /// Whether tokens are drawn from it.
    pub fn draws(&self) -> bool {
        self.request.output.draws()
    }

    /// Order of admission: the aged first, then by priority, then by arrival.
    pub(crate) fn place(&self) -> (bool, crate::Priority, u64) {
        let priority = if self.aged { crate::Priority::Interactive } else { self.request.priority };
        (!self.aged, priority, self.rank)
    }
}
