/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that was drawn.
    pub logprob: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Why a row of logits gave no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The model computed no number for this token.
    #[error("the logit of token {token} is not a number")]
    NotANumber {
        /// The first such token.
        token: u32,
    },
    /// Every token has probability zero.
    #[error("every token is forbidden")]
    NothingAllowed,
}
