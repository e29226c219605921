use std::sync::{Arc, Mutex, PoisonError};

use super::{Driver, Gpu, GpuError};

/// Addresses of buffers that were dropped and wait to be freed.
#[derive(Debug, Clone, Default)]
pub(super) struct Returned(Arc<Mutex<Vec<u64>>>);

impl Returned {
    pub(super) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Device memory of one owner. When it is dropped its address is handed back, and freed by the next allocation.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: usize,
    returned: Returned,
}

impl Buffer {
    /// Zeroed memory; at least 16 bytes, so that no buffer is without an address.
    pub(super) fn new(
        driver: &mut impl Driver,
        returned: &Returned,
        bytes: usize,
        what: &'static str,
    ) -> Result<Self, GpuError> {
        let address = driver.alloc(bytes.max(16), what)?;
        Ok(Buffer { address, bytes, returned: returned.clone() })
    }

    /// Where it lies on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.returned.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.address);
    }
}

impl<D: Driver> Gpu<D> {
    /// Zeroed device memory.
    pub fn alloc(&mut self, bytes: usize, what: &'static str) -> Result<Buffer, GpuError> {
        let returned = self.returned.take();
        if !returned.is_empty() {
            // What waits may use them.
            self.hand_over()?;
        }
        for address in returned {
            self.driver.free(address);
        }
        self.counts.allocations += 1;
        let taken = Buffer::new(&mut self.driver, &self.returned, bytes, what);
        self.remember(taken)
    }

    /// Device memory with these bytes.
    pub fn store(&mut self, bytes: &[u8], what: &'static str) -> Result<Buffer, GpuError> {
        let buffer = self.alloc(bytes.len(), what)?;
        self.send(buffer.address, bytes)?;
        Ok(buffer)
    }

    /// The first bytes of a buffer.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn fetch(&mut self, buffer: &Buffer, bytes: usize) -> Result<Vec<u8>, GpuError> {
        assert!(bytes <= buffer.bytes, "what is read lies in the buffer");
        let mut host = vec![0; bytes];
        self.receive(buffer.address, &mut host)?;
        Ok(host)
    }
}
