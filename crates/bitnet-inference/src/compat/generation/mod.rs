mod autoregressive;
mod batch_processor;

pub use autoregressive::AutoregressiveGenerator;
pub use batch_processor::{
    BatchHandle, BatchProcessor, BatchQueue, BatchRequest, InvalidBatching, QueueError,
};
