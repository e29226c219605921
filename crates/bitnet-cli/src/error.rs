//! The error of a command: what failed, where, and what to do about it.

use std::{io, path::PathBuf};

use bitnet::inference::{GenerationError, InvalidConfig, StartError};
use bitnet::kernels::{KernelError, gpu::GpuError};
use bitnet::model::{ForwardError, ModelError};

/// The error of a command, printed as `<what> (<where>): <cure>`.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Open(bitnet::Error),
    #[error("{0} (forward pass): give the model more memory with --memory, or report this")]
    Forward(#[from] ForwardError),
    #[error("{0} (generation): check the model with `bitnet inspect`, or report this")]
    Generate(GenerationError),
    #[error("{what} ({flag}): {cure}")]
    Backend { what: String, flag: &'static str, cure: String, usage: bool },
    #[error("{what} (--device): {cure}")]
    Gpu { what: String, cure: String },
    #[error("{what} (--device): have a supervisor restart `bitnet serve` when it ends with 75")]
    Lost { what: String },
    /// A flag has an invalid value.
    #[error("{what} ({flag}): {cure}")]
    Usage { what: String, flag: String, cure: String },
    /// The model, the machine or a file does not allow it.
    #[error("{what} ({place}): {cure}")]
    Refused { what: String, place: String, cure: String },
    #[error("{given} bytes of memory are too few (--memory): this model needs at least {least} bytes here")]
    MemoryTooSmall { given: u64, least: u64 },
    #[error("the model gives no finite numbers ({model}): check its file, or report this")]
    NotFinite { model: String },
    #[error("cannot {action}: {source} ({}): check the path, its permissions and the free space", .path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot write the output: {0} (stdout): check where the output goes")]
    Stdout(io::Error),
    #[error("{what} ({place}): do not trust results from this machine, and report this")]
    Wrong { what: String, place: String },
}

impl CliError {
    /// Exit code of the program: 2 for wrong usage, 75 (`EX_TEMPFAIL`) for what a restart cures, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage { .. } | CliError::Backend { usage: true, .. } => 2,
            CliError::Lost { .. } => 75,
            _ => 1,
        }
    }

    pub fn usage(what: impl ToString, flag: impl ToString, cure: impl ToString) -> Self {
        CliError::Usage { what: what.to_string(), flag: flag.to_string(), cure: cure.to_string() }
    }

    /// Makes an error for something that the model, the machine or a file does not allow.
    pub fn refused(what: impl ToString, place: impl ToString, cure: impl ToString) -> Self {
        CliError::Refused { what: what.to_string(), place: place.to_string(), cure: cure.to_string() }
    }

    /// Makes an error for a file that could not be read or written.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| CliError::File { action, path: path.into(), source }
    }
}

/// Adds the flags that the errors are about.
impl From<bitnet::Error> for CliError {
    fn from(error: bitnet::Error) -> Self {
        use bitnet::Error;
        let cure = error.cure();
        match error {
            Error::Model(e) => e.into(),
            Error::Kernel(e) => e.into(),
            Error::Gpu(e) => e.into(),
            Error::MemoryLimit { given, needed } => CliError::MemoryTooSmall { given, least: needed },
            Error::MemoryUnknown => CliError::refused(
                "this system does not report how much memory is available",
                "--memory",
                cure,
            ),
            Error::GpuCache { kv } => {
                let what = format!("a GPU stores keys and values in bf16 or int8, not in {kv}");
                CliError::usage(what, "--kv", "choose one of these, or compute with --device cpu")
            }
            other @ (Error::HostCache { .. } | Error::Start(StartError::NoGpu)) => {
                let text = other.to_string();
                let what = text.split(" (host_cache)").next().unwrap_or_default();
                CliError::refused(what, "--cache-host", cure)
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
        // The cure follows the last semicolon or, if there is none, the last colon.
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
