//! One token, or one text, at a time, while others do the same.

mod autoregressive;
mod batch_processor;

pub use autoregressive::AutoregressiveGenerator;
pub use batch_processor::{
    BatchHandle, BatchProcessor, BatchQueue, BatchRequest, InvalidBatching, QueueError,
};
