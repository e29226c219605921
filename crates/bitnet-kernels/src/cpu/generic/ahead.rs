//! Prefetches: cache lines that are read soon, asked for while others are multiplied ([`Ahead`]).

use crate::cpu::lanes::Lanes;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Prefetches of one stretch of memory, some cache lines at a time.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    from: *const u8,
    /// Bytes from the prefetches of one call to those of the next.
    step: usize,
    /// Cache lines per call.
    lines: usize,
}

impl Ahead {
    /// No prefetches.
    pub(crate) const NOTHING: Ahead = Ahead { from: std::ptr::null(), step: 0, lines: 0 };

    /// Prefetches `step` bytes in each call of [`Ahead::prefetch`], from `from` on, which need not be valid.
    pub(crate) fn of(from: *const u8, step: usize) -> Self {
        Ahead { from, step, lines: step.div_ceil(LINE) }
    }

    #[inline(always)]
    pub(crate) unsafe fn prefetch<L: Lanes>(&mut self) {
        // SAFETY: as the caller promises.
        unsafe { self.prefetch_few::<L, { usize::MAX }>() }
    }

    /// Prefetches as [`Ahead::prefetch`] does, if a call has one line.
    #[inline(always)]
    pub(crate) unsafe fn prefetch_line<L: Lanes>(&mut self) {
        debug_assert!(self.lines <= 1, "a call must have one line");
        // SAFETY: the caller keeps the contract of `Lanes`; a prefetch takes any address.
        unsafe { L::prefetch(self.from) };
        self.from = self.from.wrapping_add(self.step);
    }

    /// Prefetches as [`Ahead::prefetch`] does, if a call has `MOST` lines at most. A small limit leaves no loop, whose
    /// counters would take registers that the caller's loop needs.
    #[inline(always)]
    pub(crate) unsafe fn prefetch_few<L: Lanes, const MOST: usize>(&mut self) {
        debug_assert!(self.lines <= MOST, "a call must have at most {MOST} lines");
        for line in 0..self.lines.min(MOST) {
            // SAFETY: the caller keeps the contract of `Lanes`; a prefetch takes any address.
            unsafe { L::prefetch(self.from.wrapping_add(line * LINE)) };
        }
        self.from = self.from.wrapping_add(self.step);
    }
}

/// Prefetches all of `bytes`.
#[inline(always)]
pub(crate) unsafe fn fetch<L: Lanes>(bytes: &[u8]) {
    // SAFETY: as above.
    unsafe { Ahead::of(bytes.as_ptr(), bytes.len()).prefetch::<L>() }
}
