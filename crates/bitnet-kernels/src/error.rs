/// Why a backend could not be made or could not run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The name is none of the instruction sets this build knows.
    #[error("unknown instruction set '{name}': choose one of auto, {known}")]
    UnknownIsa {
        /// The name asked for.
        name: String,
        /// Names this build knows.
        known: String,
    },
    /// This CPU lacks the instruction set.
    #[error("this CPU has no {name}: choose one of auto, {available}")]
    IsaUnavailable {
        /// The instruction set asked for.
        name: &'static str,
        /// Names this CPU can run.
        available: String,
    },
    /// The name is no type of cached keys and values.
    #[error("unknown type of cached keys and values '{name}': choose one of f32, f16, bf16, int8")]
    UnknownKv {
        /// The name asked for.
        name: String,
    },
    /// The system refused memory.
    #[error("no memory for {what} ({bytes} bytes): lower --memory or the context, or free memory")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Size asked for.
        bytes: usize,
    },
    /// A worker thread could not be started.
    #[error("cannot start worker thread {index}: {reason}: lower --threads")]
    Thread {
        /// Which worker.
        index: usize,
        /// What the system said.
        reason: String,
    },
    /// Weights that no backend computes with.
    #[error(transparent)]
    Weights(#[from] bitnet_tensor::TensorError),
    /// Stored groups of 64 columns whose scales are equal in pairs would give other bits than the groups of 128 that they
    /// are.
    #[error("groups of 64 columns have equal scales in pairs: convert the model again")]
    NotMerged,
    /// What the kernels of a GPU cannot do.
    #[error("{what} not built for the GPU yet: use --device cpu")]
    NotOnGpu {
        /// What was asked for, with its verb.
        what: &'static str,
    },
    /// A stored copy of an output head by which nothing can be ruled out.
    #[error("{value} as a scale, length or error in the copy of the output head: convert the model again")]
    Bound {
        /// The value found.
        value: f32,
    },
    /// There is no GPU to run on, or it failed.
    #[error(transparent)]
    Gpu(#[from] crate::gpu::GpuError),
}
