//! Memory of the host that the device reads and writes by itself: a ring, so that the next copy is prepared while
//! earlier ones are under way.

use std::{ffi::c_void, ptr, time::Duration};

use cudarc::driver::sys;

use super::{check, library::Library, wait};
use crate::gpu::GpuError;

/// Places in the ring: more than a step has copies.
const SLOTS: usize = 16;
/// Bytes of a place: the inputs of a step are a few kilobytes, and weights come in pieces.
const SLOT: usize = 1 << 20;

/// The ring. Everything in it is null until it is taken.
pub(super) struct Staging {
    /// `[SLOTS][SLOT]`
    memory: *mut u8,
    /// Passed when the copy from or to a place is done.
    done: [sys::CUevent; SLOTS],
    next: usize,
    /// How long a copy may take.
    patience: Duration,
}

impl Staging {
    /// A ring without memory.
    pub(super) fn new(patience: Duration) -> Self {
        Staging { memory: ptr::null_mut(), done: [ptr::null_mut(); SLOTS], next: 0, patience }
    }

    /// Takes the memory; the context must be current.
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

    /// Copies to the device. When this returns `bytes` are in the ring.
    pub(super) fn write(
        &mut self,
        l: Library,
        stream: sys::CUstream,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), GpuError> {
        for (at, piece) in (address..).step_by(SLOT).zip(bytes.chunks(SLOT)) {
            let slot = self.slot(l)?;
            let place = self.place(slot);
            // SAFETY: a piece is at most as long as a place, no copy uses the place any more, and no one else has it.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), place, piece.len()) };
            // SAFETY: the place holds the piece and stays as it is until the event behind the copy is passed.
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
        address: u64,
        bytes: &mut [u8],
    ) -> Result<(), GpuError> {
        for (at, piece) in (address..).step_by(SLOT).zip(bytes.chunks_mut(SLOT)) {
            let slot = self.slot(l)?;
            let place = self.place(slot);
            // SAFETY: the place is as long as the piece and nobody's until the event behind the copy is passed; it is
            // the ring's, so that a device that answers too late still writes there.
            let code = unsafe { (l.cuMemcpyDtoHAsync_v2)(place.cast::<c_void>(), at, piece.len(), stream) };
            check("cuMemcpyDtoHAsync", code)?;
            self.end(l, stream, slot)?;
            self.wait(l, slot)?;
            // SAFETY: the copy is done; a piece is at most as long as a place, and they do not overlap.
            unsafe { ptr::copy_nonoverlapping(place, piece.as_mut_ptr(), piece.len()) };
        }
        Ok(())
    }

    /// The next place, when its last copy is done.
    fn slot(&mut self, l: Library) -> Result<usize, GpuError> {
        let slot = self.next;
        self.next = (slot + 1) % SLOTS;
        self.wait(l, slot).map(|()| slot)
    }

    fn place(&self, slot: usize) -> *mut u8 {
        // SAFETY: the memory has `SLOTS` places.
        unsafe { self.memory.add(slot * SLOT) }
    }

    fn end(&self, l: Library, stream: sys::CUstream, slot: usize) -> Result<(), GpuError> {
        // SAFETY: event and stream are the owner's.
        check("cuEventRecord", unsafe { (l.cuEventRecord)(self.done[slot], stream) })
    }

    fn wait(&self, l: Library, slot: usize) -> Result<(), GpuError> {
        // SAFETY: the event is the owner's; one that was never recorded counts as passed.
        wait("cuEventQuery", self.patience, || unsafe { (l.cuEventQuery)(self.done[slot]) })
    }

    /// Gives the memory back, when no copy is under way any more.
    pub(super) fn give_back(&mut self, l: Library) {
        for done in self.done.iter().filter(|done| !done.is_null()) {
            // SAFETY: made by `take`.
            let _ = unsafe { (l.cuEventDestroy_v2)(*done) };
        }
        if !self.memory.is_null() {
            // SAFETY: taken by `take`, and no copy uses it.
            let _ = unsafe { (l.cuMemFreeHost)(self.memory.cast::<c_void>()) };
        }
    }
}
