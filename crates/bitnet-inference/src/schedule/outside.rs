//! What the scheduler does for a tier below its memory: it names the parts of the cache that should be copied out. Where
//! they are kept is not its business, and `wish.rs` takes parts in.

use std::collections::{HashMap, HashSet, VecDeque};

use bitnet_model::CachePlace;

use super::address::{Address, Part, PartKind, parts};
use super::blocks::Chain;
use super::plan::BLOCK;
use super::sequence::Fetch;
use super::{Scheduler, seq, seq_mut};

/// Maximum number of addresses that are remembered as being outside; beyond it all are forgotten, and parts may be
/// copied out again.
const MOST_KNOWN: usize = 1 << 17;

/// What the scheduler remembers for a tier.
#[derive(Debug)]
pub(super) struct Outside {
    identity: [u8; 32],
    /// Parts to copy out, until their blocks and slots are needed.
    queue: Queue,
    /// Parts whose blocks have been given away and are overwritten in the next step.
    urgent: Vec<(Part, CachePlace)>,
    /// Addresses that are outside or in the queue.
    known: HashSet<Address>,
    /// The same of states.
    known_states: HashSet<Address>,
    /// Parts that may be wrong, because a sequence that used them failed.
    suspects: Vec<Part>,
}

/// Where a queued part is.
#[derive(Debug, Clone)]
enum Source {
    /// In the block with the first number, as long as its content has the second.
    Block(u32, u64),
    /// In the slot with the snapshot after this chain, if the model has recurrent layers, and in these blocks of sliding
    /// layers, numbered as a block.
    State(Chain, Vec<Option<(u32, u64)>>),
}

/// Where the bytes of a part are, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Blocks of sliding layers; what is not there is zeros, or is left as it is.
    pub windows: Vec<Option<u32>>,
    /// What comes after them.
    pub rest: Option<CachePlace>,
}

impl Places {
    /// A part in one place.
    pub fn of(place: CachePlace) -> Places {
        Places { windows: Vec::new(), rest: Some(place) }
    }
}

impl Outside {
    fn known(&mut self, kind: PartKind) -> &mut HashSet<Address> {
        match kind {
            PartKind::Block => &mut self.known,
            PartKind::State => &mut self.known_states,
        }
    }

    /// Remembers that a part is outside or in the queue; returns whether that is new.
    fn remember(&mut self, kind: PartKind, address: Address) -> bool {
        let known = self.known(kind);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(address)
    }

    fn enqueue(&mut self, part: Part, source: Source) {
        if self.remember(part.kind, part.address) {
            self.queue.push(part, source);
        }
    }
}

/// Parts to copy out, oldest first.
#[derive(Debug, Default)]
struct Queue {
    /// Parts; `None` for those taken out of turn.
    parts: VecDeque<Option<(Part, Source)>>,
    /// Number of entries that have left the front.
    left: u64,
    /// For each number of a block's content, that of its entry.
    entries: HashMap<u64, u64>,
}

impl Queue {
    fn push(&mut self, part: Part, source: Source) {
        if let Source::Block(_, content) = source {
            self.entries.insert(content, self.left + self.parts.len() as u64);
        }
        self.parts.push_back(Some((part, source)));
    }

    fn first(&mut self) -> Option<&(Part, Source)> {
        while self.parts.pop_front_if(|entry| entry.is_none()).is_some() {
            self.left += 1;
        }
        self.parts.front()?.as_ref()
    }

    fn pop(&mut self) -> Option<Part> {
        self.first()?;
        let (part, source) = self.parts.pop_front().flatten()?;
        self.left += 1;
        if let Source::Block(_, content) = source {
            self.entries.remove(&content);
        }
        Some(part)
    }

    /// Takes the part with this content out of turn.
    fn take(&mut self, content: u64) -> Option<Part> {
        let entry = self.entries.remove(&content)?;
        Some(self.parts[(entry - self.left) as usize].take()?.0)
    }
}

impl Scheduler {
    /// Works with a tier below memory, for a model with this identity.
    pub fn keep_outside(&mut self, identity: [u8; 32]) {
        self.pool.report_evictions();
        self.outside = Some(Outside {
            identity,
            queue: Queue::default(),
            urgent: Vec::new(),
            known: HashSet::new(),
            known_states: HashSet::new(),
            suspects: Vec::new(),
        });
    }

    /// The identity for which [`Scheduler::keep_outside`] was called.
    pub(super) fn identity(&self) -> Option<[u8; 32]> {
        self.outside.as_ref().map(|outside| outside.identity)
    }

    /// Queues what a sequence has computed to be copied out, before it gives it back.
    pub(super) fn queue_parts(&mut self, slot: u32) {
        let Some(outside) = &mut self.outside else { return };
        let s = seq_mut(&mut self.slots, slot);
        s.fetch = Fetch::Unasked;
        let salt = s.request.salt;
        let text = &s.tokens[..s.chains.len() * BLOCK];
        let mut chain = Chain::Root(salt);
        let recurrent = self.states.total() > 0;
        let whole = self.window.map_or(0, |window| window.whole());
        // Where other texts are likely to go on, and the blocks of sliding layers up to there.
        let likely = [s.branch, s.boundary(), text.len()].map(|at| at / BLOCK);
        let mut windows = vec![None; whole];
        for (part, &after) in parts(&outside.identity, salt, text, PartKind::Block).zip(&s.chains) {
            let published = self.pool.find(chain, &part.tokens).map(|(block, _)| block);
            if whole > 0 {
                let found = self.windows.find(chain, &part.tokens).map(|(block, _)| block);
                windows.push(found.and_then(|block| Some((block, self.windows.number(block)?))));
            }
            let end = part.index as usize + 1;
            let window = &windows[windows.len() - whole..];
            let here = window[whole - whole.min(end)..].iter().all(Option::is_some);
            let wanted = if recurrent { self.states.find(after).is_some() } else { likely.contains(&end) };
            if wanted && here && (recurrent || whole > 0) {
                let source = Source::State(after, window.to_vec());
                outside.enqueue(part.state(), source);
            }
            if let Some((block, number)) = published.and_then(|at| Some((at, self.pool.number(at)?))) {
                outside.enqueue(part, Source::Block(block, number));
            }
            chain = after;
        }
    }

    /// Notes that blocks and states which a sequence has used may be wrong.
    pub(super) fn suspect_parts(&mut self, slot: u32) {
        let Some(outside) = &mut self.outside else { return };
        let s = seq(&self.slots, slot);
        let text = &s.tokens[..s.chains.len() * BLOCK];
        for part in parts(&outside.identity, s.request.salt, text, PartKind::Block) {
            let state = part.state();
            outside.known.remove(&part.address);
            outside.known_states.remove(&part.address);
            outside.suspects.extend([part, state]);
        }
    }

    /// Takes a part that is not to be kept outside any more.
    pub fn next_suspect(&mut self) -> Option<Part> {
        self.outside.as_mut()?.suspects.pop()
    }

    /// Tells that a part is outside, or is not any more.
    pub fn is_outside(&mut self, kind: PartKind, address: Address, yes: bool) {
        if let Some(outside) = &mut self.outside {
            if yes {
                outside.remember(kind, address);
            } else {
                outside.known(kind).remove(&address);
            }
        }
    }

    /// Takes a part whose block is about to be overwritten.
    pub fn next_urgent(&mut self) -> Option<(Part, CachePlace)> {
        self.note_evictions();
        self.outside.as_mut()?.urgent.pop()
    }

    /// The next part to copy out, and where it is. Outstanding copies of states must have been made.
    pub fn peek_leaving(&mut self) -> Option<(PartKind, Places)> {
        let recurrent = self.states.total() > 0;
        let outside = self.outside.as_mut()?;
        loop {
            let (part, source) = outside.queue.first()?;
            let places = match source {
                &Source::Block(block, number) => {
                    (self.pool.number(block) == Some(number)).then(|| Places::of(CachePlace::Block(block)))
                }
                Source::State(chain, windows) => {
                    let rest = self.states.find(*chain).map(CachePlace::State);
                    let there = |&(block, number): &(u32, u64)| self.windows.number(block) == Some(number);
                    let here = rest.is_some() == recurrent && windows.iter().flatten().all(there);
                    let windows = windows.iter().map(|window| window.map(|(block, _)| block)).collect();
                    here.then_some(Places { windows, rest })
                }
            };
            if let Some(places) = places {
                return Some((part.kind, places));
            }
            let part = outside.queue.pop().expect("there is a first part");
            outside.known(part.kind).remove(&part.address);
        }
    }

    /// Takes the part that [`Scheduler::peek_leaving`] has shown.
    pub fn take_leaving(&mut self) -> Option<Part> {
        self.outside.as_mut()?.queue.pop()
    }

    /// Moves queued parts whose blocks have been given away to those that are urgent.
    fn note_evictions(&mut self) {
        let Some(outside) = &mut self.outside else { return };
        for (block, number) in self.pool.evicted() {
            if let Some(part) = outside.queue.take(number) {
                outside.urgent.push((part, CachePlace::Block(block)));
            }
        }
    }

    /// The first block from `first` on that is free and holds nothing.
    pub fn empty_block(&self, first: u32) -> Option<u32> {
        let empty = |&block: &u32| self.pool.refs(block) == 0 && self.pool.number(block).is_none();
        (first..self.pool.total() as u32).find(empty)
    }

    /// The first slot from `first` on that no sequence owns and that holds no snapshot.
    pub fn empty_slot(&self, first: u32) -> Option<u32> {
        (first..self.states.total() as u32).find(|&slot| self.states.is_empty(slot))
    }

    /// The copies of states that have been decided but not made. The caller makes them in order, before anything else
    /// reads or writes a slot, and reports those that fail.
    pub fn take_state_copies(&mut self, to: &mut Vec<(u32, u32)>) {
        self.states.copies_into(to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::parts;
    use super::*;

    #[test]
    fn a_part_that_is_taken_out_of_turn_leaves_the_others_in_order() {
        let text: Vec<u32> = (0..5 * BLOCK as u32).collect();
        let parts: Vec<Part> = parts(&[0; 32], 0, &text, PartKind::Block).collect();
        let mut queue = Queue::default();
        let push = |queue: &mut Queue, at: usize| {
            queue.push(parts[at].clone(), Source::Block(at as u32, 10 + at as u64));
        };
        (0..3).for_each(|at| push(&mut queue, at));
        assert_eq!(queue.pop(), Some(parts[0].clone()));
        assert_eq!(queue.take(12), Some(parts[2].clone()));
        assert_eq!([queue.take(12), queue.take(10)], [None, None]);
        (3..5).for_each(|at| push(&mut queue, at));
        assert_eq!(queue.take(11), Some(parts[1].clone()));
        let left: Vec<Part> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left, parts[3..]);
        assert!(queue.entries.is_empty());
    }
}
