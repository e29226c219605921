//! The scheduler, compared with a naive one that keeps plain lists and scans them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bitnet_inference::{
    BatchSizing, End, FinishReason, Priority, Request, RequestError,
    scheduling::{Event, Plan, RunOutcome, SampledToken, Scheduler, SchedulerConfig, SeqId, StepOutcome},
};
use bitnet_model::Batch;
use proptest::prelude::*;

use crate::support::greedy;

const BLOCK: usize = Batch::BLOCK_TOKENS;
/// How often others can go before a sequence that has no room.
const MAX_PASSES: usize = 8;

/// An action on a scheduler.
#[derive(Debug, Clone)]
enum Step {
    Submit { prompt: usize, new: usize, priority: Priority, timeout: Option<u64> },
    Cancel(usize),
    Pause(usize),
    Resume(usize),
    Wait(u64),
    Compute,
}

/// The content of a block, free or in a table: the sequence and the index of its block, if it can still be found.
type Held = Option<(u64, usize)>;

/// A sequence; only the number of its tokens matters.
#[derive(Debug, Clone)]
struct Naive {
    id: u64,
    tokens: usize,
    computed: usize,
    end: usize,
    context_ends_it: bool,
    priority: Priority,
    arrived: u64,
    deadline: Option<u64>,
    table: Vec<Held>,
    /// Whether it has a place; without one it can still hold blocks.
    running: bool,
    paused: bool,
    /// When it began to wait for a place.
    since: u64,
    aged: bool,
    admitted: bool,
    passed: usize,
}

impl Naive {
    fn admission_key(&self) -> (bool, Priority, u64) {
        (!self.aged, if self.aged { Priority::Interactive } else { self.priority }, self.id)
    }
}

/// The step being planned.
#[derive(Default)]
struct Left {
    tokens: usize,
    rows: usize,
    /// Sequence, first position, tokens, rows.
    runs: Vec<(u64, usize, usize, usize)>,
}

struct NaiveScheduler {
    limits: SchedulerConfig,
    /// In order of arrival, which is also the order of their ids.
    live: Vec<Naive>,
    /// Allocated from the front.
    free: VecDeque<Held>,
    events: Vec<Event>,
}

fn seq_id(request: u64) -> SeqId {
    SeqId { request, choice: 0 }
}

fn token(id: u64, position: usize) -> u32 {
    (id as usize * 7 + position) as u32 % 40
}

impl NaiveScheduler {
    fn of(&mut self, id: u64) -> &mut Naive {
        self.live.iter_mut().find(|s| s.id == id).expect("it lives")
    }

    fn ids(&self, of: impl Fn(&Naive) -> bool) -> Vec<u64> {
        self.live.iter().filter(|s| of(s)).map(|s| s.id).collect()
    }

    fn submit(&mut self, now: u64, id: u64, prompt: usize, request: &Request) {
        let end = (prompt + request.config.max_new_tokens).min(self.limits.context);
        self.live.push(Naive {
            id,
            tokens: prompt,
            computed: 0,
            end,
            context_ends_it: end < prompt + request.config.max_new_tokens,
            priority: request.priority,
            arrived: now,
            deadline: request.timeout.map(|t| now + t.as_micros() as u64),
            table: vec![],
            running: false,
            paused: false,
            since: now,
            aged: false,
            admitted: false,
            passed: 0,
        });
        if end == prompt {
            self.end(id, Ok(FinishReason::Length));
        }
    }

    fn end(&mut self, id: u64, how: Result<FinishReason, RequestError>) {
        self.leave(id);
        self.live.retain(|s| s.id != id);
        self.events.push(Event::Ended(
            seq_id(id),
            how.map(|finish| End {
                finish,
                tail: vec![],
                end_token: None,
                thought_tokens: 0,
                cached_tokens: 0,
                predicted: None,
            }),
        ));
    }

    /// The earlier a block is in its text, the longer it can be found.
    fn leave(&mut self, id: u64) {
        let s = self.of(id);
        (s.running, s.computed) = (false, 0);
        for held in std::mem::take(&mut s.table).into_iter().rev() {
            if held.is_some() { self.free.push_back(held) } else { self.free.push_front(held) }
        }
    }

    fn tick(&mut self, now: u64) {
        for id in self.ids(|s| s.deadline.is_some_and(|at| at <= now)) {
            self.end(id, Err(RequestError::Timeout));
        }
        for s in self.live.iter_mut().filter(|s| !s.running && !s.paused) {
            let patience = match s.priority {
                Priority::Interactive => 2_000_000,
                Priority::Normal => 10_000_000,
                Priority::Background => 120_000_000,
            };
            s.aged |= now - s.since >= patience;
        }
    }

    fn pause(&mut self, id: u64) {
        for s in self.live.iter_mut().filter(|s| s.id == id) {
            (s.paused, s.running) = (true, false);
        }
    }

    fn resume(&mut self, now: u64, id: u64) {
        for s in self.live.iter_mut().filter(|s| s.id == id && s.paused) {
            s.paused = false;
            if s.admitted {
                (s.since, s.aged) = (now, false);
            }
        }
    }

    fn plan(&mut self, now: u64) -> Vec<(u64, usize, usize, usize)> {
        let (tokens, rows) = (self.limits.max_tokens, self.limits.max_rows);
        let mut left = Left { tokens, rows, runs: vec![] };
        for decodes in [true, false] {
            for id in self.ids(|s| s.running && (s.tokens - s.computed == 1) == decodes) {
                // It may have been preempted for an earlier one.
                if self.of(id).running {
                    self.run(id, &mut left);
                }
            }
        }
        self.admit(now, &mut left);
        left.runs
    }

    fn run(&mut self, id: u64, left: &mut Left) {
        let s = self.of(id).clone();
        let pending = s.tokens - s.computed;
        let len = pending.min(left.tokens);
        let rows = usize::from(len == pending);
        if len == 0 || rows > left.rows || !self.take_blocks(id, s.computed + len, left) {
            return;
        }
        // Blocks to be written can no longer be found.
        self.of(id).table[s.computed / BLOCK..].fill(None);
        left.tokens -= len;
        left.rows -= rows;
        left.runs.push((id, s.computed, len, rows));
    }

    fn take_blocks(&mut self, id: u64, tokens: usize, left: &mut Left) -> bool {
        let missing = tokens.div_ceil(BLOCK).saturating_sub(self.of(id).table.len());
        while missing > self.free.len() {
            let youngest = self.ids(|s| s.running && s.id > id).last().copied();
            let Some(victim) = self.parked(|s| s.id != id).or(youngest) else { return false };
            self.leave(victim);
            if let Some(at) = left.runs.iter().position(|run| run.0 == victim) {
                let (_, _, len, rows) = left.runs.remove(at);
                (left.tokens, left.rows) = (left.tokens + len, left.rows + rows);
            }
        }
        for _ in 0..missing {
            self.free.pop_front();
            self.of(id).table.push(None);
        }
        true
    }

    /// The next sequence with blocks but without a place to take blocks from: a paused one, otherwise the last in the
    /// queue.
    fn parked(&self, may: impl Fn(&Naive) -> bool) -> Option<u64> {
        let parked = self.live.iter().filter(|s| !s.running && !s.table.is_empty() && may(s));
        parked.max_by_key(|s| (s.paused, s.admission_key())).map(|s| s.id)
    }

    fn admit(&mut self, now: u64, left: &mut Left) {
        let mut waiting: Vec<_> = self.live.iter().filter(|s| !s.running && !s.paused).collect();
        waiting.sort_by_key(|s| s.admission_key());
        let mut without_room: Vec<u64> = vec![];
        for id in waiting.into_iter().map(|s| s.id).collect::<Vec<_>>() {
            let active = self.ids(|s| s.running).len();
            if active >= self.limits.max_running || left.tokens == 0 || left.rows == 0 {
                return;
            }
            if !self.clear_for(id) {
                let s = self.of(id);
                if s.aged || s.passed == MAX_PASSES || without_room.len() == MAX_PASSES {
                    return;
                }
                without_room.push(id);
                continue;
            }
            self.start(now, id);
            self.run(id, left);
            let passes = without_room.iter().map(|&id| {
                self.of(id).passed += 1;
                self.of(id).passed
            });
            if passes.max() == Some(MAX_PASSES) {
                return;
            }
        }
    }

    fn clear_for(&mut self, id: u64) -> bool {
        let (tokens, held) = (self.of(id).tokens, self.of(id).table.len());
        let needed = (tokens + 1).div_ceil(BLOCK).saturating_sub(held);
        loop {
            let others = self.live.iter().any(|s| s.running);
            let copy = usize::from(held == 0 && tokens.is_multiple_of(BLOCK));
            let spare = if others { self.limits.kv_blocks / 50 + copy } else { 0 };
            if (held > 0 && needed == 0) || needed + spare <= self.free.len() {
                return true;
            }
            let place = self.of(id).admission_key();
            let Some(parked) = self.parked(|s| s.id != id && (s.paused || s.admission_key() > place)) else {
                return false;
            };
            self.leave(parked);
        }
    }

    fn start(&mut self, now: u64, id: u64) {
        let (held, full) = (self.of(id).table.len(), self.of(id).tokens / BLOCK);
        for block in 0..if held > 0 { 0 } else { full } {
            let Some(at) = self.free.iter().position(|&held| held == Some((id, block))) else { break };
            let held = self.free.remove(at).expect("it was found");
            self.of(id).table.push(held);
        }
        let s = self.of(id);
        s.running = true;
        if held == 0 {
            s.computed = (s.table.len() * BLOCK).min(s.tokens - 1);
        }
        if !std::mem::replace(&mut s.admitted, true) {
            let waited = now - s.arrived;
            self.events.push(Event::Admitted(seq_id(id), waited));
        }
    }

    fn commit(&mut self, runs: &[(u64, usize, usize, usize)]) {
        for &(id, start, len, rows) in runs {
            let s = self.of(id);
            s.computed = start + len;
            (0..s.computed / BLOCK).for_each(|block| s.table[block] = Some((id, block)));
            if rows == 0 {
                continue;
            }
            let (drawn, context_ends_it) = (token(id, s.tokens), s.context_ends_it);
            s.tokens += 1;
            let ends = s.tokens == s.end;
            self.events.push(Event::Token(seq_id(id), drawn, None));
            if ends {
                let finish = if context_ends_it { FinishReason::Context } else { FinishReason::Length };
                self.end(id, Ok(finish));
            }
        }
    }
}

/// Both schedulers, with the same actions.
struct Pair {
    real: Scheduler,
    naive: NaiveScheduler,
    now: u64,
    submitted: u64,
}

impl Pair {
    fn new(max_running: usize, more_tokens: usize, more_rows: usize, kv_blocks: usize) -> Pair {
        let limits = SchedulerConfig {
            max_running,
            max_tokens: max_running + more_tokens,
            max_rows: max_running + more_rows,
            kv_blocks,
            state_slots: 0,
            context: 256.min(kv_blocks * BLOCK),
            max_draft: 0,
            sizing: BatchSizing::Fixed(max_running),
            slow_reader: u64::MAX,
            eos: vec![],
            text: None,
        };
        let real = Scheduler::new(limits.clone());
        let free = vec![None; kv_blocks].into();
        Pair {
            real,
            naive: NaiveScheduler { limits, live: vec![], free, events: vec![] },
            now: 0,
            submitted: 0,
        }
    }

    fn act(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let some = |which: usize| which as u64 % self.submitted.max(1);
        match *step {
            Step::Submit { prompt, new, priority, timeout } => {
                let (id, prompt) = (self.submitted, prompt.min(self.naive.limits.context - 1));
                let timeout = timeout.map(Duration::from_micros);
                // A unique salt, so that nothing is shared.
                let request =
                    Request { priority, timeout, salt: id, ..Request::new(vec![1; prompt], greedy(new)) };
                self.submitted += 1;
                self.naive.submit(self.now, id, prompt, &request);
                self.real.submit(self.now, id, Arc::new(request), 0);
            }
            Step::Cancel(which) => {
                let id = some(which);
                self.real.cancel(id);
                if self.naive.live.iter().any(|s| s.id == id) {
                    self.naive.end(id, Ok(FinishReason::Cancelled));
                }
            }
            Step::Pause(which) => {
                self.real.pause(self.now, some(which));
                self.naive.pause(some(which));
            }
            Step::Resume(which) => {
                self.real.resume(self.now, some(which));
                self.naive.resume(self.now, some(which));
            }
            Step::Wait(micros) => {
                self.now += micros;
                self.real.tick(self.now);
                self.naive.tick(self.now);
            }
            Step::Compute => self.compute()?,
        }
        let mut told: Vec<Event> = std::iter::from_fn(|| self.real.next_event()).collect();
        // The naive scheduler does not tell how much it found.
        for event in &mut told {
            if let Event::Ended(_, Ok(end)) = event {
                end.cached_tokens = 0;
            }
        }
        let mut expected = std::mem::take(&mut self.naive.events);
        if matches!(step, Step::Wait(_)) {
            // Sequences that time out together end in any order.
            let id = |event: &Event| match event {
                Event::Admitted(id, _) | Event::Token(id, ..) | Event::Ended(id, _) => *id,
            };
            told.sort_by_key(id);
            expected.sort_by_key(id);
        }
        prop_assert_eq!(told, expected);
        prop_assert_eq!(self.real.check(), Ok(()));
        prop_assert_eq!(self.real.pool().available(), self.naive.free.len());
        Ok(())
    }

    fn compute(&mut self) -> Result<(), TestCaseError> {
        let mut plan = Plan::default();
        let planned = self.real.plan(self.now, &mut plan);
        let runs = self.naive.plan(self.now);
        prop_assert_eq!(planned, !runs.is_empty());
        let of = |run| (self.real.sequence(run).id.request, run.start, run.len, run.rows);
        prop_assert_eq!(plan.runs.iter().map(of).collect::<Vec<_>>(), runs.clone());
        prop_assert_eq!(self.real.check_plan(&plan), Ok(()));
        let mut outcome = StepOutcome::default();
        for &(id, start, len, rows) in &runs {
            let first = outcome.drawn.len();
            let drawn = SampledToken::from(token(id, start + len));
            outcome.drawn.extend((rows > 0).then_some(drawn));
            outcome.runs.push(RunOutcome::Done(first..outcome.drawn.len()));
        }
        if planned {
            self.real.commit(self.now, &plan, &mut outcome);
            self.naive.commit(&runs);
        }
        Ok(())
    }
}

fn step() -> impl Strategy<Value = Step> {
    let priority =
        prop_oneof![Just(Priority::Interactive), Just(Priority::Normal), Just(Priority::Background)];
    let prompt = prop_oneof![1..20usize, 1..256usize, Just(BLOCK), Just(2 * BLOCK)];
    let timeout = prop_oneof![9 => Just(None), 1 => (0..50_000u64).prop_map(Some)];
    let submit = (prompt, 0..60usize, priority, timeout)
        .prop_map(|(prompt, new, priority, timeout)| Step::Submit { prompt, new, priority, timeout });
    prop_oneof![
        5 => submit,
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::Pause),
        1 => any::<usize>().prop_map(Step::Resume),
        2 => prop_oneof![9 => 0..3000u64, 1 => Just(3_000_000), 1 => Just(130_000_000)].prop_map(Step::Wait),
        25 => Just(Step::Compute),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_scheduler_agrees_with_a_naive_one(
        (max_running, more_tokens, more_rows, kv_blocks) in (1..6usize, 0..80usize, 0..4usize, 1..12usize),
        steps in proptest::collection::vec(step(), 1..250),
    ) {
        let mut pair = Pair::new(max_running, more_tokens, more_rows, kv_blocks);
        for step in &steps {
            pair.act(step)?;
        }
    }
}
