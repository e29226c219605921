//! Memory that parts will be read into, used once while nothing runs: a system hands out memory at its first use, and in
//! a virtual machine that can take several times as long as reading the part.

use bitnet_model::CachePlace;

use super::{CacheAccess, Tier};
use crate::schedule::Scheduler;

/// Slots in which a text goes on from a state that is read: one for the state, and its own.
const SLOTS: u32 = 2;

/// Which memory has been used, and how much is to be.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Bytes to use at most.
    most: u64,
    bytes: u64,
    /// The slots and blocks before these have been used or hold something.
    slots: u32,
    blocks: u32,
}

impl Prepared {
    pub fn up_to(most: u64) -> Prepared {
        Prepared { most, bytes: 0, slots: 0, blocks: 0 }
    }
}

impl Tier {
    /// Writes zeros to a slot or block that holds nothing, if nothing runs or waits. All together get as many bytes as
    /// the shelf held before this process kept any.
    pub(super) fn prepare(&mut self, scheduler: &mut Scheduler, cache: &mut dyn CacheAccess) {
        if self.more || !scheduler.is_empty() || !self.wishes.is_empty() {
            return;
        }
        let shelf = self.shelf.counts();
        if self.prepared.bytes >= self.prepared.most.min(shelf.bytes.saturating_sub(shelf.written_bytes)) {
            return;
        }
        // A copy that has been decided may be of a slot that is free by now.
        self.settle(scheduler, cache);
        let Prepared { slots, blocks, .. } = self.prepared;
        let slot = scheduler.empty_slot(slots).filter(|&slot| slot < SLOTS && self.bytes.window == 0);
        let place = match (slot, scheduler.empty_block(blocks)) {
            (Some(slot), _) => {
                self.prepared.slots = slot + 1;
                CachePlace::State(slot)
            }
            (None, Some(block)) => {
                self.prepared.blocks = block + 1;
                CachePlace::Block(block)
            }
            (None, None) => {
                self.prepared.most = 0;
                return;
            }
        };
        let size = self.bytes.of(place);
        let mut zeros = self.shelf.buffer(size);
        zeros.fill(0);
        cache.write(place, &zeros);
        self.shelf.give_back(zeros.into());
        self.prepared.bytes += size as u64;
        self.counts.prepared_bytes = self.prepared.bytes;
        self.more = true;
    }
}
