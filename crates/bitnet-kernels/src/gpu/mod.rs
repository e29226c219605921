//! The GPU backend: kernels in PTX (`ptx/`), and the launch code that all drivers share.
//!
//! `docs/dev/kernels.md` describes the layouts, the kernels, and the points where values are rounded to bf16.

mod backend;
mod ceilings;
pub mod cubins;
mod cuda;
mod driver;
mod error;
mod footprint;
mod info;
mod layout;
mod memory;
mod ops;
mod prepare;
mod queue;
mod recordings;
mod self_test;
pub mod table;
pub mod tilings;
mod trial;
mod upload;
mod work_items;

use std::{ptr, time::Duration};

use crate::{ExpertShape, HeadCounts, KvType};

pub use ceilings::Ceilings;
pub use cuda::Cuda;
pub use driver::{Arg, Driver, Entry, Grid, Launch, MARKS};
pub use error::GpuError;
pub use info::{DeviceInfo, LoadedCode};
use layout::{Converter, CopySize, Mixture, ShortlistBuffers};
pub use layout::{Delta, Dense, Experts, Gain, Int8Rows, Kv, Linear, Rope, Rotation, Rows, State, Table};
pub use memory::DeviceBuffer;
use memory::Returned;
use ops::Plans;
use queue::{Queue, WaitingNorm};
pub use recordings::{Recorded, RecordingState};
use table::{KERNELS, Kernel};
use upload::{Described, Uploads};

/// Oldest version of CUDA whose drivers can read the kernels (`.version 7.4`).
const OLDEST_DRIVER: i32 = 11_040;
/// Oldest compute capability that has the instructions of the kernels.
const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

struct Loaded<F> {
    entry: Entry,
    function: F,
}

/// All kernels, in the order of their addresses.
struct Kernels<F>(Vec<Loaded<F>>);

impl<F> Kernels<F> {
    /// Finds a kernel. A step looks up hundreds, so this is a search by address and not by name.
    fn get(&self, kernel: &'static Kernel) -> &Loaded<F> {
        let at = self.0.binary_search_by_key(&ptr::from_ref(kernel), |loaded| loaded.entry.kernel());
        &self.0[at.expect("all kernels are loaded")]
    }
}

/// Counts of what a GPU has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernel launches.
    pub launches: u64,
    /// Allocations of device memory.
    pub allocations: u64,
    /// Sequences of launches that came for the first time, and were handed over one by one, to be recorded if they come again.
    pub first: u64,
    /// Sequences of launches that were recorded.
    pub recordings: u64,
    /// Recordings that the driver failed to make or to run. After the first, launches no longer overlap in recordings;
    /// after the second, or where they never did, they are handed over one by one.
    pub unrecorded: u64,
    /// Runs of recordings.
    pub replays: u64,
    /// Rows of logits whose token was drawn on the device.
    pub drawn: u64,
    /// Time spent in steps.
    pub times: Times,
}

/// Time spent in steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Time on the host to hand launches to the driver.
    pub launch: Duration,
    /// Time on the device to copy inputs and results.
    pub transfer: Duration,
    /// Time on the device to compute.
    pub compute: Duration,
}

/// The GPU backend, with any driver.
///
/// Launches are queued until their results are read or [`Gpu::finish`] ends the step, and then go to the driver
/// together.
pub struct Gpu<D: Driver> {
    driver: D,
    kernels: Kernels<D::Function>,
    queue: Queue<D::Graph>,
    /// The norm of one row that the next launch may include.
    norm: Option<WaitingNorm>,
    returned: Returned,
    uploads: Uploads,
    converter: Converter,
    /// The runs that the last uploads describe, for layers without windows and for those with windows.
    steps: [Described; 2],
    plans: Plans,
    /// Type of the caches that are made.
    kv: KvType,
    /// Partial sums of thread blocks that share rows and tokens, and the number of blocks that have stored theirs.
    parts: DeviceBuffer,
    tickets: DeviceBuffer,
    /// Logits of the last step.
    logits: Option<Rows>,
    /// `{u32 token, u32 status}` per row of logits.
    drawn: Option<DeviceBuffer>,
    /// int8 input of a ternary head, and the maximum width of ternary tables; 0 if there are none.
    head_input: Option<Int8Rows>,
    head_width: usize,
    /// Scratch for the shortlists of a step.
    shortlist: Option<ShortlistBuffers>,
    /// Largest int8 copy of a table so far.
    largest_copy: CopySize,
    /// Whether to make int8 copies at all.
    shortlists: bool,
    /// Rows of logits of dense tables so far. The device counts the logits that bounds did not rule out, as a u64.
    head: HeadCounts,
    computed: DeviceBuffer,
    /// Values that the kernels of a gated-delta layer pass to each other, and the maximum number of these floats for a
    /// token; 0 if there are no such layers.
    mixed: Option<DeviceBuffer>,
    mixed_len: usize,
    /// Values that the kernels of a mixture of experts pass to each other, and the shape of all mixtures of a model.
    mixture: Option<Mixture>,
    mixes: Option<ExpertShape>,
    /// Bytes of device memory that were free after memory was last allocated for steps.
    free: usize,
    counts: Counts,
    /// Why the GPU is no longer used.
    lost: Option<GpuError>,
}

impl<D: Driver> Gpu<D> {
    /// Makes a backend for the driver's GPU, loads and checks every kernel, and tries recordings. A GPU that fails at
    /// recordings is opened again and used without them.
    ///
    /// # Errors
    /// If the driver or the GPU is too old for the kernels, the driver refuses one, or one computes wrong results.
    pub fn new(mut driver: D) -> Result<Self, GpuError> {
        let info = driver.info();
        if info.driver < OLDEST_DRIVER {
            return Err(GpuError::DriverTooOld { version: info.driver });
        }
        if info.capability < OLDEST_CAPABILITY {
            let (major, minor) = info.capability;
            return Err(GpuError::TooOld { name: info.name.clone(), major, minor });
        }
        let mut state = RecordingState::of(info);
        loop {
            let tried = state.how;
            // The cases of the kernels run one by one, so that only the trial of recordings after them meets a driver that
            // fails at these.
            let unrecorded = RecordingState { how: Recorded::Never, ..state.clone() };
            let mut gpu = Self::load(driver, unrecorded)?;
            gpu.self_test()?;
            gpu.queue.recordings.state = state;
            match gpu.try_recordings() {
                Ok(()) => return gpu.ready(),
                Err(failure @ GpuError::Failed { .. }) if tried != Recorded::Never => {
                    let reason = failure.to_string();
                    state = gpu.queue.recordings.state;
                    state.failed(failure);
                    state.how = tried.simpler();
                    driver = gpu.driver.reopened().map_err(|again| GpuError::TrialFailed {
                        reason: format!("{reason}; then {again}").replace("; restart the process", ""),
                    })?;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Loads every kernel.
    fn load(mut driver: D, recordings: RecordingState) -> Result<Self, GpuError> {
        let load = |&kernel: &&'static Kernel| {
            Ok(Loaded { entry: Entry::of(kernel), function: driver.load(kernel)? })
        };
        let mut kernels = KERNELS.iter().map(load).collect::<Result<Vec<_>, GpuError>>()?;
        kernels.sort_by_key(|loaded| ptr::from_ref(loaded.entry.kernel()));
        let kernels = Kernels(kernels);
        let returned = Returned::default();
        let processors = driver.info().processors;
        let [parts, tickets] = ops::split_bytes(processors);
        let parts = parts.max(ops::parts_bytes(processors));
        let parts = DeviceBuffer::new(&mut driver, &returned, parts, "parts of sums")?;
        let tickets = DeviceBuffer::new(&mut driver, &returned, tickets, "tickets of sums")?;
        let computed = DeviceBuffer::new(&mut driver, &returned, 8, "number of computed logits")?;
        Ok(Gpu {
            driver,
            kernels,
            queue: Queue::new(recordings),
            norm: None,
            returned,
            uploads: Uploads::default(),
            converter: Converter::default(),
            steps: Default::default(),
            // The self-test picks tiles by size, so that every kernel runs at least once.
            plans: Plans::new(true),
            kv: KvType::Bf16,
            parts,
            tickets,
            logits: None,
            drawn: None,
            head_input: None,
            head_width: 0,
            shortlist: None,
            largest_copy: CopySize::default(),
            shortlists: true,
            head: HeadCounts::default(),
            computed,
            mixed: None,
            mixed_len: 0,
            mixture: None,
            mixes: None,
            free: 0,
            counts: Counts::default(),
            lost: None,
        })
    }

    /// Starts counting, and takes the launches that are meant for this GPU.
    fn ready(mut self) -> Result<Self, GpuError> {
        self.counts = Counts::default();
        self.free = self.driver.free_memory()?;
        self.plans = Plans::new(self.driver.info().tiles_by_size);
        self.shortlists = self.driver.info().shortlists;
        self.use_tilings(&self.driver.info().tilings.clone())?;
        Ok(self)
    }

    /// Makes no int8 copy of the output head, for callers that need all logits.
    pub fn for_all_logits(self) -> Self {
        Gpu { shortlists: false, ..self }
    }

    /// The types of cached keys and values that the kernels have.
    pub const KV_TYPES: [KvType; 2] = [KvType::Bf16, KvType::Int8];

    /// Stores keys and values in this type; without a call, in bf16.
    ///
    /// # Panics
    /// If it is not one of [`Gpu::KV_TYPES`].
    pub fn keeping(self, kv: KvType) -> Self {
        assert!(Self::KV_TYPES.contains(&kv), "a GPU has no kernels for keys and values in {kv}");
        Gpu { kv, ..self }
    }

    /// The driver.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Counts of what has been done so far.
    pub fn counts(&self) -> Counts {
        Counts { unrecorded: self.queue.recordings.state.failures, ..self.counts }
    }

    /// How launches are recorded, and why not in a faster way.
    pub fn recordings(&self) -> &RecordingState {
        &self.queue.recordings.state
    }

    /// Queues a kernel with `shared` bytes of dynamic shared memory, after a norm that waits. A launch without blocks,
    /// which drivers refuse, does nothing.
    ///
    /// # Panics
    /// If number or types of the arguments differ from the declaration in the kernel's text.
    pub fn launch(
        &mut self,
        kernel: &'static Kernel,
        blocks: [usize; 3],
        shared: usize,
        args: &[Arg],
    ) -> Result<(), GpuError> {
        self.launch_norm()?;
        if blocks.contains(&0) {
            return Ok(());
        }
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let info = self.driver.info();
        let bytes = narrow(shared).saturating_add(kernel.shared);
        if bytes > info.shared {
            let (name, limit) = (info.name.clone(), info.shared);
            return Err(GpuError::RowTooWide { kernel: kernel.name, bytes, name, limit });
        }
        let grid = Grid { blocks: blocks.map(narrow), shared: narrow(shared) };
        if !self.queue.follow(kernel, grid, args) {
            self.queue.push(&self.kernels.get(kernel).entry, grid, args);
        }
        self.counts.launches += 1;
        Ok(())
    }
}

bitnet_tensor::opaque_debug!(Gpu<D: Driver>);
