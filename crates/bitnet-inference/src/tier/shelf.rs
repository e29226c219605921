//! What a tier below memory must provide ([`Shelf`]): it keeps parts of the cache and gives them back, in its own time.
//! A folder on a disk is one, host memory below that of a GPU another, and the simulation has one that loses, delays and
//! damages parts.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::schedule::{Address, Part, PartKind, Wish};

/// Bytes of unused buffers that are kept for the next parts, so that their memory is not mapped again.
const SPARE: usize = 256 << 20;

/// The bytes of a part, which a shelf and the shelf below it can hold together.
pub type PartBytes = Arc<Vec<u8>>;

/// Calls the engine's thread, so that it looks for answers.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Keeps parts of the cache. No call waits, except [`Shelf::flush`].
pub trait Shelf: Send {
    /// Whether a part of this many bytes can be kept now; it cannot while too much is on its way.
    fn has_room(&mut self, bytes: usize) -> bool;

    /// A buffer of this many bytes, whose content does not matter.
    fn buffer(&mut self, bytes: usize) -> Vec<u8>;

    /// Takes back bytes that are not needed any more.
    fn give_back(&mut self, bytes: PartBytes);

    /// Keeps a part, for which there is room, or loses it.
    fn keep(&mut self, part: Part, bytes: PartBytes);

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

    /// Whether parts are kept when the process ends.
    fn is_lasting(&self) -> bool {
        true
    }

    /// The counts so far, those of a folder.
    fn counts(&self) -> ShelfCounts;

    /// The counts of host memory, if it is a shelf.
    fn host_counts(&self) -> Option<ShelfCounts> {
        None
    }
}

/// Buffers that are not used.
#[derive(Debug, Default)]
pub(super) struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// A buffer of this many bytes, whose content does not matter.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let fits = self.0.iter().map(Vec::capacity).enumerate().filter(|&(_, capacity)| capacity >= bytes);
        // The smallest, because the others may be needed for larger parts.
        let at = fits.min_by_key(|&(_, capacity)| capacity).map(|(at, _)| at);
        let mut buffer = at.map(|at| self.0.swap_remove(at)).unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    /// Takes a buffer back, unless others still use it.
    pub fn put(&mut self, bytes: PartBytes) {
        let Some(buffer) = Arc::into_inner(bytes) else { return };
        let kept: usize = self.0.iter().map(Vec::capacity).sum();
        if kept + buffer.capacity() <= SPARE || self.0.is_empty() {
            self.0.push(buffer);
        }
    }
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
    /// A part.
    Part(Given),
    /// A load has ended.
    End {
        /// The number of the load.
        number: u64,
    },
    /// A part is here, or is not any more.
    Holds(PartKind, Address, bool),
}

/// A part that a [`Shelf`] gives.
#[derive(Debug)]
pub struct Given {
    /// The number of the load.
    pub number: u64,
    /// Block or state.
    pub kind: PartKind,
    /// Index of the block, or of the block before the state.
    pub index: usize,
    /// Its bytes.
    pub content: Content,
    /// Whether they come from host memory.
    pub from_host: bool,
}

/// The bytes of a part that a [`Shelf`] gives.
pub enum Content {
    /// Undamaged, in memory of their own.
    Bytes(PartBytes),
    /// Those of a block, to be read where they are needed.
    InPlace(Box<dyn InPlace>),
}

impl Content {
    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Content::Bytes(bytes) => bytes.len(),
            Content::InPlace(block) => block.bytes(),
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// A block that is read straight to the model's memory, without waiting. What has been read may be used only if
/// [`InPlace::end`] says so.
pub trait InPlace: Send + Sync {
    /// The number of bytes.
    fn bytes(&self) -> usize;

    /// Reads bytes from the one with this index on, whole pieces of [`CacheBytes::piece`](bitnet_model::CacheBytes::piece)
    /// or up to the end. Several threads may call it at once.
    fn fill(&self, at: usize, to: &mut [u8]);

    /// Whether all bytes have been read and are those that were kept.
    fn end(self: Box<Self>) -> bool;
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
