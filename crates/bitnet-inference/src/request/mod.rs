//! Requests: a prompt, how to continue it, and what the answer is made of.
//! The other rooms use these types; this one uses none of theirs.

use std::sync::Arc;
use std::time::Duration;

mod answer;
mod config;
mod constraint;
mod error;

pub use answer::{End, FinishReason, Predicted, TokenLogprobs};
pub use config::{GenerationConfig, InvalidConfig};
pub use constraint::{Constraint, ConstraintError, TokenSet};
pub use error::{InvalidRequest, RequestError, SampleError, SubmitError};

use bitnet_model::Pooling;

use crate::thought::ThoughtRule;

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
    /// Only the mean of the hidden states of all tokens of the prompt, which are added in f64 in their order. Nothing is
    /// generated. The whole prompt is computed, even if it is in the prefix cache.
    MeanHidden,
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
    /// How the model writes thoughts before its answer: stop strings then apply to the answer only, and a thought can have
    /// a budget. `None` if the whole text is the answer.
    pub thought: Option<Arc<ThoughtRule>>,
    /// Tokens of a text that the answer will probably share long parts with. They are drafts, so they change only the
    /// speed.
    pub prediction: Vec<u32>,
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

    /// A request for the hidden state from which a model makes the embedding of a text, which `pooling` says.
    pub fn pooled(prompt: impl Into<Vec<u32>>, pooling: Pooling) -> Self {
        let output = if pooling == Pooling::Mean { Output::MeanHidden } else { Output::Hidden };
        Request { output, ..Request::hidden(prompt) }
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
        if let Some(&token) = self.prediction.iter().find(|&&t| t as usize >= vocab) {
            return Err(InvalidRequest::UnknownPrediction { token, vocab });
        }
        if !self.config.stop_strings.is_empty() && !text {
            return Err(InvalidRequest::NoText);
        }
        self.thought.as_ref().map_or(Ok(()), |thought| check_thought(thought, vocab, text))
    }
}

fn check_thought(rule: &ThoughtRule, vocab: usize, text: bool) -> Result<(), InvalidRequest> {
    if rule.budget.as_ref().is_some_and(|budget| budget.ending.is_empty()) {
        return Err(InvalidRequest::NoEnding);
    }
    if let Some(token) = rule.written().find(|&token| token as usize >= vocab) {
        return Err(InvalidRequest::UnknownEnding { token, vocab });
    }
    if rule.needs_text() && !text { Err(InvalidRequest::NoTextOfMarkers) } else { Ok(()) }
}

impl Output {
    /// Whether tokens are drawn.
    pub(crate) fn draws(self) -> bool {
        !matches!(self, Output::Logits | Output::Hidden | Output::MeanHidden)
    }
}
