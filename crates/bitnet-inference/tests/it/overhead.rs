//! What scheduling costs beside the model.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use bitnet_inference::sim::HashModel;
use bitnet_inference::{BatchSizing, Plan, Request, Scheduler, SchedulerConfig, StepOutcome, Stepper};
use bitnet_model::Limits;

use crate::support::*;

thread_local!(static ALLOCATIONS: Cell<usize> = const { Cell::new(0) });

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches a thread-local integer,
// which needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const RUNNING: usize = 256;

/// A scheduler with 256 running sequences, and what carries out its plans.
fn running(max_draft: usize) -> (Scheduler, Stepper<'static>) {
    let limits = Limits { max_tokens: 1024, max_logit_rows: 512, kv_blocks: RUNNING * 9 };
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: RUNNING,
        max_tokens: limits.max_tokens,
        max_rows: limits.max_logit_rows,
        kv_blocks: limits.kv_blocks,
        context: CONTEXT,
        max_draft,
        sizing: BatchSizing::Fixed(RUNNING),
        slow_reader: 1 << 40,
        eos: vec![EOS],
        text: None,
    });
    for i in 0..RUNNING {
        let prompt: Vec<u32> = (0..20 + i as u32 % 50).map(|p| (p * 7 + i as u32) % 48).collect();
        scheduler.submit(0, i as u64, Arc::new(Request::new(prompt, greedy(400))), 1);
    }
    (scheduler, Stepper::new(Box::new(HashModel::new(VOCAB, CONTEXT, limits))))
}

/// Runs steps; says how often anything allocated.
fn steps(scheduler: &mut Scheduler, stepper: &mut Stepper<'_>, count: u64) -> usize {
    let (mut plan, mut outcome, mut allocations) = (Plan::default(), StepOutcome::default(), 0);
    for step in 0..count {
        let before = ALLOCATIONS.get();
        assert!(scheduler.plan(step, &mut plan));
        stepper.run(scheduler, &plan, &mut outcome);
        outcome.micros = 1000;
        scheduler.commit(step, &plan, &mut outcome);
        while scheduler.next_event().is_some() {}
        // The vectors of this function grow in its first steps.
        allocations += if step < 8 { 0 } else { ALLOCATIONS.get() - before };
    }
    allocations
}

#[test]
fn f23_a_steady_step_allocates_nothing() {
    for max_draft in [0, 2] {
        let (mut scheduler, mut stepper) = running(max_draft);
        steps(&mut scheduler, &mut stepper, 50);
        let allocations = steps(&mut scheduler, &mut stepper, 100);
        assert_eq!(scheduler.running(), RUNNING);
        assert_eq!(allocations, 0, "with {max_draft} drafts");
    }
}
