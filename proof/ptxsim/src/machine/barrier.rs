//! The sixteen barriers of a block.

use crate::race::Clocks;

#[derive(Default)]
struct Barrier {
    /// The warps that wait for it to open.
    waiting: Vec<usize>,
    /// The number of warps that open it; none if these are all live ones.
    warps: Option<usize>,
    /// For each warp, the time up to which they know its accesses.
    known: Vec<u32>,
}

#[derive(Default)]
pub(super) struct Barriers {
    barriers: [Barrier; 16],
}

impl Barriers {
    /// All lanes of `warp`, one of `all`, arrive at barrier `id`, which opens for `warps` of them. Returns whether there is
    /// such a barrier, and the warps that wait at it wait for as many.
    pub(super) fn arrive(
        &mut self,
        clocks: &mut Clocks,
        (warp, all): (usize, usize),
        id: usize,
        warps: Option<usize>,
    ) -> bool {
        let Some(barrier) = self.barriers.get_mut(id) else { return false };
        if !barrier.waiting.is_empty() && barrier.warps != warps {
            return false;
        }
        barrier.warps = warps;
        barrier.known.resize(all, 0);
        clocks.arrive(warp, &mut barrier.known);
        barrier.waiting.push(warp);
        true
    }

    /// Opens every barrier that enough warps have reached, and returns the warps that may continue.
    pub(super) fn open_full(
        &mut self,
        clocks: &mut Clocks,
        warps: usize,
        alive: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let mut released = Vec::new();
        for barrier in self.barriers.iter_mut().filter(|barrier| !barrier.waiting.is_empty()) {
            let full = match barrier.warps {
                Some(needed) => barrier.waiting.len() == needed,
                None => (0..warps).all(|w| !alive(w) || barrier.waiting.contains(&w)),
            };
            if full {
                clocks.open(&barrier.waiting, &barrier.known);
                released.append(&mut barrier.waiting);
                *barrier = Barrier::default();
            }
        }
        released
    }
}
