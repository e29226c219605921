//! What a release lets an acquire know: snapshots of a thread's view, carried by the location they met at.

use std::collections::HashMap;
use std::sync::Arc;

use super::Clocks;
use super::stamp::{ANY_LANE, Stamp};
use crate::inst::{Strength, WARP};

/// The view of one thread at a release.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(super) serial: u32,
    pub(super) warp: usize,
    pub(super) lane: usize,
    /// Whether threads of other blocks may rely on it.
    pub(super) gpu: bool,
    pub(super) seen: Box<[u32]>,
    pub(super) lanes: [u32; WARP],
}

impl Snapshot {
    pub(super) fn widened(&self) -> Snapshot {
        Snapshot { gpu: true, ..self.clone() }
    }

    pub(super) fn covers(&self, stamp: Stamp) -> bool {
        let time = stamp.clock();
        let lane_ok = |lane: usize| self.lanes[lane] >= time;
        stamp.serial() == self.serial
            && match stamp.lane() {
                _ if stamp.warp() != self.warp => self.seen[stamp.warp()] >= time,
                ANY_LANE => (0..WARP).all(lane_ok),
                lane => lane_ok(lane),
            }
    }
}

pub(crate) type Knowledge = Vec<Arc<Snapshot>>;

/// Adds what is new in `from`; of two snapshots of a thread the later one tells more.
pub(super) fn merge(into: &mut Knowledge, from: &Knowledge) {
    for new in from {
        let same =
            |old: &&mut Arc<Snapshot>| (old.serial, old.warp, old.lane) == (new.serial, new.warp, new.lane);
        match into.iter_mut().find(same) {
            Some(old) if old.lanes[old.lane] < new.lanes[new.lane] => *old = new.clone(),
            Some(_) => {}
            None => into.push(new.clone()),
        }
    }
}

/// How an atomic access uses its location.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Load,
    Store,
    /// `red` reads too, but returns nothing that could be learned from.
    Update {
        returns: bool,
    },
}

/// What each location carries. Shared locations are told apart by their block's serial.
#[derive(Default)]
pub(crate) struct Releases {
    carried: HashMap<(u32, u64), Knowledge>,
}

impl Releases {
    /// One lane's atomic access at `place`: learns from earlier releases there, and releases itself.
    pub(crate) fn meet(
        &mut self,
        place: (u32, u64),
        clocks: &mut Clocks,
        (warp, lane): (usize, usize),
        strength: Strength,
        how: Use,
    ) {
        if matches!(how, Use::Load | Use::Update { returns: true }) {
            match self.carried.get(&place) {
                Some(known) if strength.acquire => clocks.acquire(warp, lane, strength.gpu, known),
                Some(known) => clocks.observe(warp, lane, known),
                None => {}
            }
        }
        if how == Use::Load {
            return;
        }
        let published = if strength.release {
            Some(clocks.publish(warp, lane, strength.gpu))
        } else {
            clocks.fenced(warp, lane).cloned()
        };
        if how == Use::Store {
            // A plain value replaces the release sequence; an update continues it.
            self.carried.remove(&place);
        }
        if let Some(published) = published {
            merge(self.carried.entry(place).or_default(), &published);
        }
    }
}
