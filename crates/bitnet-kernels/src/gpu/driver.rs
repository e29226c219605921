use std::{
    mem::{Discriminant, discriminant},
    ptr,
    time::Duration,
};

use super::{GpuError, table::Kernel};

/// Properties of a GPU, as its driver reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The vendor's name for it.
    pub name: String,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Version of CUDA that the driver supports, `1000 * major + 10 * minor`.
    pub driver: i32,
    /// Bytes of device memory.
    pub memory: usize,
    /// Maximum shared memory of a block in bytes.
    pub shared: u32,
    /// Number of multiprocessors.
    pub processors: u32,
}

/// One argument of a kernel, with the declared type of its parameter.
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
    /// Declared type of the parameter.
    pub fn declared(self) -> &'static str {
        match self {
            Arg::U32(_) => ".u32",
            Arg::U64(_) => ".u64",
            Arg::F32(_) => ".f32",
            Arg::F64(_) => ".f64",
        }
    }

    /// The bits of the value, the lowest first.
    pub(super) fn bits(&self) -> u64 {
        match *self {
            Arg::U32(x) => u64::from(x),
            Arg::U64(x) => x,
            Arg::F32(x) => u64::from(x.to_bits()),
            Arg::F64(x) => x.to_bits(),
        }
    }
}

/// Shape of a launch; the kernel determines the size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Number of blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Bytes of the `.extern .shared` array.
    pub shared: u32,
}

/// A kernel and the types of its parameters, read once from its text.
#[derive(Debug, Clone)]
pub struct Entry {
    kernel: &'static Kernel,
    /// `None` for a type that no argument has.
    parameters: Vec<Option<Discriminant<Arg>>>,
}

impl Entry {
    /// Reads a kernel's parameters.
    pub fn of(kernel: &'static Kernel) -> Self {
        let all = [Arg::U32(0), Arg::U64(0), Arg::F32(0.0), Arg::F64(0.0)];
        let of = |declared| all.iter().find(|arg| arg.declared() == declared).map(discriminant);
        Entry { kernel, parameters: kernel.parameters().into_iter().map(of).collect() }
    }

    /// The kernel.
    pub fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// Makes a launch of the kernel.
    ///
    /// # Panics
    /// If number or types of the arguments differ from the declaration in the kernel's text.
    pub fn launch(&self, grid: Grid, args: &[Arg]) -> Launch {
        self.launch_in(Vec::new(), grid, args)
    }

    /// As [`Entry::launch`], with memory for the arguments.
    pub(super) fn launch_in(&self, mut memory: Vec<Arg>, grid: Grid, args: &[Arg]) -> Launch {
        assert!(
            args.iter().map(|arg| Some(discriminant(arg))).eq(self.parameters.iter().copied()),
            "{} takes {:?}, not {args:?}",
            self.kernel.name,
            self.kernel.parameters()
        );
        memory.clear();
        memory.extend_from_slice(args);
        Launch { kernel: self.kernel, grid, args: memory }
    }
}

/// One launch of a kernel. Its arguments match the declaration in the kernel's text, because only [`Entry::launch`]
/// makes one.
#[derive(Debug, Clone)]
pub struct Launch {
    kernel: &'static Kernel,
    grid: Grid,
    args: Vec<Arg>,
}

impl Launch {
    /// The memory of its arguments.
    pub(super) fn into_memory(self) -> Vec<Arg> {
        self.args
    }

    /// Whether this is the launch of `kernel` with this grid and these arguments.
    pub(super) fn is(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> bool {
        ptr::eq(self.kernel, kernel) && self.grid == grid && self.args == args
    }

    /// Continues the hash of the launches before this one.
    pub(super) fn hash(&self, before: u64) -> u64 {
        let [x, y, z] = self.grid.blocks.map(u64::from);
        let head = [ptr::from_ref(self.kernel).addr() as u64, x, y, z, u64::from(self.grid.shared)];
        let words = head.into_iter().chain(self.args.iter().map(Arg::bits));
        words.fold(before, |hash, word| (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// The kernel to run.
    pub fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// Number of blocks, and dynamic shared memory.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The arguments.
    pub fn args(&self) -> &[Arg] {
        &self.args
    }
}

/// Launches are equal if kernel, grid and arguments are: they then do the same to the same memory.
impl PartialEq for Launch {
    fn eq(&self, other: &Self) -> bool {
        self.is(other.kernel, other.grid, &other.args)
    }
}

/// Number of points in the queue that a driver can mark, numbered from zero.
pub const MARKS: usize = 4;

/// The driver of a GPU: memory, kernels, and one queue in which everything happens in the order of the calls.
///
/// [`super::Cuda`] and the simulator of the tests implement it, so that tests launch exactly what users launch. The
/// driver does not check addresses: the launch code ensures that they point to what a kernel expects. A wrong address
/// can corrupt the GPU's memory and end in [`GpuError::Failed`], but cannot touch the host's memory.
pub trait Driver: Send {
    /// A kernel ready to be launched.
    type Function: Send;
    /// Recorded launches, ready to be run together.
    type Graph: Send;

    /// Properties of the GPU.
    fn info(&self) -> &DeviceInfo;

    /// Whether a compiler, which can be wrong, turns the kernels' texts into machine code. If so, every kernel runs a
    /// case with a known answer when the GPU is opened.
    fn compiles(&self) -> bool;

    /// Free device memory in bytes.
    fn free_memory(&self) -> Result<usize, GpuError>;

    /// Allocates `bytes` of zeroed device memory, aligned to 256 bytes; `what` names it in errors.
    fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<u64, GpuError>;

    /// Frees memory.
    fn free(&mut self, address: u64);

    /// Copies to the device, after all previous calls. `bytes` are no longer needed when this returns.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError>;

    /// Copies from the device, after all previous calls are done.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Loads a kernel from its text.
    fn load(&mut self, kernel: &'static Kernel) -> Result<Self::Function, GpuError>;

    /// Runs a kernel, loaded as `function`.
    fn launch(&mut self, launch: &Launch, function: &Self::Function) -> Result<(), GpuError>;

    /// Records launches, each with its loaded kernel, to be run together. Nothing runs yet.
    fn record(&mut self, launches: &[(&Launch, &Self::Function)]) -> Result<Self::Graph, GpuError>;

    /// Runs recorded launches.
    fn replay(&mut self, graph: &Self::Graph) -> Result<(), GpuError>;

    /// Frees recorded launches.
    fn discard(&mut self, graph: Self::Graph);

    /// Marks this point of the queue, replacing the previous use of the mark.
    fn mark(&mut self, mark: usize) -> Result<(), GpuError>;

    /// Time on the device between two marks, both of which it must have passed.
    fn between(&mut self, from: usize, to: usize) -> Result<Duration, GpuError>;

    /// Waits until all previous calls are done.
    fn synchronize(&mut self) -> Result<(), GpuError>;
}
