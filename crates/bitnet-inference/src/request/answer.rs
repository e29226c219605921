//! What an answer is made of: why it ended, and the log-probabilities of its tokens.

use std::fmt;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model drew one of its end tokens.
    Eos,
    /// The model drew one of the request's stop tokens.
    StopToken(u32),
    /// The text reached one of the request's stop strings, given by index.
    StopString(usize),
    /// `max_new_tokens` were generated.
    Length,
    /// The sequence reached the maximum length of the model's context.
    Context,
    /// The caller cancelled the request or dropped its handle.
    Cancelled,
    /// The generation failed; the error says why.
    Error,
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FinishReason::Eos | FinishReason::StopToken(_) | FinishReason::StopString(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Error => "error",
        })
    }
}

/// How a sequence ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Why it ended.
    pub finish: FinishReason,
    /// Bytes before a stop string that belong to no returned token.
    pub tail: Vec<u8>,
    /// The end token or stop token that was drawn, with its log-probabilities if requested. It is not returned as a
    /// token.
    pub end_token: Option<(u32, Option<TokenLogprobs>)>,
    /// Number of tokens of the thought, markers included.
    pub thought_tokens: usize,
    /// How many tokens at the beginning of the prompt were in the prefix cache when the sequence first ran.
    pub cached_tokens: usize,
    /// How well the request predicted its text; `None` if it did not.
    pub predicted: Option<Predicted>,
}

/// How well a request predicted its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Predicted {
    /// Tokens of the text that came as predicted.
    pub accepted: usize,
    /// Predicted tokens in whose place others came.
    pub rejected: usize,
}

/// Log-probabilities (natural logarithm) at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the drawn token.
    pub logprob: f32,
    /// The most likely tokens with their log-probabilities, most likely first.
    pub top: Vec<(u32, f32)>,
}
