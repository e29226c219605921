//! What a tier below memory must provide ([`Shelf`]): it keeps parts of the cache and gives them back, in its own time.
//! A folder on a disk is one, and the simulation has another, which loses, delays and damages parts.

use std::time::Instant;

use crate::schedule::{Address, Part, PartKind, Wish};

/// Keeps parts of the cache. No call waits, except [`Shelf::flush`].
pub trait Shelf: Send {
    /// A buffer of this many bytes for a part to keep, or `None` while too much is on its way.
    fn room(&mut self, bytes: usize) -> Option<Vec<u8>>;

    /// Takes back a buffer that is not needed any more.
    fn give_back(&mut self, buffer: Vec<u8>);

    /// Keeps a part, whose bytes are in a buffer from [`Shelf::room`], or loses it.
    fn keep(&mut self, part: Part, bytes: Vec<u8>);

    /// Loses a part.
    fn forget(&mut self, part: Part);

    /// Finds out how much of a text is here. The answer is [`Told::Looked`].
    fn look(&mut self, number: u64, wish: Wish);

    /// Gives the blocks of a text after the first `wish.held` up to `blocks`, in order, as far as they are here and
    /// undamaged, and then the last state after them if the wish needs one. The answers are [`Told::Part`], and
    /// [`Told::End`] at last.
    fn load(&mut self, number: u64, wish: Wish, blocks: usize);

    /// Gives no more parts for the load with this number.
    fn stop(&mut self, number: u64);

    /// The next answer, if there is one.
    fn next(&mut self) -> Option<Told>;

    /// Waits until all parts are kept, at most until this time; returns whether they are.
    fn flush(&mut self, until: Instant) -> bool;

    /// The counts so far.
    fn counts(&self) -> ShelfCounts;
}

/// An answer of a [`Shelf`].
#[derive(Debug)]
pub enum Told {
    /// This many blocks at the beginning of the text are in memory or here, up to a state if the wish needs one.
    Looked {
        /// The number of the question.
        number: u64,
        /// Number of blocks.
        blocks: usize,
    },
    /// A part, undamaged.
    Part {
        /// The number of the load.
        number: u64,
        /// Block or state.
        kind: PartKind,
        /// Index of the block, or of the block before the state.
        index: usize,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A load has ended.
    End {
        /// The number of the load.
        number: u64,
    },
    /// A part is here, or is not any more.
    Holds(PartKind, Address, bool),
}

/// Counts of a [`Shelf`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShelfCounts {
    /// Parts read.
    pub read_parts: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Time that reading took, in microseconds.
    pub read_micros: u64,
    /// Parts written.
    pub written_parts: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Time that writing took, in microseconds.
    pub write_micros: u64,
    /// Parts that could not be written, for example to a full disk.
    pub failed_writes: u64,
    /// Files that were short, damaged or foreign, and were removed.
    pub damaged: u64,
    /// Parts removed to stay below the limit.
    pub evicted: u64,
    /// Bytes kept, as far as this process knows.
    pub bytes: u64,
}
