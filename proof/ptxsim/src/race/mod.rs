//! Detects races: two accesses to a byte, one of them a write, that no barrier or atomic orders.
//!
//! Every access has a [`Stamp`]. A block's [`Clocks`] know which stamps happened before a thread's current access. A
//! region's [`Shadow`] holds, for every word, the last write and the reads since. The reads of a word are a single
//! stamp, or a list in [`ReadSets`] if several threads read it.

mod clocks;
mod knowledge;
mod releases;
mod sets;
mod shadow;
mod stamp;

pub(crate) use clocks::Clocks;
pub(crate) use releases::Releases;
pub(crate) use sets::ReadSets;
pub(crate) use shadow::Shadow;
pub(crate) use stamp::{ANY_LANE, Kind, MAX_SERIAL, Stamp};

/// The thread of an access; its lane is [`ANY_LANE`] if the whole warp makes the access.
pub(crate) struct Who<'a> {
    pub(crate) clocks: &'a Clocks,
    pub(crate) sets: &'a mut ReadSets,
    pub(crate) warp: usize,
    pub(crate) lane: usize,
    /// Whether the access is of global memory, before the launches on which the thread depends may have ended.
    pub(crate) early: bool,
}
