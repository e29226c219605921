//! The NVIDIA driver, loaded at run time: building needs no part of CUDA, and a missing driver is an ordinary error.

mod library;
mod staging;
mod switches;

use std::{
    cell::{Cell, UnsafeCell},
    env,
    ffi::{CString, c_char, c_int, c_void},
    fs, io, ptr,
    time::{Duration, Instant},
};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use library::{Code, LaunchEx, Library};
use staging::Staging;
use switches::Switches;

use super::{
    Arg, DeviceInfo, Driver, GpuError, Launch, LoadedCode, MARKS,
    cubins::{self, Cubins},
    recordings::recorded_bytes,
    table::Kernel,
    tilings::{self, Tiling},
};

/// First bytes of machine code.
const ELF: &[u8] = b"\x7fELF";
/// Maximum size of the compiler's log of a kernel, in bytes.
const LOG: usize = 4096;
/// Oldest compute capability whose launches can overlap, and oldest version of CUDA whose drivers record that.
const OVERLAPS: ((u32, u32), i32) = ((9, 0), 12_030);
/// Time for which a wait polls without sleeping.
const EAGER: Duration = Duration::from_millis(20);
/// Time to sleep between polls after that.
const NAP: Duration = Duration::from_micros(50);

/// A GPU behind the NVIDIA driver.
pub struct Cuda {
    library: Library,
    /// The number by which it was opened.
    index: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    info: DeviceInfo,
    staging: Staging,
    patience: Patience,
    marks: [sys::CUevent; MARKS],
    allocations: Vec<u64>,
    modules: Vec<Module>,
    graphs: Vec<sys::CUgraphExec>,
    /// Machine code of the kernels, or why there is none.
    cubins: Result<Cubins, String>,
    /// Launches a kernel that may begin before earlier ones have ended, if launches overlap.
    overlapping: Option<LaunchEx>,
    /// Whether a kernel is the last work in the stream, or in its capture. A launch overlaps with nothing else.
    after_kernel: Cell<bool>,
    switches: Switches,
}

/// The module of a kernel. A driver that loads lazily may compile it, and write the log, in any later call.
struct Module {
    handle: sys::CUmodule,
    log: Box<UnsafeCell<[u8; LOG]>>,
}

impl Module {
    /// The compiler's log so far.
    fn log(&self) -> [u8; LOG] {
        // SAFETY: the driver writes only during calls made by this thread, and none is running.
        unsafe { self.log.get().read() }
    }
}

/// A loaded kernel, valid as long as its [`Cuda`].
pub struct Function {
    handle: sys::CUfunction,
    kernel: &'static Kernel,
    /// Index of its module.
    module: usize,
    /// Whether it was loaded to wait for earlier launches itself.
    overlaps: bool,
}

/// Recorded launches, valid as long as their [`Cuda`], which also owns their memory and kernels.
pub struct Graph(sys::CUgraphExec);

// SAFETY: driver handles belong to the process, not to a thread; `Cuda` makes its context current in the thread before
// it uses them, and takes `&mut self` for every change. It owns the staging memory.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Send for Graph {}

/// Turns the return value of a driver function into a result.
fn check(during: &'static str, code: Code) -> Result<(), GpuError> {
    if code == 0 { Ok(()) } else { Err(GpuError::Failed { during, reason: library::name_of(code) }) }
}

/// Turns the return value of a driver function into a result while GPU number `index` of `count` is being opened.
fn absence(during: &'static str, code: Code, index: usize, count: usize) -> Result<(), GpuError> {
    match code {
        0 => Ok(()),
        library::NO_DEVICE | library::INVALID_DEVICE => Err(GpuError::NoDevice { index, count }),
        code => Err(GpuError::Unavailable { reason: format!("{during}: {}", library::name_of(code)) }),
    }
}

/// Makes the error for a refused kernel; `driver` is the version of CUDA that the driver supports.
fn refusal(kernel: &'static str, code: Code, log: &[u8], driver: i32) -> GpuError {
    match code {
        library::UNSUPPORTED_PTX => return GpuError::DriverTooOld { version: driver },
        library::OUT_OF_MEMORY => return GpuError::NoRoomForKernel { kernel },
        library::NO_COMPILER => return GpuError::CompilerMissing,
        _ => {}
    }
    let text = String::from_utf8_lossy(log);
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    let name = library::name_of(code);
    let log = if text.is_empty() { name } else { format!("{name}: {text}") };
    GpuError::ModuleRefused { kernel, log }
}

/// How long to wait for the driver, until it has once not answered in time: whoever then frees what the GPU holds must
/// not wait again for each part of it.
#[derive(Debug)]
struct Patience {
    time: Duration,
    lost: Cell<bool>,
}

impl Patience {
    fn new(time: Duration) -> Self {
        Patience { time, lost: Cell::new(false) }
    }

    /// Polls until the driver is ready or fails, for at most this time.
    fn wait(&self, during: &'static str, mut ask: impl FnMut() -> Code) -> Result<(), GpuError> {
        let begun = Instant::now();
        loop {
            match ask() {
                library::NOT_READY => {}
                code => return check(during, code),
            }
            match begun.elapsed() {
                waited if waited > self.time || self.lost.get() => {
                    self.lost.set(true);
                    let reason = format!("no answer for {} s", self.time.as_secs());
                    return Err(GpuError::Failed { during, reason });
                }
                waited if waited > EAGER => std::thread::sleep(NAP),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

impl Cuda {
    /// Opens GPU number `index`. The environment variable `BITNET_GPU` may hold switches for bringing up a GPU,
    /// separated by commas; none of them changes a result:
    ///
    /// | switch | effect |
    /// |---|---|
    /// | `no-overlap` | begins each kernel when the one before has ended, also from compute capability 9.0 on, and loads the kernels of older GPUs |
    /// | `no-bounds` | computes all logits, and makes no int8 copy of the output head |
    /// | `unchecked` | lets no kernel compute cases with known answers first, for tests that open one GPU many times |
    /// | `tiles-by-size` | multiplies with the kernel for the number of tokens, not with the one that is estimated to take the least time |
    /// | `compile` | compiles the kernels, even if their machine code is in `bitnet.cubins` beside the program |
    /// | `no-recordings` | hands launches to the driver one by one |
    /// | `sync` | the same, and waits for each launch, so that a failure names its kernel |
    /// | `patience=SECONDS` | time after which a GPU counts as lost (default 60), for example for `compute-sanitizer` |
    /// | `optimise=LEVEL` | the same as `compile`, with this optimisation level, 0 to 4 |
    ///
    /// # Errors
    /// If there is no driver or no such GPU, or the driver does not start.
    pub fn open(index: usize) -> Result<Self, GpuError> {
        let switches = Switches::of_environment()?;
        Self::with(Library::open()?, switches, index)
    }

    fn with(l: Library, switches: Switches, index: usize) -> Result<Self, GpuError> {
        // SAFETY: this is the first call, as required; 0 is the only valid flag.
        absence("cuInit", unsafe { (l.cuInit)(0) }, index, 0)?;
        let mut driver = 0;
        // SAFETY: the pointer is to a local that lives through the call.
        check("cuDriverGetVersion", unsafe { (l.cuDriverGetVersion)(&mut driver) })?;
        let mut count = 0;
        // SAFETY: the pointer is to a local that lives through the call.
        check("cuDeviceGetCount", unsafe { (l.cuDeviceGetCount)(&mut count) })?;
        let gpus = usize::try_from(count).unwrap_or(0);
        let ordinal = c_int::try_from(index).ok().filter(|&i| i < count);
        let ordinal = ordinal.ok_or(GpuError::NoDevice { index, count: gpus })?;
        let mut device = 0;
        // SAFETY: the pointer is to a local that lives through the call.
        absence("cuDeviceGet", unsafe { (l.cuDeviceGet)(&mut device, ordinal) }, index, gpus)?;
        let mut info = DeviceInfo { driver, ..describe(l, device)? };
        let overlaps = switches.overlap && info.capability >= OVERLAPS.0 && driver >= OVERLAPS.1;
        let overlapping = overlaps.then(library::launch_ex).flatten();
        info.overlap = overlapping.is_some();
        info.recordings = switches.recordings;
        info.tiles_by_size = switches.tiles_by_size;
        info.shortlists = switches.shortlists;
        info.known_answers = switches.known_answers;
        info.tilings = measured(&info.name)?;
        let mut context = ptr::null_mut();
        // SAFETY: the device came from the driver; the pointer is to a local that lives through the call.
        let retained = unsafe { (l.cuDevicePrimaryCtxRetain)(&mut context, device) };
        if retained != 0 {
            let reason = format!("cuDevicePrimaryCtxRetain: {}", library::name_of(retained));
            return Err(GpuError::Busy { name: info.name, reason });
        }
        // From here on, `drop` frees everything.
        let mut cuda = Cuda {
            library: l,
            index,
            device,
            context,
            stream: ptr::null_mut(),
            info,
            staging: Staging::new(),
            patience: Patience::new(switches.patience),
            marks: [ptr::null_mut(); MARKS],
            allocations: Vec::new(),
            modules: Vec::new(),
            graphs: Vec::new(),
            cubins: shipped(switches),
            overlapping,
            after_kernel: Cell::new(false),
            switches,
        };
        cuda.bind()?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the pointer is to a field that lives through the call.
        check("cuStreamCreate", unsafe { (l.cuStreamCreate)(&mut cuda.stream, flags) })?;
        for mark in &mut cuda.marks {
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
            // SAFETY: as above.
            check("cuEventCreate", unsafe { (l.cuEventCreate)(mark, flags) })?;
        }
        cuda.staging.take(l)?;
        Ok(cuda)
    }

    /// Makes the context current in this thread.
    fn bind(&self) -> Result<(), GpuError> {
        // SAFETY: the context was retained when the GPU was opened.
        check("cuCtxSetCurrent", unsafe { (self.library.cuCtxSetCurrent)(self.context) })
    }

    /// Puts a launch into the stream, to be run or recorded; with `overlap`, it may begin before the kernel before it
    /// has ended.
    fn issue(&self, launch: &Launch, function: &Function, overlap: bool) -> Result<(), GpuError> {
        let kernel = launch.kernel();
        assert!(ptr::eq(kernel, function.kernel), "a launch must run its own kernel");
        let mut values: Vec<u64> = launch.args().iter().map(Arg::bits).collect();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| ptr::from_mut(v).cast()).collect();
        let grid = launch.grid();
        let [x, y, z] = grid.blocks;
        let overlap = self.after_kernel.replace(true) && overlap && function.overlaps;
        if let Some(overlapping) = self.overlapping.filter(|_| overlap) {
            let mut attribute = overlap_attribute();
            let config = sys::CUlaunchConfig {
                gridDimX: x,
                gridDimY: y,
                gridDimZ: z,
                blockDimX: kernel.block,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: grid.shared,
                hStream: self.stream,
                attrs: &mut attribute,
                numAttrs: 1,
            };
            // SAFETY: as below; configuration and attribute live through the call. The text that was loaded waits for
            // earlier launches.
            let code =
                unsafe { overlapping(&config, function.handle, pointers.as_mut_ptr(), ptr::null_mut()) };
            return self.launched(function, code);
        }
        // SAFETY: the function's module is loaded, and the function is the launch's kernel, as asserted. The driver
        // reads a pointer for each declared parameter: a launch has as many, each to 8 little-endian bytes, at least
        // the size of any type, and they are read before the call returns. The kernel can use addresses only on the
        // device.
        let code = unsafe {
            (self.library.cuLaunchKernel)(
                function.handle,
                x,
                y,
                z,
                kernel.block,
                1,
                1,
                grid.shared,
                self.stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.launched(function, code)
    }

    /// Makes a module of a kernel: of machine code, or of a text that ends with a zero byte.
    fn module(&mut self, kernel: &'static Kernel, image: Vec<u8>) -> Result<Function, GpuError> {
        self.bind()?;
        let l = self.library;
        let refused = |code, log: &[u8]| refusal(kernel.name, code, log, self.info.driver);
        let end = image.iter().position(|&byte| byte == 0).map(|end| end + 1);
        if !image.starts_with(ELF) && end != Some(image.len()) {
            return Err(refused(library::INVALID_PTX, b"the text contains a zero byte"));
        }
        let log = Box::new(UnsafeCell::new([0; LOG]));
        let mut options = vec![
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // Numbers are passed as pointers.
        let mut values = vec![log.get().cast::<c_void>(), ptr::without_provenance_mut(LOG)];
        if let Some(level) = self.switches.optimise {
            options.push(sys::CUjit_option::CU_JIT_OPTIMIZATION_LEVEL);
            values.push(ptr::without_provenance_mut(level as usize));
        }
        let mut handle = ptr::null_mut();
        // SAFETY: the image is a text that ends with a zero byte, or whole machine code, whose hash was checked and whose
        // header says how long it is; there are as many values as options, and `log`, to which they point, lives as long
        // as the module.
        let code = unsafe {
            (l.cuModuleLoadDataEx)(
                &mut handle,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let module = Module { handle, log };
        if code != 0 {
            return Err(refused(code, &module.log()));
        }
        // Modules are unloaded when the GPU is closed, also those whose function cannot be used.
        self.modules.push(module);
        let name = CString::new(kernel.name).unwrap_or_default();
        let module = self.modules.len() - 1;
        let overlaps = self.info.overlaps(kernel.text);
        let mut function = Function { handle: ptr::null_mut(), kernel, module, overlaps };
        // SAFETY: the module was just loaded; the name ends with a zero byte.
        let found = unsafe { (l.cuModuleGetFunction)(&mut function.handle, handle, name.as_ptr()) };
        self.launched(&function, found)?;
        let dynamic = self.info.shared.saturating_sub(kernel.shared) as c_int;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to the module.
        let set = unsafe { (l.cuFuncSetAttribute)(function.handle, attribute, dynamic) };
        self.launched(&function, set)?;
        Ok(function)
    }

    /// Turns the return value of a call that used a kernel into a result. With lazy loading, a refusal may come this
    /// late.
    fn launched(&self, function: &Function, code: Code) -> Result<(), GpuError> {
        let kernel = function.kernel.name;
        if library::REFUSALS.contains(&code) {
            return Err(refusal(kernel, code, &self.modules[function.module].log(), self.info.driver));
        }
        check(kernel, code)
    }

    /// Captures launches into a graph, and always ends the capture.
    fn capture(&self, launches: &[(&Launch, &Function)], overlap: bool) -> Result<sys::CUgraph, GpuError> {
        let l = self.library;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: `self` owns the stream, and nothing else captures it.
        check("cuStreamBeginCapture", unsafe { (l.cuStreamBeginCapture_v2)(self.stream, mode) })?;
        self.after_kernel.set(false);
        let issued = launches.iter().try_for_each(|(launch, function)| self.issue(launch, function, overlap));
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is being captured; the pointer is to a local that lives through the call.
        let ended = check("cuStreamEndCapture", unsafe { (l.cuStreamEndCapture)(self.stream, &mut graph) });
        self.after_kernel.set(false);
        issued.and(ended).map(|()| graph).inspect_err(|_| {
            if !graph.is_null() {
                // SAFETY: the graph was just made, and nothing else refers to it.
                let _ = unsafe { (l.cuGraphDestroy)(graph) };
            }
        })
    }
}

/// Lets a kernel begin before the one before it in the stream has ended.
fn overlap_attribute() -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.programmaticStreamSerializationAllowed = 1;
    let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    sys::CUlaunchAttribute { id, pad: [0; 4], value }
}

fn describe(l: Library, device: sys::CUdevice) -> Result<DeviceInfo, GpuError> {
    let attribute = |what: Attribute| {
        let mut value = 0;
        // SAFETY: `device` came from the driver, `value` lives through the call.
        check("cuDeviceGetAttribute", unsafe { (l.cuDeviceGetAttribute)(&mut value, what, device) })?;
        Ok::<u32, GpuError>(value.max(0) as u32)
    };
    let mut memory = 0;
    // SAFETY: as above.
    check("cuDeviceTotalMem", unsafe { (l.cuDeviceTotalMem_v2)(&mut memory, device) })?;
    let mut name = [0u8; 256];
    // SAFETY: as above; the length is one less than the buffer's, so that the name ends with a zero byte.
    let named = unsafe { (l.cuDeviceGetName)(name.as_mut_ptr().cast::<c_char>(), 255, device) };
    check("cuDeviceGetName", named)?;
    let name = name.split(|&b| b == 0).next().unwrap_or_default();
    Ok(DeviceInfo {
        name: String::from_utf8_lossy(name).into_owned(),
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        driver: 0,
        memory,
        shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        processor_shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        overlap: false,
        recordings: true,
        tiles_by_size: false,
        shortlists: true,
        known_answers: true,
        tilings: Vec::new(),
        code: LoadedCode::default(),
    })
}

/// Reads the machine code of the kernels from beside the program, or says why the driver has to compile them.
fn shipped(switches: Switches) -> Result<Cubins, String> {
    if switches.compile {
        return Err("BITNET_GPU asks for it".to_owned());
    }
    let program = env::current_exe().map_err(|e| format!("the program's folder is unknown: {e}"))?;
    let path = program.with_file_name(cubins::FILE);
    let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Cubins::parse(bytes).ok_or_else(|| format!("{} is damaged", path.display()))
}

/// Reads the measured launches for this GPU from beside the program; there need not be any.
fn measured(gpu: &str) -> Result<Vec<Tiling>, GpuError> {
    let refused = |reason| GpuError::Tilings { reason };
    let file = env::current_exe().map(|program| program.with_file_name(tilings::FILE));
    let text = match file.and_then(fs::read_to_string) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|e| refused(e.to_string()))?,
    };
    let lines = tilings::parse(&text).map_err(|line| refused(format!("cannot read {line:?}")))?;
    Ok(lines.into_iter().filter(|line| line.gpu == gpu).map(|line| line.tiling).collect())
}

impl Driver for Cuda {
    type Function = Function;
    type Graph = Graph;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The context of a failed GPU stays broken. When it is released, and no other part of the process uses it, the
    /// driver makes a new one.
    fn reopened(self) -> Result<Self, GpuError> {
        let library = self.library;
        let switches = self.switches;
        let index = self.index;
        drop(self);
        Self::with(library, switches, index)
    }

    fn compiles(&self) -> bool {
        true
    }

    fn free_memory(&self) -> Result<usize, GpuError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both live through the call.
        check("cuMemGetInfo", unsafe { (self.library.cuMemGetInfo_v2)(&mut free, &mut total) })?;
        Ok(free)
    }

    fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<u64, GpuError> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: `address` lives through the call.
        match unsafe { (self.library.cuMemAlloc_v2)(&mut address, bytes) } {
            library::OUT_OF_MEMORY => {
                return Err(GpuError::OutOfMemory { what, bytes, free: self.free_memory().unwrap_or(0) });
            }
            code => check("cuMemAlloc", code)?,
        }
        self.allocations.push(address);
        self.after_kernel.set(false);
        // SAFETY: `address` is the start of `bytes` bytes that were just allocated.
        let zeroed = unsafe { (self.library.cuMemsetD8Async)(address, 0, bytes, self.stream) };
        check("cuMemsetD8Async", zeroed)?;
        Ok(address)
    }

    fn free(&mut self, address: u64) {
        let Some(at) = self.allocations.iter().position(|&a| a == address) else { return };
        // Queued kernels may still use it. Memory of a lost device cannot be freed.
        if self.synchronize().is_ok() {
            self.allocations.swap_remove(at);
            // SAFETY: the address was allocated by `alloc` and is forgotten here.
            let _ = unsafe { (self.library.cuMemFree_v2)(address) };
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.bind()?;
        self.after_kernel.set(false);
        self.staging.write(self.library, self.stream, &self.patience, address, bytes)
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.bind()?;
        self.after_kernel.set(false);
        self.staging.read(self.library, self.stream, &self.patience, address, bytes)
    }

    /// Takes the machine code of the kernel's text from beside the program, or has the driver compile the text.
    fn load(&mut self, kernel: &'static Kernel) -> Result<Function, GpuError> {
        let text = self.info.text_for(kernel.text).into_owned();
        let code = match &self.cubins {
            Ok(cubins) => match cubins.find(self.info.capability, &text) {
                Ok(code) => Ok(code.to_vec()),
                Err(why) => Err(format!("{} {why}", cubins::FILE)),
            },
            Err(why) => Err(why.clone()),
        };
        let why = match code {
            Ok(code) => match self.module(kernel, code) {
                Err(full @ GpuError::NoRoomForKernel { .. }) => return Err(full),
                Err(refused) => refused.to_string(),
                Ok(function) => {
                    self.info.code.shipped += 1;
                    return Ok(function);
                }
            },
            Err(why) => why,
        };
        let mut text = text.into_bytes();
        text.push(0);
        let function = self.module(kernel, text)?;
        self.info.code.compiled += 1;
        self.info.code.reason.get_or_insert(why);
        Ok(function)
    }

    fn launch(&mut self, launch: &Launch, function: &Function) -> Result<(), GpuError> {
        self.bind()?;
        self.issue(launch, function, true)?;
        if self.switches.sync {
            // SAFETY: `self` owns the stream.
            let ask = || unsafe { (self.library.cuStreamQuery)(self.stream) };
            return self.patience.wait(launch.kernel().name, ask);
        }
        Ok(())
    }

    fn record(&mut self, launches: &[(&Launch, &Function)], overlap: bool) -> Result<Graph, GpuError> {
        self.bind()?;
        let l = self.library;
        let graph = self.capture(launches, overlap)?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph was just made; 0 are no flags.
        let made = unsafe { (l.cuGraphInstantiateWithFlags)(&mut exec, graph, 0) };
        // SAFETY: as above; the executable graph no longer needs it.
        let _ = unsafe { (l.cuGraphDestroy)(graph) };
        if made == library::OUT_OF_MEMORY {
            let bytes = recorded_bytes(launches.len());
            return Err(GpuError::OutOfMemory { what: "a recording", bytes, free: self.free_memory()? });
        }
        check("cuGraphInstantiate", made)?;
        self.graphs.push(exec);
        Ok(Graph(exec))
    }

    fn replay(&mut self, graph: &Graph) -> Result<(), GpuError> {
        self.bind()?;
        self.after_kernel.set(false);
        // SAFETY: made by `record`; its kernels stay loaded, and the caller of `record` vouches for its addresses as
        // for those of a launch.
        check("cuGraphLaunch", unsafe { (self.library.cuGraphLaunch)(graph.0, self.stream) })
    }

    fn discard(&mut self, graph: Graph) {
        let Some(at) = self.graphs.iter().position(|&exec| exec == graph.0) else { return };
        // It may still be running.
        if self.synchronize().is_ok() {
            self.graphs.swap_remove(at);
            // SAFETY: made by `record`, and forgotten here.
            let _ = unsafe { (self.library.cuGraphExecDestroy)(graph.0) };
        }
    }

    fn mark(&mut self, mark: usize) -> Result<(), GpuError> {
        self.bind()?;
        self.after_kernel.set(false);
        // SAFETY: event and stream were made when the GPU was opened.
        check("cuEventRecord", unsafe { (self.library.cuEventRecord)(self.marks[mark], self.stream) })
    }

    fn between(&mut self, from: usize, to: usize) -> Result<Duration, GpuError> {
        self.bind()?;
        let mut ms = 0.0;
        // SAFETY: `self` owns the events; the pointer is to a local that lives through the call.
        let code = unsafe { (self.library.cuEventElapsedTime)(&mut ms, self.marks[from], self.marks[to]) };
        check("cuEventElapsedTime", code)?;
        Ok(Duration::try_from_secs_f32(ms / 1e3).unwrap_or_default())
    }

    fn synchronize(&mut self) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: `self` owns the stream.
        self.patience.wait("cuStreamQuery", || unsafe { (self.library.cuStreamQuery)(self.stream) })
    }
}

impl Drop for Cuda {
    /// Ignores failures, because the device is then already lost. A failed context is only released, and takes with it
    /// what it holds. If the device does not become idle, nothing is freed, because it may still write to its memory.
    fn drop(&mut self) {
        let l = self.library;
        if !self.stream.is_null() && self.synchronize().is_err() {
            // SAFETY: `self` owns the stream.
            if unsafe { (l.cuStreamQuery)(self.stream) } != library::NOT_READY {
                // SAFETY: retained when the GPU was opened.
                let _ = unsafe { (l.cuDevicePrimaryCtxRelease_v2)(self.device) };
            }
            return;
        }
        for &exec in &self.graphs {
            // SAFETY: made by `record`, and not yet discarded.
            let _ = unsafe { (l.cuGraphExecDestroy)(exec) };
        }
        for &address in &self.allocations {
            // SAFETY: allocated by `alloc`, and not yet freed.
            let _ = unsafe { (l.cuMemFree_v2)(address) };
        }
        for module in &self.modules {
            // SAFETY: loaded by `load`; its functions cannot be launched without this driver.
            let _ = unsafe { (l.cuModuleUnload)(module.handle) };
        }
        self.staging.give_back(l);
        for &mark in self.marks.iter().filter(|mark| !mark.is_null()) {
            // SAFETY: created when the GPU was opened.
            let _ = unsafe { (l.cuEventDestroy_v2)(mark) };
        }
        if !self.stream.is_null() {
            // SAFETY: created when the GPU was opened.
            let _ = unsafe { (l.cuStreamDestroy_v2)(self.stream) };
        }
        // SAFETY: retained when the GPU was opened.
        let _ = unsafe { (l.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

bitnet_tensor::opaque_debug!(Cuda, Function, Graph);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_driver_become_errors_with_a_cure() {
        let lost = check("cuStreamQuery", 700).unwrap_err();
        assert!(matches!(&lost, GpuError::Failed { during: "cuStreamQuery", .. }));
        assert!(lost.to_string().contains("restart the process"));
        let gone = absence("cuDeviceGet", library::INVALID_DEVICE, 3, 2);
        assert_eq!(gone, Err(GpuError::NoDevice { index: 3, count: 2 }));
        assert_eq!(
            absence("cuInit", library::NO_DEVICE, 3, 0),
            Err(GpuError::NoDevice { index: 3, count: 0 })
        );
        let full = refusal("k", library::OUT_OF_MEMORY, b"", 12_040);
        assert!(full.to_string().contains("no GPU memory to load kernel k: lower --memory"), "{full}");
        let bare = refusal("k", library::NO_COMPILER, b"", 12_040);
        assert!(bare.to_string().contains("libnvidia-ptxjitcompiler"), "{bare}");
        let old = refusal("k", library::UNSUPPORTED_PTX, b"", 11_020);
        assert!(old.to_string().contains("supports CUDA 11.2, the kernels need 11.4"), "{old}");
        let refused = refusal("k", library::INVALID_PTX, b"ptxas error : line 7\n\0\0", 12_040);
        assert!(refused.to_string().contains(": ptxas error : line 7;"), "{refused}");
    }

    #[test]
    fn a_code_that_no_binding_lists_is_an_error_that_says_its_number() {
        let error = Cuda::with(library::broken(), Switches::default(), 0).expect_err("nothing works");
        let GpuError::Unavailable { reason } = &error else { panic!("{error}") };
        assert!(reason.starts_with("cuInit: ") && !reason.ends_with(": "), "{reason}");
    }

    #[test]
    fn a_wait_ends_with_the_first_answer() {
        let mut answers = [library::NOT_READY, library::NOT_READY, 0].into_iter();
        let patience = Patience::new(Duration::MAX);
        assert_eq!(patience.wait("k", || answers.next().unwrap()), Ok(()));
        assert!(patience.wait("k", || 700).is_err());
        assert!(!patience.lost.get(), "it has answered");
    }

    #[test]
    fn a_driver_that_has_not_answered_in_time_is_not_waited_for_again() {
        let patience = Patience::new(Duration::from_millis(5));
        let silent =
            |asked: &mut u32| patience.wait("k", || (*asked += 1, library::NOT_READY).1).unwrap_err();
        let (mut first, mut next) = (0, 0);
        let late = silent(&mut first);
        assert!(late.to_string().contains("no answer"), "{late}");
        assert_eq!(silent(&mut next), late);
        assert!(first > 1 && next == 1, "{first} and {next} questions");
    }
}
