//! The PTX simulator as a driver of the GPU backend: runs the shipped launch code on a machine without a GPU.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, Instant},
};

use bitnet_kernels::gpu::{DeviceInfo, Driver, GpuError, Launch, MARKS, table::Kernel};
use bitnet_ptxsim::{MatrixUnit, Memory, MemoryError, Module, Param, Stats};

/// Kernels by text, and by whether launches overlap, each parsed once for all simulators of a process.
static MODULES: LazyLock<Mutex<Modules>> = LazyLock::new(Mutex::default);
type Modules = HashMap<(&'static str, bool), Arc<Module>>;

/// Words of the purposes of memory that no kernel of a step writes, so that it may be read before earlier launches end.
const CONSTANTS: [&str; 7] =
    ["weights", "matrix", "gains", "tables", "signs", "parameters of", "inputs of a step"];

/// A simulated GPU.
pub struct Simulator {
    info: DeviceInfo,
    memory: Memory,
    /// For each allocation, its purpose and size in bytes.
    allocations: BTreeMap<u64, (&'static str, usize)>,
    /// Texts to load instead of the kernels' own.
    texts: HashMap<&'static str, String>,
    /// Seed for the order of blocks and warps; a new one for every launch.
    seed: u64,
    stats: HashMap<&'static str, Stats>,
    marks: [Option<Instant>; MARKS],
    compiles: bool,
}

impl Default for Simulator {
    fn default() -> Self {
        Simulator {
            info: DeviceInfo {
                name: "simulator".to_owned(),
                memory: 4 << 30,
                shared: 163 << 10,
                processors: 4,
                tiles_by_size: true,
                ..DeviceInfo::h100()
            },
            memory: Memory::new(),
            allocations: BTreeMap::new(),
            texts: HashMap::new(),
            seed: 0,
            stats: HashMap::new(),
            marks: [None; MARKS],
            compiles: false,
        }
    }
}

impl Simulator {
    /// A GPU with other properties.
    pub fn with(info: impl FnOnce(&mut DeviceInfo)) -> Self {
        Simulator::default().set(info)
    }

    /// The same GPU with other properties.
    #[must_use]
    pub fn set(mut self, info: impl FnOnce(&mut DeviceInfo)) -> Self {
        info(&mut self.info);
        self
    }

    /// A GPU whose launches do not overlap, as old as can be.
    pub fn older() -> Self {
        Simulator::with(|info| (info.capability, info.driver, info.overlap) = ((8, 0), 11_040, false))
    }

    /// Sets the seed for the order of blocks and warps.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed << 32;
        self
    }

    /// Tries every kernel when it is loaded, as on a GPU.
    #[must_use]
    pub fn compiling(mut self) -> Self {
        self.compiles = true;
        self
    }

    /// Loads `text` in place of `kernel`.
    #[must_use]
    pub fn replace(mut self, kernel: &'static Kernel, text: String) -> Self {
        self.texts.insert(kernel.name, text);
        self
    }

    /// The contents of all allocations with the purpose `what`, by address.
    ///
    /// # Panics
    /// If the memory cannot be read.
    pub fn contents(&self, what: &str) -> Vec<Vec<u8>> {
        let of = self.allocations.iter().filter(|(_, about)| about.0 == what);
        of.map(|(&at, &(_, bytes))| self.memory.read(at, bytes).expect("it is allocated")).collect()
    }

    /// The counts of all launches of a kernel.
    pub fn stats(&self, kernel: &Kernel) -> Option<&Stats> {
        self.stats.get(kernel.name)
    }
}

/// Why the simulator refuses a PTX text, if it does.
pub fn refusal(text: &str) -> Option<String> {
    Module::parse("text", text).err().map(|e| e.to_string())
}

fn failed(during: &'static str, reason: impl ToString) -> GpuError {
    GpuError::Failed { during, reason: reason.to_string() }
}

impl Driver for Simulator {
    type Function = Arc<Module>;
    type Graph = Vec<(Launch, Arc<Module>)>;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn compiles(&self) -> bool {
        self.compiles
    }

    fn free_memory(&self) -> Result<usize, GpuError> {
        Ok(self.info.memory - self.allocations.values().map(|about| about.1).sum::<usize>())
    }

    fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<u64, GpuError> {
        let free = self.free_memory()?;
        if bytes > free {
            return Err(GpuError::OutOfMemory { what, bytes, free });
        }
        let address = self.memory.alloc_zeroed(bytes);
        self.allocations.insert(address, (what, bytes));
        if !CONSTANTS.iter().any(|constant| what.contains(constant)) {
            self.memory.produced(address);
        }
        Ok(address)
    }

    fn free(&mut self, address: u64) {
        if self.allocations.remove(&address).is_some() {
            self.memory.free(address).expect("the allocation is there");
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.memory.write(address, bytes).map_err(|e: MemoryError| failed("write", e))
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        bytes.copy_from_slice(&self.memory.read(address, bytes.len()).map_err(|e| failed("read", e))?);
        Ok(())
    }

    fn load(&mut self, kernel: &'static Kernel) -> Result<Arc<Module>, GpuError> {
        let parse = |text: &str| {
            let module = Module::parse(&format!("{}.ptx", kernel.name), &self.info.text_for(text));
            module
                .map(Arc::new)
                .map_err(|e| GpuError::ModuleRefused { kernel: kernel.name, log: e.to_string() })
        };
        if let Some(text) = self.texts.get(kernel.name) {
            return parse(text);
        }
        let mut modules = MODULES.lock().expect("no test panics while it parses");
        let key = (kernel.text, self.info.overlap);
        match modules.get(&key) {
            Some(module) => Ok(Arc::clone(module)),
            None => {
                let module = parse(kernel.text)?;
                modules.insert(key, Arc::clone(&module));
                Ok(module)
            }
        }
    }

    /// Fails on a fault, on a launch without blocks (as a driver does), and if bank conflicts exceed the limit in the
    /// kernel's row.
    fn launch(&mut self, launch: &Launch, function: &Arc<Module>) -> Result<(), GpuError> {
        let (kernel, grid) = (launch.kernel(), launch.grid());
        if grid.blocks.contains(&0) {
            return Err(failed(kernel.name, format!("{:?} blocks", grid.blocks)));
        }
        self.seed += 1;
        let params =
            launch.args().iter().map(|arg| Param::from_bytes(&arg.bits().to_le_bytes()[..arg.size()]));
        let launch = bitnet_ptxsim::Launch {
            grid: grid.blocks,
            dynamic_shared: grid.shared as usize,
            params: params.collect(),
            seed: self.seed,
            matrix_unit: MatrixUnit::of(self.info.capability),
            overlapped: self.info.overlaps(self.texts.get(kernel.name).map_or(kernel.text, String::as_str)),
            ..bitnet_ptxsim::Launch::new(1, kernel.block)
        };
        let stats =
            function.launch(kernel.name, &mut self.memory, &launch).map_err(|e| failed(kernel.name, e))?;
        let (conflicts, passes) = (stats.bank_conflicts, stats.shared_passes);
        if 100 * conflicts > kernel.conflicts * passes {
            let lines = &stats.bank_conflict_lines;
            return Err(failed(
                kernel.name,
                format!("{conflicts} bank conflicts in {passes} passes: {lines:?}"),
            ));
        }
        add(self.stats.entry(kernel.name).or_default(), &stats);
        Ok(())
    }

    fn reopened(self) -> Result<Self, GpuError> {
        Ok(Simulator { memory: Memory::new(), allocations: BTreeMap::new(), ..self })
    }

    fn record(
        &mut self,
        launches: &[(&Launch, &Arc<Module>)],
        _overlap: bool,
    ) -> Result<Self::Graph, GpuError> {
        Ok(launches.iter().map(|&(launch, module)| (launch.clone(), Arc::clone(module))).collect())
    }

    fn replay(&mut self, graph: &Self::Graph) -> Result<(), GpuError> {
        graph.iter().try_for_each(|(launch, module)| self.launch(launch, module))
    }

    fn discard(&mut self, _graph: Self::Graph) {}

    fn mark(&mut self, mark: usize) -> Result<(), GpuError> {
        self.marks[mark] = Some(Instant::now());
        Ok(())
    }

    fn between(&mut self, from: usize, to: usize) -> Result<Duration, GpuError> {
        let of = |mark: usize| self.marks[mark].ok_or_else(|| failed("between", "no such mark"));
        Ok(of(to)?.duration_since(of(from)?))
    }

    fn synchronize(&mut self) -> Result<(), GpuError> {
        Ok(())
    }
}

/// Adds the counts of a launch.
fn add(all: &mut Stats, one: &Stats) {
    all.warp_instructions += one.warp_instructions;
    all.thread_instructions += one.thread_instructions;
    all.shared_passes += one.shared_passes;
    all.bank_conflicts += one.bank_conflicts;
    all.global_requests += one.global_requests;
    all.global_sectors += one.global_sectors;
    for (opcode, count) in &one.opcodes {
        *all.opcodes.entry(opcode.clone()).or_default() += count;
    }
    for (line, count) in &one.bank_conflict_lines {
        *all.bank_conflict_lines.entry(*line).or_default() += count;
    }
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator").field("info", &self.info).finish_non_exhaustive()
    }
}
