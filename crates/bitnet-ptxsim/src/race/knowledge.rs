//! Knowledge passed between threads by fences around atomics: snapshots of a thread's view, stored with the location.

use std::collections::HashMap;
use std::sync::Arc;

use super::Clocks;
use super::stamp::Stamp;

/// The view of a thread at a fence.
pub(crate) struct Snapshot {
    pub(super) serial: u32,
    pub(super) warp: usize,
    pub(super) lane: usize,
    /// Time of the snapshot, up to which it covers the thread's own accesses.
    pub(super) time: u32,
    /// Time up to which it covers the other lanes of the warp.
    pub(super) full: u32,
    /// For each warp, the time up to which it covers that warp.
    pub(super) seen: Box<[u32]>,
}

impl Snapshot {
    pub(super) fn covers(&self, stamp: Stamp) -> bool {
        let known = match stamp.lane() {
            _ if stamp.warp() != self.warp => self.seen[stamp.warp()],
            lane if lane == self.lane => self.time,
            _ => self.full,
        };
        stamp.serial() == self.serial && known >= stamp.clock()
    }
}

pub(crate) type Knowledge = Vec<Arc<Snapshot>>;

/// Adds what is new in `from`; of two snapshots of the same thread, the later one is kept.
pub(super) fn merge(into: &mut Knowledge, from: &Knowledge) {
    for new in from {
        let same =
            |old: &&mut Arc<Snapshot>| (old.serial, old.warp, old.lane) == (new.serial, new.warp, new.lane);
        match into.iter_mut().find(same) {
            Some(old) if old.time < new.time => *old = new.clone(),
            Some(_) => {}
            None => into.push(new.clone()),
        }
    }
}

/// The snapshots of each location. Shared locations include their block's serial.
#[derive(Default)]
pub(crate) struct Releases {
    carried: HashMap<(u32, u64), Knowledge>,
}

impl Releases {
    /// Applies a lane's atomic update at `place`: it observes the snapshots of earlier updates and publishes its
    /// fenced ones.
    pub(crate) fn meet(
        &mut self,
        place: (u32, u64),
        clocks: &mut Clocks,
        (warp, lane): (usize, usize),
        returns: bool,
    ) {
        if returns && let Some(known) = self.carried.get(&place) {
            clocks.observe(warp, lane, known);
        }
        if let Some(published) = clocks.fenced(warp, lane) {
            merge(self.carried.entry(place).or_default(), published);
        }
    }
}
