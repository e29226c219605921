//! A [`Shelf`] in host memory, for a model whose cache is in the memory of a GPU, over another shelf or none.
//!
//! Parts are kept below as well where that keeps up, so that they outlive the process; the others are handed down when
//! they leave host memory. Both shelves hold the same bytes, which are never copied. What is read from below stays here.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use super::shelf::{Content, Given, PartBytes, Shelf, ShelfCounts, Spare, Told, Wake};
use crate::schedule::{Address, Part, PartKind, Wish};

/// Parts of the cache in host memory.
pub struct HostMemory {
    parts: HashMap<Key, Kept>,
    /// The keys of all parts, least recently used first.
    order: BTreeMap<Used, Key>,
    clock: u64,
    limit: u64,
    below: Option<Box<dyn Shelf>>,
    wake: Wake,
    answers: VecDeque<Told>,
    /// Questions that the shelf below must answer too.
    looks: Vec<Look>,
    load: Option<Load>,
    spare: Spare,
    counts: ShelfCounts,
}

type Key = (PartKind, Address);
/// When a part counts as used, and a number that no other part has.
type Used = (u64, u64);

struct Kept {
    part: Part,
    bytes: PartBytes,
    used: Used,
    /// Whether the shelf below keeps it too.
    below: bool,
}

/// A question about a text.
struct Look {
    number: u64,
    wish: Wish,
    /// Number of blocks that are here or below, and of those up to a state that is here, once only states are asked for.
    states: Option<(usize, usize)>,
}

/// A text that is given.
struct Load {
    number: u64,
    wish: Wish,
    /// Number of blocks to give.
    blocks: usize,
    /// Number of those that are in memory or have been given.
    next: usize,
    /// The number up to which the shelf below gives them, while it is asked.
    until: usize,
    /// Index of the block before the state to give if the shelf below has none after it, while that is asked.
    state: Option<Option<usize>>,
}

impl HostMemory {
    /// Memory for this many bytes of parts. `wake` is called after an answer that nothing else tells of.
    pub fn new(limit: u64, below: Option<Box<dyn Shelf>>, wake: Wake) -> HostMemory {
        HostMemory {
            parts: HashMap::new(),
            order: BTreeMap::new(),
            // Far from zero, because later blocks of a text count as used earlier.
            clock: 1 << 40,
            limit,
            below,
            wake,
            answers: VecDeque::new(),
            looks: Vec::new(),
            load: None,
            spare: Spare::default(),
            counts: ShelfCounts::default(),
        }
    }

    /// When a part counts as used now: the later in its text, the earlier it goes.
    fn now(&mut self, part: &Part) -> Used {
        self.clock += 1;
        (self.clock - 2 * u64::from(part.index), self.clock)
    }

    fn find(&self, part: &Part) -> Option<&Kept> {
        self.parts.get(&(part.kind, part.address)).filter(|kept| kept.part == *part)
    }

    /// The bytes of a part, which becomes the most recently used.
    fn read(&mut self, part: &Part) -> Option<PartBytes> {
        let used = self.now(part);
        let key = (part.kind, part.address);
        let kept = self.parts.get_mut(&key).filter(|kept| kept.part == *part)?;
        self.order.remove(&kept.used);
        self.order.insert(used, key);
        kept.used = used;
        self.counts.read_parts += 1;
        self.counts.read_bytes += kept.bytes.len() as u64;
        Some(PartBytes::clone(&kept.bytes))
    }

    fn remove(&mut self, key: Key) -> Option<Kept> {
        let kept = self.parts.remove(&key)?;
        self.order.remove(&kept.used);
        self.counts.bytes -= kept.bytes.len() as u64;
        Some(kept)
    }

    fn insert(&mut self, part: Part, bytes: PartBytes, below: bool) {
        let key = (part.kind, part.address);
        if let Some(before) = self.remove(key) {
            self.spare.put(before.bytes);
        }
        if bytes.len() as u64 > self.limit {
            if !below {
                self.answers.push_back(Told::Holds(part.kind, part.address, false));
            }
            return;
        }
        let used = self.now(&part);
        self.counts.bytes += bytes.len() as u64;
        self.order.insert(used, key);
        self.parts.insert(key, Kept { part, bytes, used, below });
        while self.counts.bytes > self.limit {
            let Some((_, &key)) = self.order.first_key_value() else { break };
            self.evict(key);
        }
    }

    /// Removes a part from host memory; it goes to the shelf below, or is lost.
    fn evict(&mut self, key: Key) {
        let Some(Kept { part, bytes, below, .. }) = self.remove(key) else { return };
        self.counts.evicted += 1;
        if !below && !self.hand_down(&part, &bytes) {
            self.answers.push_back(Told::Holds(part.kind, part.address, false));
        }
        self.spare.put(bytes);
    }

    /// Gives a part to the shelf below; returns whether it has taken it.
    fn hand_down(&mut self, part: &Part, bytes: &PartBytes) -> bool {
        let Some(below) = &mut self.below else { return false };
        let takes = below.has_room(bytes.len());
        if takes {
            below.keep(part.clone(), PartBytes::clone(bytes));
        }
        takes
    }

    /// Number of blocks of a text up to the first after `from` that is not here.
    fn reach(&self, wish: &Wish, from: usize) -> usize {
        let rest = wish.parts.get(from..).unwrap_or_default();
        from + rest.iter().take_while(|part| self.find(part).is_some()).count()
    }

    /// The last number of blocks, at most `blocks`, after which there is a state here that the text could use.
    fn state_within(&self, wish: &Wish, blocks: usize) -> usize {
        let has_state = |&end: &usize| self.find(&wish.parts[end - 1].state()).is_some();
        (wish.usable + 1..=blocks).rev().find(has_state).unwrap_or(wish.usable)
    }

    fn answer(&mut self, told: Told) {
        self.answers.push_back(told);
        (self.wake)();
    }

    /// Goes on with a question: `blocks` are in memory, here or below. The shelf below is asked about what comes after
    /// those that are here, and again after more that are here.
    fn looked(&mut self, number: u64, wish: Wish, blocks: usize, first: bool) {
        let reached = self.reach(&wish, blocks);
        let asks = reached < wish.parts.len() && (first || reached > blocks);
        if let Some(below) = self.below.as_mut().filter(|_| asks) {
            below.look(number, Wish { held: reached, needs_state: false, ..wish.clone() });
            return self.looks.push(Look { number, wish, states: None });
        }
        let usable = if wish.needs_state { self.state_within(&wish, reached) } else { reached };
        if let Some(below) = self.below.as_mut().filter(|_| usable < reached) {
            let parts = wish.parts[..reached].to_vec();
            below.look(number, Wish { held: reached, usable, parts, ..wish.clone() });
            return self.looks.push(Look { number, wish, states: Some((reached, usable)) });
        }
        self.answer(Told::Looked { number, blocks: usable });
    }

    /// Gives what comes next of a text, from here or from below.
    fn go_on(&mut self) {
        let Some(mut load) = self.load.take() else { return };
        let number = load.number;
        while load.next < load.blocks {
            let Some(bytes) = self.read(&load.wish.parts[load.next]) else { break };
            let (kind, index) = (PartKind::Block, load.next);
            let content = Content::Bytes(bytes);
            self.answers.push_back(Told::Part(Given { number, kind, index, content, from_host: true }));
            load.next += 1;
        }
        if load.next < load.blocks {
            let here = |part: &Part| self.find(part).is_some();
            let missing = &load.wish.parts[load.next..load.blocks];
            let end = load.next + missing.iter().position(here).unwrap_or(missing.len());
            if let Some(below) = &mut self.below {
                let wish = Wish { held: load.next, needs_state: false, ..load.wish.clone() };
                below.load(number, wish, end);
                load.until = end;
                self.load = Some(load);
                return;
            }
            load.blocks = load.next;
        }
        self.give_state(load);
    }

    /// Gives the last state after the blocks that were given, and ends.
    fn give_state(&mut self, mut load: Load) {
        let Load { number, ref wish, next, .. } = load;
        if wish.needs_state && next > wish.usable {
            let end = self.state_within(wish, next);
            if let Some(below) = self.below.as_mut().filter(|_| end < next) {
                below.load(number, Wish { held: next, usable: end, ..wish.clone() }, next);
                load.state = Some((end > wish.usable).then(|| end - 1));
                self.load = Some(load);
                return;
            }
            self.give_own_state(&load, end.checked_sub(1).filter(|_| end > load.wish.usable));
        }
        self.answer(Told::End { number });
    }

    fn give_own_state(&mut self, load: &Load, index: Option<usize>) {
        let Some(index) = index else { return };
        if let Some(bytes) = self.read(&load.wish.parts[index].state()) {
            let (number, kind) = (load.number, PartKind::State);
            let content = Content::Bytes(bytes);
            self.answers.push_back(Told::Part(Given { number, kind, index, content, from_host: true }));
        }
    }

    /// Takes an answer of the shelf below.
    fn hear(&mut self, told: Told) {
        match told {
            Told::Looked { number, blocks } => {
                let Some(at) = self.looks.iter().position(|look| look.number == number) else { return };
                let look = self.looks.swap_remove(at);
                match look.states {
                    None => self.looked(number, look.wish, blocks, false),
                    Some((reached, usable)) => {
                        let blocks = blocks.clamp(usable, reached);
                        self.answers.push_back(Told::Looked { number, blocks });
                    }
                }
            }
            Told::Part(given) => {
                let Some(load) = self.load.as_mut().filter(|load| load.number == given.number) else {
                    return;
                };
                let Some(part) = load.wish.parts.get(given.index) else { return };
                let part = match given.kind {
                    PartKind::Block => part.clone(),
                    PartKind::State => part.state(),
                };
                match given.kind {
                    PartKind::Block => load.next = given.index + 1,
                    PartKind::State => load.state = Some(None),
                }
                if let Content::Bytes(bytes) = &given.content {
                    self.insert(part, PartBytes::clone(bytes), true);
                }
                self.answers.push_back(Told::Part(given));
            }
            Told::End { number } => self.below_ended(number),
            Told::Holds(kind, address, yes) => match self.parts.get_mut(&(kind, address)) {
                Some(kept) => kept.below = yes,
                None => self.answers.push_back(Told::Holds(kind, address, yes)),
            },
        }
    }

    fn below_ended(&mut self, number: u64) {
        let Some(mut load) = self.load.take_if(|load| load.number == number) else { return };
        if let Some(own) = load.state {
            self.give_own_state(&load, own);
            self.answers.push_back(Told::End { number });
            return;
        }
        // What has not come ends the text.
        if load.next < load.until {
            load.blocks = load.next;
        }
        self.load = Some(load);
        self.go_on();
    }
}

impl Shelf for HostMemory {
    fn has_room(&mut self, bytes: usize) -> bool {
        if bytes as u64 > self.limit {
            return self.below.as_mut().is_some_and(|below| below.has_room(bytes));
        }
        let oldest = self.order.first_key_value().and_then(|(_, key)| self.parts.get(key));
        let full = self.counts.bytes + bytes as u64 > self.limit;
        // What leaves to make room is not lost if the shelf below only needs time.
        match oldest.filter(|kept| full && !kept.below) {
            Some(kept) => self.below.as_mut().is_none_or(|below| below.has_room(kept.bytes.len())),
            None => true,
        }
    }

    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        self.spare.take(bytes)
    }

    fn give_back(&mut self, bytes: PartBytes) {
        self.spare.put(bytes);
    }

    fn keep(&mut self, part: Part, bytes: PartBytes) {
        self.counts.written_parts += 1;
        self.counts.written_bytes += bytes.len() as u64;
        let below = self.hand_down(&part, &bytes);
        self.insert(part, bytes, below);
    }

    fn forget(&mut self, part: Part) {
        if let Some(kept) = self.remove((part.kind, part.address)) {
            self.spare.put(kept.bytes);
        }
        match &mut self.below {
            Some(below) => below.forget(part),
            None => self.answers.push_back(Told::Holds(part.kind, part.address, false)),
        }
    }

    fn look(&mut self, number: u64, wish: Wish) {
        let held = wish.held;
        self.looked(number, wish, held, true);
    }

    fn load(&mut self, number: u64, wish: Wish, blocks: usize) {
        let next = wish.held.min(blocks);
        self.load = Some(Load { number, wish, blocks, next, until: 0, state: None });
        self.go_on();
        (self.wake)();
    }

    fn stop(&mut self, number: u64) {
        self.load.take_if(|load| load.number == number);
        self.looks.retain(|look| look.number != number);
        self.answers.retain(|told| !matches!(told, Told::Part(given) if given.number == number));
        if let Some(below) = &mut self.below {
            below.stop(number);
        }
    }

    fn next(&mut self) -> Option<Told> {
        while self.answers.is_empty() {
            let told = self.below.as_mut()?.next()?;
            self.hear(told);
        }
        self.answers.pop_front()
    }

    fn flush(&mut self, until: Instant) -> bool {
        let mut all: VecDeque<Key> =
            self.parts.iter().filter(|(_, kept)| !kept.below).map(|(&key, _)| key).collect();
        while let Some(&key) = all.front() {
            let Some(Kept { part, bytes, .. }) = self.parts.get(&key) else { return false };
            let (part, bytes) = (part.clone(), PartBytes::clone(bytes));
            if self.hand_down(&part, &bytes) {
                all.pop_front();
            } else if self.below.is_none() || Instant::now() >= until {
                return false;
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.below.as_mut().is_none_or(|below| below.flush(until))
    }

    fn is_lasting(&self) -> bool {
        self.below.is_some()
    }

    fn counts(&self) -> ShelfCounts {
        self.below.as_ref().map(|below| below.counts()).unwrap_or_default()
    }

    fn host_counts(&self) -> Option<ShelfCounts> {
        Some(self.counts)
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory").field("counts", &self.counts).finish_non_exhaustive()
    }
}
