//! What the scheduler does for a tier below its memory: it names the parts of the cache that should be copied out,
//! finds texts whose beginning may be outside, and takes parts in. Where they are kept is not its business.
//!
//! Parts that are taken in look like those of a sequence that has ended: free blocks and snapshots, which later texts
//! find. A waiting sequence is not admitted until the tier has said that nothing more comes for it.

use std::collections::{HashSet, VecDeque};

use bitnet_model::CachePlace;

use super::address::{Address, Part, PartKind, parts};
use super::blocks::Chain;
use super::plan::BLOCK;
use super::sequence::{Fetch, SeqId, Sequence};
use super::{Scheduler, seq, seq_mut};

/// Maximum number of addresses that are remembered as being outside; beyond it all are forgotten, and parts may be
/// copied out again.
const MOST_KNOWN: usize = 1 << 17;

/// What the scheduler remembers for a tier.
#[derive(Debug)]
pub(super) struct Outside {
    identity: [u8; 32],
    /// Parts to copy out, oldest first, until their blocks and slots are needed.
    queue: VecDeque<(Part, Source)>,
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
#[derive(Debug, Clone, Copy)]
enum Source {
    /// In the block with the first number, as long as its content has the second.
    Block(u32, u64),
    /// In the slot with the snapshot after this chain.
    State(Chain),
}

/// A text whose beginning may be outside.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The waiting sequence.
    pub id: SeqId,
    /// Its salt.
    pub salt: u64,
    /// The blocks of its text that it could use, one for each full block.
    pub parts: Vec<Part>,
    /// Number of these blocks that are in memory.
    pub held: usize,
    /// Number of these that it could use now: all, or up to a snapshot.
    pub usable: usize,
    /// Whether the last block must have a state after it.
    pub needs_state: bool,
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
            self.queue.push_back((part, source));
        }
    }
}

impl Scheduler {
    /// Works with a tier below memory, for a model with this identity.
    pub fn keep_outside(&mut self, identity: [u8; 32]) {
        self.pool.report_evictions();
        self.outside = Some(Outside {
            identity,
            queue: VecDeque::new(),
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
        for (part, &after) in parts(&outside.identity, salt, text, PartKind::Block).zip(&s.chains) {
            let published = self.pool.find(chain, &part.tokens).map(|(block, _)| block);
            if self.states.find(after).is_some() {
                outside.enqueue(Part { kind: PartKind::State, ..part.clone() }, Source::State(after));
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
            let state = Part { kind: PartKind::State, ..part.clone() };
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
    pub fn peek_leaving(&mut self) -> Option<(PartKind, CachePlace)> {
        let outside = self.outside.as_mut()?;
        loop {
            let (part, source) = outside.queue.front()?;
            let place = match *source {
                Source::Block(block, number) => {
                    (self.pool.number(block) == Some(number)).then_some(CachePlace::Block(block))
                }
                Source::State(chain) => self.states.find(chain).map(CachePlace::State),
            };
            if let Some(place) = place {
                return Some((part.kind, place));
            }
            let (part, _) = outside.queue.pop_front().expect("there is a first part");
            outside.known(part.kind).remove(&part.address);
        }
    }

    /// Takes the part that [`Scheduler::peek_leaving`] has shown.
    pub fn take_leaving(&mut self) -> Option<Part> {
        Some(self.outside.as_mut()?.queue.pop_front()?.0)
    }

    /// Moves queued parts whose blocks have been given away to those that are urgent.
    fn note_evictions(&mut self) {
        let Some(outside) = &mut self.outside else { return };
        for (block, number) in self.pool.evicted() {
            let here = |(_, source): &(Part, Source)| matches!(source, Source::Block(b, n) if (*b, *n) == (block, number));
            if let Some(at) = outside.queue.iter().position(here) {
                let (part, _) = outside.queue.remove(at).expect("it was found");
                outside.urgent.push((part, CachePlace::Block(block)));
            }
        }
    }

    /// The copies of states that have been decided but not made. The caller makes them in order, before anything else
    /// reads or writes a slot, and reports those that fail.
    pub fn take_state_copies(&mut self, to: &mut Vec<(u32, u32)>) {
        self.states.copies_into(to);
    }

    /// Whether a waiting sequence may be admitted although the tier might have parts of it.
    pub(super) fn has_fetched(&self, s: &Sequence) -> bool {
        self.outside.is_none() || s.fetch == Fetch::Done || s.parked()
    }

    /// The first waiting sequence about which the tier has not been asked; it counts as asked from now on. Those for
    /// which nothing can be outside are passed over.
    pub fn next_wish(&mut self) -> Option<Wish> {
        let identity = self.identity()?;
        for at in 0..self.waiting.len() {
            let slot = self.waiting[at];
            let s = seq(&self.slots, slot);
            if s.fetch != Fetch::Unasked || s.parked() || self.prompt_leader(slot).is_some() {
                continue;
            }
            let wish = self.wish(s, &identity);
            let fetch = if wish.is_some() { Fetch::Asked } else { Fetch::Done };
            seq_mut(&mut self.slots, slot).fetch = fetch;
            if wish.is_some() {
                return wish;
            }
        }
        None
    }

    fn wish(&self, s: &Sequence, identity: &[u8; 32]) -> Option<Wish> {
        // The last token is computed anyway, for its logits.
        let most = (s.text().len() - 1) / BLOCK;
        if most == 0 || s.scores() {
            return None;
        }
        let needs_state = self.states.total() > 0;
        if needs_state && !self.takes_snapshots() {
            return None;
        }
        let (held, usable) = self.held(s, most);
        if usable >= most {
            return None;
        }
        let salt = s.request.salt;
        let parts = parts(identity, salt, &s.text()[..most * BLOCK], PartKind::Block).collect();
        Some(Wish { id: s.id, salt, parts, held, usable, needs_state })
    }

    /// Refreshes what is in memory of a wish, and makes it the most recently used; returns false if nobody waits for
    /// the wish any more.
    pub fn refresh(&mut self, wish: &mut Wish) -> bool {
        let Some(s) = self.asked(wish.id) else { return false };
        (wish.held, wish.usable) = self.held(s, wish.parts.len());
        self.touch(wish.salt, &wish.parts[..wish.held]);
        true
    }

    /// Tells that nothing more comes for a sequence.
    pub fn fetched(&mut self, id: SeqId) {
        let waiting = |&slot: &u32| seq(&self.slots, slot).id == id;
        if let Some(slot) = self.waiting.iter().copied().find(waiting) {
            seq_mut(&mut self.slots, slot).fetch = Fetch::Done;
        }
    }

    /// The place of a sequence in the queue, if it waits without blocks.
    pub fn queue_place(&self, id: SeqId) -> Option<usize> {
        self.waiting.iter().position(|&slot| {
            let s = seq(&self.slots, slot);
            s.id == id && !s.parked()
        })
    }

    /// Whether all blocks of a text are in memory.
    pub fn holds(&self, salt: u64, parts: &[Part]) -> bool {
        self.walk(salt, parts).count() == parts.len()
    }

    fn asked(&self, id: SeqId) -> Option<&Sequence> {
        let mut waiting = self.waiting.iter().map(|&slot| seq(&self.slots, slot));
        waiting.find(|s| s.id == id && s.fetch == Fetch::Asked)
    }

    /// Number of blocks at the beginning of a text that are in memory, at most `most`, and how many of them it could
    /// use.
    fn held(&self, s: &Sequence, most: usize) -> (usize, usize) {
        let mut held = 0;
        self.cached(s, |index, _, _| held = most.min(index + 1));
        (held, self.usable(s).0.min(held))
    }

    /// The blocks in memory that hold the beginning of a text, with the chain after each.
    fn walk<'p>(&self, salt: u64, parts: &'p [Part]) -> impl Iterator<Item = (u32, Chain)> + use<'_, 'p> {
        let mut chain = Chain::Root(salt);
        parts.iter().map_while(move |part| {
            let found = self.pool.find(chain, &part.tokens)?;
            chain = found.1;
            Some(found)
        })
    }

    /// Makes the blocks of a text the most recently used, the first one last.
    pub fn touch(&mut self, salt: u64, parts: &[Part]) {
        let blocks: Vec<u32> = self.walk(salt, parts).map(|(block, _)| block).collect();
        for &block in blocks.iter().rev() {
            self.pool.retain(block);
            self.pool.release(block);
        }
    }

    /// Takes a block for the last of `parts`, all others of which are in memory; `None` if one is not, if the last is
    /// too, or if no block is free. What the block held may have become urgent.
    pub fn begin_block(&mut self, salt: u64, parts: &[Part]) -> Option<(u32, Chain)> {
        let before = match parts.len() {
            0 | 1 => Chain::Root(salt),
            n => self.walk(salt, &parts[..n - 1]).nth(n - 2)?.1,
        };
        if self.pool.find(before, &parts.last()?.tokens).is_some() {
            return None;
        }
        Some((self.pool.allocate()?, before))
    }

    /// Adds the block that [`Scheduler::begin_block`] has given to the prefix cache, if its content was `written`.
    pub fn end_block(&mut self, block: u32, before: Chain, part: &Part, written: bool) {
        if written {
            self.pool.publish(block, before, &part.tokens);
        }
        self.pool.release(block);
    }

    /// Takes a slot for the state after `parts`, all of which are in memory; `None` if one is not, if the state is too,
    /// or if no slot is free.
    pub fn begin_state(&mut self, salt: u64, parts: &[Part]) -> Option<u32> {
        let (_, chain) = self.walk(salt, parts).nth(parts.len().checked_sub(1)?)?;
        if self.states.find(chain).is_some() { None } else { self.states.adopt(chain) }
    }

    /// Drops the snapshot in a slot, because its content could not be written.
    pub fn drop_state(&mut self, slot: u32) {
        self.states.drop_slot(slot);
    }
}
