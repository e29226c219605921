//! Device memory with one owner. Dropping it needs no driver: its address waits in a list until the next allocation.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Driver, Gpu, GpuError};

/// Addresses of dropped buffers that are not yet freed.
#[derive(Debug, Clone, Default)]
pub(super) struct Returned(Arc<Mutex<Vec<u64>>>);

impl Returned {
    pub(super) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Device memory with one owner. When dropped, it is freed by the next allocation.
#[derive(Debug)]
pub struct DeviceBuffer {
    address: u64,
    bytes: usize,
    returned: Returned,
}

/// Bytes of a buffer of `bytes` bytes.
pub(super) fn buffer(bytes: usize) -> usize {
    bytes.max(16)
}

impl DeviceBuffer {
    /// Allocates zeroed memory, at least 16 bytes, so that every buffer has an address.
    pub(super) fn new(
        driver: &mut impl Driver,
        returned: &Returned,
        bytes: usize,
        what: &'static str,
    ) -> Result<Self, GpuError> {
        let address = driver.alloc(buffer(bytes), what)?;
        Ok(DeviceBuffer { address, bytes, returned: returned.clone() })
    }

    /// Address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.returned.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.address);
    }
}

impl<D: Driver> Gpu<D> {
    /// Allocates zeroed device memory.
    pub fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<DeviceBuffer, GpuError> {
        let returned = self.returned.take();
        if !returned.is_empty() {
            // Queued launches may still use them.
            self.hand_over()?;
        }
        for address in returned {
            self.driver.free(address);
        }
        self.counts.allocations += 1;
        let taken = DeviceBuffer::new(&mut self.driver, &self.returned, bytes, what);
        self.remember(taken)
    }

    /// Allocates device memory and copies these bytes into it.
    pub fn store(&mut self, bytes: &[u8], what: &'static str) -> Result<DeviceBuffer, GpuError> {
        let buffer = self.alloc(bytes.len(), what)?;
        if !bytes.is_empty() {
            self.send(buffer.address, bytes)?;
        }
        Ok(buffer)
    }

    /// Reads the first bytes of a buffer.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn fetch(&mut self, buffer: &DeviceBuffer, bytes: usize) -> Result<Vec<u8>, GpuError> {
        assert!(bytes <= buffer.bytes, "the bytes must be inside the buffer");
        let mut host = vec![0; bytes];
        self.receive(buffer.address, &mut host)?;
        Ok(host)
    }
}
