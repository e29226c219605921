//! The slots of recurrent states: one for each running sequence; the others keep snapshots for the prefix cache.
//! Snapshots are found by the [`Chain`] of the text before them.

use std::collections::HashMap;

use super::blocks::Chain;

/// A snapshot: the state after the last token of a published block.
#[derive(Debug, Clone)]
struct Saved {
    chain: Chain,
    /// Whether the next snapshot of the same sequence may replace it. A snapshot that another sequence has used is not
    /// replaced.
    passing: bool,
    /// When it was last taken or used.
    used: u64,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    owned: bool,
    saved: Option<Saved>,
}

/// The slots of recurrent state, and the snapshots in those that no sequence owns.
///
/// A sequence owns a slot as long as it has computed tokens to continue from. Other slots keep snapshots until they are
/// needed: empty slots go first, then the least recently used snapshots. A snapshot is tied to the chain after a
/// published block. The block's number is never reused, so exactly the texts that begin with the tokens that the state
/// has seen find the snapshot.
///
/// The pool only decides; the model holds the states. The pool's decisions take effect as copies, made in order before
/// the next forward pass. Apart from these copies, only forward passes change the states of owned slots.
#[derive(Debug, Clone)]
pub(crate) struct StatePool {
    slots: Vec<Slot>,
    index: HashMap<Chain, u32>,
    available: usize,
    clock: u64,
    /// Copies to make before the next forward pass, as (from, to).
    copies: Vec<(u32, u32)>,
}

impl StatePool {
    /// A pool of `count` empty slots; none for a model without recurrent layers.
    pub fn new(count: usize) -> Self {
        StatePool {
            slots: vec![Slot::default(); count],
            index: HashMap::with_capacity(2 * count),
            available: count,
            clock: 0,
            copies: Vec::with_capacity(2 * count),
        }
    }

    /// Total number of slots.
    pub fn total(&self) -> usize {
        self.slots.len()
    }

    /// Number of slots that no sequence owns.
    pub fn available(&self) -> usize {
        self.available
    }

    /// Number of snapshots.
    pub fn saved(&self) -> usize {
        self.index.len()
    }

    /// Whether no sequence owns a slot and it holds no snapshot.
    pub fn is_empty(&self, slot: u32) -> bool {
        let slot = &self.slots[slot as usize];
        !slot.owned && slot.saved.is_none()
    }

    /// The slot with the snapshot after `chain`.
    pub fn find(&self, chain: Chain) -> Option<u32> {
        self.index.get(&chain).copied()
    }

    /// Takes a slot that no sequence owns, for a sequence that continues from the snapshot in `from` or begins; `None`
    /// if there is none. If `from` is the only one left, its snapshot becomes the state of the sequence.
    pub fn take(&mut self, from: Option<u32>) -> Option<u32> {
        let to = self.vacate(from).or(from)?;
        match from {
            Some(from) if from == to => self.empty(to),
            Some(from) => {
                self.clock += 1;
                let saved = &mut self.slots[from as usize].saved;
                let used = self.clock;
                saved.iter_mut().for_each(|saved| (saved.passing, saved.used) = (false, used));
                self.copies.push((from, to));
            }
            None => {}
        }
        self.own(to);
        Some(to)
    }

    /// Returns an owned slot. Its content is lost.
    pub fn release(&mut self, slot: u32) {
        let owned = &mut self.slots[slot as usize].owned;
        assert!(std::mem::take(owned), "state slot {slot} is released, but no sequence owns it");
        self.available += 1;
    }

    /// Keeps a snapshot of the state in `from`, the state after the tokens up to `chain`. A passing snapshot replaces
    /// the passing one after `before`. If no slot is available, nothing is kept.
    pub fn save(&mut self, from: u32, chain: Chain, before: Option<Chain>, passing: bool) {
        self.clock += 1;
        let used = self.clock;
        if let Some(slot) = self.find(chain) {
            let saved = self.slots[slot as usize].saved.as_mut().expect("the index names snapshots");
            (saved.passing, saved.used) = (saved.passing && passing, used);
            return;
        }
        let passes = |&slot: &u32| self.slots[slot as usize].saved.as_ref().is_some_and(|s| s.passing);
        let replaced = before.and_then(|chain| self.find(chain)).filter(|slot| passing && passes(slot));
        let Some(to) = replaced.or_else(|| self.vacate(None)) else { return };
        self.empty(to);
        self.slots[to as usize].saved = Some(Saved { chain, passing, used });
        self.index.insert(chain, to);
        self.copies.push((from, to));
    }

    /// Takes a slot for a snapshot of the state after `chain` that is written from outside. Outstanding copies must have
    /// been made.
    pub fn adopt(&mut self, chain: Chain) -> Option<u32> {
        assert!(self.copies.is_empty(), "outstanding copies read or write a slot");
        let slot = self.vacate(None)?;
        self.clock += 1;
        self.slots[slot as usize].saved = Some(Saved { chain, passing: false, used: self.clock });
        self.index.insert(chain, slot);
        Some(slot)
    }

    /// Drops the snapshot in a slot, if there is one.
    pub fn drop_slot(&mut self, slot: u32) {
        if !self.slots[slot as usize].owned {
            self.empty(slot);
        }
    }

    /// Drops the snapshot after `chain`, if there is one.
    pub fn drop_saved(&mut self, chain: Chain) {
        if let Some(slot) = self.find(chain) {
            self.empty(slot);
        }
    }

    /// Moves the outstanding copies to `to`.
    pub fn copies_into(&mut self, to: &mut Vec<(u32, u32)>) {
        to.append(&mut self.copies);
    }

    /// Empties the slot to use next, other than `except`; `None` if sequences own all others.
    fn vacate(&mut self, except: Option<u32>) -> Option<u32> {
        let slots = (0..).zip(&self.slots).filter(|(slot, s)| !s.owned && Some(*slot) != except);
        let (slot, _) = slots.min_by_key(|(_, s)| s.saved.as_ref().map(|saved| saved.used))?;
        self.empty(slot);
        Some(slot)
    }

    fn empty(&mut self, slot: u32) {
        if let Some(saved) = self.slots[slot as usize].saved.take() {
            self.index.remove(&saved.chain);
        }
    }

    fn own(&mut self, slot: u32) {
        self.slots[slot as usize].owned = true;
        self.available -= 1;
    }

    /// Checks the pool's rules; `uses` gives the number of sequences that own each slot.
    pub fn check(&self, uses: &[u32]) -> Result<(), String> {
        for (i, (slot, &uses)) in self.slots.iter().zip(uses).enumerate() {
            if uses != u32::from(slot.owned) {
                return Err(format!("state slot {i} is owned: {}, by {uses} sequences", slot.owned));
            }
            if slot.owned && slot.saved.is_some() {
                return Err(format!("state slot {i} is owned and holds a snapshot"));
            }
            if slot.saved.as_ref().is_some_and(|saved| self.find(saved.chain) != Some(i as u32)) {
                return Err(format!("the snapshot in state slot {i} cannot be found"));
            }
        }
        let saved = self.slots.iter().filter(|slot| slot.saved.is_some()).count();
        let available = self.slots.iter().filter(|slot| !slot.owned).count();
        if saved != self.index.len() || available != self.available {
            return Err(format!(
                "{saved} snapshots in {available} slots without an owner, {} and {} are counted",
                self.index.len(),
                self.available
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
impl StatePool {
    /// Attributes a snapshot to another chain, for tests of the simulation.
    pub fn misplace(&mut self, chain: Chain, other: Chain) {
        if self.find(other).is_none()
            && let Some(slot) = self.index.remove(&chain)
        {
            let saved = self.slots[slot as usize].saved.as_mut().expect("the index names snapshots");
            saved.chain = other;
            self.index.insert(other, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(pool: &mut StatePool) -> Vec<(u32, u32)> {
        let mut copies = Vec::new();
        pool.copies_into(&mut copies);
        copies
    }

    #[test]
    fn a_snapshot_is_copied_to_those_who_continue_from_it_until_its_slot_is_needed() {
        let mut pool = StatePool::new(3);
        let own = pool.take(None).unwrap();
        pool.save(own, Chain::After(1), None, false);
        let saved = pool.find(Chain::After(1)).unwrap();
        assert_eq!(copies(&mut pool), [(own, saved)]);
        let other = pool.take(Some(saved)).unwrap();
        assert_eq!(copies(&mut pool), [(saved, other)]);
        assert_eq!((pool.available(), pool.saved()), (1, 1));
        // The last slot without an owner: the snapshot is dropped.
        assert_eq!(pool.take(None), Some(saved));
        assert_eq!((pool.find(Chain::After(1)), pool.take(None)), (None, None));
        assert_eq!(pool.check(&[1, 1, 1]), Ok(()));
    }

    #[test]
    fn a_snapshot_in_the_last_slot_becomes_the_state_of_its_user_without_a_copy() {
        let mut pool = StatePool::new(2);
        let own = pool.take(None).unwrap();
        pool.save(own, Chain::After(1), None, false);
        let saved = pool.find(Chain::After(1)).unwrap();
        copies(&mut pool);
        assert_eq!(pool.take(Some(saved)), Some(saved));
        assert_eq!((copies(&mut pool), pool.find(Chain::After(1))), (vec![], None));
        assert_eq!(pool.check(&[1, 1]), Ok(()));
    }

    #[test]
    fn passing_snapshots_replace_each_other_and_the_least_recently_used_goes_first() {
        let mut pool = StatePool::new(4);
        let own = pool.take(None).unwrap();
        pool.save(own, Chain::After(1), None, false);
        pool.save(own, Chain::After(2), Some(Chain::After(1)), true);
        pool.save(own, Chain::After(3), Some(Chain::After(2)), true);
        let found = |pool: &StatePool| [1, 2, 3, 4, 5].map(|n| pool.find(Chain::After(n)).is_some());
        assert_eq!(found(&pool), [true, false, true, false, false]);
        // Another sequence has used it, so it is no longer passing.
        let used = pool.take(pool.find(Chain::After(3))).unwrap();
        pool.release(used);
        pool.save(own, Chain::After(4), Some(Chain::After(3)), true);
        assert_eq!(found(&pool), [true, false, true, true, false]);
        pool.save(own, Chain::After(5), None, false);
        assert_eq!(found(&pool), [false, false, true, true, true]);
        assert_eq!(pool.check(&[1, 0, 0, 0]), Ok(()));
    }

    #[test]
    #[should_panic(expected = "no sequence owns it")]
    fn a_slot_is_not_released_twice() {
        let mut pool = StatePool::new(1);
        let slot = pool.take(None).unwrap();
        pool.release(slot);
        pool.release(slot);
    }
}
