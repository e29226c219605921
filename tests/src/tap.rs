//! A driver between the backend and the simulator that counts calls and fails on request.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bitnet_kernels::gpu::{DeviceInfo, Driver, GpuError, Launch, table::Kernel};

use crate::Simulator;

/// A call of a driver that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Allocating memory.
    Alloc,
    /// Loading a kernel from its text.
    Load,
    /// Running a kernel.
    Launch,
    /// Recording launches that overlap.
    Record,
    /// Recording launches that do not overlap.
    RecordInTurn,
    /// Opening the GPU again.
    Reopen,
    /// Replaying recorded launches.
    Replay,
    /// Copying to the device.
    Write,
    /// Copying from the device.
    Read,
    /// Waiting for the device.
    Synchronize,
}

/// The calls of a driver so far, and how it should fail.
#[derive(Default)]
struct Log {
    calls: Vec<Call>,
    kernels: Vec<&'static str>,
    read: usize,
    faults: Vec<(Call, GpuError)>,
    /// Whether replays leave out the last launch.
    short: bool,
}

/// The simulator behind a tap.
pub struct Tap {
    info: DeviceInfo,
    simulator: Arc<Mutex<Simulator>>,
    log: Arc<Mutex<Log>>,
}

/// The test's end of a [`Tap`].
#[derive(Clone)]
pub struct Handle {
    simulator: Arc<Mutex<Simulator>>,
    log: Arc<Mutex<Log>>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// Number of times that a call was made.
    pub fn count(&self, call: Call) -> usize {
        lock(&self.log).calls.iter().filter(|&&c| c == call).count()
    }

    /// Makes this call fail from now on.
    pub fn fail(&self, call: Call, error: GpuError) {
        lock(&self.log).faults.push((call, error));
    }

    /// Leaves out the last launch of every recording, as a driver does that records wrongly.
    pub fn shorten_replays(&self) {
        lock(&self.log).short = true;
    }

    /// The kernels that have run, whether launched or replayed, in order.
    pub fn kernels(&self) -> Vec<&'static str> {
        lock(&self.log).kernels.clone()
    }

    /// Number of bytes that the host has read.
    pub fn bytes_read(&self) -> usize {
        lock(&self.log).read
    }

    /// Number of allocated bytes on the device.
    pub fn memory_used(&self) -> usize {
        let simulator = lock(&self.simulator);
        simulator.info().memory - simulator.free_memory().expect("the simulator knows")
    }

    /// The contents of all allocations with the purpose `what`.
    pub fn contents(&self, what: &str) -> Vec<Vec<u8>> {
        lock(&self.simulator).contents(what)
    }
}

impl Tap {
    /// A simulator behind a tap.
    pub fn of(simulator: Simulator) -> (Self, Handle) {
        let info = simulator.info().clone();
        let (simulator, log) = (Arc::new(Mutex::new(simulator)), Arc::default());
        let handle = Handle { simulator: Arc::clone(&simulator), log: Arc::clone(&log) };
        (Tap { info, simulator, log }, handle)
    }

    /// Counts a call, and fails it if requested.
    fn hear(&self, call: Call) -> Result<(), GpuError> {
        let mut log = lock(&self.log);
        log.calls.push(call);
        log.faults.iter().find(|(at, _)| *at == call).map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

impl Driver for Tap {
    type Function = <Simulator as Driver>::Function;
    type Graph = <Simulator as Driver>::Graph;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn compiles(&self) -> bool {
        lock(&self.simulator).compiles()
    }

    fn free_memory(&self) -> Result<usize, GpuError> {
        lock(&self.simulator).free_memory()
    }

    fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<u64, GpuError> {
        self.hear(Call::Alloc)?;
        lock(&self.simulator).alloc(bytes, what)
    }

    fn free(&mut self, address: u64) {
        lock(&self.simulator).free(address);
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.hear(Call::Write)?;
        lock(&self.simulator).write(address, bytes)
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.hear(Call::Read)?;
        lock(&self.log).read += bytes.len();
        lock(&self.simulator).read(address, bytes)
    }

    fn load(&mut self, kernel: &'static Kernel) -> Result<Self::Function, GpuError> {
        self.hear(Call::Load)?;
        lock(&self.simulator).load(kernel)
    }

    fn launch(&mut self, launch: &Launch, function: &Self::Function) -> Result<(), GpuError> {
        self.hear(Call::Launch)?;
        lock(&self.log).kernels.push(launch.kernel().name);
        lock(&self.simulator).launch(launch, function)
    }

    fn reopened(self) -> Result<Self, GpuError> {
        self.hear(Call::Reopen)?;
        let mut simulator = lock(&self.simulator);
        *simulator = std::mem::take(&mut *simulator).reopened()?;
        drop(simulator);
        Ok(self)
    }

    fn record(
        &mut self,
        launches: &[(&Launch, &Self::Function)],
        overlap: bool,
    ) -> Result<Self::Graph, GpuError> {
        self.hear(if overlap { Call::Record } else { Call::RecordInTurn })?;
        lock(&self.simulator).record(launches, overlap)
    }

    fn replay(&mut self, graph: &Self::Graph) -> Result<(), GpuError> {
        self.hear(Call::Replay)?;
        let mut log = lock(&self.log);
        let graph = graph[..graph.len() - usize::from(log.short)].to_vec();
        log.kernels.extend(graph.iter().map(|(launch, _)| launch.kernel().name));
        lock(&self.simulator).replay(&graph)
    }

    fn discard(&mut self, graph: Self::Graph) {
        lock(&self.simulator).discard(graph);
    }

    fn mark(&mut self, mark: usize) -> Result<(), GpuError> {
        lock(&self.simulator).mark(mark)
    }

    fn between(&mut self, from: usize, to: usize) -> Result<Duration, GpuError> {
        lock(&self.simulator).between(from, to)
    }

    fn synchronize(&mut self) -> Result<(), GpuError> {
        self.hear(Call::Synchronize)?;
        lock(&self.simulator).synchronize()
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("info", &self.info).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
