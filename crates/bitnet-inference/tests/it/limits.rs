//! Exact limits of the scheduler: the microsecond at which time runs out, the last token, and the load of a step.

use std::sync::Arc;
use std::time::Duration;

use bitnet_inference::{
    BatchSizing, End, FinishReason, GenerationConfig, Output, Priority, Request, RequestError,
    scheduling::{Event, Plan, RunOutcome, SampledToken, Scheduler, SchedulerConfig, StepOutcome},
};

use crate::support::*;

/// One place, so that the order of admission shows.
fn narrow(slow_reader: u64) -> Scheduler {
    Scheduler::new(limited(1, 16, 64, slow_reader))
}

fn limited(max_running: usize, max_rows: usize, kv_blocks: usize, slow_reader: u64) -> SchedulerConfig {
    SchedulerConfig {
        max_running,
        max_tokens: 64,
        max_rows,
        kv_blocks,
        state_slots: 0,
        context: CONTEXT,
        max_draft: 0,
        sizing: BatchSizing::Fixed(max_running),
        slow_reader,
        eos: vec![],
        text: None,
    }
}

fn submit(scheduler: &mut Scheduler, now: u64, id: u64, request: Request) {
    scheduler.submit(now, id, Arc::new(request), 0);
}

/// Plans and commits a step in which every row draws token 1; returns the plan.
fn step(scheduler: &mut Scheduler, now: u64) -> Plan {
    let (mut plan, mut outcome) = (Plan::default(), StepOutcome::default());
    assert!(scheduler.plan(now, &mut plan));
    assert_eq!(scheduler.check_plan(&plan), Ok(()));
    for run in &plan.runs {
        let from = outcome.drawn.len();
        outcome.drawn.extend((run.rows > 0).then_some(SampledToken::from(1)));
        outcome.runs.push(RunOutcome::Done(from..outcome.drawn.len()));
    }
    scheduler.commit(now, &plan, &mut outcome);
    assert_eq!(scheduler.check(), Ok(()));
    plan
}

/// A request and how it ended.
type Ended = (u64, Result<End, RequestError>);

/// The requests that were admitted and those that ended since the last call.
fn told(scheduler: &mut Scheduler) -> (Vec<u64>, Vec<Ended>) {
    let (mut admitted, mut ended) = (Vec::new(), Vec::new());
    while let Some(event) = scheduler.next_event() {
        match event {
            Event::Admitted(id, _) => admitted.push(id.request),
            Event::Ended(id, end) => ended.push((id.request, end)),
            Event::Token(..) => {}
        }
    }
    (admitted, ended)
}

/// Checks that request 0 fails at this microsecond, which is the next deadline, and not at the one before.
fn ends_exactly_at(scheduler: &mut Scheduler, at: u64, why: RequestError) {
    assert_eq!(scheduler.next_deadline(), Some(at));
    scheduler.tick(at - 1);
    assert_eq!(told(scheduler).1, []);
    scheduler.tick(at);
    assert_eq!(told(scheduler).1, [(0, Err(why))]);
}

#[test]
fn a_deadline_ends_a_request_in_its_microsecond_and_not_before() {
    let mut scheduler = narrow(u64::MAX);
    assert_eq!(scheduler.next_deadline(), None);
    let timeout = Some(Duration::from_micros(60));
    submit(&mut scheduler, 1000, 0, Request { timeout, ..Request::new([1, 2], greedy(9)) });
    ends_exactly_at(&mut scheduler, 1060, RequestError::Timeout);
}

#[test]
fn a_slow_reader_fails_at_its_time_limit_and_not_before() {
    let mut scheduler = narrow(500);
    submit(&mut scheduler, 0, 0, Request::new([1, 2], greedy(9)));
    step(&mut scheduler, 1);
    scheduler.pause(1000, 0);
    ends_exactly_at(&mut scheduler, 1500, RequestError::SlowReader);
}

#[test]
fn a_request_out_of_patience_goes_before_more_urgent_ones_and_no_microsecond_earlier() {
    let patience = narrow(u64::MAX).pace().patience(Priority::Normal);
    for (now, first) in [(patience - 1, 2), (patience, 1)] {
        let mut scheduler = narrow(u64::MAX);
        submit(&mut scheduler, 0, 0, Request::new([1], greedy(9)));
        step(&mut scheduler, 0);
        submit(&mut scheduler, 0, 1, Request { priority: Priority::Normal, ..Request::new([2], greedy(9)) });
        let urgent = Request { priority: Priority::Interactive, ..Request::new([3], greedy(9)) };
        submit(&mut scheduler, patience - 1, 2, urgent);
        scheduler.tick(now);
        scheduler.cancel(0);
        told(&mut scheduler);
        step(&mut scheduler, now);
        assert_eq!(told(&mut scheduler).0, [first], "after {now}");
    }
}

#[test]
fn tokens_that_count_as_generated_count_toward_the_limit() {
    let mut scheduler = narrow(u64::MAX);
    submit(&mut scheduler, 0, 0, Request { generated: 2, ..Request::new([1, 2, 3, 4, 5], greedy(4)) });
    step(&mut scheduler, 1);
    assert_eq!(told(&mut scheduler).1, []);
    step(&mut scheduler, 2);
    let end = End {
        finish: FinishReason::Length,
        tail: vec![],
        end_token: None,
        thought_tokens: 0,
        cached_tokens: 0,
        predicted: None,
    };
    assert_eq!(told(&mut scheduler).1, [(0, Ok(end))]);
}

#[test]
fn the_load_of_a_chunk_counts_the_tokens_before_each_of_its_tokens() {
    let mut scheduler = narrow(u64::MAX);
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 100], greedy(9)));
    for chunk in [0..64, 64..100] {
        let plan = step(&mut scheduler, 1);
        assert_eq!((plan.load.prefill, plan.load.attended), (chunk.len(), chunk.sum()));
        assert_eq!((plan.load.decodes, plan.load.context), (0, 0));
    }
    let plan = step(&mut scheduler, 2);
    assert_eq!((plan.load.decodes, plan.load.context, plan.load.attended), (1, 100, 0));
}

#[test]
fn a_prompt_that_is_scored_takes_all_rows_but_one_while_others_wait() {
    let scored = || Request { output: Output::Scored, ..Request::new(vec![1; 40], greedy(1)) };
    let mut scheduler = narrow(u64::MAX);
    submit(&mut scheduler, 0, 0, scored());
    assert_eq!(step(&mut scheduler, 1).runs[0].rows, 16);
    submit(&mut scheduler, 2, 1, scored());
    assert_eq!(step(&mut scheduler, 3).runs[0].rows, 15);
}

#[test]
fn only_drafts_and_goals_make_decisions_depend_on_times() {
    let paced = |max_draft, sizing| {
        let config = narrow(u64::MAX).config().clone();
        Scheduler::new(SchedulerConfig { max_draft, sizing, ..config }).paces_itself()
    };
    let goal = || BatchSizing::Auto { ttft: Duration::from_secs(1), itl: Duration::from_secs(1) };
    assert!(!paced(0, BatchSizing::Fixed(1)));
    assert!(paced(1, BatchSizing::Fixed(1)) && paced(0, goal()) && paced(1, goal()));
}

#[test]
fn no_sequence_is_admitted_in_a_step_without_a_row_for_it() {
    let mut scheduler = Scheduler::new(limited(3, 3, 64, u64::MAX));
    submit(&mut scheduler, 0, 0, Request { output: Output::Scored, ..Request::new(vec![1; 40], greedy(1)) });
    submit(&mut scheduler, 0, 1, Request::new([2], greedy(9)));
    submit(&mut scheduler, 0, 2, Request::new([3], greedy(9)));
    step(&mut scheduler, 0);
    assert_eq!(told(&mut scheduler).0, [0, 1]);
}

#[test]
fn choices_join_in_the_step_after_their_prompt_and_copy_its_last_block() {
    let mut scheduler = Scheduler::new(limited(2, 2, 64, u64::MAX));
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 10], GenerationConfig { n: 2, ..greedy(9) }));
    assert_eq!(step(&mut scheduler, 0).runs.len(), 1);
    let plan = step(&mut scheduler, 0);
    assert_eq!((plan.runs.len(), plan.copies.len()), (2, 1));
    assert_eq!(scheduler.counts().copied_blocks, 1);
}

#[test]
fn a_paused_request_gives_its_blocks_to_a_running_or_a_waiting_one() {
    // A running sequence needs its second block.
    let mut scheduler = Scheduler::new(limited(2, 2, 2, u64::MAX));
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 20], greedy(30)));
    submit(&mut scheduler, 0, 1, Request::new(vec![2; 40], greedy(30)));
    step(&mut scheduler, 0);
    scheduler.pause(0, 0);
    // Request 1 has computed 40 tokens. In each of these steps one more, of which the last needs the block.
    (0..25).for_each(|_| assert_eq!(step(&mut scheduler, 0).runs.len(), 1));
    assert_eq!((scheduler.counts().preemptions, scheduler.counts().recomputed_tokens), (1, 20));
    // A waiting one needs the only block.
    let mut scheduler = Scheduler::new(limited(1, 1, 1, u64::MAX));
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 10], greedy(9)));
    step(&mut scheduler, 0);
    scheduler.pause(0, 0);
    submit(&mut scheduler, 0, 1, Request::new(vec![2; 10], greedy(9)));
    step(&mut scheduler, 0);
    assert_eq!((scheduler.counts().preemptions, scheduler.counts().recomputed_tokens), (1, 10));
}

#[test]
fn what_a_preempted_sequence_had_of_the_step_goes_to_others() {
    let mut scheduler = Scheduler::new(limited(2, 2, 3, u64::MAX));
    // Request 0 is the oldest, but 1 runs first.
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 127], greedy(9)));
    scheduler.pause(0, 0);
    submit(&mut scheduler, 0, 1, Request::new(vec![2; 63], greedy(99)));
    step(&mut scheduler, 0);
    scheduler.resume(0, 0);
    let lengths = |plan: &Plan| plan.runs.iter().map(|run| (run.start, run.len)).collect::<Vec<_>>();
    assert_eq!(lengths(&step(&mut scheduler, 0)), [(63, 1), (0, 63)]);
    submit(&mut scheduler, 0, 2, Request::new([3, 4], greedy(9)));
    // The next token of 1 takes the last block, then 0 takes both from it: one token and one row are left for 2.
    let plan = step(&mut scheduler, 0);
    assert_eq!(lengths(&plan), [(63, 63), (0, 1)]);
    assert_eq!((plan.load.decodes, plan.load.context, plan.load.prefill), (0, 0, 64));
    assert_eq!((scheduler.counts().preemptions, scheduler.counts().recomputed_tokens), (1, 64));
}

#[test]
fn a_prompt_in_chunks_is_counted_once() {
    let mut scheduler = narrow(u64::MAX);
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 200], greedy(2)));
    (0..4).for_each(|_| drop(step(&mut scheduler, 0)));
    assert_eq!((scheduler.counts().split_prompts, scheduler.counts().prefix_tokens), (1, 200));
}

#[test]
fn a_sequence_without_a_share_of_the_step_has_no_run_in_it() {
    let mut scheduler = Scheduler::new(limited(2, 16, 64, u64::MAX));
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 200], greedy(9)));
    scheduler.pause(0, 0);
    submit(&mut scheduler, 0, 1, Request { output: Output::Scored, ..Request::new(vec![2; 100], greedy(9)) });
    step(&mut scheduler, 0);
    scheduler.resume(0, 0);
    let lengths = |plan: &Plan| plan.runs.iter().map(|run| run.len).collect::<Vec<_>>();
    assert_eq!(lengths(&step(&mut scheduler, 0)), [15, 49]);
    // The older one takes all tokens.
    assert_eq!(lengths(&step(&mut scheduler, 0)), [64]);
}

#[test]
fn a_request_without_room_is_passed_over_exactly_eight_times() {
    let wide = SchedulerConfig { max_tokens: 4096, context: 4096, ..limited(20, 20, 40, u64::MAX) };
    let mut scheduler = Scheduler::new(wide);
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 1800], greedy(9)));
    step(&mut scheduler, 0);
    // 11 blocks are left; this one needs 21.
    submit(&mut scheduler, 0, 1, Request::new(vec![2; 1280], greedy(9)));
    (2..12).for_each(|id| submit(&mut scheduler, 0, id, Request::new([id as u32], greedy(9))));
    told(&mut scheduler);
    step(&mut scheduler, 0);
    assert_eq!(told(&mut scheduler).0, (2..10).collect::<Vec<_>>());
    step(&mut scheduler, 0);
    assert!(told(&mut scheduler).0.is_empty());
}

#[test]
fn blocks_that_others_use_need_no_room() {
    let wide = SchedulerConfig { max_tokens: 4096, ..limited(2, 2, 4, u64::MAX) };
    let mut scheduler = Scheduler::new(wide);
    submit(&mut scheduler, 0, 0, Request::new(vec![1; 129], greedy(9)));
    step(&mut scheduler, 0);
    // The same first two blocks; one of the four is left for the third.
    submit(&mut scheduler, 0, 1, Request::new([vec![1; 128], vec![2]].concat(), greedy(9)));
    told(&mut scheduler);
    step(&mut scheduler, 0);
    assert_eq!(told(&mut scheduler).0, [1]);
    assert_eq!(scheduler.counts().prefix_hits, 128);
}

#[test]
fn what_waits_and_what_runs_is_counted() {
    let mut scheduler = Scheduler::new(limited(2, 2, 64, u64::MAX));
    let counts = |s: &Scheduler| (s.waiting(), s.running(), s.is_empty());
    assert_eq!(counts(&scheduler), (0, 0, true));
    (0..4).for_each(|id| submit(&mut scheduler, 0, id, Request::new([1], greedy(1))));
    assert_eq!(counts(&scheduler), (4, 0, false));
    assert!(scheduler.plan(0, &mut Plan::default()));
    assert_eq!(counts(&scheduler), (2, 2, false));
    (0..4).for_each(|id| scheduler.cancel(id));
    assert_eq!(counts(&scheduler), (0, 0, true));
}

#[test]
fn a_prompt_that_is_only_scored_gets_no_token() {
    let mut scheduler = narrow(u64::MAX);
    submit(&mut scheduler, 0, 0, Request { output: Output::Scored, ..Request::new(vec![1; 10], greedy(0)) });
    step(&mut scheduler, 0);
    let events: Vec<Event> = std::iter::from_fn(|| scheduler.next_event()).collect();
    assert!(matches!(events[..], [Event::Admitted(..), Event::Ended(_, Ok(_))]), "{events:?}");
}
