/// Why there is no GPU to run on, or what went wrong on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The driver's library is not on this machine.
    #[error("no NVIDIA driver: libcuda was not found; install the driver, or use --device cpu")]
    DriverMissing,
    /// The driver's library lacks a function that every driver in use has.
    #[error("the NVIDIA driver has no {symbol}: install driver 470 or newer, or use --device cpu")]
    SymbolMissing {
        /// What was being looked for.
        symbol: String,
    },
    /// The driver is there and does not start.
    #[error("the NVIDIA driver does not start ({reason}): reinstall it, or use --device cpu")]
    Unavailable {
        /// What it said.
        reason: String,
    },
    /// The driver cannot read the kernels.
    #[error(
        "the NVIDIA driver supports CUDA {}.{}, the kernels need 11.4: install driver 470 or newer, or use \
         --device cpu", .version / 1000, .version % 1000 / 10
    )]
    DriverTooOld {
        /// Version of CUDA that it supports, `1000 * major + 10 * minor`.
        version: i32,
    },
    /// No GPU of this number.
    #[error("no GPU {index}: this machine has {count}; choose another, or use --device cpu")]
    NoDevice {
        /// The number asked for, from zero.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A GPU that lacks instructions of the kernels.
    #[error(
        "{name} has compute capability {major}.{minor}, the kernels need 8.0 (Ampere) or newer: use \
         --device cpu"
    )]
    TooOld {
        /// The GPU.
        name: String,
        /// Compute capability.
        major: u32,
        /// Compute capability.
        minor: u32,
    },
    /// The GPU has not the memory.
    #[error(
        "no GPU memory for {what} ({bytes} bytes, {free} free): lower --memory or the context, or free memory"
    )]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Size asked for.
        bytes: usize,
        /// Size left.
        free: usize,
    },
    /// The GPU has not the memory for a kernel's code.
    #[error("no GPU memory to load kernel {kernel}: lower --memory or the context, or free memory")]
    NoRoomForKernel {
        /// The kernel.
        kernel: &'static str,
    },
    /// The driver came without its compiler.
    #[error(
        "the NVIDIA driver's compiler is missing: install libnvidia-ptxjitcompiler in the driver's version, or use \
         --device cpu"
    )]
    CompilerMissing,
    /// The driver refused a kernel.
    #[error("the NVIDIA driver refused kernel {kernel}: {log}; update the driver, or use --device cpu")]
    ModuleRefused {
        /// The kernel.
        kernel: &'static str,
        /// What the driver's compiler said.
        log: String,
    },
    /// A launch could not be recorded; it runs without a recording.
    #[error("launches were not recorded: {reason}")]
    NotRecorded {
        /// What the driver said.
        reason: String,
    },
    /// The environment asks for something that cannot be switched.
    #[error(
        "{switch:?} in BITNET_GPU is not a switch: give some of no-recordings, sync, patience=SECONDS and \
         optimise=0 to 4, with commas"
    )]
    UnknownSwitch {
        /// As it was given.
        switch: String,
    },
    /// A kernel computes something else than the reference: the driver's compiler or the GPU is at fault.
    #[error("kernel {kernel} computes wrong results {seen}; update the driver, or use --device cpu")]
    WrongResult {
        /// The kernel, or those of which it is one.
        kernel: String,
        /// On which GPU and driver, and what differs.
        seen: String,
    },
    /// A row that does not fit the memory that the threads of a block share.
    #[error(
        "{kernel} needs {bytes} bytes of shared memory for a row this wide, {name} has {limit}: use \
         --device cpu"
    )]
    RowTooWide {
        /// The kernel.
        kernel: &'static str,
        /// Size needed.
        bytes: u32,
        /// The GPU.
        name: String,
        /// Size of one block's shared memory.
        limit: u32,
    },
    /// Heads that no attention kernel has room for.
    #[error("heads are {head_dim} wide, the GPU's kernels take up to {limit}: use --device cpu")]
    HeadTooWide {
        /// Width of a head.
        head_dim: usize,
        /// The widest that the kernels take.
        limit: usize,
    },
    /// The GPU failed. Its context stays broken as long as the process lives.
    #[error("the GPU failed in {during}: {reason}; restart the process")]
    Failed {
        /// The call, or the kernel.
        during: &'static str,
        /// What the driver said.
        reason: String,
    },
}
