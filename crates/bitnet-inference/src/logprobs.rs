/// Log-probabilities (natural logarithm) at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the drawn token.
    pub logprob: f32,
    /// The most likely tokens with their log-probabilities, most likely first.
    pub top: Vec<(u32, f32)>,
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
