use std::sync::Arc;
use std::time::Duration;

use crate::{Constraint, ForwardError, GenerationConfig, InvalidConfig, SampleError};

/// How urgent a request is, and how long it may be passed over before it counts as the most urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Someone is waiting: passed over for at most 2 seconds.
    Interactive,
    /// At most 10 seconds.
    #[default]
    Normal,
    /// Work that uses what others leave: at most 2 minutes.
    Background,
}

impl Priority {
    /// How long a request of this priority may be passed over, in microseconds.
    pub(crate) fn patience(self) -> u64 {
        match self {
            Priority::Interactive => 2_000_000,
            Priority::Normal => 10_000_000,
            Priority::Background => 120_000_000,
        }
    }
}

/// What a request wants of its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// New tokens.
    #[default]
    Tokens,
    /// The logits that follow the prompt, and nothing generated.
    Logits,
}

/// One prompt and what to make of it.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Tokens to continue.
    pub prompt: Vec<u32>,
    /// How many of the last tokens of `prompt` count as generated already, for penalties and limits.
    pub generated: usize,
    /// How to continue.
    pub config: GenerationConfig,
    /// What to return.
    pub output: Output,
    /// How urgent it is.
    pub priority: Priority,
    /// Which tokens may be drawn; all, if there is none.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Ends the request with an error when it takes longer, queue included.
    pub timeout: Option<Duration>,
    /// Requests share computed beginnings only with those of the same salt.
    pub salt: u64,
}

impl Request {
    /// A request of normal priority.
    pub fn new(prompt: impl Into<Vec<u32>>, config: GenerationConfig) -> Self {
        Request { prompt: prompt.into(), config, ..Request::default() }
    }

    /// Checks the request against a model; says nothing about load.
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

/// What is wrong with a request, whatever the load.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// A field of the configuration is out of range.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// There is nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The model has no such token.
    #[error("token {token} at position {position} of the prompt is not below the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Where it is.
        position: usize,
        /// Tokens the model has.
        vocab: usize,
    },
    /// The prompt leaves no room for a new token.
    #[error("the prompt has {tokens} tokens, and a sequence holds at most {context}")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that fit: the model's context, or what the key-value memory holds if that is less.
        context: usize,
    },
    /// A sequence starts from at least one token that was not generated.
    #[error("{generated} of {tokens} tokens cannot be generated ones: at least one is the prompt")]
    NothingPrompted {
        /// Tokens said to be generated.
        generated: usize,
        /// Tokens in all.
        tokens: usize,
    },
    /// Stop strings cannot be found without the tokens' text.
    #[error("stop strings need a tokenizer, and the engine was started without one")]
    NoText,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// It could never run.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The queue's limits are too small for it, however idle the engine is.
    #[error("{asked} {what} in one request, and at most {limit} can wait: send fewer at a time")]
    NeverFits {
        /// What there is too much of.
        what: &'static str,
        /// How much of it.
        asked: usize,
        /// How much of it may wait.
        limit: usize,
    },
    /// Too many sequences are waiting.
    #[error("the queue of {limit} requests, each choice counted as one, has no room: try again later")]
    QueueFull {
        /// Maximum that may wait.
        limit: usize,
    },
    /// Too many tokens are waiting to be computed.
    #[error(
        "{queued} prompt tokens are waiting and {tokens} more would pass the limit of {limit}: try again later"
    )]
    BacklogFull {
        /// Tokens waiting.
        queued: usize,
        /// Tokens of this request.
        tokens: usize,
        /// Most that may wait.
        limit: usize,
    },
    /// The engine finishes what it has and takes nothing new.
    #[error("the engine is shutting down")]
    Draining,
    /// The device has failed with all it held.
    #[error("the engine has no device any more: {0}")]
    Lost(ForwardError),
    /// The engine is gone.
    #[error("the engine has stopped")]
    Stopped,
}

impl SubmitError {
    /// Whether waiting may help.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, SubmitError::QueueFull { .. } | SubmitError::BacklogFull { .. })
    }
}

/// Why a request that was taken failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It took longer than it may.
    #[error("the request's time is over")]
    Timeout,
    /// Nobody read its tokens for too long.
    #[error("the tokens were not read in time")]
    SlowReader,
    /// Its logits gave no token.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// What constrains its text could not say how it may go on.
    #[error("the constraint on the text failed: {message}")]
    Constraint {
        /// What it said.
        message: String,
    },
    /// The model failed on it, alone and repeatedly.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Something panicked while it was worked on; the others go on.
    #[error("internal error: {message}")]
    Panic {
        /// What the panic said.
        message: String,
    },
    /// The engine ended before the request did.
    #[error("the engine has stopped")]
    Stopped,
}

impl Output {
    /// Whether tokens are drawn.
    pub(crate) fn draws(self) -> bool {
        self == Output::Tokens
    }
}
