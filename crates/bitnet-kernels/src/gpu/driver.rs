use super::{GpuError, table::Kernel};

/// What a driver says about its GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// As the vendor calls it.
    pub name: String,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Version of CUDA that the driver supports, `1000 * major + 10 * minor`.
    pub driver: i32,
    /// Bytes of device memory.
    pub memory: usize,
    /// Bytes of shared memory that a block may ask for.
    pub shared: u32,
    /// Multiprocessors.
    pub processors: u32,
}

/// One argument of a kernel, of the type its parameter is declared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    /// `.u32`
    U32(u32),
    /// `.u64`, or a device address.
    U64(u64),
    /// `.f32`
    F32(f32),
    /// `.f64`
    F64(f64),
}

impl Arg {
    /// The type that its parameter is declared with.
    pub fn declared(self) -> &'static str {
        match self {
            Arg::U32(_) => ".u32",
            Arg::U64(_) => ".u64",
            Arg::F32(_) => ".f32",
            Arg::F64(_) => ".f64",
        }
    }
}

/// Shape of a launch; the block is the kernel's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Bytes of the `.extern .shared` array.
    pub shared: u32,
}

/// A GPU's driver: memory, kernels, and one queue in which everything happens in the order it was called.
///
/// Two implement it, [`super::Cuda`] and the simulator of the tests, so that what tests launch is what users launch.
/// A kernel gets as many arguments as its text declares, each of the declared type: every launch is held to that. It
/// gets addresses as they are: that they point to what it expects is the launch code's matter. A wrong one
/// can spoil the GPU's memory and end in [`GpuError::Failed`], but not touch the host's.
pub trait Driver: Send {
    /// A kernel ready to be launched.
    type Function: Send;

    /// What the GPU is.
    fn info(&self) -> &DeviceInfo;

    /// Bytes of device memory that are free.
    fn free_memory(&self) -> Result<usize, GpuError>;

    /// Takes `bytes` of zeroed device memory, aligned to 256 bytes; `what` is for people.
    fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<u64, GpuError>;

    /// Gives memory back.
    fn free(&mut self, address: u64);

    /// Copies to the device.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError>;

    /// Copies from the device, when all that was called before is done.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Makes a kernel of its text.
    fn load(&mut self, kernel: &'static Kernel) -> Result<Self::Function, GpuError>;

    /// Runs a kernel.
    ///
    /// # Panics
    /// If the arguments are not of the number and types that the kernel's text declares.
    fn launch(
        &mut self,
        kernel: &'static Kernel,
        function: &Self::Function,
        grid: Grid,
        args: &[Arg],
    ) -> Result<(), GpuError>;

    /// Waits until all that was called before is done.
    fn synchronize(&mut self) -> Result<(), GpuError>;
}
