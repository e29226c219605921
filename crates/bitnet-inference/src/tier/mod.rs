//! A tier below the cache's memory: parts that leave memory are kept elsewhere, and texts that begin with them are read
//! instead of computed. It decides when, and copies bytes between the model and a [`Shelf`]; the shelf has its own
//! threads, and nothing here waits for it.
//!
//! A part is named by everything that decides its bytes ([`crate::schedule::Address`]), and its bytes come back unchanged or not at
//! all. So a text continues with the same tokens, whatever was read, lost or damaged.

mod disk;
mod entry;
mod folder;
mod host;
mod listing;
mod prepare;
mod shelf;

pub use disk::Disk;
pub use entry::{Damage, Entry};
pub use folder::{CacheFolder, FolderError};
pub use host::HostMemory;
pub use listing::{Cleared, Listed, clear_folder, list_folder};
pub use shelf::{Content, Given, InPlace, PartBytes, Shelf, ShelfCounts, Told};

use std::fmt;
use std::time::{Duration, Instant};

use bitnet_kernels::Fill;
use bitnet_model::{Batch, CacheBytes, CachePlace};

use prepare::Prepared;

use crate::schedule::{Begun, Part, PartKind, Places, Scheduler, Wish};

/// A text that gets nothing for this long is computed instead, in microseconds.
const PATIENCE: u64 = 2_000_000;
/// Bytes that may be copied out for each microsecond of a step: one part in a hundred of a copy's usual speed.
const OUT_PER_MICRO: usize = 40;
/// The same for each core. To copy a gigabyte, hash it and hand it to the system takes 1 to 2 s of a core, so that is one
/// or two parts in a hundred of what the cores do.
const OUT_PER_CORE: usize = 10;
/// Bytes that may be copied in between two steps for each microsecond of the last one: a tenth.
const IN_PER_MICRO: usize = 400;
/// Bytes copied in or out between two looks at new requests while nothing runs.
const IDLE: usize = 256 << 20;
/// Bytes that may be copied out at once after long steps.
const MOST_CREDIT: usize = 16 << 20;

/// The cache in a model's memory, as a tier reads and writes it. Each call returns whether it succeeded.
pub trait CacheAccess {
    /// Copies a part out.
    fn read(&mut self, place: CachePlace, to: &mut [u8]) -> bool;
    /// Overwrites a part.
    fn write(&mut self, place: CachePlace, from: &[u8]) -> bool;
    /// Overwrites a block with what `fill` writes, as [`Model::fill_block`](bitnet_model::Model::fill_block).
    fn fill(&mut self, block: u32, fill: &Fill<'_>) -> bool;
    /// Copies a state from one slot to another.
    fn copy_state(&mut self, from: u32, to: u32) -> bool;
}

/// A tier, and what it is doing.
pub struct Tier {
    shelf: Box<dyn Shelf>,
    bytes: CacheBytes,
    wishes: Vec<Wished>,
    /// Texts for which parts were read but which still wait for a place, and the number of blocks.
    loaded: Vec<(Wish, usize)>,
    next_number: u64,
    /// Bytes that may be copied out for each microsecond of a step.
    pace: usize,
    /// Bytes that may be copied out while sequences run.
    credit: usize,
    /// Microseconds of the last step.
    last_step: u64,
    /// When the shelf last answered a question, and when it last gave a part.
    answered: u64,
    given: u64,
    /// Whether the shelf did not answer in time and has not answered since.
    stuck: bool,
    /// Whether the last call left something to do that needs no answer.
    more: bool,
    prepared: Prepared,
    counts: TierCounts,
    copies: Vec<(u32, u32)>,
}

/// A text whose beginning may be on the shelf.
struct Wished {
    number: u64,
    wish: Wish,
    stage: Stage,
    since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The shelf looks how much is there.
    Looking,
    /// This many blocks are there.
    Found(usize),
    /// They are being read; this many parts have been taken in, and this many blocks from host memory.
    Loading { parts: usize, from_host: usize, begun: Instant },
}

/// Counts of a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierCounts {
    /// Texts whose beginning was read instead of computed.
    pub hits: u64,
    /// Texts for which nothing was there.
    pub misses: u64,
    /// Tokens read instead of computed.
    pub hit_tokens: u64,
    /// How many of them were in host memory.
    pub host_tokens: u64,
    /// Texts that were computed because reading took too long or memory was lacking.
    pub given_up: u64,
    /// Parts that left memory while the shelf was busy, and are lost.
    pub dropped: u64,
    /// Bytes of memory that were used once before a text was read into them.
    pub prepared_bytes: u64,
    /// Time that copying parts out of the model's memory took, in microseconds.
    pub out_micros: u64,
    /// Time that copying or reading them into the model's memory took.
    pub in_micros: u64,
    /// Time from when parts of a text were asked for until the last of them was in the model's memory.
    pub load_micros: u64,
    /// The counts of the folder.
    pub shelf: ShelfCounts,
    /// Whether there is a folder.
    pub has_folder: bool,
    /// The counts of host memory below that of a GPU, if it keeps parts.
    pub host: Option<ShelfCounts>,
}

impl Tier {
    /// A tier for a model whose parts have these sizes.
    pub fn new(shelf: Box<dyn Shelf>, bytes: CacheBytes) -> Tier {
        Tier {
            shelf,
            bytes,
            wishes: Vec::new(),
            loaded: Vec::new(),
            next_number: 0,
            pace: OUT_PER_MICRO,
            credit: 0,
            last_step: 0,
            answered: 0,
            given: 0,
            stuck: false,
            more: false,
            prepared: Prepared::up_to(0),
            counts: TierCounts::default(),
            copies: Vec::new(),
        }
    }

    /// The same tier on a machine with this many cores: the fewer there are, the less is written beside the steps.
    #[must_use]
    pub fn on_cores(self, cores: usize) -> Tier {
        Tier { pace: OUT_PER_MICRO.min(OUT_PER_CORE * cores), ..self }
    }

    /// The same tier, which uses up to this many bytes of the model's memory once while nothing runs, so that parts are
    /// not read into memory that the system has yet to find.
    #[must_use]
    pub fn preparing(self, bytes: u64) -> Tier {
        Tier { prepared: Prepared::up_to(bytes), ..self }
    }

    /// The counts so far.
    pub fn counts(&self) -> TierCounts {
        let (shelf, host) = (self.shelf.counts(), self.shelf.host_counts());
        TierCounts { shelf, host, has_folder: self.shelf.is_lasting(), ..self.counts }
    }

    /// Whether there is something to do that needs no answer of the shelf.
    pub fn is_busy(&self) -> bool {
        self.more
    }

    /// When to call [`Tier::poll`] at the latest.
    pub fn deadline(&self) -> Option<u64> {
        self.wishes.iter().map(|wished| self.patience_ends(wished) + 1).min()
    }

    /// The time after which a wish is given up.
    fn patience_ends(&self, wished: &Wished) -> u64 {
        let last = if wished.stage == Stage::Looking { self.answered } else { self.given };
        wished.since.max(last) + PATIENCE
    }

    /// Does what can be done between two steps: takes parts in, asks for others, and copies out.
    pub fn poll(&mut self, now: u64, scheduler: &mut Scheduler, cache: &mut dyn CacheAccess) {
        self.more = false;
        self.forget_suspects(scheduler);
        self.take_in(now, scheduler, cache);
        self.ask(now, scheduler);
        self.give_up(now, scheduler);
        self.begin(now, scheduler);
        self.copy_out(scheduler, cache);
        self.prepare(scheduler, cache);
    }

    /// Copies out what the planned step overwrites, as far as the shelf has room.
    pub fn before_step(&mut self, scheduler: &mut Scheduler, cache: &mut dyn CacheAccess) {
        while let Some((part, place)) = scheduler.next_urgent() {
            let kept = self.shelf.has_room(self.bytes.of(place))
                && self.keep(part.clone(), &Places::of(place), cache);
            if !kept {
                self.counts.dropped += 1;
                scheduler.is_outside(part.kind, part.address, false);
            }
        }
    }

    /// Learns how long a step took.
    pub fn after_step(&mut self, micros: u64) {
        self.last_step = micros;
        let most = MOST_CREDIT.max(self.bytes.block).max(self.bytes.state);
        let more = (micros as usize).saturating_mul(self.pace);
        self.credit = self.credit.saturating_add(more).min(most);
    }

    /// Forgets which sequences wait for parts, because their scheduler is about to end.
    pub fn restart(&mut self, scheduler: &mut Scheduler) {
        self.forget_suspects(scheduler);
        let numbers: Vec<u64> = self.wishes.drain(..).map(|wished| wished.number).collect();
        numbers.into_iter().for_each(|number| self.shelf.stop(number));
        self.loaded.clear();
    }

    /// Copies out everything that is queued and waits until it is kept, at most until this time. Returns whether all is
    /// kept.
    pub fn drain(&mut self, until: Instant, scheduler: &mut Scheduler, cache: &mut dyn CacheAccess) -> bool {
        self.restart(scheduler);
        if !self.shelf.is_lasting() {
            return true;
        }
        loop {
            while self.shelf.next().is_some() {}
            self.copy_out(scheduler, cache);
            if scheduler.peek_leaving().is_none() {
                return self.shelf.flush(until);
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes what failed sequences have used from the shelf.
    fn forget_suspects(&mut self, scheduler: &mut Scheduler) {
        while let Some(part) = scheduler.next_suspect() {
            self.shelf.forget(part);
        }
    }

    fn take_in(&mut self, now: u64, scheduler: &mut Scheduler, cache: &mut dyn CacheAccess) {
        let running = scheduler.running() > 0;
        let most = if running { (self.last_step as usize).saturating_mul(IN_PER_MICRO) } else { IDLE };
        let mut taken = 0;
        while taken == 0 || taken < most {
            let Some(told) = self.shelf.next() else { return };
            if !matches!(told, Told::Holds(..)) {
                self.answered = now;
                self.stuck = false;
            }
            match told {
                Told::Looked { number, blocks } => self.looked(number, blocks, now, scheduler),
                Told::Part(given) => {
                    taken += given.content.bytes();
                    self.given = now;
                    self.take_part(given, scheduler, cache);
                }
                Told::End { number } => self.end(number, scheduler),
                Told::Holds(kind, address, yes) => scheduler.is_outside(kind, address, yes),
            }
        }
        self.more = true;
    }

    fn looked(&mut self, number: u64, blocks: usize, now: u64, scheduler: &mut Scheduler) {
        let Some(at) = self.place(number).filter(|&at| self.wishes[at].stage == Stage::Looking) else {
            return;
        };
        let wished = &mut self.wishes[at];
        if blocks > wished.wish.usable && blocks <= wished.wish.parts.len() {
            (wished.stage, wished.since) = (Stage::Found(blocks), now);
        } else {
            self.counts.misses += 1;
            scheduler.fetched(&self.wishes.remove(at).wish);
        }
    }

    /// Writes a part that was read to the model's memory, as if a sequence that has ended had left it there.
    fn take_part(&mut self, given: Given, scheduler: &mut Scheduler, cache: &mut dyn CacheAccess) {
        let Given { number, kind, index, content, from_host } = given;
        let Some(at) = self.place(number) else { return self.drop_content(content) };
        // It is put back below.
        let mut wished = self.wishes.remove(at);
        let wish = &mut wished.wish;
        let wanted = matches!(wished.stage, Stage::Loading { .. }) && index < wish.parts.len();
        let taken = if wanted && scheduler.waits_for(wish) {
            match kind {
                PartKind::Block => self.take_block(wish, index, content, scheduler, cache),
                PartKind::State => self.take_state(wish, index, content, scheduler, cache),
            }
        } else {
            self.drop_content(content);
            false
        };
        if let Stage::Loading { parts, from_host: host_blocks, .. } = &mut wished.stage {
            *parts += usize::from(taken);
            *host_blocks += usize::from(taken && from_host && kind == PartKind::Block);
        }
        self.wishes.insert(at, wished);
        if !taken {
            self.shelf.stop(number);
            self.end(number, scheduler);
        }
    }

    fn take_block(
        &mut self,
        wish: &mut Wish,
        index: usize,
        content: Content,
        scheduler: &mut Scheduler,
        cache: &mut dyn CacheAccess,
    ) -> bool {
        let (block, before) = match scheduler.begin_block(wish, index) {
            Some(Begun::Write(block, before)) => (block, before),
            begun => {
                self.drop_content(content);
                return begun.is_some();
            }
        };
        self.before_step(scheduler, cache);
        let begun = Instant::now();
        let written = match content {
            Content::Bytes(bytes) => {
                let written = cache.write(CachePlace::Block(block), &bytes);
                self.shelf.give_back(bytes);
                written
            }
            Content::InPlace(from) => {
                let written = cache.fill(block, &|at, to| from.fill(at, to)) && from.end();
                // A damaged file may hold what is no number, which not even a weight of 0 would hide.
                written || {
                    cache.fill(block, &|_, to| to.fill(0));
                    false
                }
            }
        };
        self.counts.in_micros += begun.elapsed().as_micros() as u64;
        let part = &wish.parts[index];
        scheduler.end_block(block, before, part, written);
        scheduler.is_outside(PartKind::Block, part.address, written);
        written
    }

    fn take_state(
        &mut self,
        wish: &mut Wish,
        index: usize,
        content: Content,
        scheduler: &mut Scheduler,
        cache: &mut dyn CacheAccess,
    ) -> bool {
        // A state has several places; shelves give its bytes.
        let Content::Bytes(bytes) = content else { return false };
        self.settle(scheduler, cache);
        let begun = scheduler.begin_state(wish, index);
        let taken = begun.map(|begun| {
            let written = self.write_state(&begun.places(), &bytes, cache);
            scheduler.end_state(begun, wish, written);
            written
        });
        self.shelf.give_back(bytes);
        let Some(written) = taken else { return false };
        scheduler.is_outside(PartKind::State, wish.parts[index].address, true);
        written
    }

    fn write(&mut self, place: CachePlace, bytes: &[u8], cache: &mut dyn CacheAccess) -> bool {
        let begun = Instant::now();
        let written = cache.write(place, bytes);
        self.counts.in_micros += begun.elapsed().as_micros() as u64;
        written
    }

    fn write_state(&mut self, places: &Places, bytes: &[u8], cache: &mut dyn CacheAccess) -> bool {
        let size = self.bytes.window;
        let (windows, rest) = bytes.split_at(places.windows.len() * size);
        let mut windows = places.windows.iter().zip(windows.chunks(size.max(1)));
        let written = windows.all(|(block, bytes)| {
            block.is_none_or(|block| self.write(CachePlace::Window(block), bytes, cache))
        });
        written && places.rest.is_none_or(|place| self.write(place, rest, cache))
    }

    /// Drops a part that is not needed.
    fn drop_content(&mut self, content: Content) {
        if let Content::Bytes(bytes) = content {
            self.shelf.give_back(bytes);
        }
    }

    /// Makes the copies of states that have been decided, so that every slot holds what it should.
    fn settle(&mut self, scheduler: &mut Scheduler, cache: &mut dyn CacheAccess) {
        let mut copies = std::mem::take(&mut self.copies);
        scheduler.take_state_copies(&mut copies);
        let mut failed: Vec<u32> = Vec::new();
        for (from, to) in copies.drain(..) {
            let copied = !failed.contains(&from) && cache.copy_state(from, to);
            failed.retain(|&slot| slot != to);
            failed.extend((!copied).then_some(to));
        }
        failed.into_iter().for_each(|slot| scheduler.drop_failed_copy(slot));
        self.copies = copies;
    }

    /// Ends a wish: its sequence may be admitted.
    fn end(&mut self, number: u64, scheduler: &mut Scheduler) {
        let Some(at) = self.place(number) else { return };
        let Wished { mut wish, stage, .. } = self.wishes.remove(at);
        let before = wish.usable;
        if let Stage::Loading { begun, .. } = stage {
            self.counts.load_micros += begun.elapsed().as_micros() as u64;
        }
        let loaded = match stage {
            Stage::Loading { parts, from_host, .. }
                if scheduler.refresh(&mut wish) && wish.usable > before =>
            {
                Some((parts, from_host))
            }
            _ => None,
        };
        scheduler.fetched(&wish);
        if let Some((parts, from_host)) = loaded {
            let blocks = wish.usable - before;
            self.counts.hits += 1;
            self.counts.hit_tokens += (blocks * Batch::BLOCK_TOKENS) as u64;
            self.counts.host_tokens += (from_host.min(blocks) * Batch::BLOCK_TOKENS) as u64;
            self.loaded.push((wish, parts));
        }
    }

    /// The index of the wish with this number; they are in the order of their numbers.
    fn place(&self, number: u64) -> Option<usize> {
        self.wishes.binary_search_by_key(&number, |wished| wished.number).ok()
    }

    /// Asks the shelf about new sequences.
    fn ask(&mut self, now: u64, scheduler: &mut Scheduler) {
        while let Some(wish) = scheduler.next_wish() {
            if self.stuck {
                self.counts.given_up += 1;
                scheduler.fetched(&wish);
                continue;
            }
            let number = self.next_number;
            self.next_number += 1;
            self.shelf.look(number, wish.clone());
            self.wishes.push(Wished { number, wish, stage: Stage::Looking, since: now });
        }
    }

    /// Lets sequences be computed for which nothing has come for too long, and forgets those that have ended.
    fn give_up(&mut self, now: u64, scheduler: &mut Scheduler) {
        for at in (0..self.wishes.len()).rev() {
            let wished = &self.wishes[at];
            let number = wished.number;
            let late = now > self.patience_ends(wished);
            let gone = !scheduler.waits_for(&wished.wish);
            if late || gone {
                self.stuck |= late && !matches!(wished.stage, Stage::Found(_));
                self.counts.given_up += u64::from(late);
                self.shelf.stop(number);
                self.end(number, scheduler);
            }
        }
    }

    /// Begins to read for the first sequence in the queue, if nothing is being read and memory has room for it beside
    /// what was read for others that still wait.
    fn begin(&mut self, now: u64, scheduler: &mut Scheduler) {
        self.loaded.retain(|(wish, _)| scheduler.waits_for(wish));
        if self.wishes.iter().any(|wished| matches!(wished.stage, Stage::Loading { .. })) {
            return;
        }
        let found = self.wishes.iter_mut().filter(|wished| matches!(wished.stage, Stage::Found(_)));
        let first = found.min_by_key(|wished| scheduler.queue_place(&wished.wish).unwrap_or(usize::MAX));
        let Some(Wished { number, wish, stage, since }) = first else { return };
        let Stage::Found(blocks) = *stage else { return };
        let promised: usize = self.loaded.iter().map(|(_, blocks)| blocks).sum();
        scheduler.refresh(wish);
        if promised + blocks.saturating_sub(wish.held) > scheduler.pool().available() {
            return;
        }
        (*stage, *since) = (Stage::Loading { parts: 0, from_host: 0, begun: Instant::now() }, now);
        self.shelf.load(*number, wish.clone(), blocks);
    }

    /// Copies out queued parts: as many as the last steps have earned while sequences run.
    fn copy_out(&mut self, scheduler: &mut Scheduler, cache: &mut dyn CacheAccess) {
        let running = scheduler.running() > 0;
        let mut copied = 0;
        if matches!(scheduler.peek_leaving(), Some((PartKind::State, _))) {
            self.settle(scheduler, cache);
        }
        while let Some((kind, places)) = scheduler.peek_leaving() {
            let size = self.bytes.of(kind.place(0));
            if running && size > self.credit || !running && copied > IDLE {
                self.more |= !running;
                return;
            }
            if kind == PartKind::State && copied > 0 {
                self.settle(scheduler, cache);
                if scheduler.peek_leaving().is_none_or(|next| next != (kind, places.clone())) {
                    continue;
                }
            }
            if !self.shelf.has_room(size) {
                return;
            }
            let part = scheduler.take_leaving().expect("it was shown");
            copied += size.max(1);
            self.credit = self.credit.saturating_sub(if running { size } else { 0 });
            if !self.keep(part.clone(), &places, cache) {
                scheduler.is_outside(part.kind, part.address, false);
            }
        }
    }

    /// Copies a part out and hands it to the shelf; returns whether it was there.
    fn keep(&mut self, part: Part, places: &Places, cache: &mut dyn CacheAccess) -> bool {
        let mut buffer = self.shelf.buffer(self.bytes.of(part.kind.place(0)));
        let begun = Instant::now();
        let (windows, rest) = buffer.split_at_mut(places.windows.len() * self.bytes.window);
        let mut windows = places.windows.iter().zip(windows.chunks_mut(self.bytes.window.max(1)));
        let read = windows.all(|(block, bytes)| match block {
            Some(block) => cache.read(CachePlace::Window(*block), bytes),
            None => {
                bytes.fill(0);
                true
            }
        });
        let read = read && places.rest.is_none_or(|place| cache.read(place, rest));
        self.counts.out_micros += begun.elapsed().as_micros() as u64;
        if read {
            self.shelf.keep(part, buffer.into());
        } else {
            self.shelf.give_back(buffer.into());
        }
        read
    }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_fewer_cores_the_less_is_copied_out_beside_the_steps() {
        let bytes = CacheBytes { block: 1 << 20, window: 0, state: 0, piece: 1 << 12 };
        let credit = |cores, micros| {
            let mut tier =
                Tier::new(Box::new(HostMemory::new(0, None, Arc::new(|| {}))), bytes).on_cores(cores);
            tier.after_step(micros);
            tier.credit
        };
        assert_eq!([1, 2, 4, 64].map(|cores| credit(cores, 1000)), [10_000, 20_000, 40_000, 40_000]);
        assert_eq!(credit(2, u64::MAX), 16 << 20, "after a long step");
    }
}
