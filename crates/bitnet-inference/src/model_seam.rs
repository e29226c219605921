use bitnet_model::{Batch, Logits, ModelSpec};

/// What a model was built to bear; all its memory is taken when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens in one step.
    pub max_tokens: usize,
    /// Most rows of logits in one step.
    pub max_logit_rows: usize,
    /// Blocks of the key-value cache.
    pub kv_blocks: usize,
}

/// Why a step gave no logits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The device refused or failed.
    #[error("the forward pass failed: {message}")]
    Device {
        /// What the device said.
        message: String,
    },
}

/// A language model with its key-value memory: the one dynamic boundary between numbers and bookkeeping.
pub trait Model: Send {
    /// Sizes and switches.
    fn spec(&self) -> &ModelSpec;

    /// What one step may hold.
    fn limits(&self) -> Limits;

    /// Runs a step; `logits` gets one row for each of [`Batch::logit_rows`], in that order.
    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError>;

    /// Copies the keys and values of one block onto another.
    fn copy_block(&mut self, from: u32, to: u32);
}
