//! The blocks of the key-value cache: who owns each, and which hold the beginnings of texts that others can reuse.
//! [`Chain`] names a prefix by everything before it.

use std::collections::HashMap;

use bitnet_model::Batch;

const SIZE: usize = Batch::BLOCK_TOKENS;
const NONE: u32 = u32::MAX;

/// Identifies everything that comes before a block.
///
/// Each published block has a unique number, which its successors refer to. So two blocks agree in all tokens before
/// them exactly if their chains are equal, without relying on a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Chain {
    /// Nothing comes before; different salts share nothing.
    Root(u64),
    /// Everything up to and including the published block with this number.
    After(u64),
}

#[derive(Debug, Clone)]
struct Block {
    refs: u32,
    /// The content's number and the chain before it.
    published: Option<(u64, Chain)>,
    /// The trail that last marked its content.
    marked: u64,
    // Neighbours in the free list.
    older: u32,
    newer: u32,
}

/// The blocks of the key-value cache, their use counts, and the prefix cache.
///
/// A block is used (`refs > 0`) or free. Free blocks keep their content until they are needed again, least recently
/// used first, so that a later sequence with the same prefix need not compute it.
#[derive(Debug, Clone)]
pub struct BlockPool {
    blocks: Vec<Block>,
    /// Tokens of published blocks, `[blocks][SIZE]`.
    tokens: Vec<u32>,
    index: HashMap<u64, u32>,
    oldest: u32,
    newest: u32,
    free: usize,
    /// Number of free blocks that are published.
    cached: usize,
    next_number: u64,
    /// Contents that have been given away, as block and number, if they are reported.
    evicted: Option<Vec<(u32, u64)>>,
    /// Number of the current trail.
    trail: u64,
    /// Calls of [`BlockPool::find`].
    #[cfg(test)]
    pub(super) finds: std::cell::Cell<usize>,
}

impl BlockPool {
    /// A pool of `count` free, empty blocks.
    pub fn new(count: usize) -> Self {
        let block = Block { refs: 0, published: None, marked: 0, older: NONE, newer: NONE };
        let mut pool = BlockPool {
            blocks: vec![block; count],
            tokens: vec![0; count * SIZE],
            // Twice the need, so that the map never grows as entries come and go.
            index: HashMap::with_capacity(2 * count),
            oldest: NONE,
            newest: NONE,
            free: 0,
            cached: 0,
            next_number: 0,
            evicted: None,
            trail: 1,
            #[cfg(test)]
            finds: std::cell::Cell::default(),
        };
        (0..count as u32).for_each(|block| pool.append(block));
        pool
    }

    /// Total number of blocks.
    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks that can be allocated.
    pub fn available(&self) -> usize {
        self.free
    }

    /// Number of free blocks in the prefix cache.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Number of tables that contain a block.
    pub fn refs(&self, block: u32) -> u32 {
        self.blocks[block as usize].refs
    }

    /// Takes a free block and discards its content; `None` if there is none.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.oldest;
        if block == NONE {
            return None;
        }
        self.unlink(block);
        let number = self.number(block);
        if let (Some(evicted), Some(number)) = (&mut self.evicted, number) {
            evicted.push((block, number));
        }
        self.unpublish(block);
        self.blocks[block as usize].refs = 1;
        Some(block)
    }

    /// Reports from now on which contents are given away.
    pub(super) fn report_evictions(&mut self) {
        self.evicted = Some(Vec::new());
    }

    /// The contents that were given away since the last call, as block and number.
    pub(super) fn evicted(&mut self) -> Vec<(u32, u64)> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The number of a published block's content.
    pub(super) fn number(&self, block: u32) -> Option<u64> {
        self.blocks[block as usize].published.map(|(number, _)| number)
    }

    /// The number of the current trail: of the contents marked since [`BlockPool::new_trail`]. It changes when one of
    /// them goes.
    pub(super) fn trail(&self) -> u64 {
        self.trail
    }

    /// Begins a trail without contents, and returns its number.
    pub(super) fn new_trail(&mut self) -> u64 {
        self.trail += 1;
        self.trail
    }

    /// Adds a published block to the trail.
    pub(super) fn mark(&mut self, block: u32) {
        self.blocks[block as usize].marked = self.trail;
    }

    /// Adds a use of a block, by another table.
    pub fn retain(&mut self, block: u32) {
        if self.blocks[block as usize].refs == 0 {
            self.unlink(block);
        }
        self.blocks[block as usize].refs += 1;
    }

    /// Removes a use of a block, by one table.
    pub fn release(&mut self, block: u32) {
        let b = &mut self.blocks[block as usize];
        assert!(b.refs > 0, "block {block} is released more often than it is used");
        b.refs -= 1;
        if b.refs > 0 {
            return;
        }
        if b.published.is_some() { self.append(block) } else { self.prepend(block) }
    }

    /// Looks up the published block with these tokens after `chain`; returns it with the chain after it.
    pub fn find(&self, chain: Chain, tokens: &[u32]) -> Option<(u32, Chain)> {
        #[cfg(test)]
        self.finds.set(self.finds.get() + 1);
        let &block = self.index.get(&hash(chain, tokens))?;
        let (number, before) = self.blocks[block as usize].published?;
        (before == chain && self.content(block) == tokens).then_some((block, Chain::After(number)))
    }

    /// Adds a full, computed block to the prefix cache and returns the chain after it. If another block has the same
    /// content, that one stays in the cache instead.
    pub fn publish(&mut self, block: u32, chain: Chain, tokens: &[u32]) -> Chain {
        assert_eq!(tokens.len(), SIZE, "only full blocks are published");
        if let Some((_, after)) = self.find(chain, tokens) {
            return after;
        }
        self.unpublish(block);
        let number = self.next_number;
        self.next_number += 1;
        self.content_mut(block).copy_from_slice(tokens);
        // If two contents have the same hash, only the first can be found; the chain continues either way.
        if let std::collections::hash_map::Entry::Vacant(entry) = self.index.entry(hash(chain, tokens)) {
            entry.insert(block);
            self.blocks[block as usize].published = Some((number, chain));
        }
        Chain::After(number)
    }

    /// Removes a block from the prefix cache, because it is about to be overwritten.
    pub fn unpublish(&mut self, block: u32) {
        if let Some((_, chain)) = self.blocks[block as usize].published.take() {
            self.index.remove(&hash(chain, self.content(block)));
            self.trail += u64::from(self.blocks[block as usize].marked == self.trail);
        }
    }

    /// Checks the pool's rules; `uses` gives the number of tables that contain each block.
    pub fn check(&self, uses: &[u32]) -> Result<(), String> {
        let mut free = vec![false; self.blocks.len()];
        let (mut at, mut newest, mut count) = (self.oldest, NONE, 0);
        while at != NONE {
            let block = &self.blocks[at as usize];
            if std::mem::replace(&mut free[at as usize], true) || block.older != newest {
                return Err(format!("the free list is broken at block {at}"));
            }
            (newest, at, count) = (at, block.newer, count + 1);
        }
        if count != self.free || newest != self.newest {
            return Err(format!("{} blocks are counted as free, but {count} are in the list", self.free));
        }
        let cached = self.blocks.iter().filter(|b| b.refs == 0 && b.published.is_some()).count();
        if cached != self.cached {
            return Err(format!("{} free blocks are counted as published, but {cached} are", self.cached));
        }
        for (i, block) in self.blocks.iter().enumerate() {
            if block.refs != uses[i] {
                return Err(format!("block {i} counts {} uses, tables have {}", block.refs, uses[i]));
            }
            if free[i] != (block.refs == 0) {
                return Err(format!("block {i} with {} uses is listed as free: {}", block.refs, free[i]));
            }
            if let Some((_, chain)) = block.published
                && self.index.get(&hash(chain, self.content(i as u32))) != Some(&(i as u32))
            {
                return Err(format!("published block {i} cannot be found"));
            }
        }
        let published = self.blocks.iter().filter(|b| b.published.is_some()).count();
        if published != self.index.len() {
            return Err(format!("{published} blocks are published, the index has {}", self.index.len()));
        }
        Ok(())
    }

    fn content(&self, block: u32) -> &[u32] {
        &self.tokens[block as usize * SIZE..][..SIZE]
    }

    fn content_mut(&mut self, block: u32) -> &mut [u32] {
        &mut self.tokens[block as usize * SIZE..][..SIZE]
    }

    /// Appends to the free list, to be reused last.
    fn append(&mut self, block: u32) {
        let older = std::mem::replace(&mut self.newest, block);
        self.blocks[block as usize].older = older;
        self.blocks[block as usize].newer = NONE;
        if older == NONE {
            self.oldest = block
        } else {
            self.blocks[older as usize].newer = block
        }
        self.free += 1;
        self.cached += usize::from(self.blocks[block as usize].published.is_some());
    }

    /// Prepends to the free list, to be reused first.
    fn prepend(&mut self, block: u32) {
        let newer = std::mem::replace(&mut self.oldest, block);
        self.blocks[block as usize].newer = newer;
        self.blocks[block as usize].older = NONE;
        if newer == NONE {
            self.newest = block
        } else {
            self.blocks[newer as usize].older = block
        }
        self.free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { older, newer, published, .. } = self.blocks[block as usize];
        if older == NONE {
            self.oldest = newer
        } else {
            self.blocks[older as usize].newer = newer
        }
        if newer == NONE {
            self.newest = older
        } else {
            self.blocks[newer as usize].older = older
        }
        self.free -= 1;
        self.cached -= usize::from(published.is_some());
    }
}

/// A hash to find candidates, which are then compared for equality.
fn hash(chain: Chain, tokens: &[u32]) -> u64 {
    let (kind, number) = match chain {
        Chain::Root(salt) => (0x9E37_79B9_7F4A_7C15, salt),
        Chain::After(number) => (0xD1B5_4A32_D192_ED03, number),
    };
    let step = |h: u64, x: u64| (h ^ x).wrapping_mul(0xFF51_AFD7_ED55_8CCD).rotate_left(29);
    let h = tokens.iter().fold(step(kind, number), |h, &t| step(h, u64::from(t)));
    h ^ h >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full(token: u32) -> [u32; SIZE] {
        [token; SIZE]
    }

    #[test]
    fn a_released_block_is_found_until_it_is_needed() {
        let mut pool = BlockPool::new(2);
        let block = pool.allocate().unwrap();
        let after = pool.publish(block, Chain::Root(0), &full(1));
        pool.release(block);
        assert_eq!(pool.find(Chain::Root(0), &full(1)), Some((block, after)));
        assert_ne!(pool.allocate(), Some(block), "an empty block goes first");
        assert_eq!(pool.allocate(), Some(block));
        assert_eq!(pool.find(Chain::Root(0), &full(1)), None);
        assert_eq!(pool.allocate(), None);
    }

    #[test]
    fn blocks_are_found_only_after_the_same_beginning_and_salt() {
        let mut pool = BlockPool::new(4);
        let [a, b] = [(); 2].map(|()| pool.allocate().unwrap());
        let after = pool.publish(a, Chain::Root(0), &full(1));
        pool.publish(b, after, &full(2));
        assert_eq!(pool.find(after, &full(2)).map(|f| f.0), Some(b));
        assert_eq!(pool.find(Chain::Root(0), &full(2)), None);
        assert_eq!(pool.find(Chain::Root(1), &full(1)), None);
    }

    #[test]
    fn equal_content_computed_twice_continues_one_chain() {
        let mut pool = BlockPool::new(4);
        let [a, b] = [(); 2].map(|()| pool.allocate().unwrap());
        assert_eq!(pool.publish(a, Chain::Root(0), &full(1)), pool.publish(b, Chain::Root(0), &full(1)));
        assert_eq!(pool.find(Chain::Root(0), &full(1)).map(|f| f.0), Some(a));
    }

    #[test]
    #[should_panic(expected = "released more often")]
    fn a_double_free_is_refused() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().unwrap();
        pool.release(block);
        pool.release(block);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Compares with lists that are searched from end to end.
        #[test]
        fn the_pool_agrees_with_a_naive_one(steps in proptest::collection::vec((0u8..5, 0usize..8, 0u32..3), 1..300)) {
            let mut pool = BlockPool::new(6);
            let mut used: Vec<u32> = Vec::new(); // one entry for each use
            let mut contents: HashMap<(Chain, u32), u32> = HashMap::new();
            for (what, which, token) in steps {
                let chosen = (!used.is_empty()).then(|| used[which % used.len()]);
                match (what, chosen) {
                    (0, _) => match pool.allocate() {
                        Some(block) => {
                            prop_assert!(!used.contains(&block));
                            contents.retain(|_, b| *b != block);
                            used.push(block);
                        }
                        None => prop_assert_eq!((0..6).filter(|b| !used.contains(b)).count(), 0),
                    },
                    (1, Some(block)) => {
                        pool.release(block);
                        used.swap_remove(which % used.len());
                    }
                    (2, Some(block)) => {
                        let known = contents.get(&(Chain::Root(0), token)).copied();
                        pool.publish(block, Chain::Root(0), &full(token));
                        if known.is_none() {
                            contents.retain(|_, b| *b != block);
                            contents.insert((Chain::Root(0), token), block);
                        }
                    }
                    (3, Some(block)) => {
                        pool.unpublish(block);
                        contents.retain(|_, b| *b != block);
                    }
                    _ => if let Some((block, _)) = pool.find(Chain::Root(0), &full(token)) {
                        pool.retain(block);
                        used.push(block);
                    },
                }
                for token in 0..3 {
                    let found = pool.find(Chain::Root(0), &full(token)).map(|f| f.0);
                    prop_assert_eq!(found, contents.get(&(Chain::Root(0), token)).copied());
                }
                let uses: Vec<u32> = (0..6).map(|b| used.iter().filter(|&&u| u == b).count() as u32).collect();
                prop_assert_eq!(pool.check(&uses), Ok(()));
                prop_assert_eq!(pool.total(), 6);
                prop_assert_eq!(pool.available(), uses.iter().filter(|&&n| n == 0).count());
                prop_assert_eq!(pool.cached(), contents.values().filter(|b| !used.contains(b)).count());
                prop_assert_eq!((0..6).map(|b| pool.refs(b)).collect::<Vec<_>>(), uses);
            }
        }
    }
}
