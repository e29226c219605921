//! Knowledge passed between threads by fences around atomics: snapshots of a thread's view, stored with the location.

use std::sync::Arc;

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
