//! The names that users of other BitNet engines know, as thin layers over this crate's engine. The module `names` of
//! the crate `bitnet` shows each in a short program.

mod batches;
/// Generates a text, or a token, at a time; generators on the same engine share its steps.
pub mod generation;
mod gpu_inference_engine;
mod hybrid_scheduler;
mod padded_batch;
mod stateless_forward;
mod throughput_record;

pub use crate::request::GenerationConfig;
pub use batches::{BatchError, batch_generate, forward_batch, prefill_batch, process_batch};
pub use generation::{
    AutoregressiveGenerator, BatchHandle, BatchProcessor, BatchQueue, BatchRequest, InvalidBatching,
    QueueError,
};
pub use gpu_inference_engine::{
    BenchmarkError, BenchmarkRow, CudaError, GpuInferenceEngine, batch_generate_gpu,
};
pub use hybrid_scheduler::{Crossing, HybridScheduler};
pub use padded_batch::{EmptySequence, PaddedBatch};
pub use stateless_forward::{StatelessForward, blocking};
pub use throughput_record::{RecordError, ThroughputRecord};
