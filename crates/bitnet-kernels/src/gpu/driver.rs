//! What a GPU driver must provide: memory, copies, launches and recordings. NVIDIA's driver implements it, and so does
//! the simulator of the tests, so that tests launch exactly what users launch.

use std::{ptr, time::Duration};

use super::{DeviceInfo, GpuError, table::Kernel};

/// One argument of a kernel, with the declared type of its parameter. A step compares thousands with recorded ones, so
/// every type has the same form.
#[derive(Debug, Clone, Copy)]
pub struct Arg {
    bits: u64,
    declared: Declared,
}

/// Declared type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Declared {
    U32,
    U64,
    F32,
    F64,
}

impl Declared {
    /// The type with this name, if an argument can have it.
    fn named(name: &str) -> Option<Self> {
        match name {
            ".u32" => Some(Declared::U32),
            ".u64" => Some(Declared::U64),
            ".f32" => Some(Declared::F32),
            ".f64" => Some(Declared::F64),
            _ => None,
        }
    }
}

impl Arg {
    /// `.u32`
    pub fn u32(value: u32) -> Self {
        Arg { bits: u64::from(value), declared: Declared::U32 }
    }

    /// `.u64`, or a device address.
    pub fn u64(value: u64) -> Self {
        Arg { bits: value, declared: Declared::U64 }
    }

    /// `.f32`
    pub fn f32(value: f32) -> Self {
        Arg { bits: u64::from(value.to_bits()), declared: Declared::F32 }
    }

    /// `.f64`
    pub fn f64(value: f64) -> Self {
        Arg { bits: value.to_bits(), declared: Declared::F64 }
    }

    /// The bits of the value; those of 32-bit types are the low ones.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Size of the type in bytes.
    pub fn size(&self) -> usize {
        match self.declared {
            Declared::U32 | Declared::F32 => 4,
            Declared::U64 | Declared::F64 => 8,
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
    parameters: Vec<Option<Declared>>,
}

impl Entry {
    /// Reads a kernel's parameters.
    pub fn of(kernel: &'static Kernel) -> Self {
        Entry { kernel, parameters: kernel.parameters().into_iter().map(Declared::named).collect() }
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
            args.iter().map(|arg| Some(arg.declared)).eq(self.parameters.iter().copied()),
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
        // Without branches, so that several are compared at once.
        let differs = |a: &Arg, b: &Arg| (a.bits ^ b.bits) | (a.declared as u64 ^ b.declared as u64);
        ptr::eq(self.kernel, kernel)
            && self.grid == grid
            && self.args.len() == args.len()
            && self.args.iter().zip(args).fold(0, |all, (a, b)| all | differs(a, b)) == 0
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
pub trait Driver: Send + Sized {
    /// A kernel ready to be launched.
    type Function: Send;
    /// Recorded launches, ready to be run together.
    type Graph: Send;

    /// Properties of the GPU.
    fn info(&self) -> &DeviceInfo;

    /// The same GPU, opened again after it has failed: all memory, kernels and recordings are gone.
    ///
    /// # Errors
    /// If the GPU does not answer, or cannot be opened again.
    fn reopened(self) -> Result<Self, GpuError>;

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

    /// Records launches, each with its loaded kernel, to be run together. Nothing runs yet. Without `overlap`, each
    /// kernel begins when the one before it has ended.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] if there is no room for the recording, or whatever else the driver fails at.
    fn record(
        &mut self,
        launches: &[(&Launch, &Self::Function)],
        overlap: bool,
    ) -> Result<Self::Graph, GpuError>;

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
