//! What the output head has computed.

/// Counts the work of the output head so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadCounts {
    /// Rows for which all logits were computed.
    pub whole: u64,
    /// Rows whose highest logits were found by bounds.
    pub shortlisted: u64,
    /// Rows from which a token was drawn by bounds.
    pub drawn: u64,
    /// Rows from which bounds could not draw a token, so that all logits were computed.
    pub undecided: u64,
    /// Logits of rows with bounds that could not be ruled out and were computed.
    pub rescored: u64,
}
