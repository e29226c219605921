//! The token counts of a request.

use bitnet::inference::Predicted;

/// The token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Tokens in all prompts.
    pub prompt: usize,
    /// Tokens at the beginning of the prompts that were in the prefix cache; `None` if that is not to be told, because the
    /// answer must be the same whenever it is computed.
    pub cached: Option<usize>,
    /// Tokens generated in all choices.
    pub generated: usize,
    /// How many of them belong to thoughts.
    pub thought: usize,
    /// How well the request predicted its text, if it did.
    pub predicted: Option<Predicted>,
}

impl Usage {
    /// All tokens.
    pub fn total(&self) -> usize {
        self.prompt + self.generated
    }
}
