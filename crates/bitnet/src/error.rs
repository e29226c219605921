//! The error of every call of this crate, each with what to do about it.

use std::fmt;

#[cfg(feature = "hub")]
use bitnet_hub::HubError;
use bitnet_inference::{
    DraftModelError, GenerationError, InvalidRequest, RequestError, StartError, SubmitError,
};
use bitnet_kernels::{KernelError, KvType, gpu::GpuError};
use bitnet_model::{ForwardError, ModelError};

/// Why a model could not be opened or a request failed. Its `Display` is one line, `<what> (<where>): <cure>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum Error {
    /// The model could not be read.
    Model(#[from] ModelError),
    /// The model could not be downloaded.
    #[cfg(feature = "hub")]
    Hub(#[from] HubError),
    /// The model was given by name, but this build lacks the feature `hub`.
    NoHub { model: String },
    /// The backend could not be created.
    Kernel(KernelError),
    /// There is no usable GPU, or it failed.
    Gpu(#[from] GpuError),
    /// The memory limit is too small for the model.
    MemoryLimit {
        /// The limit in bytes.
        given: u64,
        /// Minimum number of bytes needed.
        needed: u64,
    },
    /// The machine has too little memory for the model.
    Memory {
        /// Number of available bytes.
        available: u64,
        /// Minimum number of bytes needed.
        needed: u64,
    },
    /// The limit is a percentage, but the system does not report how much memory is available.
    MemoryUnknown,
    /// The requested cache type is not supported on a GPU.
    GpuCache { kv: KvType },
    /// The model was to draft with a head that its files do not have.
    NoDraftHead { model: String },
    /// A model cannot draft for another one.
    Draft(#[from] DraftModelError),
    /// The machine has too little memory for the cache that was to be kept there.
    HostCache {
        /// Number of bytes wanted.
        bytes: u64,
        /// Number of available bytes.
        available: u64,
    },
    /// The engine did not start.
    Start(#[from] StartError),
    /// The request needs a tokenizer, but the model has none.
    NoTokenizer { model: String },
    /// The model does not embed texts.
    NoEmbeddings { model: String },
    /// The JSON schema, regular expression or choice cannot be followed.
    Schema { problem: String },
    /// The request was refused or failed.
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
                (format!("{given} bytes of memory are too few for this model"), "memory")
            }
            Error::Memory { available, needed } => {
                let what =
                    format!("the model needs at least {needed} bytes, but only {available} are available");
                (what, "memory")
            }
            Error::MemoryUnknown => {
                ("this system does not report how much memory is available".into(), "memory")
            }
            Error::GpuCache { kv } => {
                (format!("a GPU keeps keys and values in bf16 or int8, not in {kv}"), "cache")
            }
            Error::NoDraftHead { model } => {
                ("the model has no head that drafts tokens".into(), model.as_str())
            }
            Error::Draft(e) => {
                let text = e.to_string();
                let what = text.rsplit_once(": ").map_or(&*text, |(what, _)| what);
                (what.into(), "draft")
            }
            Error::HostCache { bytes, available } => (
                format!(
                    "{bytes} bytes of host memory were to keep the cache, but only {available} are available"
                ),
                "host_cache",
            ),
            Error::Start(StartError::Folder(e)) => return e.fmt(f),
            Error::Start(e @ StartError::NoGpu) => {
                let text = e.to_string();
                (text.trim_end_matches(" (host_cache)").into(), "host_cache")
            }
            Error::Start(e) => (e.to_string(), "engine"),
            Error::NoTokenizer { model } => ("the model has no tokenizer".into(), model.as_str()),
            Error::NoEmbeddings { model } => ("the model does not embed texts".into(), model.as_str()),
            Error::Schema { problem } => (format!("the schema cannot be followed: {problem}"), "schema"),
            Error::Request(GenerationError::Start(StartError::Folder(e))) => return e.fmt(f),
            Error::Request(e) => (e.to_string(), "request"),
        };
        write!(f, "{what} ({place}): {}", self.cure())
    }
}

impl Error {
    /// What to do about the error.
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
            Error::GpuCache { .. } => "choose one of these, or compute on the CPU",
            Error::NoDraftHead { .. } => {
                "draft with auto, ngram or a smaller model, or use files that have the head, such as a GGUF file with \
                 nextn tensors or a folder with model_mtp.safetensors"
            }
            Error::Draft(e) => {
                let text = e.to_string();
                return text.rsplit_once(": ").map_or("report this", |(_, cure)| cure).to_owned();
            }
            Error::Start(StartError::Folder(e)) => e.cure,
            Error::HostCache { .. } => "give it less, or free memory",
            Error::Start(StartError::NoGpu) => "compute on a GPU, or leave it out",
            Error::Start(StartError::NoLogs { .. }) => "draft fewer tokens, or use fewer sequences",
            Error::Start(StartError::CacheStays) => "leave out the folder for the cache",
            Error::Start(_) => "give at least 1 for every limit",
            Error::NoTokenizer { .. } => {
                "give token ids, or put the model's tokenizer.json next to its weights"
            }
            Error::NoEmbeddings { .. } => "ask it for text, or open an embedding model",
            Error::Schema { .. } => "correct or simplify the schema",
            Error::Request(e) => request_cure(e),
        };
        fixed.into()
    }
}

/// Splits a GPU's error into problem and cure, at the last semicolon or else the last colon.
fn parted(error: &GpuError) -> (String, String) {
    let text = error.to_string();
    let parts = text.rsplit_once("; ").or_else(|| text.rsplit_once(": "));
    let (what, cure) = parts.unwrap_or((&text, "compute on the CPU"));
    (what.into(), cure.into())
}

/// The cure of a message of a model or the hub, which follows the place in brackets.
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
        GenerationError::Start(StartError::Folder(e)) => e.cure,
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
