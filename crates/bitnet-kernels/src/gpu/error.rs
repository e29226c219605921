//! Errors of the GPU backend. Each says what the user can do about it.

use super::tilings::FILE;

/// There is no usable GPU, or it failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum GpuError {
    /// The driver's library is not on this machine.
    #[error("no NVIDIA driver: libcuda was not found; install the driver, or use --device cpu")]
    DriverMissing,
    /// The driver's library lacks a function.
    #[error("the NVIDIA driver has no {symbol}: install driver 470 or newer, or use --device cpu")]
    SymbolMissing { symbol: String },
    /// The driver is installed but does not start.
    #[error("the NVIDIA driver does not start ({reason}): reinstall it, or use --device cpu")]
    Unavailable { reason: String },
    /// The driver does not give the GPU to this program.
    #[error(
        "{name} is busy ({reason}): end the program that holds it or its memory, choose another with --device cuda:N, \
         or use --device cpu"
    )]
    Busy { name: String, reason: String },
    /// The driver is too old for the kernels.
    #[error(
        "the NVIDIA driver supports CUDA {}.{}, the kernels need 11.4: install driver 470 or newer, or use \
         --device cpu", .version / 1000, .version % 1000 / 10
    )]
    DriverTooOld {
        /// Version of CUDA that the driver supports, `1000 * major + 10 * minor`.
        version: i32,
    },
    /// There is no GPU with this number; the first is 0.
    #[error("no GPU {index}: this machine has {count}; choose another, or use --device cpu")]
    NoDevice { index: usize, count: usize },
    /// The GPU lacks instructions that the kernels need.
    #[error(
        "{name} has compute capability {major}.{minor}, the kernels need 8.0 (Ampere) or newer: use \
         --device cpu"
    )]
    TooOld { name: String, major: u32, minor: u32 },
    /// The GPU does not have enough memory.
    #[error(
        "no GPU memory for {what} ({bytes} bytes, {free} free): lower --memory or the context, or free memory"
    )]
    OutOfMemory { what: &'static str, bytes: usize, free: usize },
    /// The GPU does not have enough memory for the code of a kernel.
    #[error("no GPU memory to load kernel {kernel}: lower --memory or the context, or free memory")]
    NoRoomForKernel { kernel: &'static str },
    /// The driver was installed without its compiler.
    #[error(
        "the NVIDIA driver's compiler is missing: install libnvidia-ptxjitcompiler in the driver's version, or use \
         --device cpu"
    )]
    CompilerMissing,
    /// The driver refused a kernel.
    #[error(
        "the NVIDIA driver refused kernel {kernel}: {}; update the driver, or use --device cpu",
        joined(log)
    )]
    ModuleRefused { kernel: &'static str, log: String },
    /// The GPU failed at a recording when it was opened, and could not be opened again.
    #[error(
        "the GPU failed when recordings were tried ({reason}): restart the process with BITNET_GPU=no-recordings"
    )]
    TrialFailed { reason: String },
    /// `BITNET_GPU` contains an unknown switch.
    #[error(
        "{switch:?} in BITNET_GPU is not a switch: give any of no-overlap, no-bounds, unchecked, tiles-by-size, \
         compile, no-recordings, sync, patience=SECONDS and optimise=0 to 4, separated by commas"
    )]
    UnknownSwitch { switch: String },
    /// The file of measured launches cannot be read, or is for other kernels.
    #[error(
        "{FILE} beside the program: {reason}; write it again with `bitnet bench --kernels --tune`, or delete it"
    )]
    Tilings { reason: String },
    /// A kernel's results differ from the reference: the driver's compiler or the GPU is at fault.
    #[error("kernel {kernel} computes wrong results {seen}; update the driver, or use --device cpu")]
    WrongResult { kernel: String, seen: String },
    /// A row does not fit the shared memory of a block.
    #[error(
        "{kernel} needs {bytes} bytes of shared memory for a row this wide, {name} has {limit}: use \
         --device cpu"
    )]
    RowTooWide { kernel: &'static str, bytes: u32, name: String, limit: u32 },
    /// The heads are too wide for the kernels of attention or of gated-delta layers.
    #[error(
        "heads of {what} are {head_dim} wide, and the GPU kernels take at most {limit}: use --device cpu"
    )]
    HeadTooWide { what: &'static str, head_dim: usize, limit: usize },
    /// The GPU failed. Its context stays broken until the process ends.
    #[error("the GPU failed in {during}: {reason}; restart the process")]
    Failed { during: &'static str, reason: String },
}

/// The lines of a driver's log as one, because an error is one line.
fn joined(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}
