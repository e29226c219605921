//! The sixteen barriers of a block.

use crate::error::FaultKind;
use crate::inst::WARP;
use crate::race::Clocks;

#[derive(Default)]
struct Barrier {
    /// Threads that open it, if the instructions say; else all warps that live.
    expected: Option<u64>,
    arrived: Vec<usize>,
    /// Those of them that wait for it to open.
    waiting: Vec<usize>,
    /// What the arrivals know of each warp.
    known: Vec<u32>,
}

#[derive(Default)]
pub(super) struct Barriers {
    barriers: [Barrier; 16],
}

impl Barriers {
    /// The whole of `warp`, one of `warps`, arrives.
    pub(super) fn arrive(
        &mut self,
        clocks: &mut Clocks,
        (warp, warps): (usize, usize),
        id: u64,
        threads: Option<u64>,
        arrive_only: bool,
    ) -> Result<(), FaultKind> {
        let misuse = |what| FaultKind::BarrierMisuse { barrier: id, what };
        let barrier = usize::try_from(id).ok().and_then(|id| self.barriers.get_mut(id));
        let barrier = barrier.ok_or(misuse("there are sixteen, 0 to 15"))?;
        if threads.is_some_and(|n| n == 0 || n % WARP as u64 != 0) {
            return Err(misuse("the number of threads is not a multiple of a warp"));
        }
        if !barrier.arrived.is_empty() && barrier.expected != threads {
            return Err(misuse("warps name different numbers of threads"));
        }
        if barrier.arrived.contains(&warp) {
            return Err(misuse("a warp arrives a second time before it opens"));
        }
        barrier.expected = threads;
        barrier.known.resize(warps, 0);
        clocks.arrive(warp, &mut barrier.known);
        barrier.arrived.push(warp);
        if !arrive_only {
            barrier.waiting.push(warp);
        }
        Ok(())
    }

    /// Opens every barrier whose warps are all here, and returns those that may go on.
    pub(super) fn open_full(
        &mut self,
        clocks: &mut Clocks,
        warps: usize,
        alive: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let mut released = Vec::new();
        for barrier in self.barriers.iter_mut().filter(|barrier| !barrier.arrived.is_empty()) {
            let full = match barrier.expected {
                Some(threads) => (barrier.arrived.len() * WARP) as u64 >= threads,
                None => (0..warps).all(|w| !alive(w) || barrier.arrived.contains(&w)),
            };
            if full {
                clocks.open(&barrier.waiting, &barrier.arrived, &barrier.known);
                released.append(&mut barrier.waiting);
                *barrier = Barrier::default();
            }
        }
        released
    }
}
