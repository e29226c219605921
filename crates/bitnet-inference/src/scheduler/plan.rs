use bitnet_model::Batch;

use super::{Event, Scheduler, seq, seq_mut};
use crate::blocks::Chain;
use crate::lookup::Lookup;
use crate::pace::StepLoad;
use crate::sequence::{SeqId, Sequence};

pub(super) const BLOCK: usize = Batch::BLOCK_TOKENS;

/// How often others may be admitted before a request that has no room; then it is kept free for it.
pub(super) const MAX_BYPASS: u32 = 8;

/// Consecutive tokens of one sequence to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRun {
    pub(crate) slot: u32,
    /// Position of the first token.
    pub start: usize,
    /// Number of tokens, drafts included.
    pub len: usize,
    /// How many of the last tokens are guesses.
    pub drafts: usize,
    /// How many of the last tokens need logits: none inside a prompt, else the last and one for each draft.
    pub rows: usize,
}

/// One step.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Blocks to copy first, in this order.
    pub copies: Vec<(u32, u32)>,
    /// What to compute.
    pub runs: Vec<PlannedRun>,
    /// What the step's time depends on.
    pub load: StepLoad,
}

impl Plan {
    /// Tokens in all.
    pub fn tokens(&self) -> usize {
        self.runs.iter().map(|r| r.len).sum()
    }
}

/// What is left of a step.
struct Budget {
    tokens: usize,
    rows: usize,
    prefill: usize,
    /// Sequences with one pending token that have not been placed; each has a token and a row.
    decodes: usize,
    /// All those, and the tokens before theirs.
    decoding: (usize, usize),
}

impl Scheduler {
    /// Plans the next step; false when there is nothing to compute.
    pub fn plan(&mut self, now: u64, plan: &mut Plan) -> bool {
        plan.copies.clear();
        plan.runs.clear();
        plan.load = StepLoad::default();
        let decoding = |s: &&Sequence| s.paused.is_none() && s.pending() == 1;
        let (decodes, context) = (self.running.iter().map(|&slot| seq(&self.slots, slot)))
            .filter(decoding)
            .fold((0, 0), |(n, context), s| (n + 1, context + s.computed));
        let in_prompt = |s: &&Sequence| s.paused.is_none() && s.pending() > 1;
        let position = self.running.iter().map(|&slot| seq(&self.slots, slot)).find(in_prompt);
        let prefill = self.pace.prefill_budget(decodes, context, position.map_or(0, |s| s.computed));
        let (tokens, rows) = (self.config.max_tokens, self.config.max_rows);
        let mut budget = Budget { tokens, rows, prefill, decodes, decoding: (decodes, context) };
        let mut at = 0;
        while at < self.running.len() {
            let slot = self.running[at];
            let before = self.running.len();
            self.place(slot, &mut budget, plan);
            at += 1;
            if self.running.len() < before {
                // Paused sequences may have gone from before this one.
                at = self.running.iter().position(|&other| other == slot).map_or(at, |at| at + 1);
            }
        }
        self.admit(now, &mut budget, plan);
        !plan.runs.is_empty()
    }

    /// Gives a running sequence its share of the step.
    fn place(&mut self, slot: u32, budget: &mut Budget, plan: &mut Plan) {
        let s = seq(&self.slots, slot);
        if s.paused.is_some() {
            return;
        }
        let decode = s.pending() == 1;
        let mut len = 1;
        if decode {
            budget.decodes = budget.decodes.saturating_sub(1);
        } else {
            len = s.pending().min(budget.tokens.saturating_sub(budget.decodes)).min(budget.prefill);
        }
        let ends = len == s.pending();
        if len == 0 || budget.tokens == 0 || (ends && budget.rows == 0) || !self.make_room(slot, len, plan) {
            return;
        }
        let drafts = if decode { self.draft(slot, budget, plan) } else { 0 };
        let (start, rows) = (seq(&self.slots, slot).computed, if ends { 1 + drafts } else { 0 });
        budget.tokens -= len + drafts;
        budget.rows -= rows;
        if decode {
            plan.load.decodes += 1 + drafts;
            plan.load.context += start;
        } else {
            budget.prefill -= len;
            plan.load.prefill += len;
            plan.load.attended += len * start + len * (len - 1) / 2;
        }
        plan.runs.push(PlannedRun { slot, start, len: len + drafts, drafts, rows });
    }

    /// Appends guesses for the tokens after the pending one, if the step has room for them, and blocks are at hand.
    fn draft(&mut self, slot: u32, budget: &Budget, plan: &mut Plan) -> usize {
        let s = seq(&self.slots, slot);
        let free = |all: usize| all.saturating_sub(1 + budget.decodes);
        let room = self.config.max_draft.min(free(budget.tokens)).min(free(budget.rows));
        let room = room.min(s.end.saturating_sub(s.tokens.len() + 1));
        let (sequences, context) = budget.decoding;
        let decodes = plan.load.decodes + 1 + budget.decodes;
        let step = StepLoad { decodes, context, ..plan.load };
        let guess =
            if s.draws() { Lookup::depth(s, room, step, sequences.max(1), &self.pace.model) } else { 0 };
        let Some(from) = Lookup::find(&s.tokens, guess) else { return 0 };
        let guess = guess.min(s.tokens.len() - from);
        // Rejected guesses leave their blocks in the table, so it may be longer than what is needed.
        let blocks = (s.tokens.len() + guess).div_ceil(BLOCK).saturating_sub(s.table.len());
        // Nothing is taken from another sequence for a guess.
        if guess == 0 || blocks > self.pool.available() {
            return 0;
        }
        self.make_room(slot, 1 + guess, plan);
        let s = seq_mut(&mut self.slots, slot);
        s.tokens.extend_from_within(from..from + guess);
        s.drafted = guess;
        self.counts.drafted += guess as u64;
        guess
    }

    /// Makes the table of a running sequence cover its next `len` tokens with blocks that nobody else reads or finds,
    /// taking blocks from younger sequences if it must.
    fn make_room(&mut self, slot: u32, len: usize, plan: &mut Plan) -> bool {
        let s = seq(&self.slots, slot);
        let (first, last) = (s.computed / BLOCK, (s.computed + len).div_ceil(BLOCK));
        loop {
            let s = seq(&self.slots, slot);
            let shared = (first..s.table.len().min(last)).filter(|&i| self.pool.refs(s.table[i]) > 1).count();
            let missing = last.saturating_sub(s.table.len()) + shared;
            if missing <= self.pool.available() {
                break;
            }
            let Some(victim) = self.victim(slot) else { return false };
            self.preempt(victim);
        }
        let s = seq_mut(&mut self.slots, slot);
        for i in first..last {
            match s.table.get(i).copied() {
                Some(block) if self.pool.refs(block) > 1 => {
                    let copy = self.pool.allocate().expect("blocks were counted");
                    plan.copies.push((block, copy));
                    self.pool.release(block);
                    s.table[i] = copy;
                    self.counts.copied_blocks += 1;
                }
                Some(block) => self.pool.unpublish(block),
                None => s.table.push(self.pool.allocate().expect("blocks were counted")),
            }
        }
        true
    }

    /// Who gives way to `slot`: a paused sequence, or the youngest of those that are younger.
    fn victim(&self, slot: u32) -> Option<u32> {
        let of = |slot: &&u32| seq(&self.slots, **slot);
        let paused = self.running.iter().find(|s| of(s).paused.is_some() && **s != slot);
        let younger = || self.running.last().filter(|s| of(s).rank > seq(&self.slots, slot).rank);
        paused.or_else(younger).copied()
    }

    pub(super) fn preempt(&mut self, slot: u32) {
        self.counts.preemptions += 1;
        self.counts.recomputed_tokens += seq(&self.slots, slot).computed as u64;
        self.leave(slot);
        self.enqueue(slot);
    }

    /// Admits waiting sequences while there is room. One that does not fit is passed over, but not for ever.
    fn admit(&mut self, now: u64, budget: &mut Budget, plan: &mut Plan) {
        let mut active = self.running.iter().filter(|&&slot| seq(&self.slots, slot).paused.is_none()).count();
        // Who had no room in this step, in the order of the queue.
        let (mut passed, mut passes) = ([0; MAX_BYPASS as usize], 0);
        let mut at = 0;
        while at < self.waiting.len()
            && active < self.pace.batch_size()
            && budget.tokens > 0
            && budget.rows > 0
            && budget.prefill > 0
        {
            let slot = self.waiting[at];
            let s = seq(&self.slots, slot);
            let leader = if s.follows { self.leader(s.id) } else { None };
            if s.paused.is_some() || leader.is_some_and(|l| l.computed < s.request.prompt.len()) {
                at += 1;
                continue;
            }
            let shared = leader.map(|l| l.id);
            if !self.clear_for(slot, shared) {
                let s = seq(&self.slots, slot);
                if s.bypassed == MAX_BYPASS || s.aged || passes == passed.len() {
                    return;
                }
                passed[passes] = slot;
                (at, passes) = (self.waiting_at(slot) + 1, passes + 1);
                continue;
            }
            at = self.waiting_at(slot);
            self.waiting.remove(at);
            self.start(slot, shared, now);
            active += 1;
            self.place(slot, budget, plan);
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

    /// The running first choice of a request, whose prompt the others share.
    pub(super) fn leader(&self, id: SeqId) -> Option<&Sequence> {
        let leader = SeqId { choice: 0, ..id };
        self.slots.iter().flatten().find(|s| s.id == leader)
    }

    fn waiting_at(&self, slot: u32) -> usize {
        self.waiting.iter().position(|&other| other == slot).expect("the sequence waits")
    }

    /// Whether a waiting sequence fits, after paused ones have given way.
    fn clear_for(&mut self, slot: u32, shared: Option<SeqId>) -> bool {
        while !self.fits(seq(&self.slots, slot), shared.is_some()) {
            let paused = self.running.iter().find(|&&slot| seq(&self.slots, slot).paused.is_some());
            let Some(&victim) = paused else { return false };
            self.preempt(victim);
        }
        true
    }

    /// Whether all pending tokens and the next one fit beside what runs.
    pub(super) fn fits(&self, s: &Sequence, shared: bool) -> bool {
        if shared {
            // A copy of the last block, and perhaps one more.
            return self.pool.available() >= 2;
        }
        let mut from_free = (s.tokens.len() + 1).div_ceil(BLOCK);
        let mut chain = Chain::Root(s.request.salt);
        for tokens in s.tokens.chunks_exact(BLOCK) {
            let Some((block, after)) = self.pool.find(chain, tokens) else { break };
            from_free -= usize::from(self.pool.refs(block) > 0);
            chain = after;
        }
        // A prompt that is found wholly still writes its last block, and so may copy it.
        let copy = usize::from(s.tokens.len().is_multiple_of(BLOCK));
        let spare = if self.running.is_empty() { 0 } else { self.config.kv_blocks / 50 + copy };
        from_free + spare <= self.pool.available()
    }

    /// Moves a sequence into the batch, with what is already computed of it.
    pub(super) fn start(&mut self, slot: u32, shared: Option<SeqId>, now: u64) {
        let mut s = self.slots[slot as usize].take().expect("the slot is in use");
        match shared.and_then(|id| self.leader(id)) {
            Some(leader) if s.tokens.len() == s.request.prompt.len() => {
                let blocks = s.tokens.len().div_ceil(BLOCK);
                s.table.extend_from_slice(&leader.table[..blocks]);
                s.chains.extend(leader.chains.iter().take(s.tokens.len() / BLOCK));
                s.table.iter().for_each(|&block| self.pool.retain(block));
                s.computed = s.tokens.len();
            }
            _ => {
                let mut chain = Chain::Root(s.request.salt);
                for tokens in s.tokens.chunks_exact(BLOCK) {
                    let Some((block, after)) = self.pool.find(chain, tokens) else { break };
                    self.pool.retain(block);
                    s.table.push(block);
                    s.chains.push(after);
                    chain = after;
                    s.computed += BLOCK;
                }
            }
        }
        // The last token is always computed, for its logits.
        s.computed = s.computed.min(s.tokens.len() - 1);
        s.chains.truncate(s.computed / BLOCK);
        self.counts.prefix_tokens += s.tokens.len() as u64;
        self.counts.prefix_hits += s.computed as u64;
        s.follows = false;
        s.running = true;
        if !std::mem::replace(&mut s.admitted, true) {
            self.events.push_back(Event::Admitted(s.id, now - s.arrived));
        }
        let rank = s.rank;
        self.slots[slot as usize] = Some(s);
        let at = self.running.partition_point(|&other| seq(&self.slots, other).rank < rank);
        self.running.insert(at, slot);
    }
}
