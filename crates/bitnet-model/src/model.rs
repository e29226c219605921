use bitnet_kernels::{Ask, BackendInfo, DeviceStatus, Drawn, KernelError, gpu::GpuError};

use crate::{Batch, Logits, ModelSpec};

/// What a model was made for: all memory is taken when it is made, so these never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens in one step.
    pub max_tokens: usize,
    /// Most rows of logits in one step.
    pub max_logit_rows: usize,
    /// Blocks of the key-value cache, of [`Batch::BLOCK_TOKENS`] tokens each.
    pub kv_blocks: usize,
}

/// Why a step could not run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The step is larger than the model was made for.
    #[error("a step of {actual} {what}, at most {limit} are possible: split it, or raise the limit at start")]
    StepTooLarge {
        /// What there is too much of: `tokens`, `logit rows`.
        what: &'static str,
        /// How many the step has.
        actual: usize,
        /// How many are possible.
        limit: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("token {token} at index {index} of the step: the vocabulary has {vocab} ids, 0 to {}", .vocab - 1)]
    TokenOutOfRange {
        /// Which token of the step.
        index: usize,
        /// Its id.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A position beyond the longest sequence the model was made for.
    #[error("position {position}: the model's context ends at {context}")]
    ContextExceeded {
        /// The first position beyond.
        position: usize,
        /// The context in tokens.
        context: usize,
    },
    /// A block table names a block that does not exist.
    #[error("block {block}: the cache has {blocks}")]
    BlockOutOfRange {
        /// The block named.
        block: u32,
        /// Blocks of the cache.
        blocks: usize,
    },
    /// The backend failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl ForwardError {
    /// Whether the device has failed with all it held, so that no further step can run.
    pub fn is_lost(&self) -> bool {
        matches!(self, ForwardError::Kernel(KernelError::Gpu(GpuError::Failed { .. })))
    }
}

/// A language model with its weights and its key-value cache: the one dynamic boundary between scheduling and
/// numbers.
pub trait Model: Send {
    /// Sizes and switches.
    fn spec(&self) -> &ModelSpec;

    /// What it was made for.
    fn limits(&self) -> Limits;

    /// What it runs on.
    fn backend(&self) -> BackendInfo;

    /// Runs one step: stores keys and values of all its tokens and gives the logits of the wanted ones, in the
    /// order of [`Batch::logit_rows`]. What is not looked at ([`Batch::only_top`]) may be negative infinity.
    ///
    /// The logits of a token depend on its sequence's tokens up to it and on nothing else in the step.
    ///
    /// # Errors
    /// Before anything is written if the step does not fit; [`ForwardError::Kernel`] if the backend fails, after
    /// which the cached tokens of this step's runs are unspecified.
    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError>;

    /// As [`Model::forward`], with an ask, or none, for each wanted row. A model that draws tokens where it makes logits
    /// does so for the rows with an ask, and says what it drew in `drawn`; the logits of those rows are undefined.
    ///
    /// # Errors
    /// As [`Model::forward`].
    fn forward_drawing(
        &mut self,
        batch: &Batch,
        _asks: &[Option<Ask>],
        logits: &mut Logits,
        _drawn: &mut [Option<Drawn>],
    ) -> Result<(), ForwardError> {
        self.forward(batch, logits)
    }

    /// What the device says of itself; nothing, if that is the host.
    fn device(&self) -> Option<DeviceStatus> {
        None
    }

    /// Part of the positions in the last step's forward pass that held no token, from 0 to 1; `None` if the model
    /// does not know.
    fn padding(&self) -> Option<f64> {
        None
    }

    /// Copies keys and values of all layers from one block to another.
    ///
    /// # Errors
    /// If the backend fails.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError>;
}
