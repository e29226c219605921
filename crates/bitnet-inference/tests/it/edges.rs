//! Exact limits of the scheduler: the microsecond at which time runs out, the last token, and the load of a step.

use std::sync::Arc;
use std::time::Duration;

use bitnet_inference::{
    BatchSizing, End, FinishReason, Output, Priority, Request, RequestError,
    scheduling::{Event, Plan, RunOutcome, SampledToken, Scheduler, SchedulerConfig, StepOutcome},
};

use crate::support::*;

/// One place, so that the order of admission shows.
fn narrow(slow_reader: u64) -> Scheduler {
    Scheduler::new(SchedulerConfig {
        max_running: 1,
        max_tokens: 64,
        max_rows: 16,
        kv_blocks: 64,
        context: CONTEXT,
        max_draft: 0,
        sizing: BatchSizing::Fixed(1),
        slow_reader,
        eos: vec![],
        text: None,
    })
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
        outcome.drawn.extend((run.rows > 0).then_some(SampledToken { token: 1, logprobs: None }));
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

#[test]
fn a_deadline_ends_a_request_in_its_microsecond_and_not_before() {
    let mut scheduler = narrow(u64::MAX);
    assert_eq!(scheduler.next_deadline(), None);
    let timeout = Some(Duration::from_micros(60));
    submit(&mut scheduler, 1000, 0, Request { timeout, ..Request::new([1, 2], greedy(9)) });
    assert_eq!(scheduler.next_deadline(), Some(1060));
    scheduler.tick(1059);
    assert_eq!(told(&mut scheduler).1, []);
    scheduler.tick(1060);
    assert_eq!(told(&mut scheduler).1, [(0, Err(RequestError::Timeout))]);
}

#[test]
fn a_slow_reader_is_let_go_in_its_microsecond_and_not_before() {
    let mut scheduler = narrow(500);
    submit(&mut scheduler, 0, 0, Request::new([1, 2], greedy(9)));
    step(&mut scheduler, 1);
    scheduler.pause(1000, 0);
    assert_eq!(scheduler.next_deadline(), Some(1500));
    scheduler.tick(1499);
    assert_eq!(told(&mut scheduler).1, []);
    scheduler.tick(1500);
    assert_eq!(told(&mut scheduler).1, [(0, Err(RequestError::SlowReader))]);
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
    let end = End { finish: FinishReason::Length, tail: vec![] };
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
