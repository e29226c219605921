//! Errors of backends.

/// An error in making or running a backend.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum KernelError {
    /// This build knows no instruction set of this name.
    #[error("unknown instruction set '{name}': choose one of auto, {known}")]
    UnknownIsa { name: String, known: String },
    /// This CPU does not support the instruction set.
    #[error("this CPU has no {name}: choose one of auto, {available}")]
    IsaUnavailable { name: &'static str, available: String },
    /// The cache has no type of this name.
    #[error("unknown type of cached keys and values '{name}': choose one of f32, f16, bf16, int8")]
    UnknownKv { name: String },
    /// The system refused an allocation.
    #[error("no memory for {what} ({bytes} bytes): lower --memory or the context, or free memory")]
    OutOfMemory { what: &'static str, bytes: usize },
    /// A worker thread could not be started.
    #[error("cannot start worker thread {index}: {reason}: lower --threads")]
    Thread { index: usize, reason: String },
    /// The weights are invalid.
    #[error(transparent)]
    Weights(#[from] bitnet_tensor::TensorError),
    /// Stored groups of 64 columns have equal scales in pairs and should have been merged to groups of 128, which give
    /// other bits.
    #[error("groups of 64 columns have equal scales in pairs: convert the model again")]
    NotMerged,
    /// The stored copy of an output head has a scale, norm or error that cannot bound a logit.
    #[error("the copy of the output head holds an invalid value ({value}): convert the model again")]
    Bound { value: f32 },
    /// Only projections may be int8.
    #[error("an embedding, output head or expert cannot be int8: give it as floats or trits")]
    NoInt8,
    /// There is no usable GPU, or it failed.
    #[error(transparent)]
    Gpu(#[from] crate::gpu::GpuError),
}
