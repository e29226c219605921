use std::sync::Arc;
use std::time::Duration;

use crate::{Constraint, ConstraintError, ForwardError, GenerationConfig, InvalidConfig, SampleError};

/// How urgent a request is, and how long it can be passed over before it counts as most urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Someone is waiting for it: passed over for at most 2 seconds.
    Interactive,
    /// Passed over for at most 10 seconds.
    #[default]
    Normal,
    /// Uses spare capacity: passed over for at most 2 minutes, and leaves half of the queue to others.
    Background,
}

impl Priority {
    /// All priorities, most urgent first.
    pub const ALL: [Priority; 3] = [Priority::Interactive, Priority::Normal, Priority::Background];

    /// Its name in requests and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Priority::Interactive => "interactive",
            Priority::Normal => "normal",
            Priority::Background => "batch",
        }
    }

    /// The priority with this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.name() == name)
    }

    /// Maximum time that a request of this priority is passed over, in microseconds.
    pub(crate) fn patience(self) -> u64 {
        match self {
            Priority::Interactive => 2_000_000,
            Priority::Normal => 10_000_000,
            Priority::Background => 120_000_000,
        }
    }
}

/// What a request produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Output {
    /// New tokens.
    #[default]
    Tokens,
    /// Only the logits that follow the prompt; nothing is generated.
    Logits,
    /// Only the hidden state of the prompt's last token: what the output head reads. Nothing is generated.
    Hidden,
    /// The log-probability of every token of the prompt except the first, then new tokens. The whole prompt is
    /// computed, even if it is in the prefix cache. With `max_new_tokens` 0 nothing is generated.
    Scored,
}

/// A prompt and how to continue it.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Tokens to continue.
    pub prompt: Vec<u32>,
    /// How many of the last tokens of `prompt` count as already generated, for penalties and limits.
    pub generated: usize,
    /// How to generate.
    pub config: GenerationConfig,
    /// What to return.
    pub output: Output,
    /// How urgent the request is.
    pub priority: Priority,
    /// Restricts which tokens may be drawn; `None` allows all.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Maximum time for the request, including queueing; then it fails with [`RequestError::Timeout`].
    pub timeout: Option<Duration>,
    /// Requests share the prefix cache only with requests that have the same salt.
    pub salt: u64,
}

impl Request {
    /// A request of normal priority.
    pub fn new(prompt: impl Into<Vec<u32>>, config: GenerationConfig) -> Self {
        Request { prompt: prompt.into(), config, ..Request::default() }
    }

    /// A request for the hidden state of the prompt's last token.
    pub fn hidden(prompt: impl Into<Vec<u32>>) -> Self {
        let config = GenerationConfig { max_new_tokens: 0, ..GenerationConfig::default() };
        Request { output: Output::Hidden, ..Request::new(prompt, config) }
    }

    /// Checks the request against a model, without regard to load. `text` says whether the text of tokens is known.
    pub fn validate(&self, vocab: usize, context: usize, text: bool) -> Result<(), InvalidRequest> {
        self.config.validate(vocab)?;
        let tokens = self.prompt.len();
        if tokens == 0 {
            return Err(InvalidRequest::EmptyPrompt);
        }
        if let Some(position) = self.prompt.iter().position(|&t| t as usize >= vocab) {
            return Err(InvalidRequest::UnknownToken { token: self.prompt[position], position, vocab });
        }
        if tokens >= context {
            return Err(InvalidRequest::TooLong { tokens, context });
        }
        if self.generated >= tokens {
            return Err(InvalidRequest::NothingPrompted { generated: self.generated, tokens });
        }
        if !self.config.stop_strings.is_empty() && !text {
            return Err(InvalidRequest::NoText);
        }
        Ok(())
    }
}

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

impl Output {
    /// Whether tokens are drawn.
    pub(crate) fn draws(self) -> bool {
        !matches!(self, Output::Logits | Output::Hidden)
    }
}
