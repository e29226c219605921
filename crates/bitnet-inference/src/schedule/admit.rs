//! Admits waiting sequences to the batch: which of them fit, and what the cache already holds of their texts.

use std::ops::Range;

use super::blocks::Chain;
use super::event::Event;
use super::plan::{BLOCK, Budget, MAX_BYPASS, Plan};
use super::sequence::{SeqId, Sequence};
use super::windows::{Blocks, GONE};
use super::{Scheduler, seq, seq_mut};

impl Scheduler {
    /// Admits waiting sequences in the order of the queue while places, tokens, rows and blocks are free. A sequence
    /// that does not fit is passed over, but only a limited number of times.
    pub(super) fn plan_admissions(&mut self, now: u64, budget: &mut Budget, plan: &mut Plan) {
        // The sequences that do not fit in this step, in the order of the queue.
        let (mut passed, mut passes) = ([0; MAX_BYPASS as usize], 0);
        let mut at = 0;
        while at < self.waiting.len()
            && self.running.len() < self.pace.batch_size()
            && budget.tokens > 0
            && budget.rows > 0
        {
            let slot = self.waiting[at];
            if !self.eligible(slot) {
                at += 1;
                continue;
            }
            let shared = self.shared(slot).map(|leader| leader.id);
            // A sequence with one pending token, such as a parked one, needs no prompt budget.
            if budget.prefill == 0 && seq(&self.slots, slot).pending() > 1 {
                return;
            }
            if !self.clear_for(slot, shared.is_some()) {
                let s = seq(&self.slots, slot);
                if s.bypassed == MAX_BYPASS || s.aged || passes == passed.len() {
                    return;
                }
                passed[passes] = slot;
                (at, passes) = (at + 1, passes + 1);
                continue;
            }
            self.waiting.remove(at);
            self.start(slot, shared, now);
            self.plan_run(slot, budget, plan);
            let mut patient = true;
            for &slot in &passed[..passes] {
                let s = seq_mut(&mut self.slots, slot);
                s.bypassed += 1;
                patient &= s.bypassed < MAX_BYPASS;
            }
            if !patient {
                return;
            }
        }
    }

    /// Whether a waiting sequence can be admitted now. Its reader must not be paused, and the first choice of its
    /// request must be past the prompt and must not itself wait for a place.
    pub(super) fn eligible(&self, slot: u32) -> bool {
        let s = seq(&self.slots, slot);
        let behind = |leader: &Sequence| leader.parked() || leader.computed < s.request.prompt.len();
        s.paused.is_none()
            && match self.prompt_leader(slot) {
                Some(leader) => !behind(leader),
                None => self.has_fetched(s),
            }
    }

    /// The sequence whose prompt a waiting sequence shares when it is admitted.
    pub(super) fn prompt_leader(&self, slot: u32) -> Option<&Sequence> {
        let s = seq(&self.slots, slot);
        if s.follows { self.leader(s.id) } else { None }
    }

    /// The same if a waiting sequence can still share what it computed of the prompt.
    pub(super) fn shared(&self, slot: u32) -> Option<&Sequence> {
        let len = seq(&self.slots, slot).request.prompt.len();
        self.prompt_leader(slot).filter(|leader| self.holds_window(leader, len))
    }

    /// The first choice of a request, whose prompt the others share.
    pub(super) fn leader(&self, id: SeqId) -> Option<&Sequence> {
        let leader = SeqId { choice: 0, ..id };
        self.slots.iter().flatten().find(|s| s.id == leader)
    }

    /// Makes room for a waiting sequence by taking blocks and states from parked ones behind it; returns whether it
    /// fits.
    fn clear_for(&mut self, slot: u32, shared: bool) -> bool {
        while !self.fits(seq(&self.slots, slot), shared, self.available()) {
            let Some(parked) = self.parked_behind(slot) else { return false };
            self.reclaim(parked);
        }
        true
    }

    /// Like [`Scheduler::parked_other_than`], but spares sequences before `slot` in the queue that can be admitted.
    pub(super) fn parked_behind(&self, slot: u32) -> Option<u32> {
        let key = seq(&self.slots, slot).admission_key();
        let behind = |s: u32| seq(&self.slots, s).admission_key() > key || !self.eligible(s);
        self.parked_where(|s| s != slot && behind(s))
    }

    /// Whether all pending tokens and the next one fit into `available` blocks in addition to the running sequences,
    /// and a state slot is left if the sequence needs one.
    pub(super) fn fits(&self, s: &Sequence, shared: bool, available: Blocks) -> bool {
        let all = Blocks { full: self.pool.total(), windows: self.windows.total() };
        let margin = if self.running.is_empty() { Blocks::default() } else { all.share(50) };
        if s.parked() {
            let needed = self.missing(s, s.pending() + 1);
            return needed == Blocks::default() || (needed + margin).fit(available);
        }
        let recurrent = self.states.total() > 0;
        if recurrent && self.states.available() == 0 {
            return false;
        }
        if shared && !recurrent {
            // A copy of the last block, and possibly one more.
            let two = Blocks { full: 2, windows: 2 };
            return if self.window.is_some() { two.fit(available) } else { available.full >= 2 };
        }
        let text = s.text();
        let mut from_free = Blocks { full: (text.len() + 1).div_ceil(BLOCK), windows: 0 };
        let usable = self.usable(s).0;
        self.cached(s, |index, block, _| {
            from_free.full -= usize::from(index < usable && self.pool.refs(block) > 0)
        });
        if self.window.is_some() {
            let start = (usable * BLOCK).min(text.len() - 1);
            let run = (text.len() + 1 - start).min(self.longest_run());
            let first = self.first_window(start, text.len());
            let held = self.window_blocks(s, first..usable);
            let used = held.into_iter().filter(|&block| self.windows.refs(block) > 0).count();
            from_free.windows = (start + run).div_ceil(BLOCK) - first - used;
        }
        // A prompt that is found entirely still writes to its last block, so it may have to copy that block. With a
        // recurrent state it does not, because it continues after a whole block.
        let copy = usize::from(text.len().is_multiple_of(BLOCK) && !self.running.is_empty() && !recurrent);
        let copy = Blocks { full: copy, windows: if self.window.is_some() { copy } else { 0 } };
        (from_free + margin + copy).fit(available)
    }

    /// Calls `each` with the index of every cached block at the beginning of a text, the block, and the chain after it.
    /// Scored prompts are computed without the prefix cache.
    pub(super) fn cached(&self, s: &Sequence, mut each: impl FnMut(usize, u32, Chain)) {
        let mut chain = Chain::Root(s.request.salt);
        let text = if s.scores() { &[] } else { s.text() };
        for (index, tokens) in text.chunks_exact(BLOCK).enumerate() {
            let Some((block, after)) = self.pool.find(chain, tokens) else { break };
            each(index, block, after);
            chain = after;
        }
    }

    /// Number of cached blocks at the beginning of a text that can be used, and the slot of the snapshot after them.
    /// Without recurrent layers and blocks of sliding ones, all can be used.
    pub(super) fn usable(&self, s: &Sequence) -> (usize, Option<u32>) {
        let recurrent = self.states.total() > 0;
        if !recurrent && self.window.is_none() {
            return (usize::MAX, None);
        }
        let text = s.text();
        let (mut usable, mut before) = ((0, None), Chain::Root(s.request.salt));
        // Number of blocks of sliding layers that are here, one after the other, up to this one.
        let mut held = 0;
        self.cached(s, |index, _, after| {
            if self.window.is_some() {
                let here = self.windows.find(before, &text[index * BLOCK..][..BLOCK]).is_some();
                held = if here { held + 1 } else { 0 };
                before = after;
                if held < index + 1 - self.first_window((index + 1) * BLOCK, text.len()) {
                    return;
                }
            }
            let state = self.states.find(after);
            if !recurrent || index < (text.len() - 1) / BLOCK && state.is_some() {
                usable = (index + 1, state);
            }
        });
        usable
    }

    /// The cached blocks of sliding layers at these places of a text, those of which are here.
    fn window_blocks(&self, s: &Sequence, places: Range<usize>) -> Vec<u32> {
        let mut blocks = Vec::with_capacity(places.len());
        let mut before = Chain::Root(s.request.salt);
        self.cached(s, |index, _, after| {
            if places.contains(&index) {
                let found = self.windows.find(before, &s.text()[index * BLOCK..][..BLOCK]);
                blocks.extend(found.map(|(block, _)| block));
            }
            before = after;
        });
        blocks
    }

    /// Gives a sequence a place in the batch, after it has been removed from the queue.
    pub(super) fn start(&mut self, slot: u32, shared: Option<SeqId>, now: u64) {
        if !seq(&self.slots, slot).parked() {
            self.find_computed(slot, shared);
        }
        let s = seq_mut(&mut self.slots, slot);
        s.follows = false;
        s.running = true;
        if !std::mem::replace(&mut s.admitted, true) {
            self.events.push_back(Event::Admitted(s.id, now.saturating_sub(s.arrived)));
        }
        let rank = s.rank;
        let at = self.running.partition_point(|&other| seq(&self.slots, other).rank < rank);
        self.running.insert(at, slot);
    }

    /// Fills the table of a sequence with cached blocks that hold the beginning of its text, and gives it a state slot
    /// if the model has any.
    fn find_computed(&mut self, slot: u32, shared: Option<SeqId>) {
        let mut s = self.slots[slot as usize].take().expect("the slot is in use");
        s.own_text(self.config.max_draft, self.window.is_some());
        let recurrent = self.states.total() > 0;
        match shared.and_then(|id| self.leader(id)) {
            Some(leader) if s.tokens.len() == s.request.prompt.len() && !recurrent => {
                let blocks = s.tokens.len().div_ceil(BLOCK);
                s.table.extend_from_slice(&leader.table[..blocks]);
                s.chains.extend(leader.chains.iter().take(s.tokens.len() / BLOCK));
                if self.window.is_some() {
                    s.passed = self.first_window(s.tokens.len(), s.tokens.len());
                    s.windows.resize(s.passed, GONE);
                    s.windows.extend_from_slice(&leader.windows[s.passed..blocks]);
                }
                s.table.iter().for_each(|&block| self.pool.retain(block));
                s.computed = s.tokens.len();
            }
            _ => {
                let (usable, saved) = self.usable(&s);
                let mut table = std::mem::take(&mut s.table);
                let mut chains = std::mem::take(&mut s.chains);
                let mut known = 0;
                self.cached(&s, |index, block, after| {
                    known = index + 1;
                    if index < usable {
                        table.push(block);
                        chains.push(after);
                    }
                });
                table.iter().for_each(|&block| self.pool.retain(block));
                s.computed = table.len() * BLOCK;
                if self.window.is_some() {
                    s.passed = self.first_window(s.computed, s.tokens.len());
                    s.windows.resize(s.passed, GONE);
                    let held = self.window_blocks(&s, s.passed..table.len());
                    s.windows.extend(held);
                }
                (s.table, s.chains) = (table, chains);
                s.branch = known.min((s.tokens.len() - 1) / BLOCK) * BLOCK;
                if recurrent {
                    s.state = self.states.take(saved);
                    assert!(s.state.is_some(), "state slots were counted");
                }
            }
        }
        s.windows[s.passed..].iter().for_each(|&block| self.windows.retain(block));
        // The last token is always computed, for its logits.
        s.computed = s.computed.min(s.tokens.len() - 1);
        s.chains.truncate(s.computed / BLOCK);
        s.cached.get_or_insert(s.computed);
        self.counts.prefix_tokens += s.tokens.len() as u64;
        self.counts.prefix_hits += s.computed as u64;
        self.slots[slot as usize] = Some(s);
    }
}
