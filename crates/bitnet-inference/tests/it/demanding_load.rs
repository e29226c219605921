//! Demanding but ordinary load: texts that repeat themselves, readers that pause, long prompts during many streams.

use std::collections::BTreeSet;
use std::sync::Arc;

use bitnet_inference::{
    EngineConfig, Priority, Request,
    scheduling::{
        Event, Pacer, Plan, RunOutcome, SampledToken, Scheduler, SchedulerConfig, StepLoad, StepOutcome,
    },
};
use bitnet_model::Batch;

use crate::support::*;

/// A scheduler whose sequences draw 1, 2, 3, 4 and so on in a cycle, on a model whose steps take known times.
struct Circle {
    scheduler: Scheduler,
    now: u64,
    micros: fn(StepLoad) -> u64,
    plan: Plan,
    /// Number of steps with drafts that a device is yet to record; each of them takes a second.
    unrecorded: usize,
    /// Requests that have ended.
    ended: BTreeSet<u64>,
}

fn limits(max_running: usize, max_tokens: usize, max_rows: usize, max_draft: usize) -> SchedulerConfig {
    SchedulerConfig {
        max_running,
        max_tokens,
        max_rows,
        kv_blocks: 4000,
        state_slots: 0,
        context: 4096,
        max_draft,
        sizing: EngineConfig::default().sizing,
        slow_reader: u64::MAX,
        eos: vec![],
        text: None,
    }
}

impl Circle {
    fn new(config: SchedulerConfig, micros: fn(StepLoad) -> u64) -> Circle {
        Circle {
            scheduler: Scheduler::new(config),
            now: 0,
            micros,
            plan: Plan::default(),
            unrecorded: 0,
            ended: BTreeSet::new(),
        }
    }

    fn submit(&mut self, id: u64, prompt: usize, new: usize, priority: Priority) {
        let prompt: Vec<u32> = (0..prompt as u32).map(|i| 1 + i % 4).collect();
        // A unique salt, so that nothing is shared.
        let request = Request { priority, salt: id, ..Request::new(prompt, greedy(new)) };
        self.scheduler.submit(self.now, id, Arc::new(request), 0);
    }

    /// Runs a step and returns the requests that it computed.
    fn step(&mut self) -> BTreeSet<u64> {
        self.scheduler.tick(self.now);
        assert!(self.scheduler.plan(self.now, &mut self.plan));
        let unrecorded = self.plan.load.drafts > 0 && self.unrecorded > 0;
        self.unrecorded -= usize::from(unrecorded);
        let micros = if unrecorded { 1_000_000 } else { (self.micros)(self.plan.load) };
        let mut outcome = StepOutcome { micros, unrecorded, ..StepOutcome::default() };
        let mut planned = BTreeSet::new();
        for run in &self.plan.runs {
            let (s, first) = (self.scheduler.sequence(run), outcome.drawn.len());
            planned.insert(s.id.request);
            for i in 0..run.rows {
                let at = run.start + run.len - run.drafts + i;
                let token = 1 + at as u32 % 4;
                outcome.drawn.push(SampledToken::from(token));
                if s.tokens.get(at) != Some(&token) {
                    break;
                }
            }
            outcome.runs.push(RunOutcome::Done(first..outcome.drawn.len()));
        }
        self.now += outcome.micros;
        self.scheduler.commit(self.now, &self.plan, &mut outcome);
        while let Some(event) = self.scheduler.next_event() {
            if let Event::Ended(id, _) = event {
                self.ended.insert(id.request);
            }
        }
        self.scheduler.check().unwrap();
        planned
    }
}

/// Step times for which drafts always pay.
fn fast(load: StepLoad) -> u64 {
    2000 + (load.decodes as u64) + load.prefill as u64
}

#[test]
fn drafts_of_repetitive_texts_keep_no_other_request_waiting() {
    let mut world = Circle::new(limits(8, 64, 8, 4), fast);
    (0..4).for_each(|id| world.submit(id, 20, 2000, Priority::Normal));
    (0..50).for_each(|_| drop(world.step()));
    assert!(world.scheduler.counts().accepted > 100, "{:?}", world.scheduler.counts());
    for id in 4..20 {
        world.submit(id, 5, 1, Priority::Interactive);
        assert!(world.step().contains(&id), "request {id} is not in the first step after it came");
        assert!(world.ended.contains(&id));
    }
}

#[test]
fn steps_that_a_device_does_for_the_first_time_do_not_end_drafts() {
    let mut world = Circle::new(limits(8, 64, 8, 4), fast);
    world.unrecorded = 6;
    world.submit(0, 20, 400, Priority::Normal);
    (0..40).for_each(|_| drop(world.step()));
    assert!(
        world.unrecorded == 0 && world.scheduler.counts().accepted > 70,
        "{:?}",
        world.scheduler.counts()
    );
}

#[test]
fn a_prompt_beside_31_streams_with_drafts_gets_a_real_chunk_in_every_step() {
    let mut world = Circle::new(limits(32, 32 + 64, 64, 4), fast);
    (0..31).for_each(|id| world.submit(id, 20, 2000, Priority::Normal));
    (0..50).for_each(|_| drop(world.step()));
    world.submit(31, 1000, 1, Priority::Normal);
    let mut chunks = Vec::new();
    while !world.ended.contains(&31) {
        world.step();
        assert_eq!(world.plan.load.decodes, 31);
        chunks.push(world.plan.load.prefill);
    }
    let whole = &chunks[..chunks.len() - 1];
    assert!(whole.iter().all(|&chunk| chunk >= 64), "{chunks:?}");
}

#[test]
fn readers_that_resume_wait_for_a_free_place_and_displace_no_other() {
    let mut world = Circle::new(limits(8, 256, 32, 0), fast);
    (0..8).for_each(|id| world.submit(id, 20, 300, Priority::Normal));
    (0..10).for_each(|_| drop(world.step()));
    (0..8).for_each(|id| world.scheduler.pause(world.now, id));
    let fresh: BTreeSet<u64> = (8..16).collect();
    fresh.iter().for_each(|&id| world.submit(id, 20, 100, Priority::Normal));
    assert_eq!(world.step(), fresh, "a paused reader leaves its place to others");
    (0..8).for_each(|id| world.scheduler.resume(world.now, id));
    while world.ended.is_empty() {
        assert_eq!(world.step(), fresh, "resumed readers displace no running sequence");
    }
    // All end together; the waiting requests take their places.
    assert_eq!(world.step(), (0..8).collect());
    while world.ended.len() < 16 {
        world.step();
    }
    assert_eq!(world.scheduler.counts().recomputed_tokens, 0, "they kept their blocks");
}

#[test]
fn a_reader_that_resumes_keeps_its_blocks_and_its_turn() {
    const BLOCK: usize = Batch::BLOCK_TOKENS;
    let mut world = Circle::new(SchedulerConfig { kv_blocks: 4, ..limits(2, 4 * BLOCK, 4, 0) }, fast);
    world.submit(0, BLOCK + 1, 20, Priority::Normal);
    world.submit(1, 2 * BLOCK - 1, 20, Priority::Normal);
    assert_eq!(world.step(), [0, 1].into());
    world.scheduler.pause(world.now, 1);
    world.submit(2, 1, 1, Priority::Normal);
    world.scheduler.resume(world.now, 1);
    // Both other requests need a block, and all blocks are in use. Those of request 1 would be enough for request 2.
    while !world.ended.contains(&0) {
        assert_eq!(world.step(), [0].into(), "request 2 goes before request 1");
    }
    assert_eq!(world.step(), [1, 2].into());
    assert_eq!(world.scheduler.counts().recomputed_tokens, 0, "request 1 has lost its blocks");
}

/// The p95 of step times while streams wait for chunks of a prompt of 2,048 tokens, and the sizes of the chunks.
fn beside_a_long_prompt(micros: fn(StepLoad) -> u64) -> (u64, Vec<usize>) {
    let mut world = Circle::new(limits(8, 8 + 512, 16, 0), micros);
    (0..4).for_each(|id| world.submit(id, 20, 3000, Priority::Normal));
    (0..40).for_each(|_| drop(world.step()));
    world.submit(4, 2048, 1, Priority::Normal);
    let (mut chunks, mut gaps) = (Vec::new(), Vec::new());
    while !world.ended.contains(&4) {
        world.step();
        assert_eq!(world.plan.load.decodes, 4, "every stream has a token in every step");
        chunks.push(world.plan.load.prefill);
        gaps.push(micros(world.plan.load));
    }
    gaps.sort_unstable();
    (gaps[gaps.len() * 95 / 100], chunks)
}

#[test]
fn by_default_a_long_prompt_leaves_streams_a_token_every_quarter_of_a_second() {
    // 40 ms plus 3 ms for each prompt token: a full step of 512 would take more than 1.5 s.
    let (p95, chunks) = beside_a_long_prompt(|load| 40_000 + 3000 * load.prefill as u64);
    assert!(p95 <= 250_000, "{p95} us with {chunks:?}");
    assert!(chunks.len() < 64, "{chunks:?}");
    // A machine that misses the goal even without a prompt.
    let (_, chunks) = beside_a_long_prompt(|load| 300_000 + 9000 * load.prefill as u64);
    assert!(chunks.iter().all(|&chunk| chunk <= Pacer::MIN_CHUNK), "{chunks:?}");
    assert!(chunks[..chunks.len() - 1].iter().all(|&chunk| chunk == Pacer::MIN_CHUNK), "{chunks:?}");
    // A fast machine uses the whole step.
    let (_, chunks) = beside_a_long_prompt(|load| 5000 + 20 * load.prefill as u64);
    assert!(chunks.contains(&(8 + 512 - 4)), "{chunks:?}");
}

#[test]
fn drafts_keep_the_goal_between_tokens() {
    // Drafts pay: eight of them would lengthen a step by a fifth. With those of four streams it would take 360 ms.
    let cost = |load: StepLoad| 180_000 + 5000 * (load.decodes + load.drafts) as u64;
    let mut world = Circle::new(limits(4, 64, 40, 8), cost);
    for decodes in 1..20 {
        let load = StepLoad { decodes, ..StepLoad::default() };
        world.scheduler.learn(load, cost(load));
    }
    (0..4).for_each(|id| world.submit(id, 20, 400, Priority::Normal));
    for _ in 0..100 {
        world.step();
        assert!(cost(world.plan.load) <= 250_000, "{:?}", world.plan.load);
    }
    assert!(world.scheduler.counts().accepted > 100, "{:?}", world.scheduler.counts());
}
