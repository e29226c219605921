use std::{collections::HashMap, fmt, time::Duration};

use bitnet_kernels::gpu::{DeviceInfo, Driver, GpuError, Launch, table::Kernel};

/// Space between the addresses of two allocations.
const APART: u64 = 1 << 40;

/// A driver that does nothing: launches do not run, and all memory reads as zeros. What a step takes on it is the time
/// of the host.
pub struct Null {
    info: DeviceInfo,
    allocations: u64,
    /// Bytes of every allocation that is not freed, by address.
    held: HashMap<u64, usize>,
}

impl Default for Null {
    /// As large as an H200.
    fn default() -> Self {
        Null {
            info: DeviceInfo { name: "null".to_owned(), memory: 140 << 30, ..DeviceInfo::h100() },
            allocations: 0,
            held: HashMap::new(),
        }
    }
}

impl Null {
    /// A GPU with other properties.
    pub fn with(change: impl FnOnce(&mut DeviceInfo)) -> Self {
        let mut null = Null::default();
        change(&mut null.info);
        null
    }

    /// Bytes that are allocated and not freed.
    pub fn held(&self) -> usize {
        self.held.values().sum()
    }
}

impl Driver for Null {
    type Function = ();
    type Graph = ();

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn compiles(&self) -> bool {
        false
    }

    fn free_memory(&self) -> Result<usize, GpuError> {
        Ok(self.info.memory)
    }

    fn alloc(&mut self, bytes: usize, _what: &'static str) -> Result<u64, GpuError> {
        self.allocations += 1;
        let address = self.allocations * APART;
        self.held.insert(address, bytes);
        Ok(address)
    }

    fn free(&mut self, address: u64) {
        self.held.remove(&address);
    }

    fn write(&mut self, _address: u64, _bytes: &[u8]) -> Result<(), GpuError> {
        Ok(())
    }

    fn read(&mut self, _address: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        bytes.fill(0);
        Ok(())
    }

    fn load(&mut self, _kernel: &'static Kernel) -> Result<(), GpuError> {
        Ok(())
    }

    fn launch(&mut self, _launch: &Launch, _function: &()) -> Result<(), GpuError> {
        Ok(())
    }

    fn reopened(self) -> Result<Self, GpuError> {
        Ok(self)
    }

    fn record(&mut self, _launches: &[(&Launch, &())], _overlap: bool) -> Result<(), GpuError> {
        Ok(())
    }

    fn replay(&mut self, _graph: &()) -> Result<(), GpuError> {
        Ok(())
    }

    fn discard(&mut self, _graph: ()) {}

    fn mark(&mut self, _mark: usize) -> Result<(), GpuError> {
        Ok(())
    }

    fn between(&mut self, _from: usize, _to: usize) -> Result<Duration, GpuError> {
        Ok(Duration::ZERO)
    }

    fn synchronize(&mut self) -> Result<(), GpuError> {
        Ok(())
    }
}

impl fmt::Debug for Null {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Null").finish_non_exhaustive()
    }
}
