use std::fmt;

#[cfg(feature = "hub")]
use bitnet_hub::HubError;
use bitnet_inference::{GenerationError, InvalidRequest, RequestError, StartError, SubmitError};
use bitnet_kernels::{KernelError, KvType, gpu::GpuError};
use bitnet_model::{ForwardError, ModelError};

/// Why a model could not be opened or a request failed. Displays as one line, `<what> (<where>): <cure>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model could not be read.
    Model(#[from] ModelError),
    /// The model could not be fetched.
    #[cfg(feature = "hub")]
    Hub(#[from] HubError),
    /// Models by name are not part of this build.
    NoHub {
        /// What was asked for.
        model: String,
    },
    /// The backend could not be made.
    Kernel(KernelError),
    /// There is no GPU to compute on, or it failed.
    Gpu(#[from] GpuError),
    /// The memory allowed holds no part of the work.
    MemoryLimit {
        /// Bytes that were allowed.
        given: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// The memory of the machine holds no part of the work.
    Memory {
        /// Bytes that are available.
        available: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// A part of the memory was asked for on a system that does not say how much there is.
    MemoryUnknown,
    /// A GPU was asked for a cache of another type than it keeps.
    GpuCache {
        /// What was asked for.
        kv: KvType,
    },
    /// The engine did not start.
    Start(#[from] StartError),
    /// The model has no tokenizer, and the request needs one.
    NoTokenizer {
        /// The model.
        model: String,
    },
    /// The JSON schema cannot be followed.
    Schema {
        /// What is wrong with it.
        problem: String,
    },
    /// The request was refused, or failed on its way.
    Request(#[from] GenerationError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, place) = match self {
            Error::Model(e) => return e.fmt(f),
            #[cfg(feature = "hub")]
            Error::Hub(e) => return e.fmt(f),
            Error::NoHub { model } => (format!("{model} is the name of a model, not a file"), "feature hub"),
            Error::Kernel(e) => (e.to_string(), "backend"),
            Error::Gpu(e) => (parted(e).0, "device"),
            Error::MemoryLimit { given, .. } => {
                (format!("{given} bytes of memory hold no part of the work"), "memory")
            }
            Error::Memory { available, needed } => {
                let what = format!("the model needs at least {needed} bytes, and {available} are available");
                (what, "memory")
            }
            Error::MemoryUnknown => {
                ("this system does not tell how much memory is available".into(), "memory")
            }
            Error::GpuCache { kv } => (format!("a GPU keeps keys and values in bf16, not in {kv}"), "cache"),
            Error::Start(e) => (e.to_string(), "engine"),
            Error::NoTokenizer { model } => ("the model has no tokenizer".into(), model.as_str()),
            Error::Schema { problem } => (format!("the schema cannot be followed: {problem}"), "schema"),
            Error::Request(e) => (e.to_string(), "request"),
        };
        write!(f, "{what} ({place}): {}", self.cure())
    }
}

impl Error {
    /// What helps.
    pub fn cure(&self) -> String {
        let fixed = match self {
            Error::Model(e) => return after_place(e),
            #[cfg(feature = "hub")]
            Error::Hub(e) => return after_place(e),
            Error::Gpu(e) => return parted(e).1,
            Error::MemoryLimit { needed, .. } => {
                return format!("this model needs at least {needed} bytes here");
            }
            Error::NoHub { .. } => "build with the feature hub, or download the model and give its folder",
            Error::Kernel(KernelError::Thread { .. }) => "use fewer threads",
            Error::Kernel(KernelError::OutOfMemory { .. }) => "allow less memory, or free some",
            Error::Kernel(_) => "use another device or instruction set",
            Error::Memory { .. } => "free memory, or use a smaller model, batch or context",
            Error::MemoryUnknown => "give bytes instead of a percentage",
            Error::GpuCache { .. } => "leave the type open, or compute on the CPU",
            Error::Start(_) => "give at least 1 for every limit",
            Error::NoTokenizer { .. } => {
                "give token ids, or put the model's tokenizer.json beside its weights"
            }
            Error::Schema { .. } => "correct or simplify the schema",
            Error::Request(e) => request_cure(e),
        };
        fixed.into()
    }
}

/// A GPU's error and its cure, which follows the last of these; in some it is all that follows a colon.
fn parted(error: &GpuError) -> (String, String) {
    let text = error.to_string();
    let parts = text.rsplit_once("; ").or_else(|| text.rsplit_once(": "));
    let (what, cure) = parts.unwrap_or((&text, "compute on the CPU"));
    (what.into(), cure.into())
}

/// Messages of models and hubs end with their cure, after the place in brackets.
fn after_place(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    text.rsplit_once("): ").map_or("report this", |(_, cure)| cure).to_owned()
}

fn request_cure(error: &GenerationError) -> &'static str {
    match error {
        GenerationError::Submit(SubmitError::Invalid(invalid)) => match invalid {
            InvalidRequest::TooLong { .. } => "give a shorter prompt, or allow the model more memory",
            InvalidRequest::NoText => "use a model with a tokenizer",
            _ => "correct the request",
        },
        GenerationError::Submit(SubmitError::QueueFull { .. } | SubmitError::BacklogFull { .. }) => {
            "submit it later"
        }
        GenerationError::Request(RequestError::Timeout) => "give it more time",
        GenerationError::Request(RequestError::SlowReader) => "read the pieces as they come",
        GenerationError::Request(RequestError::Sample(_) | RequestError::Forward(_)) => {
            "check the model's files, or report this"
        }
        GenerationError::Request(RequestError::Constraint { .. }) => "correct the schema or constraint",
        _ => "open the model again",
    }
}

impl From<KernelError> for Error {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Gpu(gpu) => Error::Gpu(gpu),
            other => Error::Kernel(other),
        }
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Self {
        Error::Request(error.into())
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        Error::Request(error.into())
    }
}

impl From<ForwardError> for Error {
    fn from(error: ForwardError) -> Self {
        RequestError::from(error).into()
    }
}
