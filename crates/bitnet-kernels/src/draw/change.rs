//! Changes of logits before a token is drawn: penalties, biases, tokens that are forbidden, and sets of the only tokens
//! that are not.

/// Number of changed logits of a row for which backends have memory from the beginning. Where more are changed, all logits
/// are asked for and the caller draws.
pub const MAX_CHANGES: usize = 2048;

/// A change of a token's logit. The operations are done in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The token.
    pub token: u32,
    /// Divides a positive logit and multiplies any other; 1 is neutral.
    pub repetition: f32,
    /// Is subtracted.
    pub less: f32,
    /// Is added; negative infinity forbids the token.
    pub more: f32,
}

/// What is done to the rows of a step before tokens are drawn from them. [`Wanted::Changed`] says which part belongs to
/// a row.
///
/// [`Wanted::Changed`]: crate::Wanted::Changed
#[derive(Debug, Clone, Copy, Default)]
pub struct Edits<'a> {
    /// Changes of single logits, row by row.
    pub changes: &'a [Change],
    /// Sets of tokens, `[rows][vocab.div_ceil(32)]`: token `t` is bit `t % 32` of word `t / 32`; other bits
    /// are 0.
    pub masks: &'a [u32],
}

impl Change {
    /// A change that changes nothing.
    pub fn none(token: u32) -> Self {
        Change { token, repetition: 1.0, less: 0.0, more: 0.0 }
    }

    /// The changed logit.
    pub fn apply(&self, logit: f32) -> f32 {
        if self.more == f32::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        let logit = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        logit - self.less + self.more
    }
}
