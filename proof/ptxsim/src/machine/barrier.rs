//! The sixteen barriers of a block.

use crate::race::Clocks;

#[derive(Default)]
struct Barrier {
    /// The warps that wait for it to open.
    waiting: Vec<usize>,
    /// For each warp, the time up to which they know its accesses.
    known: Vec<u32>,
}

#[derive(Default)]
pub(super) struct Barriers {
    barriers: [Barrier; 16],
}

impl Barriers {
    /// All lanes of `warp`, one of `warps`, arrive at barrier `id`.
    pub(super) fn arrive(&mut self, clocks: &mut Clocks, (warp, warps): (usize, usize), id: usize) {
        let barrier = &mut self.barriers[id];
        barrier.known.resize(warps, 0);
        clocks.arrive(warp, &mut barrier.known);
        barrier.waiting.push(warp);
    }

    /// Opens every barrier that all live warps have reached, and returns the warps that may continue.
    pub(super) fn open_full(
        &mut self,
        clocks: &mut Clocks,
        warps: usize,
        alive: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let mut released = Vec::new();
        for barrier in self.barriers.iter_mut().filter(|barrier| !barrier.waiting.is_empty()) {
            if (0..warps).all(|w| !alive(w) || barrier.waiting.contains(&w)) {
                clocks.open(&barrier.waiting, &barrier.known);
                released.append(&mut barrier.waiting);
                *barrier = Barrier::default();
            }
        }
        released
    }
}
