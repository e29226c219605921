//! Generates a text, or a token, at a time; generators on the same engine share its steps.

mod autoregressive;
mod batch_processor;

pub use autoregressive::AutoregressiveGenerator;
pub use batch_processor::{
    BatchHandle, BatchProcessor, BatchQueue, BatchRequest, InvalidBatching, QueueError,
};
