//! Device memory: allocations are far apart, so that an address belongs to at most one of them.

use std::fmt;

use crate::error::{FaultKind, MemoryError, Space};
use crate::race::{MAX_SERIAL, ReadSets};
use crate::region::{Region, Trap};

/// Distance between allocations, in bits. An access that is out of bounds by less than this never hits another
/// allocation, and an address truncated to 32 bits hits none.
const STRIDE_BITS: u32 = 36;
/// Offset of an allocation in its stride: aligned to 256 bytes, as the driver guarantees, but not to more.
const START: u64 = 256;

/// The global memory of kernels. It records which bytes have been written; reading any other is an error for the host
/// and a trap for a kernel.
pub struct Memory {
    allocations: Vec<Option<Region>>,
    pub(crate) sets: ReadSets,
    next_serial: u32,
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl Memory {
    /// Memory without allocations.
    pub fn new() -> Memory {
        Memory { allocations: Vec::new(), sets: ReadSets::default(), next_serial: 1 }
    }

    /// Allocates `len` unwritten bytes and returns their address.
    pub fn alloc(&mut self, len: usize) -> u64 {
        let base = ((self.allocations.len() as u64 + 1) << STRIDE_BITS) + START;
        self.allocations.push(Some(Region::new(Space::Global, base, len)));
        base
    }

    /// Allocates `len` zeros, which the system provides when they are touched, and returns their address.
    pub fn alloc_zeroed(&mut self, len: usize) -> u64 {
        let base = self.alloc(len);
        let region = self.region(base).expect("it was just allocated");
        region.zeroed();
        base
    }

    /// Says that kernels write what others read in the allocation at `address`: no overlapped launch may read it before its
    /// wait, not even what the host wrote.
    ///
    /// # Panics
    /// If there is no allocation.
    pub fn produced(&mut self, address: u64) {
        self.region(address).expect("there is an allocation").produced();
    }

    /// Frees the allocation that starts at `address`; later accesses are out of bounds.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        let missing = MemoryError::OutOfBounds { address, len: 0 };
        let slot = index(address).and_then(|i| self.allocations.get_mut(i)).ok_or(missing.clone())?;
        match slot {
            Some(region) if region.offset(address, 0) == Some(0) => *slot = None,
            _ => return Err(missing),
        }
        Ok(())
    }

    /// Writes `bytes` at `address`, anywhere within an allocation.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let missing = MemoryError::OutOfBounds { address, len: bytes.len() };
        let region = self.region(address).ok_or(missing.clone())?;
        let at = region.offset(address, bytes.len()).ok_or(missing)?;
        region.host_write(at, bytes);
        Ok(())
    }

    /// Reads `len` bytes at `address`, all of which must have been written.
    pub fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, MemoryError> {
        let missing = MemoryError::OutOfBounds { address, len };
        let region = index(address).and_then(|i| self.allocations.get(i)?.as_ref()).ok_or(missing.clone())?;
        let at = region.offset(address, len).ok_or(missing)?;
        let unwritten = |byte| MemoryError::Uninitialised { address: address + (byte - at) as u64 };
        region.host_read(at, len).map(<[u8]>::to_vec).map_err(unwritten)
    }

    fn region(&mut self, address: u64) -> Option<&mut Region> {
        self.allocations.get_mut(index(address)?)?.as_mut()
    }

    /// The region for a kernel's access of `size` bytes, and the table for the race check.
    pub(crate) fn for_access(
        &mut self,
        address: u64,
        size: usize,
    ) -> Result<(&mut Region, &mut ReadSets), Trap> {
        let space = Space::Global;
        let region = index(address).and_then(|i| self.allocations.get_mut(i)?.as_mut());
        let region = region.ok_or(FaultKind::OutOfBounds { space, address, size })?;
        Ok((region, &mut self.sets))
    }

    /// Reserves numbers for the `blocks` of a launch and returns the first.
    pub(crate) fn begin_launch(&mut self, blocks: u32) -> u32 {
        self.sets.next_launch();
        if self.next_serial + blocks >= MAX_SERIAL {
            self.next_serial = 1;
            self.allocations.iter_mut().flatten().for_each(Region::forget_accesses);
        }
        self.next_serial += blocks;
        self.next_serial - blocks
    }
}

fn index(address: u64) -> Option<usize> {
    usize::try_from(address >> STRIDE_BITS).ok()?.checked_sub(1)
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("allocations", &self.allocations.len()).finish_non_exhaustive()
    }
}
