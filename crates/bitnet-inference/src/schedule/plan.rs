//! Plans a step in four phases: running sequences that decode, running sequences with prompt tokens to compute, waiting
//! sequences, and drafts. Each phase gets only the tokens, rows and blocks that the earlier phases leave.
//!
//! A slot holds the recurrent state after the last token of a run, or before its drafts, so a snapshot can be taken only
//! there. Prompts are therefore cut at their last block boundary, and at the end of what they
//! share with a cached text. Decoding runs need no extra cut: the drafts of a run are so many that some state stops at
//! each block boundary.

use std::ops::Range;

use bitnet_model::Batch;

use super::blocks::BlockPool;
use super::draft::Source;
use super::pace::StepLoad;
use super::sequence::{SeqId, Sequence};
use super::windows::Blocks;
use super::{Scheduler, seq, seq_mut};

pub(super) const BLOCK: usize = Batch::BLOCK_TOKENS;

/// How often others can be admitted ahead of a request that does not fit; after that, room is kept free for it.
pub(super) const MAX_BYPASS: u32 = 8;

/// Consecutive tokens of one sequence to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRun {
    pub(crate) slot: u32,
    /// Whether it is computed in a separate pass.
    pub(crate) alone: bool,
    /// The sequence.
    pub id: SeqId,
    /// Position of the first token.
    pub start: usize,
    /// Number of tokens, drafts included.
    pub len: usize,
    /// Number of drafts at the end of the run.
    pub drafts: usize,
    /// Where the drafts come from; meaningless without any.
    pub source: Source,
    /// Number of tokens at the end that need logits: none within a prompt, otherwise the last one and one for each
    /// draft that may be rejected.
    pub rows: usize,
}

impl PlannedRun {
    /// Number of drafts that may be rejected.
    pub(crate) fn rejectable(&self) -> usize {
        if self.source == Source::Forced { 0 } else { self.drafts }
    }
}

/// The plan of a step.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Blocks to copy first, in this order, as (from, to).
    pub copies: Vec<(u32, u32)>,
    /// The same of blocks of sliding layers.
    pub window_copies: Vec<(u32, u32)>,
    /// State slots to copy first, in this order, as (from, to).
    pub states: Vec<(u32, u32)>,
    /// The runs to compute.
    pub runs: Vec<PlannedRun>,
    /// The load, which determines the step's time.
    pub load: StepLoad,
}

impl Plan {
    /// Total number of tokens.
    pub fn tokens(&self) -> usize {
        self.runs.iter().map(|r| r.len).sum()
    }

    fn clear(&mut self) {
        self.copies.clear();
        self.window_copies.clear();
        self.states.clear();
        self.runs.clear();
        self.load = StepLoad::default();
    }
}

/// What a step has left for later runs.
pub(super) struct Budget {
    pub tokens: usize,
    pub rows: usize,
    /// Prompt tokens, limited to keep the time between the tokens of decoding sequences short.
    pub prefill: usize,
}

impl Scheduler {
    /// Plans the next step; returns false if there is nothing to compute.
    pub fn plan(&mut self, now: u64, plan: &mut Plan) -> bool {
        plan.clear();
        let (tokens, rows) = (self.config.max_tokens, self.config.max_rows);
        let mut budget = Budget { tokens, rows, prefill: 0 };
        self.plan_decodes(&mut budget, plan);
        self.plan_prefills(&mut budget, plan);
        self.plan_admissions(now, &mut budget, plan);
        self.plan_drafts(&mut budget, plan);
        if !plan.runs.is_empty() {
            self.states.copies_into(&mut plan.states);
            self.counts.copied_states += plan.states.len() as u64;
        }
        !plan.runs.is_empty()
    }

    /// Plans one token for each running sequence whose prompt has been computed. Every step has room for all of them.
    fn plan_decodes(&mut self, budget: &mut Budget, plan: &mut Plan) {
        let mut at = 0;
        // Only younger sequences, which are later in the list, can be preempted.
        while let Some(&slot) = self.running.get(at) {
            at += 1;
            if seq(&self.slots, slot).pending() == 1 {
                self.plan_run(slot, budget, plan);
            }
        }
    }

    /// Plans chunks of the prompts of running sequences, oldest first.
    fn plan_prefills(&mut self, budget: &mut Budget, plan: &mut Plan) {
        let in_prompt = |slot: &u32| seq(&self.slots, *slot).pending() > 1;
        let decoding = plan.load.decodes == self.running.len();
        let first = if decoding { None } else { self.running.iter().position(in_prompt) };
        let position = first.map_or(0, |at| seq(&self.slots, self.running[at]).computed);
        budget.prefill = self.pace.prefill_budget(plan.load.decodes, plan.load.context, position);
        let mut at = first.unwrap_or(self.running.len());
        while let Some(&slot) = self.running.get(at) {
            at += 1;
            if seq(&self.slots, slot).pending() > 1 {
                self.plan_run(slot, budget, plan);
            }
        }
    }

    /// Gives a running sequence its share of the step.
    pub(super) fn plan_run(&mut self, slot: u32, budget: &mut Budget, plan: &mut Plan) {
        let s = seq(&self.slots, slot);
        let decode = s.pending() == 1;
        let prefill = if decode { usize::MAX } else { budget.prefill };
        let len = s.pending().min(budget.tokens).min(prefill).min(self.until_snapshot(s));
        let len = len.min(self.longest_run());
        // Every scored token needs a row; one is left for sequences that wait for a place.
        let scores = s.scores();
        let rows = budget.rows.saturating_sub(usize::from(!self.waiting.is_empty())).max(1).min(budget.rows);
        let len = if scores { len.min(rows) } else { len };
        let ends = len == s.pending();
        if len == 0 || (ends && budget.rows == 0) || !self.make_room(slot, len, budget, plan) {
            return;
        }
        let &Sequence { id, computed: start, suspect, .. } = seq(&self.slots, slot);
        let rows = if scores { len } else { usize::from(ends) };
        budget.tokens -= len;
        budget.rows -= rows;
        if decode {
            plan.load.decodes += 1;
            plan.load.context += start;
        } else {
            budget.prefill -= len;
            plan.load.prefill += len;
            plan.load.attended += len * start + len * (len - 1) / 2;
        }
        let (alone, source) = (suspect > 0, Source::Text);
        plan.runs.push(PlannedRun { slot, alone, id, start, len, drafts: 0, source, rows });
    }

    /// Whether slots remain for snapshots when all places are taken.
    pub(super) fn takes_snapshots(&self) -> bool {
        self.states.total() > self.config.max_running
    }

    /// Number of tokens of a sequence until the next position where a snapshot is planned.
    pub(super) fn until_snapshot(&self, s: &Sequence) -> usize {
        if !self.takes_snapshots() {
            return usize::MAX;
        }
        let planned = [s.branch, s.boundary()].into_iter().filter(|&at| at > s.computed);
        planned.min().map_or(usize::MAX, |at| at - s.computed)
    }

    /// Numbers of blocks to allocate before the next `len` tokens of a sequence can be written: those that its tables
    /// lack, and one for each block that others read too. Sliding layers need only those of one run at a time.
    pub(super) fn missing(&self, s: &Sequence, len: usize) -> Blocks {
        let of = |pool: &BlockPool, table: &[u32], len: usize| {
            let first = s.computed / BLOCK;
            let last = (s.computed + len).div_ceil(BLOCK);
            let shared = (first..table.len().min(last)).filter(|&i| pool.refs(table[i]) > 1).count();
            last.saturating_sub(table.len()) + shared
        };
        let windows = self.window.map(|_| of(&self.windows, &s.windows, len.min(self.longest_run())));
        Blocks { full: of(&self.pool, &s.table, len), windows: windows.unwrap_or(0) }
    }

    /// Makes the tables of a sequence cover its next `len` tokens with unpublished blocks that no other sequence
    /// reads, taking blocks from parked and younger sequences if necessary.
    pub(super) fn make_room(&mut self, slot: u32, len: usize, budget: &mut Budget, plan: &mut Plan) -> bool {
        while !self.missing(seq(&self.slots, slot), len).fit(self.available()) {
            if let Some(parked) = self.parked_other_than(slot) {
                self.reclaim(parked);
            } else if let Some(younger) = self.younger_than(slot) {
                self.withdraw(younger, budget, plan);
                self.preempt(younger);
            } else {
                return false;
            }
        }
        let s = seq(&self.slots, slot);
        let (first, last) = (s.computed / BLOCK, (s.computed + len).div_ceil(BLOCK));
        let s = seq_mut(&mut self.slots, slot);
        let before = plan.copies.len() + plan.window_copies.len();
        own(&mut self.pool, &mut s.table, first..last, &mut plan.copies);
        if self.window.is_some() {
            own(&mut self.windows, &mut s.windows, first..last, &mut plan.window_copies);
        }
        let copied = plan.copies.len() + plan.window_copies.len() - before;
        self.counts.copied_blocks += copied as u64;
        true
    }

    /// The next parked sequence to take blocks from: a paused one if there is one, otherwise the last in the queue.
    fn parked_other_than(&self, slot: u32) -> Option<u32> {
        self.parked_where(|s| s != slot)
    }

    pub(super) fn parked_where(&self, may: impl Fn(u32) -> bool) -> Option<u32> {
        let parked = self.waiting.iter().rev().filter(|&&s| seq(&self.slots, s).parked() && may(s));
        parked.min_by_key(|&&s| seq(&self.slots, s).paused.is_none()).copied()
    }

    /// The youngest running sequence, if younger than this one.
    fn younger_than(&self, slot: u32) -> Option<u32> {
        let rank = seq(&self.slots, slot).rank;
        self.running.last().filter(|&&s| seq(&self.slots, s).rank > rank).copied()
    }

    /// Removes a run from the plan, because its sequence is about to be preempted.
    fn withdraw(&mut self, slot: u32, budget: &mut Budget, plan: &mut Plan) {
        let Some(at) = plan.runs.iter().position(|run| run.slot == slot) else { return };
        let run = plan.runs.remove(at);
        budget.tokens += run.len;
        budget.rows += run.rows;
        // Prompts are planned oldest first, so this can only be a decode.
        plan.load.decodes -= 1;
        plan.load.context -= run.start;
        let s = seq(&self.slots, slot);
        plan.copies.retain(|(_, to)| !s.table.contains(to));
        plan.window_copies.retain(|(_, to)| !s.windows.contains(to));
    }

    /// Evicts a running sequence: it loses its place, blocks and state, and goes back to the queue.
    pub(super) fn preempt(&mut self, slot: u32) {
        self.counts.preemptions += 1;
        self.counts.recomputed_tokens += seq(&self.slots, slot).computed as u64;
        self.leave(slot);
        self.enqueue(slot);
    }

    /// Takes the blocks and the state of a parked sequence, which keeps its place in the queue.
    pub(super) fn reclaim(&mut self, slot: u32) {
        self.counts.preemptions += 1;
        self.counts.recomputed_tokens += seq(&self.slots, slot).computed as u64;
        self.release(slot);
    }
}

/// Gives a table unpublished blocks of its own at these places: those that it lacks are allocated, and those that others
/// read too are copied.
fn own(pool: &mut BlockPool, table: &mut Vec<u32>, places: Range<usize>, copies: &mut Vec<(u32, u32)>) {
    for i in places {
        match table.get(i).copied() {
            Some(block) if pool.refs(block) > 1 => {
                let copy = pool.allocate().expect("blocks were counted");
                copies.push((block, copy));
                pool.release(block);
                table[i] = copy;
            }
            Some(block) => pool.unpublish(block),
            None => table.push(pool.allocate().expect("blocks were counted")),
        }
    }
}
