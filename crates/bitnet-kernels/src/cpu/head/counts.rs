//! What the output head has computed.

use std::ops;

/// Counts the work of the output head so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadCounts {
    /// Rows for which all logits were computed.
    pub whole: u64,
    /// Rows whose highest logits were found by bounds.
    pub shortlisted: u64,
    /// Rows from which a token was drawn by bounds.
    pub drawn: u64,
    /// Rows whose token was drawn from the logits of few allowed tokens, which alone were computed.
    pub allowed: u64,
    /// Rows from which bounds could not draw a token, so that all logits were computed.
    pub undecided: u64,
    /// Logits of other rows that were computed, one by one: those of allowed tokens, and those that bounds did not rule out.
    pub rescored: u64,
}

impl ops::Add for HeadCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }
}

impl ops::Sub for HeadCounts {
    type Output = Self;

    /// The work since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        self.with(earlier, |a, b| a - b)
    }
}

impl HeadCounts {
    fn with(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        HeadCounts {
            whole: of(self.whole, other.whole),
            shortlisted: of(self.shortlisted, other.shortlisted),
            drawn: of(self.drawn, other.drawn),
            allowed: of(self.allowed, other.allowed),
            undecided: of(self.undecided, other.undecided),
            rescored: of(self.rescored, other.rescored),
        }
    }
}
