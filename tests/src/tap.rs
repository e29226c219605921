//! A driver between the backend and the simulator: it counts what is asked of it, and fails where it is told to.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bitnet_kernels::gpu::{DeviceInfo, Driver, GpuError, Launch, table::Kernel};

use crate::Simulator;

/// A call of a driver that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Taking memory.
    Alloc,
    /// Making a kernel of its text.
    Load,
    /// Running a kernel.
    Launch,
    /// Recording launches.
    Record,
    /// Running what was recorded.
    Replay,
    /// Copying to the device.
    Write,
    /// Copying from the device.
    Read,
    /// Waiting.
    Synchronize,
}

/// What a driver has been asked, and how it is to fail.
#[derive(Default)]
pub struct Told {
    calls: Vec<Call>,
    fault: Option<(Call, GpuError)>,
}

/// The simulator, watched.
pub struct Tap {
    simulator: Simulator,
    told: Arc<Mutex<Told>>,
}

/// The test's end of a [`Tap`].
#[derive(Clone, Default)]
pub struct Handle(Arc<Mutex<Told>>);

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// How often a call was made.
    pub fn count(&self, call: Call) -> usize {
        lock(&self.0).calls.iter().filter(|&&c| c == call).count()
    }

    /// From now on this call fails.
    pub fn fail(&self, call: Call, error: GpuError) {
        lock(&self.0).fault = Some((call, error));
    }
}

impl Tap {
    /// A simulator behind a tap.
    pub fn of(simulator: Simulator) -> (Self, Handle) {
        let handle = Handle::default();
        (Tap { simulator, told: Arc::clone(&handle.0) }, handle)
    }

    /// Notes a call, which may have to fail.
    fn hear(&self, call: Call) -> Result<(), GpuError> {
        let mut told = lock(&self.told);
        told.calls.push(call);
        match &told.fault {
            Some((at, error)) if *at == call => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl Driver for Tap {
    type Function = <Simulator as Driver>::Function;
    type Graph = <Simulator as Driver>::Graph;

    fn info(&self) -> &DeviceInfo {
        self.simulator.info()
    }

    fn free_memory(&self) -> Result<usize, GpuError> {
        self.simulator.free_memory()
    }

    fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<u64, GpuError> {
        self.hear(Call::Alloc)?;
        self.simulator.alloc(bytes, what)
    }

    fn free(&mut self, address: u64) {
        self.simulator.free(address);
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.hear(Call::Write)?;
        self.simulator.write(address, bytes)
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.hear(Call::Read)?;
        self.simulator.read(address, bytes)
    }

    fn load(&mut self, kernel: &'static Kernel) -> Result<Self::Function, GpuError> {
        self.hear(Call::Load)?;
        self.simulator.load(kernel)
    }

    fn launch(&mut self, launch: &Launch, function: &Self::Function) -> Result<(), GpuError> {
        self.hear(Call::Launch)?;
        self.simulator.launch(launch, function)
    }

    fn record(&mut self, launches: &[(&Launch, &Self::Function)]) -> Result<Self::Graph, GpuError> {
        self.hear(Call::Record)?;
        self.simulator.record(launches)
    }

    fn replay(&mut self, graph: &Self::Graph) -> Result<(), GpuError> {
        self.hear(Call::Replay)?;
        self.simulator.replay(graph)
    }

    fn discard(&mut self, graph: Self::Graph) {
        self.simulator.discard(graph);
    }

    fn mark(&mut self, mark: usize) -> Result<(), GpuError> {
        self.simulator.mark(mark)
    }

    fn between(&mut self, from: usize, to: usize) -> Result<Duration, GpuError> {
        self.simulator.between(from, to)
    }

    fn synchronize(&mut self) -> Result<(), GpuError> {
        self.hear(Call::Synchronize)?;
        self.simulator.synchronize()
    }
}
