//! What fences around atomics let others know: snapshots of a thread's view, carried by the location they met at.

use std::collections::HashMap;
use std::sync::Arc;

use super::Clocks;
use super::stamp::Stamp;

/// The view of one thread at a fence.
pub(crate) struct Snapshot {
    pub(super) serial: u32,
    pub(super) warp: usize,
    pub(super) lane: usize,
    /// When it was taken: what the thread itself had done.
    pub(super) time: u32,
    /// Up to when it knows the other lanes of its warp.
    pub(super) full: u32,
    /// Up to when it knows each warp.
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

/// Adds what is new in `from`; of two snapshots of a thread the later one tells more.
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

/// What each location carries. Shared locations are told apart by their block's serial.
#[derive(Default)]
pub(crate) struct Releases {
    carried: HashMap<(u32, u64), Knowledge>,
}

impl Releases {
    /// One lane's atomic update at `place`: what it returns tells of earlier ones, and it tells of what was fenced.
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
