//! What is needed of a row of logits: all of them, the highest, or a token drawn from them; and how a token is drawn.
//!
//! Every token has a weight, `exp((logit - max) / temperature)` ([`weight()`]), and a random arrival time ([`Arrivals`]). Of
//! the tokens that the filters keep, the one with the smallest arrival time divided by its weight, in f32, is drawn; the
//! lowest id of equal ones. Since arrival times are exponentially distributed, each token is drawn with a probability
//! proportional to its weight: this is the Gumbel-max trick without logarithms.
//!
//! So a draw compares tokens and needs no sum over the row. A token whose logit has an upper bound, or whose group has a
//! late first arrival, can be ruled out without its logit or its number. A draft model that uses the same arrival times
//! mostly draws the same token. Backends and samplers follow this one rule, so they draw the same token from the same
//! logits.

mod arrivals;
mod change;
mod plain;
mod weight;

pub use arrivals::{Arrivals, GROUP, exponential, philox4x32};
pub(crate) use arrivals::{First, ln};
pub use change::{Change, Edits, MAX_CHANGES};
pub use plain::{drawn, edited};
pub use weight::{ONE, below_max, exp, kept_below, key, least_kept, token_of, units, weight};

/// How to draw a token from a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 always takes the most likely token.
    pub temperature: f32,
    /// Number of most likely tokens to keep; 0 keeps all, 1 always takes the most likely token.
    pub top_k: u32,
    /// Keeps the smallest set of most likely tokens whose total probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens whose probability is at least this fraction of the most likely token's; 0 keeps all.
    pub min_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// Index of the choice within the request.
    pub choice: u32,
    /// Position of the drawn token in its sequence.
    pub position: u32,
}

impl SamplingParams {
    /// Takes the most likely token.
    pub const GREEDY: Self = SamplingParams {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        choice: 0,
        position: 0,
    };

    /// Number of the highest logits without which a token cannot be drawn: those that top-k keeps, or the highest.
    pub(crate) fn keep(&self) -> usize {
        if self.is_greedy() { 1 } else { (self.top_k as usize).max(1) }
    }

    /// Whether this always takes the most likely token.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }
}

/// What is needed of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// All logits.
    All,
    /// This many of the highest logits, and those equal to the lowest of them; all others may be negative infinity.
    Top(usize),
    /// A token, or the logits from which it can be drawn.
    Token(SamplingParams),
    /// A token drawn after changes of some logits: numbers `from..to` of [`Edits::changes`], each of a different token. A
    /// backend that does not draw it computes all logits, without the changes.
    Changed {
        /// How to draw it.
        params: SamplingParams,
        /// The first of its changes.
        from: u32,
        /// The end of its changes.
        to: u32,
        /// Where the set of the only tokens that may be drawn begins in [`Edits::masks`]; it includes the changed ones.
        mask: Option<u32>,
    },
    /// No logits, but the row of which the head computes them: the hidden state after the final norm.
    Hidden,
}

impl Wanted {
    /// How many of the highest logits are needed, and those equal to the lowest of them.
    pub fn highest(&self) -> usize {
        match self {
            Wanted::All | Wanted::Changed { .. } => usize::MAX,
            Wanted::Hidden => 0,
            Wanted::Top(count) => *count,
            Wanted::Token(params) if params.is_greedy() => 1,
            Wanted::Token(SamplingParams { top_k: 0, .. }) => usize::MAX,
            Wanted::Token(params) => params.top_k as usize,
        }
    }

    /// How to draw the token, if one is wanted.
    pub fn sampling(&self) -> Option<SamplingParams> {
        match *self {
            Wanted::Token(params) | Wanted::Changed { params, .. } => Some(params),
            _ => None,
        }
    }
}

/// Result of drawing from a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawn {
    /// The drawn token.
    Token(u32),
    /// The row contains a NaN, first at this token.
    NotANumber(u32),
    /// All logits are negative infinity.
    NothingAllowed,
}

impl Drawn {
    /// Decodes the bytes that a kernel wrote.
    pub fn read(bytes: [u8; 8]) -> Self {
        let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        match word(4) {
            0 => Drawn::Token(word(0)),
            1 => Drawn::NotANumber(word(0)),
            _ => Drawn::NothingAllowed,
        }
    }
}
