//! A shelf in memory that delays, loses and damages parts and that several worlds share, as processes share a folder; and
//! deliberate faults in a tier, which the simulation must detect.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;

use bitnet_kernels::Fill;
use bitnet_model::CachePlace;

use super::sequence::Fetch;
use super::*;
use crate::tier::{CacheAccess, Content, Given, InPlace, PartBytes, Shelf, ShelfCounts, Told};

/// Parts of all worlds that share a shelf.
pub(super) type Store = Arc<Mutex<BTreeMap<(bool, Address), (Part, Vec<u8>)>>>;

pub(super) fn key(part: &Part) -> (bool, Address) {
    (part.kind == PartKind::State, part.address)
}

/// The shelf of one world.
pub(super) struct SimShelf {
    store: Store,
    rng: Rng,
    /// Answers, each with the number of calls until it comes.
    answers: VecDeque<(usize, Told)>,
    counts: ShelfCounts,
    planted: Option<Planted>,
    /// Bytes of another part, for a fault.
    other: Option<Vec<u8>>,
}

impl SimShelf {
    pub fn new(store: Store, seed: u64, planted: Option<Planted>) -> SimShelf {
        SimShelf {
            store,
            rng: Rng(mix(seed, 7) >> 1),
            answers: VecDeque::new(),
            // Enough for all of the model's memory.
            counts: ShelfCounts { bytes: u64::MAX, ..ShelfCounts::default() },
            planted,
            other: None,
        }
    }

    fn answer(&mut self, told: Told) {
        // Sometimes nothing comes for so long that it is given up.
        let delay = if self.rng.one_in(60) { 200 } else { self.rng.below(4) };
        self.answers.push_back((delay, told));
    }

    /// What is kept of a part, unless it was lost or damaged, which a checksum would find.
    fn read(&mut self, part: &Part) -> Option<Vec<u8>> {
        let mut store = self.store.lock().unwrap();
        let (kept, bytes) = store.get(&key(part))?.clone();
        assert_eq!(kept, *part, "an address names one part");
        if self.rng.one_in(4) {
            store.remove(&key(part));
            self.counts.damaged += 1;
            return None;
        }
        self.counts.read_parts += 1;
        Some(bytes)
    }

    fn has(&self, part: &Part) -> bool {
        self.store.lock().unwrap().contains_key(&key(part))
    }

    /// Applied to every part that is given.
    fn sabotage(&mut self, index: &mut usize, bytes: &mut Vec<u8>) {
        match self.planted {
            Some(Planted::DamagedPart) if self.rng.one_in(3) => bytes[0] ^= 1,
            Some(Planted::OtherPart) if self.rng.one_in(3) => {
                if let Some(other) = self.other.replace(bytes.clone()).filter(|o| o.len() == bytes.len()) {
                    *bytes = other;
                }
            }
            Some(Planted::ShiftedPart) if *index > 0 => *index -= 1,
            _ => {}
        }
    }
}

impl Shelf for SimShelf {
    fn has_room(&mut self, _: usize) -> bool {
        // A full disk.
        !self.rng.one_in(20)
    }

    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }

    fn give_back(&mut self, _: PartBytes) {}

    fn keep(&mut self, part: Part, bytes: PartBytes) {
        let bytes = bytes.to_vec();
        let kept = !self.rng.one_in(20);
        let (kind, address) = (part.kind, part.address);
        if kept {
            self.counts.written_parts += 1;
            let before = self.store.lock().unwrap().insert(key(&part), (part, bytes.clone()));
            // Every world computes the same bytes.
            assert!(before.is_none_or(|(_, before)| before == bytes), "a part was kept with other bytes");
        }
        self.answer(Told::Holds(kind, address, kept));
    }

    fn forget(&mut self, part: Part) {
        self.store.lock().unwrap().remove(&key(&part));
    }

    fn look(&mut self, number: u64, wish: Wish) {
        let mut blocks = wish.held;
        while wish.parts.get(blocks).is_some_and(|part| self.has(part)) {
            blocks += 1;
        }
        while wish.needs_state && blocks > wish.usable && !self.has(&wish.parts[blocks - 1].state()) {
            blocks -= 1;
        }
        self.answer(Told::Looked { number, blocks });
    }

    fn load(&mut self, number: u64, wish: Wish, blocks: usize) {
        let mut reached = wish.held.min(blocks);
        let mut parts = Vec::new();
        while reached < blocks {
            let Some(bytes) = self.read(&wish.parts[reached]) else { break };
            parts.push((PartKind::Block, reached, bytes));
            reached += 1;
        }
        while wish.needs_state && reached > wish.usable {
            if let Some(bytes) = self.read(&wish.parts[reached - 1].state()) {
                parts.push((PartKind::State, reached - 1, bytes));
                break;
            }
            reached -= 1;
        }
        for (kind, mut index, mut bytes) in parts {
            self.sabotage(&mut index, &mut bytes);
            let content = if kind == PartKind::Block && self.rng.one_in(2) {
                // Sometimes it is damaged or forgotten, and that is found at its end.
                let whole = !self.rng.one_in(8);
                let trusted = self.planted == Some(Planted::TrustedBlock);
                Content::InPlace(Box::new(SimBlock { bytes, whole, trusted }))
            } else {
                Content::Bytes(bytes.into())
            };
            self.answer(Told::Part(Given { number, kind, index, content, from_host: false }));
        }
        self.answer(Told::End { number });
    }

    fn stop(&mut self, _: u64) {}

    fn next(&mut self) -> Option<Told> {
        if self.planted == Some(Planted::SilentShelf) {
            return None;
        }
        let (delay, _) = self.answers.front_mut()?;
        if *delay > 0 {
            *delay -= 1;
            return None;
        }
        self.answers.pop_front().map(|(_, told)| told)
    }

    fn flush(&mut self, _: Instant) -> bool {
        true
    }

    fn counts(&self) -> ShelfCounts {
        self.counts
    }
}

/// A block that is read in place.
struct SimBlock {
    bytes: Vec<u8>,
    whole: bool,
    /// A fault: what is damaged is used all the same.
    trusted: bool,
}

impl InPlace for SimBlock {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn fill(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.bytes[at..][..to.len()]);
        if !self.whole {
            to[0] ^= 1;
        }
    }

    fn end(self: Box<Self>) -> bool {
        self.whole || self.trusted
    }
}

/// A stepper's access to the cache, with faults.
pub(super) struct SimCache<'w> {
    pub stepper: &'w mut Stepper<'static>,
    pub planted: Option<Planted>,
}

impl CacheAccess for SimCache<'_> {
    fn read(&mut self, place: CachePlace, to: &mut [u8]) -> bool {
        let place = match (self.planted, place) {
            (Some(Planted::NeighbourRead), CachePlace::Block(block)) => CachePlace::Block(block ^ 1),
            _ => place,
        };
        self.stepper.read(place, to)
    }

    fn write(&mut self, place: CachePlace, from: &[u8]) -> bool {
        self.planted == Some(Planted::UnwrittenPart) || self.stepper.write(place, from)
    }

    fn fill(&mut self, block: u32, fill: &Fill<'_>) -> bool {
        self.planted == Some(Planted::UnwrittenPart) || self.stepper.fill(block, fill)
    }

    fn copy_state(&mut self, from: u32, to: u32) -> bool {
        self.planted == Some(Planted::UnsettledState) || self.stepper.copy_state(from, to)
    }
}

impl World {
    /// Calls the tier between two steps.
    pub(super) fn poll_tier(&mut self) {
        let World { tier, scheduler, stepper, now, planted, .. } = self;
        let Some(tier) = tier else { return };
        // With this fault, a sequence that waits for a silent shelf waits for ever.
        let now = if *planted == Some(Planted::SilentShelf) { 0 } else { *now };
        tier.poll(now, scheduler, &mut SimCache { stepper, planted: *planted });
        if self.planted == Some(Planted::PreparedPart) {
            let pool = self.scheduler.pool();
            let block = (0..pool.total() as u32).find(|&block| pool.number(block).is_some());
            let zeros = vec![0; self.stepper.model().cache_bytes().unwrap().block];
            if let Some(block) = block {
                self.stepper.write(CachePlace::Block(block), &zeros);
            }
        }
        if self.planted == Some(Planted::LostAdoption) {
            let parts = parts(&[0; 32], 0, &[1; BLOCK], PartKind::Block).collect();
            let id = SeqId { request: 0, choice: 0 };
            let (slot, trail) = (0, wish::Trail::none());
            let mut wish = Wish { id, salt: 0, parts, held: 0, usable: 0, needs_state: false, slot, trail };
            let _ = self.scheduler.begin_block(&mut wish, 0);
        }
        if self.planted == Some(Planted::ForgottenFetch) {
            let Scheduler { waiting, slots, .. } = &mut self.scheduler;
            waiting.iter().for_each(|&slot| seq_mut(slots, slot).fetch = Fetch::Asked);
        }
    }

    /// Copies out what the next step overwrites.
    pub(super) fn save_urgent(&mut self) {
        let World { tier, scheduler, stepper, planted, .. } = self;
        if let Some(tier) = tier {
            tier.before_step(scheduler, &mut SimCache { stepper, planted: *planted });
        }
    }
}

const BLOCK: usize = Batch::BLOCK_TOKENS;
