//! The names that users of other BitNet engines know, as thin layers over this crate's engine. The module `names` of
//! the crate `bitnet` shows each in a short program.

pub use crate::batch::{BatchError, batch_generate, forward_batch, prefill_batch, process_batch};
pub use crate::config::GenerationConfig;
pub use crate::generation::{
    AutoregressiveGenerator, BatchHandle, BatchProcessor, BatchQueue, BatchRequest, InvalidBatching,
    QueueError,
};
pub use crate::gpu::{BenchmarkError, BenchmarkRow, CudaError, GpuInferenceEngine, batch_generate_gpu};
pub use crate::hybrid::{Crossing, HybridScheduler};
pub use crate::padded::{EmptySequence, PaddedBatch};
pub use crate::stateless::{StatelessForward, blocking};
pub use crate::throughput::{RecordError, ThroughputRecord};
