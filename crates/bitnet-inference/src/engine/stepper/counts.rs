//! What steps count: failures, times and where tokens were drawn.

use std::time::Duration;

use crate::request::RequestError;

/// Counts of failures in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepFaults {
    /// Forward passes that failed.
    pub failed_forwards: u64,
    /// Forward passes tried again after a failure, whole or halved.
    pub retries: u64,
    /// Sequences computed again because a failed pass left their recurrent states undefined.
    pub rolled_back: u64,
    /// Sequences that failed because the forward pass failed even with them alone.
    pub forward: u64,
    /// Sequences that failed because no token could be drawn.
    pub sampling: u64,
    /// Sequences whose constraint failed.
    pub constraint: u64,
    /// Sequences that failed because something panicked.
    pub panics: u64,
    /// Failures of the drafter, which cost drafts and nothing else.
    pub drafter: u64,
}

impl StepFaults {
    pub(super) fn count(&mut self, error: &RequestError) {
        *match error {
            RequestError::Sample(_) => &mut self.sampling,
            RequestError::Constraint { .. } => &mut self.constraint,
            RequestError::Panic { .. } => &mut self.panics,
            _ => &mut self.forward,
        } += 1;
    }

    /// Total number of failed sequences.
    pub fn failed_sequences(&self) -> u64 {
        self.forward + self.sampling + self.constraint + self.panics
    }
}

/// Times of the parts of a step. Those of the computation include failed attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTimes {
    /// Planning, and telling readers whose requests are admitted.
    pub plan: Duration,
    /// Passes of the drafter.
    pub draft: Duration,
    /// Packing, the forward pass and drawing, with everything between.
    pub compute: Duration,
    /// Packing the batch for the model.
    pub pack: Duration,
    /// The forward pass.
    pub forward: Duration,
    /// Drawing tokens.
    pub sample: Duration,
    /// Applying the results.
    pub commit: Duration,
    /// Delivering tokens and ends to readers.
    pub deliver: Duration,
}

/// Where tokens were drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Draws {
    /// Tokens drawn by the backend that computed the logits: on a GPU, or on the CPU from bounds.
    pub device: u64,
    /// Tokens drawn on the host from rows of logits, which a GPU copies back.
    pub host: u64,
}
