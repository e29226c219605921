//! What atomics publish: the snapshots of each location.

use std::collections::HashMap;

use super::clocks::Clocks;
use super::knowledge::{Knowledge, merge};

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
