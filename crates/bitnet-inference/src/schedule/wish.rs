//! Texts whose beginning may be outside memory ([`Wish`]), and how the parts that a tier has of them are taken in.
//!
//! Parts that are taken in look like those of a sequence that has ended: free blocks and snapshots, which later texts
//! find. A waiting sequence is not admitted until the tier has said that nothing more comes for it.

use bitnet_model::CachePlace;

use super::address::{Part, PartKind, parts};
use super::blocks::Chain;
use super::outside::Places;
use super::plan::BLOCK;
use super::sequence::{Fetch, SeqId, Sequence};
use super::{Scheduler, seq, seq_mut};

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
    /// The sequence's slot.
    pub(crate) slot: u32,
    /// How far the blocks have been followed.
    pub(crate) trail: Trail,
}

/// The first blocks of a text, found one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trail {
    /// Number of blocks.
    blocks: usize,
    /// The chain after them.
    chain: Chain,
    /// The number of the pool's trail. As long as it stays the same, all of the blocks are in memory.
    number: u64,
}

impl Trail {
    /// Nothing has been followed.
    pub(super) fn none() -> Trail {
        Trail { blocks: 0, chain: Chain::Root(0), number: 0 }
    }
}

/// What became of a block that is to be taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// This block is to be written, and has the chain before it.
    Write(u32, Chain),
    /// The content is in memory; a sequence may have computed it meanwhile.
    Held,
}

/// A state that is to be taken in.
#[derive(Debug)]
pub struct BegunState {
    slot: Option<u32>,
    /// Blocks of sliding layers: the chain before each and, for one that is to be written, the index of its part.
    blocks: Vec<(u32, Chain, Option<usize>)>,
    windows: Vec<Option<u32>>,
}

impl BegunState {
    /// Where its bytes go.
    pub fn places(&self) -> Places {
        Places { windows: self.windows.clone(), rest: self.slot.map(CachePlace::State) }
    }
}

impl Scheduler {
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
            let wish = self.wish(slot, &identity);
            let fetch = if wish.is_some() { Fetch::Asked } else { Fetch::Done };
            seq_mut(&mut self.slots, slot).fetch = fetch;
            if wish.is_some() {
                return wish;
            }
        }
        None
    }

    fn wish(&self, slot: u32, identity: &[u8; 32]) -> Option<Wish> {
        let s = seq(&self.slots, slot);
        // The last token is computed anyway, for its logits.
        let most = (s.text().len() - 1) / BLOCK;
        if most == 0 || s.scores() {
            return None;
        }
        let recurrent = self.states.total() > 0;
        if recurrent && !self.takes_snapshots() {
            return None;
        }
        let needs_state = recurrent || self.window.is_some_and(|window| window.whole() > 0);
        let (held, usable) = self.held(s, most);
        if usable >= most {
            return None;
        }
        let salt = s.request.salt;
        let parts = parts(identity, salt, &s.text()[..most * BLOCK], PartKind::Block).collect();
        Some(Wish { id: s.id, salt, parts, held, usable, needs_state, slot, trail: Trail::none() })
    }

    /// Refreshes what is in memory of a wish, and makes it the most recently used; returns false if nobody waits for
    /// the wish any more.
    pub fn refresh(&mut self, wish: &mut Wish) -> bool {
        let Some(s) = self.waiter(wish).filter(|s| s.fetch == Fetch::Asked) else { return false };
        (wish.held, wish.usable) = self.held(s, wish.parts.len());
        self.touch(wish.salt, &wish.parts[..wish.held]);
        true
    }

    /// Tells that nothing more comes for a wish.
    pub fn fetched(&mut self, wish: &Wish) {
        if self.waiter(wish).is_some() {
            seq_mut(&mut self.slots, wish.slot).fetch = Fetch::Done;
        }
    }

    /// Whether the sequence of a wish still waits without blocks.
    pub fn waits_for(&self, wish: &Wish) -> bool {
        self.waiter(wish).is_some_and(|s| !s.parked())
    }

    /// The sequence of a wish, if it waits.
    fn waiter(&self, wish: &Wish) -> Option<&Sequence> {
        let s = self.slots.get(wish.slot as usize)?.as_ref()?;
        (s.id == wish.id && !s.running).then_some(s)
    }

    /// The place of a wish's sequence in the queue, if it waits without blocks.
    pub fn queue_place(&self, wish: &Wish) -> Option<usize> {
        let key = self.waiter(wish).filter(|s| !s.parked())?.admission_key();
        Some(self.waiting.partition_point(|&slot| seq(&self.slots, slot).admission_key() < key))
    }

    /// Number of blocks at the beginning of a text that are in memory, at most `most`, and how many of them it could
    /// use.
    fn held(&self, s: &Sequence, most: usize) -> (usize, usize) {
        let mut held = 0;
        self.cached(s, |index, _, _| held = most.min(index + 1));
        (held, self.usable(s).0.min(held))
    }

    /// Makes the blocks of a text the most recently used, the first one last.
    pub fn touch(&mut self, salt: u64, parts: &[Part]) {
        let mut chain = Chain::Root(salt);
        let mut blocks = Vec::with_capacity(parts.len());
        for part in parts {
            let Some((block, after)) = self.pool.find(chain, &part.tokens) else { break };
            blocks.push((block, self.windows.find(chain, &part.tokens)));
            chain = after;
        }
        for &(block, window) in blocks.iter().rev() {
            self.pool.retain(block);
            self.pool.release(block);
            if let Some((window, _)) = window {
                self.windows.retain(window);
                self.windows.release(window);
            }
        }
    }

    /// The chain after the first blocks of a wish, or `None` if they are not all in memory. They are looked up from the
    /// first one on unless the last call has followed all but one of them and none has gone since, so following a text
    /// block by block looks each up once.
    fn follow(&mut self, wish: &mut Wish, blocks: usize) -> Option<Chain> {
        let mut trail = wish.trail;
        if trail.number != self.pool.trail() || trail.blocks > blocks {
            trail = Trail { blocks: 0, chain: Chain::Root(wish.salt), number: self.pool.new_trail() };
        }
        while trail.blocks < blocks {
            let (block, chain) = self.pool.find(trail.chain, &wish.parts.get(trail.blocks)?.tokens)?;
            self.pool.mark(block);
            (trail.blocks, trail.chain) = (trail.blocks + 1, chain);
        }
        wish.trail = trail;
        Some(trail.chain)
    }

    /// Takes a block for the part of a wish with this index; `None` if one before it is not in memory, or if no block
    /// is free. What the block held may have become urgent.
    pub fn begin_block(&mut self, wish: &mut Wish, index: usize) -> Option<Begun> {
        let before = self.follow(wish, index)?;
        if self.pool.find(before, &wish.parts.get(index)?.tokens).is_some() {
            return Some(Begun::Held);
        }
        self.pool.allocate().map(|block| Begun::Write(block, before))
    }

    /// Adds the block that [`Scheduler::begin_block`] has given to the prefix cache, if its content was `written`.
    pub fn end_block(&mut self, block: u32, before: Chain, part: &Part, written: bool) {
        if written {
            self.pool.publish(block, before, &part.tokens);
        }
        self.pool.release(block);
    }

    /// Takes a slot, and blocks of sliding layers, for the state after the part of a wish with this index; `None` if a
    /// block up to it is not in memory, if all of the state is, or if no slot or block is free.
    pub fn begin_state(&mut self, wish: &mut Wish, index: usize) -> Option<BegunState> {
        let whole = self.window.map_or(0, |window| window.whole());
        let first = (index + 1).saturating_sub(whole);
        let befores: Vec<Chain> =
            (first..=index + 1).map(|at| self.follow(wish, at)).collect::<Option<_>>()?;
        let after = befores[befores.len() - 1];
        let slot = match self.states.find(after) {
            None if self.states.total() > 0 => Some(self.states.adopt(after)?),
            _ => None,
        };
        let mut begun = BegunState { slot, blocks: Vec::new(), windows: vec![None; whole] };
        let (mut room, padding) = (true, whole - (index + 1 - first));
        for (at, &before) in (first..=index).zip(&befores) {
            if let Some((block, _)) = self.windows.find(before, &wish.parts[at].tokens) {
                self.windows.retain(block);
                begun.blocks.push((block, before, None));
            } else if let Some(block) = self.windows.allocate() {
                begun.blocks.push((block, before, Some(at)));
                begun.windows[padding + at - first] = Some(block);
            } else {
                room = false;
            }
        }
        let any = slot.is_some() || begun.windows.iter().any(Option::is_some);
        if room && any {
            return Some(begun);
        }
        self.end_state(begun, wish, false);
        None
    }

    /// Adds the state that [`Scheduler::begin_state`] has begun to the prefix cache, if its content was `written`.
    pub fn end_state(&mut self, begun: BegunState, wish: &Wish, written: bool) {
        if let Some(slot) = begun.slot.filter(|_| !written) {
            self.states.drop_slot(slot);
        }
        for (block, before, own) in begun.blocks {
            if let Some(at) = own.filter(|_| written) {
                self.windows.publish(block, before, &wish.parts[at].tokens);
            }
            self.windows.release(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{BatchSizing, SchedulerConfig};
    use super::*;
    use crate::request::{GenerationConfig, Request};

    /// A scheduler with a tier and a waiting text of this many blocks and a token, and its wish.
    fn waiting(blocks: usize, kv_blocks: usize) -> (Scheduler, Wish) {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            max_running: 1,
            max_tokens: 64,
            max_rows: 1,
            kv_blocks,
            state_slots: 0,
            context: kv_blocks * BLOCK,
            max_draft: 0,
            sizing: BatchSizing::Fixed(1),
            slow_reader: u64::MAX,
            eos: vec![],
            text: None,
        });
        scheduler.keep_outside([0; 32]);
        let prompt: Vec<u32> = (0..=(blocks * BLOCK) as u32).collect();
        scheduler.submit(0, 0, Arc::new(Request::new(prompt, GenerationConfig::default())), 0);
        let wish = scheduler.next_wish().expect("nothing is in memory");
        assert_eq!(wish.parts.len(), blocks);
        (scheduler, wish)
    }

    fn take_in(scheduler: &mut Scheduler, wish: &mut Wish, index: usize) {
        let Some(Begun::Write(block, before)) = scheduler.begin_block(wish, index) else {
            panic!("block {index} is missing, and there is room")
        };
        scheduler.end_block(block, before, &wish.parts[index], true);
    }

    /// How often blocks are looked up while a text of this many blocks is taken in.
    fn lookups(blocks: usize) -> usize {
        let (mut scheduler, mut wish) = waiting(blocks, blocks + 1);
        assert!(scheduler.refresh(&mut wish));
        (0..blocks).for_each(|index| take_in(&mut scheduler, &mut wish, index));
        assert!(scheduler.refresh(&mut wish));
        assert_eq!((wish.held, wish.usable), (blocks, blocks));
        scheduler.pool.finds.get()
    }

    #[test]
    fn taking_in_4096_tokens_takes_five_lookups_a_block() {
        let [half, whole] = [32, 64].map(lookups);
        // Before the first block is taken in, it is looked up twice in vain.
        assert!(whole <= 5 * 64 + 2, "{whole} lookups");
        assert!(whole <= 2 * half, "{half} lookups for half as many tokens, {whole} for all");
    }

    #[test]
    fn a_block_is_not_taken_in_once_one_before_it_is_gone() {
        let (mut scheduler, mut wish) = waiting(4, 5);
        (0..3).for_each(|index| take_in(&mut scheduler, &mut wish, index));
        assert_eq!(scheduler.begin_block(&mut wish, 2), Some(Begun::Held));
        // Others need the two empty blocks, and that of the text's beginning.
        let used: Vec<u32> = (0..3).map(|_| scheduler.pool.allocate().unwrap()).collect();
        used.into_iter().for_each(|block| scheduler.pool.release(block));
        assert_eq!(scheduler.begin_block(&mut wish, 3), None);
        take_in(&mut scheduler, &mut wish, 0);
        take_in(&mut scheduler, &mut wish, 1);
    }
}
