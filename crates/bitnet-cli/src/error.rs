use std::{io, path::PathBuf};

use bitnet_inference::{GenerateError, InvalidConfig};
use bitnet_kernels::{KernelError, gpu::GpuError};
use bitnet_model::{ForwardError, ModelError};

/// Why a command failed: `<what> (<where>): <cure>`.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The model could not be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model could not be opened.
    #[error(transparent)]
    Open(bitnet::Error),
    /// A forward pass failed.
    #[error("{0} (forward pass): give the model more memory with --memory, or report this")]
    Forward(#[from] ForwardError),
    /// Generation failed.
    #[error("{0} (generation): check the model with `bitnet inspect`, or report this")]
    Generate(GenerateError),
    /// The backend could not be made.
    #[error("{what} ({flag}): {cure}")]
    Backend {
        /// What is wrong.
        what: String,
        /// The flag that asked for it.
        flag: &'static str,
        /// What helps.
        cure: String,
        /// Whether this build could never do it.
        usage: bool,
    },
    /// There is no GPU to compute on, or it failed.
    #[error("{what} (--device): {cure}")]
    Gpu {
        /// What is wrong.
        what: String,
        /// What helps.
        cure: String,
    },
    /// A flag has a value that makes no sense.
    #[error("{what} ({flag}): {cure}")]
    Usage {
        /// What is wrong.
        what: String,
        /// The flag or argument.
        flag: String,
        /// What helps.
        cure: String,
    },
    /// Flag and model do not go together.
    #[error("{what} ({place}): {cure}")]
    Refused {
        /// What is wrong.
        what: String,
        /// The flag, argument or file.
        place: String,
        /// What helps.
        cure: String,
    },
    /// The model does not fit into `--memory`.
    #[error(
        "{given} bytes of memory hold no part of the work (--memory): this model needs at least {least} bytes here"
    )]
    MemoryTooSmall {
        /// What was given.
        given: u64,
        /// What would do.
        least: u64,
    },
    /// Logits, or what follows from them, are NaN or infinite.
    #[error("the model gives no finite numbers ({model}): check its file, or report this")]
    NotFinite {
        /// Its name.
        model: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action}: {source} ({}): check the path, its permissions and the free space", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody takes our output.
    #[error("cannot write the output: {0} (stdout): check where the output goes")]
    Stdout(io::Error),
    /// Kernels or batches that do not give what they must.
    #[error("{what} ({place}): do not trust results of this machine, and report this")]
    Wrong {
        /// What differs.
        what: String,
        /// Where it was seen.
        place: String,
    },
}

impl CliError {
    /// 2 for wrong usage, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage { .. } | CliError::Backend { usage: true, .. } => 2,
            _ => 1,
        }
    }

    /// Wrong usage.
    pub fn usage(what: impl ToString, flag: impl ToString, cure: impl ToString) -> Self {
        CliError::Usage { what: what.to_string(), flag: flag.to_string(), cure: cure.to_string() }
    }

    /// Something that this model cannot do.
    pub fn refused(what: impl ToString, place: impl ToString, cure: impl ToString) -> Self {
        CliError::Refused { what: what.to_string(), place: place.to_string(), cure: cure.to_string() }
    }

    /// A file that could not be read or written.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| CliError::File { action, path: path.into(), source }
    }
}

/// The same failures, with the flags that have to do with them.
impl From<bitnet::Error> for CliError {
    fn from(error: bitnet::Error) -> Self {
        use bitnet::Error;
        let cure = error.cure();
        match error {
            Error::Model(e) => e.into(),
            Error::Kernel(e) => e.into(),
            Error::Gpu(e) => e.into(),
            Error::MemoryLimit { given, needed } => CliError::MemoryTooSmall { given, least: needed },
            Error::MemoryUnknown => {
                CliError::refused("this system does not tell how much memory is available", "--memory", cure)
            }
            Error::GpuCache { kv } => {
                let what = format!("a GPU keeps keys and values in bf16, not in {kv}");
                CliError::usage(what, "--kv", "leave it out, or compute with --device cpu")
            }
            other => CliError::Open(other),
        }
    }
}

impl From<KernelError> for CliError {
    fn from(error: KernelError) -> Self {
        let (what, flag, cure, usage) = match error {
            KernelError::UnknownIsa { name, known } => (
                format!("unknown instruction set '{name}'"),
                "--isa",
                format!("choose one of auto, {known}"),
                true,
            ),
            KernelError::IsaUnavailable { name, available } => (
                format!("this CPU has no {name}"),
                "--isa",
                format!("choose one of auto, {available}"),
                false,
            ),
            KernelError::Thread { index, reason } => {
                let what = format!("cannot start worker thread {index}: {reason}");
                (what, "--threads", "use fewer threads".into(), false)
            }
            KernelError::OutOfMemory { what, bytes } => {
                let what = format!("no memory for {what}, {bytes} bytes");
                (what, "--memory", "give a smaller size, or free memory".into(), false)
            }
            KernelError::Gpu(gpu) => return gpu.into(),
            other => (other.to_string(), "--device", "use another device".into(), false),
        };
        CliError::Backend { what, flag, cure, usage }
    }
}

impl From<GpuError> for CliError {
    fn from(error: GpuError) -> Self {
        let text = error.to_string();
        // What and cure are parted by the last of these; in some the cure is all that follows a colon.
        let parts = text.rsplit_once("; ").or_else(|| text.rsplit_once(": "));
        let (what, cure) = parts.unwrap_or((&text, "use --device cpu"));
        CliError::Gpu { what: what.into(), cure: cure.into() }
    }
}

impl From<InvalidConfig> for CliError {
    fn from(error: InvalidConfig) -> Self {
        let flag = match error.field {
            "stop_strings" => "--stop".into(),
            field => format!("--{}", field.replace('_', "-")),
        };
        CliError::usage(
            format!("{} is {}", error.field, error.value),
            flag,
            format!("it must be {}", error.allowed),
        )
    }
}
