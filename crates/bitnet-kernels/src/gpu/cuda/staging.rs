//! Pinned host memory that the device reads and writes directly: a ring, so that the next copy can be prepared while
//! earlier ones run.

use std::{ffi::c_void, ptr};

use cudarc::driver::sys;

use super::{Patience, check, library::Library};
use crate::gpu::GpuError;

/// Slots in the ring: more than the copies of a step.
const SLOTS: usize = 16;
/// Bytes of a slot: the inputs of a step have a few kilobytes, and weights are copied in pieces.
const SLOT: usize = 1 << 20;

/// The ring. All pointers are null until [`Staging::take`].
pub(super) struct Staging {
    /// `[SLOTS][SLOT]`
    memory: *mut u8,
    /// Events that are passed when the copy from or to a slot is done.
    done: [sys::CUevent; SLOTS],
    next: usize,
}

impl Staging {
    /// Makes a ring without memory.
    pub(super) fn new() -> Self {
        Staging { memory: ptr::null_mut(), done: [ptr::null_mut(); SLOTS], next: 0 }
    }

    /// Allocates the memory; the context must be current.
    pub(super) fn take(&mut self, l: Library) -> Result<(), GpuError> {
        let mut memory = ptr::null_mut();
        // SAFETY: the pointer is to a local that lives through the call; 0 are no flags.
        check("cuMemHostAlloc", unsafe { (l.cuMemHostAlloc)(&mut memory, SLOTS * SLOT, 0) })?;
        self.memory = memory.cast();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        for done in &mut self.done {
            // SAFETY: the pointer is to a field that lives through the call.
            check("cuEventCreate", unsafe { (l.cuEventCreate)(done, flags) })?;
        }
        Ok(())
    }

    /// Copies to the device. When this returns, `bytes` are in the ring.
    pub(super) fn write(
        &mut self,
        l: Library,
        stream: sys::CUstream,
        patience: &Patience,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), GpuError> {
        for (at, piece) in (address..).step_by(SLOT).zip(bytes.chunks(SLOT)) {
            let slot = self.slot(l, patience)?;
            let place = self.place(slot);
            // SAFETY: a piece is at most as long as a slot, no copy uses the slot any more, and nothing else refers to
            // it.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), place, piece.len()) };
            // SAFETY: the slot holds the piece and does not change until the event after the copy is passed.
            let code = unsafe { (l.cuMemcpyHtoDAsync_v2)(at, place.cast::<c_void>(), piece.len(), stream) };
            check("cuMemcpyHtoDAsync", code)?;
            self.end(l, stream, slot)?;
        }
        Ok(())
    }

    /// Copies from the device, and waits for it.
    pub(super) fn read(
        &mut self,
        l: Library,
        stream: sys::CUstream,
        patience: &Patience,
        address: u64,
        bytes: &mut [u8],
    ) -> Result<(), GpuError> {
        for (at, piece) in (address..).step_by(SLOT).zip(bytes.chunks_mut(SLOT)) {
            let slot = self.slot(l, patience)?;
            let place = self.place(slot);
            // SAFETY: the slot is at least as long as the piece and unused until the event after the copy is passed; it
            // belongs to the ring, so that a device that answers too late still writes there.
            let code = unsafe { (l.cuMemcpyDtoHAsync_v2)(place.cast::<c_void>(), at, piece.len(), stream) };
            check("cuMemcpyDtoHAsync", code)?;
            self.end(l, stream, slot)?;
            self.wait(l, patience, slot)?;
            // SAFETY: the copy is done; a piece is at most as long as a slot, and they do not overlap.
            unsafe { ptr::copy_nonoverlapping(place, piece.as_mut_ptr(), piece.len()) };
        }
        Ok(())
    }

    /// Waits for the last copy of the next slot and returns the slot.
    fn slot(&mut self, l: Library, patience: &Patience) -> Result<usize, GpuError> {
        let slot = self.next;
        self.next = (slot + 1) % SLOTS;
        self.wait(l, patience, slot).map(|()| slot)
    }

    fn place(&self, slot: usize) -> *mut u8 {
        // SAFETY: the memory has `SLOTS` slots.
        unsafe { self.memory.add(slot * SLOT) }
    }

    fn end(&self, l: Library, stream: sys::CUstream, slot: usize) -> Result<(), GpuError> {
        // SAFETY: event and stream belong to the owner.
        check("cuEventRecord", unsafe { (l.cuEventRecord)(self.done[slot], stream) })
    }

    fn wait(&self, l: Library, patience: &Patience, slot: usize) -> Result<(), GpuError> {
        // SAFETY: the event belongs to the owner; one that was never recorded counts as passed.
        patience.wait("cuEventQuery", || unsafe { (l.cuEventQuery)(self.done[slot]) })
    }

    /// Frees the memory; no copy may be running.
    pub(super) fn give_back(&mut self, l: Library) {
        for done in self.done.iter().filter(|done| !done.is_null()) {
            // SAFETY: made by `take`.
            let _ = unsafe { (l.cuEventDestroy_v2)(*done) };
        }
        if !self.memory.is_null() {
            // SAFETY: allocated by `take`, and no copy uses it.
            let _ = unsafe { (l.cuMemFreeHost)(self.memory.cast::<c_void>()) };
        }
    }
}
