use std::{ptr, time::Duration};

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

/// A kernel with the types of its parameters, read from its text once.
#[derive(Debug, Clone)]
pub struct Entry {
    kernel: &'static Kernel,
    parameters: Vec<&'static str>,
}

impl Entry {
    /// Reads a kernel's parameters.
    pub fn of(kernel: &'static Kernel) -> Self {
        Entry { kernel, parameters: kernel.parameters() }
    }

    /// One run of the kernel.
    ///
    /// # Panics
    /// If the arguments are not of the number and types that the kernel's text declares.
    pub fn launch(&self, grid: Grid, args: &[Arg]) -> Launch {
        assert!(
            args.iter().map(|arg| arg.declared()).eq(self.parameters.iter().copied()),
            "{} takes {:?}, not {args:?}",
            self.kernel.name,
            self.parameters
        );
        Launch { kernel: self.kernel, grid, args: args.to_vec() }
    }
}

/// One run of a kernel, with as many arguments as its text declares, each of the declared type: only
/// [`Entry::launch`] makes one.
#[derive(Debug, Clone)]
pub struct Launch {
    kernel: &'static Kernel,
    grid: Grid,
    args: Vec<Arg>,
}

impl Launch {
    /// What runs.
    pub fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// In how many blocks.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// On what.
    pub fn args(&self) -> &[Arg] {
        &self.args
    }
}

/// Launches are equal if they do the same to the same memory: same kernel, grid and arguments.
impl PartialEq for Launch {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.kernel, other.kernel) && self.grid == other.grid && self.args == other.args
    }
}

/// Points in the queue that a driver can mark, numbered from zero.
pub const MARKS: usize = 4;

/// A GPU's driver: memory, kernels, and one queue in which everything happens in the order it was called.
///
/// Two implement it, [`super::Cuda`] and the simulator of the tests, so that what tests launch is what users launch.
/// A kernel gets addresses as they are: that they point to what it expects is the launch code's matter. A wrong one
/// can spoil the GPU's memory and end in [`GpuError::Failed`], but not touch the host's.
pub trait Driver: Send {
    /// A kernel ready to be launched.
    type Function: Send;
    /// Launches ready to be run together.
    type Graph: Send;

    /// What the GPU is.
    fn info(&self) -> &DeviceInfo;

    /// Whether machine code is made of kernels' texts, by a compiler that can be wrong. If so, each kernel is tried on a
    /// known question when the GPU is opened.
    fn compiles(&self) -> bool;

    /// Bytes of device memory that are free.
    fn free_memory(&self) -> Result<usize, GpuError>;

    /// Takes `bytes` of zeroed device memory, aligned to 256 bytes; `what` is for people.
    fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<u64, GpuError>;

    /// Gives memory back.
    fn free(&mut self, address: u64);

    /// Copies to the device, after all that was called before; `bytes` are not needed any more when this returns.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError>;

    /// Copies from the device, when all that was called before is done.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Makes a kernel of its text.
    fn load(&mut self, kernel: &'static Kernel) -> Result<Self::Function, GpuError>;

    /// Runs a kernel, loaded as `function`.
    fn launch(&mut self, launch: &Launch, function: &Self::Function) -> Result<(), GpuError>;

    /// Makes one piece of work of many launches, each with its loaded kernel. Nothing runs.
    fn record(&mut self, launches: &[(&Launch, &Self::Function)]) -> Result<Self::Graph, GpuError>;

    /// Runs what was recorded.
    fn replay(&mut self, graph: &Self::Graph) -> Result<(), GpuError>;

    /// Gives back what was recorded.
    fn discard(&mut self, graph: Self::Graph);

    /// Marks this point of the queue, in the place of what was marked so before.
    fn mark(&mut self, mark: usize) -> Result<(), GpuError>;

    /// Time on the device between two marks, both of which it has passed.
    fn between(&mut self, from: usize, to: usize) -> Result<Duration, GpuError>;

    /// Waits until all that was called before is done.
    fn synchronize(&mut self) -> Result<(), GpuError>;
}
