//! Zeroed, aligned memory, and a way to write disjoint parts of it from several threads.

use std::{
    alloc::{self, Layout},
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use memmap2::MmapMut;

use super::nodes::Team;
use crate::KernelError;

/// Plain numbers: every bit pattern, including zero, is a valid value.
///
/// # Safety
/// Implementors must have no padding, no invalid bit pattern and nothing to drop.
pub unsafe trait Number: Copy + Send + Sync + 'static {}

// SAFETY: every bit pattern is a valid value.
unsafe impl Number for f32 {}
// SAFETY: as above.
unsafe impl Number for i8 {}
// SAFETY: as above.
unsafe impl Number for u8 {}
// SAFETY: as above.
unsafe impl Number for u64 {}
// SAFETY: an f32 and an i32, without padding.
unsafe impl Number for bitnet_tensor::quant::RowQuant {}
// SAFETY: an f32 and three i32, without padding.
unsafe impl Number for bitnet_tensor::quant::GroupQuant {}

/// Bytes of a huge page. Larger buffers start on one, and the system is asked to back them with huge pages.
pub(crate) const HUGE: usize = 2 << 20;
const LINE: usize = 64;
const PAGE: usize = 4096;

/// A slice of numbers, initially zero, that starts on a cache line.
pub struct Buffer<T: Number> {
    ptr: NonNull<T>,
    len: usize,
    /// The mapping that holds the memory, or `None` if it is from the allocator. Pages are allocated at first use.
    map: Option<Arc<MmapMut>>,
}

// SAFETY: the buffer owns its memory like a `Box<[T]>` of plain numbers.
unsafe impl<T: Number> Send for Buffer<T> {}
// SAFETY: as above; shared access is only through `&[T]`.
unsafe impl<T: Number> Sync for Buffer<T> {}

impl<T: Number> Buffer<T> {
    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<T>())?.max(1);
        Layout::from_size_align(bytes, LINE).ok()
    }

    /// Allocates `len` zeros; `what` names the memory in the error if the system refuses it.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Self, KernelError> {
        let refused = || KernelError::OutOfMemory { what, bytes: len.saturating_mul(size_of::<T>()) };
        let layout = Self::layout(len).ok_or_else(refused)?;
        if layout.size() < HUGE {
            // SAFETY: the layout is at least one byte.
            let ptr = unsafe { alloc::alloc_zeroed(layout) };
            let ptr = NonNull::new(ptr.cast::<T>()).ok_or_else(refused)?;
            return Ok(Buffer { ptr, len, map: None });
        }
        let bytes = layout.size().checked_add(HUGE).ok_or_else(refused)?;
        let mut map = MmapMut::map_anon(bytes).map_err(|_| refused())?;
        let start = map.as_mut_ptr();
        let first = start.align_offset(HUGE);
        // Only whole huge pages: one for the end of a buffer would be partly wasted. Failure is harmless: without huge
        // pages everything works, only slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, first, layout.size() / HUGE * HUGE);
        let ptr = NonNull::new(start.wrapping_add(first).cast::<T>()).ok_or_else(refused)?;
        Ok(Buffer { ptr, len, map: Some(Arc::new(map)) })
    }

    /// Bytes of `len` numbers; a buffer of none has one.
    pub(crate) fn bytes(len: usize) -> usize {
        (len * size_of::<T>()).max(1)
    }

    /// Gives write access to several threads at once.
    pub(crate) fn shared(&mut self) -> Shared<'_, T> {
        Shared::new(self)
    }
}

impl<T: Number> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.map.is_some() {
            return;
        }
        let layout = Self::layout(self.len).expect("it was allocated with this layout");
        // SAFETY: allocated in `zeroed` with the same layout.
        unsafe { alloc::dealloc(self.ptr.as_ptr().cast(), layout) }
    }
}

impl<T: Number> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `ptr` is valid for `len` initialised (zeroed) numbers as long as the buffer lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer<u8> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<T: Number> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

/// Sub-allocates small matrices from shared huge-page maps, so that each is entirely on huge pages. Alone, the end of a
/// matrix that does not fill a huge page would be on small ones: a seventh of matrices of 1.6 to 9 MB, and reading from
/// small pages takes half as long again.
#[derive(Default)]
pub(crate) struct Arena {
    rest: Option<Buffer<u8>>,
    /// The threads that read the matrices, if the machine has several memory nodes.
    team: Option<Arc<Team>>,
}

impl Arena {
    /// Bytes of a map. Part of the last huge page of each map is unused.
    const PIECE: usize = 64 * HUGE;

    /// Bytes that a buffer of `bytes` bytes takes: whole pages, if it shares a map.
    pub(crate) fn bytes(bytes: usize) -> usize {
        let pages = bytes.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        if (16 * PAGE..=Self::PIECE).contains(&pages) { pages } else { bytes }
    }

    /// An arena for matrices whose panels are read by these threads.
    pub(crate) fn of(team: Option<Arc<Team>>) -> Self {
        Arena { rest: None, team }
    }

    /// Whether matrices are spread over several memory nodes.
    pub(crate) fn is_spread(&self) -> bool {
        self.team.is_some()
    }

    /// Asks the system to keep the pages of a matrix that is not written yet on the nodes of the threads that will read
    /// them. Returns whether it will do so, if there are several nodes.
    pub(crate) fn place<T: Number>(&self, matrix: &Buffer<T>) -> Option<bool> {
        let (team, _) = (self.team.as_ref()?, matrix.map.as_ref()?);
        let start = matrix.ptr.addr().get();
        Some(team.place(start..start + matrix.len * size_of::<T>(), HUGE))
    }

    /// Like [`Buffer::zeroed`], for memory that is written immediately and lives as long as the rest of the arena: a
    /// map is freed with the last of its buffers.
    pub(crate) fn zeroed<T: Number>(
        &mut self,
        len: usize,
        what: &'static str,
    ) -> Result<Buffer<T>, KernelError> {
        let bytes = len.saturating_mul(size_of::<T>()).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        if !(16 * PAGE..=Self::PIECE).contains(&bytes) {
            let buffer = Buffer::zeroed(len, what)?;
            self.place(&buffer);
            return Ok(buffer);
        }
        let mut rest = match self.rest.take() {
            Some(rest) if rest.len >= bytes => rest,
            _ => Buffer::zeroed(Self::PIECE, what)?,
        };
        let buffer = Buffer { ptr: rest.ptr.cast(), len, map: rest.map.clone() };
        // SAFETY: `bytes` are inside the rest, which from now on begins after them.
        rest.ptr = unsafe { rest.ptr.add(bytes) };
        rest.len -= bytes;
        self.rest = Some(rest);
        self.place(&buffer);
        Ok(buffer)
    }
}

/// A mutable slice whose disjoint parts are written by different threads.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    ptr: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: access is through `slice`, whose caller promises that parts are disjoint.
unsafe impl<T: Number> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Number> Sync for Shared<'_, T> {}

impl<'a, T: Number> Shared<'a, T> {
    /// Shares any mutable slice.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared { ptr: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Returns the part `start..start + len`.
    ///
    /// # Safety
    /// No other part that is alive at the same time may overlap this one.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "the part must be inside the slice");
        // SAFETY: in bounds by the assertion, unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_an_arena_are_zero_and_apart_and_outlive_it() {
        let mut arena = Arena::default();
        // Too small to share, two from one map, one from the next, and too large.
        let lens = [7, 100_001, 300_000, Arena::PIECE - 5, Arena::PIECE + 1];
        let mut buffers = lens.map(|len| arena.zeroed::<u8>(len, "test").unwrap());
        drop(arena);
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.len() == lens[i] && buffer.as_ptr().align_offset(LINE) == 0);
            // Both ends, and a byte of each page between them.
            let ends = (0..lens[i].min(9)).chain(lens[i].saturating_sub(9)..lens[i]);
            for at in ends.chain((0..lens[i]).step_by(PAGE)) {
                assert!(buffer[at] == 0 || buffer[at] == i as u8 + 1, "buffer {i} begins with zeros");
                buffer[at] = i as u8 + 1;
            }
        }
        assert_eq!(buffers.map(|b| b[0].max(b[b.len() - 1])), [1, 2, 3, 4, 5]);
    }
}
