//! Why a request is invalid, is refused, or fails.
//! Every message names what is wrong and, where there is one, the cure.

use bitnet_model::ForwardError;

use super::config::InvalidConfig;
use super::constraint::ConstraintError;

/// What makes a request invalid, regardless of load.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum InvalidRequest {
    /// A field of the configuration is out of range.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The prompt is empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token is not in the vocabulary.
    #[error("token {token} at position {position} of the prompt is not in the vocabulary of {vocab} tokens")]
    UnknownToken { token: u32, position: usize, vocab: usize },
    /// The prompt leaves no room for a new token.
    #[error("the prompt has {tokens} tokens, but a sequence holds at most {context}")]
    TooLong {
        tokens: usize,
        /// Maximum length of a sequence: the model's context, or the capacity of the key-value cache if that is
        /// smaller.
        context: usize,
    },
    /// All tokens of the prompt are marked as generated.
    #[error("{generated} of {tokens} tokens are marked as generated: at least one must belong to the prompt")]
    NothingPrompted { generated: usize, tokens: usize },
    /// Stop strings need the text of tokens, which the engine does not have.
    #[error("stop strings need a tokenizer, but the engine was started without one")]
    NoText,
    /// The markers of thoughts are not tokens, and need the text of tokens, which the engine does not have.
    #[error("the markers of thoughts need a tokenizer, but the engine was started without one")]
    NoTextOfMarkers,
    /// A thought's budget has no tokens to end the thought with.
    #[error("the budget of the thought has no tokens that end the thought: give those of its end marker")]
    NoEnding,
    /// A token that ends a thought is not in the vocabulary.
    #[error("token {token} at the end of a thought is not in the vocabulary of {vocab} tokens")]
    UnknownEnding { token: u32, vocab: usize },
    /// A token of the prediction is not in the vocabulary.
    #[error("token {token} of the prediction is not in the vocabulary of {vocab} tokens")]
    UnknownPrediction { token: u32, vocab: usize },
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum SubmitError {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The request exceeds the queue's limits even when the queue is empty.
    #[error("{asked} {what} in one request, but at most {limit} can wait: send fewer at a time")]
    NeverFits {
        /// What exceeds its limit: `choices` or `prompt tokens`.
        what: &'static str,
        asked: usize,
        limit: usize,
    },
    /// Too many sequences are waiting.
    #[error("the queue is full, with {limit} requests (each choice counts as one): try again later")]
    QueueFull { limit: usize },
    /// Too many prompt tokens are waiting.
    #[error(
        "{queued} prompt tokens are waiting and {tokens} more would exceed the limit of {limit}: try again later"
    )]
    BacklogFull { queued: usize, tokens: usize, limit: usize },
    /// The engine is finishing its requests and accepts no new ones.
    #[error("the engine is shutting down")]
    Draining,
    /// The device failed and lost its memory.
    #[error("the engine has lost its device: {0}")]
    Lost(ForwardError),
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

impl SubmitError {
    /// Whether waiting and trying again may help.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, SubmitError::QueueFull { .. } | SubmitError::BacklogFull { .. })
    }
}

/// Why an accepted request failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum RequestError {
    /// It exceeded its maximum time.
    #[error("the request timed out")]
    Timeout,
    /// Its tokens were not read for too long.
    #[error("the tokens were not read in time")]
    SlowReader,
    /// No token could be drawn from its logits.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Its hidden state is not a vector of finite numbers.
    #[error("value {index} of the hidden state is not a finite number: the weights may be damaged")]
    NotFinite { index: usize },
    /// Its constraint could not say which tokens may follow.
    #[error("the constraint on the text failed: {message}")]
    Constraint { message: String },
    /// The forward pass failed repeatedly, even with this request alone.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Something panicked while the request was processed; other requests continue.
    #[error("internal error: {message}")]
    Panic { message: String },
    /// The engine stopped before the request was finished.
    #[error("the engine has stopped")]
    Stopped,
}

impl From<ConstraintError> for RequestError {
    fn from(ConstraintError(message): ConstraintError) -> Self {
        RequestError::Constraint { message }
    }
}

/// Why no token could be drawn from a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum SampleError {
    /// A logit is NaN.
    #[error("the logit of token {token} is not a number")]
    NotANumber { token: u32 },
    /// Every token has probability zero.
    #[error("every token is forbidden")]
    NothingAllowed,
}
