//! Sets of reads (and atomic updates) of a word, as lists with shared tails, so that equal sets of many words are
//! stored once.

use super::Who;
use super::stamp::{ANY_LANE, Stamp};

/// A word's reads: 0 for none, a stamp, or, with the tag, a list's head and its launch.
pub(super) type Reads = u64;

const TAG: u64 = 1 << 63;
/// How far an access searches a list for an earlier one of its own warp. Beyond that it is listed again.
const LOOK_BACK: usize = 16;
const CACHE: usize = 1 << 12;

#[derive(Clone, Copy)]
struct Node {
    stamp: Stamp,
    tail: Reads,
}

#[derive(Default)]
pub(crate) struct ReadSets {
    generation: u32,
    nodes: Vec<Node>,
    /// Recent additions, so that words with equal reads get the same list.
    cache: Vec<Option<(Reads, Stamp, Reads)>>,
}

impl ReadSets {
    /// Starts a new launch; reads of earlier launches no longer count.
    pub(crate) fn next_launch(&mut self) {
        self.generation = (self.generation + 1) & 0x7fff_ffff;
        self.nodes.clear();
        self.cache = vec![None; CACHE];
    }

    /// Newest first.
    fn list(&self, reads: Reads) -> impl Iterator<Item = Node> + '_ {
        let mut left = reads;
        std::iter::from_fn(move || {
            if left & TAG == 0 {
                let last = (left != 0).then_some(Node { stamp: Stamp(left), tail: 0 });
                left = 0;
                return last;
            }
            let current = (left & !TAG) >> 32 == u64::from(self.generation);
            let node = current.then(|| self.nodes[left as u32 as usize])?;
            left = node.tail;
            Some(node)
        })
    }

    /// The first access in `reads` for which `wanted` is true.
    pub(super) fn find(&self, reads: Reads, wanted: impl Fn(Stamp) -> bool) -> Option<Stamp> {
        self.list(reads).map(|node| node.stamp).find(|&stamp| wanted(stamp))
    }

    #[inline]
    pub(super) fn add(reads: Reads, new: Stamp, who: &mut Who<'_>) -> Reads {
        // A promise that memory is only read covers every single read.
        if reads == 0 || reads == new.0 || new.is_promise() {
            return new.0;
        }
        let hash = (reads ^ new.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        match who.sets.cache[hash as usize] {
            Some((from, stamp, to)) if from == reads && stamp == new => to,
            _ => {
                let clocks = who.clocks;
                let to = who.sets.step(reads, new, |old| {
                    if old.is_promise() {
                        clocks.is_past(old)
                    } else {
                        clocks.ordered(old, who.warp, who.lane)
                    }
                });
                who.sets.cache[hash as usize] = Some((reads, new, to));
                to
            }
        }
    }

    fn step(&mut self, reads: Reads, new: Stamp, ordered: impl Fn(Stamp) -> bool) -> Reads {
        // The new access covers those at the head that happened before it, because anything ordered after the new one
        // is also ordered after them. A write before a read is not covered: a later read must still see it.
        let covered = |old: Stamp| ordered(old) && (new.is_write() || !old.is_write());
        let mut rest = reads;
        for node in self.list(reads).take_while(|node| covered(node.stamp)) {
            rest = node.tail;
        }
        if rest & TAG != 0 && self.list(rest).next().is_none() {
            rest = 0; // from an earlier launch
        }
        // Accesses of the same warp can be merged: the later time, any lane. At worst that is too strict.
        let same =
            |old: Stamp| (old.serial(), old.warp(), old.kind()) == (new.serial(), new.warp(), new.kind());
        let joined = self.list(rest).take(LOOK_BACK).map(|node| node.stamp).find(|&old| {
            same(old) && old.clock() == new.clock() && (old.lane() == new.lane() || old.lane() == ANY_LANE)
        });
        if joined.is_some() || self.list(rest).next().is_some_and(|node| node.stamp.is_promise()) {
            return rest;
        }
        let mut stamp = new;
        if let Some(head) = self.list(rest).next().filter(|node| same(node.stamp)) {
            stamp = Stamp::new(
                new.serial(),
                new.clock().max(head.stamp.clock()),
                new.warp(),
                ANY_LANE,
                new.kind(),
            );
            rest = head.tail;
        }
        if rest == 0 {
            return stamp.0;
        }
        self.nodes.push(Node { stamp, tail: rest });
        TAG | u64::from(self.generation) << 32 | (self.nodes.len() - 1) as u64
    }
}
