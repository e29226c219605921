//! Finding races: two accesses to a byte, one of them a write, that no barrier or atomic orders.
//!
//! Every access carries a [`Stamp`]. A block's [`Clocks`] know which stamps happened before what a thread does
//! now; a region's [`Shadow`] remembers, for every word, the last write and the reads since. The reads of a word
//! are one stamp or, when several threads read it, a list in [`ReadSets`].

mod clocks;
mod knowledge;
mod sets;
mod shadow;
mod stamp;

pub(crate) use clocks::Clocks;
pub(crate) use knowledge::Releases;
pub(crate) use sets::ReadSets;
pub(crate) use shadow::Shadow;
pub(crate) use stamp::{ANY_LANE, Kind, MAX_SERIAL, Stamp};

/// Who makes an access: the lane is [`ANY_LANE`] when the warp makes it together.
pub(crate) struct Who<'a> {
    pub(crate) clocks: &'a Clocks,
    pub(crate) sets: &'a mut ReadSets,
    pub(crate) warp: usize,
    pub(crate) lane: usize,
}
