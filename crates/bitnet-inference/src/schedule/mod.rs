//! Decides which sequences run in each step. A state machine without clock, threads, I/O or randomness: time is an
//! argument, and the same calls give the same plans, so that a simulation can search its states.
//!
//! A sequence waits or runs. A running sequence has one of the batch's `max_running` places. Each step first computes
//! pending tokens of every running sequence, or a chunk of them; then it admits waiting sequences, and spends what
//! remains on drafts. The first sequence in the queue is admitted in the first step that has a place, blocks and
//! capacity for it; neither drafts nor paused readers take these away.
//!
//! A sequence whose reader pauses gives up its place and waits, but keeps its blocks until others need them. When its
//! reader resumes, it waits for a free place at its own rank. When blocks run out, waiting sequences give theirs back
//! first. Then the youngest running sequence does: it waits again with its tokens and its rank, and what it computed is
//! computed again. So the oldest running sequence never loses its blocks. Because any single sequence fits into the
//! pool, the oldest always finishes; then another becomes the oldest, until all have finished.
//!
//! If the model has recurrent layers, a sequence that holds blocks also owns a slot with its state. There is one slot
//! for every place, so only waiting sequences have to give theirs back. Cached blocks are used up to the last position
//! that has a snapshot of the state; `plan.rs` says where snapshots are taken. The slot holds the state before the drafts of
//! a run, and a log beside it the drafts; `commit` says how many of them the next run takes up. A model without logs
//! gets no drafts that may be rejected.
//!
//! If sliding layers have blocks of their own (`windows.rs`), a sequence needs blocks of both pools, and gives both back.

use std::collections::VecDeque;
mod address;
mod admit;
mod blocks;
mod check;
mod commit;
mod config;
mod draft;
mod drafting;
mod event;
mod needed_logits;
mod outside;
mod pace;
mod plan;
mod prediction;
mod requests;
mod sequence;
#[cfg(test)]
mod simulation;
mod states;
mod windows;
mod wish;

pub use address::{Address, Part, PartKind, parts};
pub use blocks::{BlockPool, Chain};
pub(crate) use commit::spell;
pub use commit::{RunOutcome, SampledToken, StepOutcome};
pub use config::SchedulerConfig;
pub use draft::Source;
pub use event::{Event, SchedulerCounts};
pub use outside::Places;
pub use pace::{BatchSizing, Pacer, StepLoad, StepModel};
pub use plan::{Plan, PlannedRun};
pub use sequence::{SeqId, Sequence};
pub use windows::WindowCache;
pub use wish::{Begun, Wish};

pub(crate) use needed_logits::{VOCAB_LIMIT, bans, closing, drawn_after_changes, needed};

use crate::request::{End, FinishReason, RequestError};
use crate::thought::ThoughtReader;
use draft::{Candidate, Rates};
use prediction::Prediction;
use states::StatePool;

/// The state machine that the module describes.
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    /// The blocks that sliding layers have for themselves; empty if they have none.
    windows: BlockPool,
    window: Option<WindowCache>,
    states: StatePool,
    slots: Vec<Option<Sequence>>,
    vacant: Vec<u32>,
    /// Slots of waiting sequences, in the order of admission.
    waiting: Vec<u32>,
    /// Slots of running sequences, oldest first.
    running: Vec<u32>,
    events: VecDeque<Event>,
    /// A time at or before the earliest at which [`Scheduler::tick`] has something to end.
    due: u64,
    next_rank: u64,
    counts: SchedulerCounts,
    pace: Pacer,
    /// Whether a drafter drafts for the decoding sequences of a step once it is planned.
    drafter: bool,
    /// Number of drafts for which the log of a state slot has room.
    log_room: usize,
    /// Whether drafts are made without regard to the times of steps.
    at_any_cost: bool,
    /// Whether no drafts come from the text.
    without_text: bool,
    /// How often drafts were right, for each [`Source`].
    rates: [Rates; Source::ALL.len()],
    /// The sequences that may get drafts in a step.
    candidates: Vec<Candidate>,
    released: Vec<u32>,
    /// The bytes of a token.
    spelled: Vec<u8>,
    /// What a tier below memory needs, if there is one.
    outside: Option<outside::Outside>,
}

impl Scheduler {
    /// A scheduler without sequences.
    ///
    /// # Panics
    /// If a limit is 0, or `max_running` exceeds the tokens or rows of a step or the state slots of a model that has
    /// some, so that some sequences could not run.
    pub fn new(config: SchedulerConfig) -> Self {
        assert!(config.max_running > 0 && config.kv_blocks > 0 && config.context > 0, "limits are positive");
        assert!(
            config.max_running <= config.max_tokens.min(config.max_rows),
            "each running sequence has a row"
        );
        assert!(
            config.state_slots == 0 || config.max_running <= config.state_slots,
            "each running sequence has a state"
        );
        Scheduler {
            pool: BlockPool::new(config.kv_blocks),
            windows: BlockPool::new(0),
            window: None,
            states: StatePool::new(config.state_slots),
            slots: Vec::new(),
            vacant: Vec::new(),
            waiting: Vec::new(),
            running: Vec::with_capacity(config.max_running),
            events: VecDeque::with_capacity(4 * config.max_running),
            due: u64::MAX,
            next_rank: 0,
            counts: SchedulerCounts::default(),
            pace: Pacer::new(config.sizing, config.max_running),
            drafter: false,
            log_room: 0,
            at_any_cost: false,
            without_text: false,
            rates: Default::default(),
            candidates: Vec::with_capacity(config.max_running),
            released: Vec::new(),
            spelled: Vec::new(),
            outside: None,
            config,
        }
    }

    /// A scheduler without sequences, on an empty cache, that keeps the counts and learned step times of this one.
    pub fn restarted(&self) -> Self {
        let Scheduler { counts, drafter, log_room, at_any_cost, without_text, rates, .. } = *self;
        let pace = self.pace.clone();
        let new = Scheduler::new(self.config.clone()).with_windows(self.window);
        let mut new = Scheduler { counts, drafter, log_room, at_any_cost, without_text, rates, pace, ..new };
        self.identity().into_iter().for_each(|identity| new.keep_outside(identity));
        new
    }

    /// Plans for a model whose sliding layers have blocks of their own; for any other if this is `None`.
    ///
    /// # Panics
    /// If these blocks do not hold a token and its window.
    #[must_use]
    pub fn with_windows(self, window: Option<WindowCache>) -> Self {
        let full = self.config.kv_blocks;
        assert!(window.is_none_or(|w| w.longest_run(full) > 0), "a token and its window have blocks");
        Scheduler { windows: BlockPool::new(window.map_or(0, |window| window.blocks)), window, ..self }
    }

    /// Lets plans reserve drafts whose tokens a drafter finds after the step is planned, with
    /// [`Scheduler::set_drafts`].
    #[must_use]
    pub fn with_drafter(self) -> Self {
        Scheduler { drafter: true, ..self }
    }

    /// Plans for a model whose state slots have logs of this many drafts ([`bitnet_model::Model::reserve_log`]).
    #[must_use]
    pub fn with_logs_of(self, drafts: usize) -> Self {
        Scheduler { log_room: drafts, ..self }
    }

    /// Plans as many drafts as there are, whatever they cost: for tests, whose plans then do not depend on measured
    /// times.
    #[doc(hidden)]
    #[must_use]
    pub fn drafting_at_any_cost(self) -> Self {
        Scheduler { at_any_cost: true, ..self }
    }

    /// Plans no drafts from the text, for tests of a drafter.
    #[doc(hidden)]
    #[must_use]
    pub fn drafting_without_text(self) -> Self {
        Scheduler { without_text: true, ..self }
    }

    /// Plans no further drafts by a drafter.
    pub fn drop_drafter(&mut self) {
        self.drafter = false;
    }

    /// Whether [`Scheduler::next_event`] returns one.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the oldest event.
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if self.events.is_empty() {
            // The next ones then use the same memory, which is in the cache.
            self.events.clear();
        }
        event
    }

    /// Whether all sequences have ended.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Number of sequences that wait for a place, including paused ones.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of sequences with a place in the batch.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Number of sequences paused because they are not read; all of them wait.
    pub fn paused(&self) -> usize {
        self.waiting.iter().filter(|&&slot| seq(&self.slots, slot).paused.is_some()).count()
    }

    /// The sequence of a planned run.
    pub fn sequence(&self, run: &PlannedRun) -> &Sequence {
        seq(&self.slots, run.slot)
    }

    /// The counts so far.
    pub fn counts(&self) -> SchedulerCounts {
        self.counts
    }

    /// The pool of blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The pool of blocks of sliding layers; empty if these have none of their own.
    pub fn windows(&self) -> &BlockPool {
        &self.windows
    }

    /// Number of state slots that sequences own.
    pub fn states_used(&self) -> usize {
        self.states.total() - self.states.available()
    }

    /// Number of snapshots of recurrent states.
    pub fn states_saved(&self) -> usize {
        self.states.saved()
    }

    /// The pace: batch size and step times.
    pub fn pace(&self) -> &Pacer {
        &self.pace
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Whether any decision depends on the times of steps.
    pub fn paces_itself(&self) -> bool {
        self.config.max_draft > 0 || matches!(self.config.sizing, BatchSizing::Auto { .. })
    }

    /// Learns from the time of a step that it did not plan.
    pub fn learn(&mut self, load: StepLoad, micros: u64) {
        self.pace.learn(load, micros);
    }

    /// Breaks a rule, for tests of the recovery.
    #[cfg(test)]
    pub(crate) fn lose_a_block(&mut self) {
        assert!(self.pool.allocate().is_some(), "there is a block to lose");
    }

    /// The model's end tokens.
    pub fn eos(&self) -> &[u32] {
        &self.config.eos
    }

    /// Whether a token ends the text of a sequence.
    pub(crate) fn ends(&self, s: &Sequence, token: u32) -> bool {
        s.request.config.stop_tokens.contains(&token) || s.ends_at_eos && self.config.eos.contains(&token)
    }

    /// Puts a new sequence into a slot and into the queue.
    fn insert(&mut self, sequence: Sequence) -> u32 {
        let slot = self.vacant.pop().unwrap_or(self.slots.len() as u32);
        if slot as usize == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot as usize] = Some(sequence);
        self.enqueue(slot);
        slot
    }

    fn enqueue(&mut self, slot: u32) {
        let key = seq(&self.slots, slot).admission_key();
        let at = self.waiting.partition_point(|&other| seq(&self.slots, other).admission_key() < key);
        self.waiting.insert(at, slot);
    }

    fn end_where(&mut self, matches: impl Fn(&Sequence) -> bool, how: Result<FinishReason, RequestError>) {
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].as_ref().is_some_and(&matches) {
                self.end(slot, how.clone());
            }
        }
    }

    /// Ends a sequence, running or waiting: frees its blocks and its state and reports its last event.
    fn end(&mut self, slot: u32, how: Result<FinishReason, RequestError>) {
        self.leave(slot);
        let mut s = self.slots[slot as usize].take().expect("the slot is in use");
        self.vacant.push(slot);
        let thought_tokens = s.thought.as_ref().map_or(0, ThoughtReader::tokens);
        let cached_tokens = s.cached.unwrap_or(0);
        let predicted = s.prediction.as_ref().map(Prediction::counts);
        let how = how.map(|finish| {
            match finish {
                FinishReason::StopString(_) => {
                    let tail = s.matcher.tail().to_vec();
                    return End { finish, tail, end_token: None, thought_tokens, cached_tokens, predicted };
                }
                // The tokens held back may begin a stop string, so they are dropped.
                FinishReason::Cancelled => {}
                _ => s.matcher.flush(&mut self.released),
            }
            report_released(&mut self.events, &mut self.released, &mut s);
            let end_token = s.end_token.take();
            End { finish, tail: Vec::new(), end_token, thought_tokens, cached_tokens, predicted }
        });
        self.events.push_back(Event::Ended(s.id, how));
    }

    /// Removes a sequence from the queue or the batch, and releases its blocks and its state.
    fn leave(&mut self, slot: u32) {
        let s = seq_mut(&mut self.slots, slot);
        let list = if s.running { &mut self.running } else { &mut self.waiting };
        let at = list.iter().position(|&other| other == slot).expect("a sequence is in its list");
        list.remove(at);
        s.running = false;
        s.tokens.truncate(s.confirmed());
        s.drafted = 0;
        self.release(slot);
    }

    /// Releases what a sequence has computed: its state and its blocks, last first, so that the start of a text stays
    /// in the prefix cache longest.
    fn release(&mut self, slot: u32) {
        self.queue_parts(slot);
        let s = seq_mut(&mut self.slots, slot);
        for block in s.table.drain(..).rev() {
            self.pool.release(block);
        }
        let passed = std::mem::take(&mut s.passed);
        for block in s.windows.drain(..).skip(passed).rev() {
            self.windows.release(block);
        }
        s.state.take().into_iter().for_each(|state| self.states.release(state));
        s.chains.clear();
        (s.computed, s.logged) = (0, 0);
    }
}

/// Reports the tokens that the matcher has released.
fn report_released(events: &mut VecDeque<Event>, released: &mut Vec<u32>, s: &mut Sequence) {
    for token in released.drain(..) {
        events.push_back(Event::Token(s.id, token, s.held_logprobs.pop_front()));
    }
}

fn seq(slots: &[Option<Sequence>], slot: u32) -> &Sequence {
    slots[slot as usize].as_ref().expect("the slot is in use")
}

fn seq_mut(slots: &mut [Option<Sequence>], slot: u32) -> &mut Sequence {
    slots[slot as usize].as_mut().expect("the slot is in use")
}

bitnet_tensor::opaque_debug!(Scheduler { config, waiting, running });
