//! The allocations of steps: in the scheduler and in the forward pass.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use bitnet_hash_model::HashModel;
use bitnet_inference::{
    BatchSizing, Request,
    scheduling::{Reader, Scheduler, SchedulerConfig, StepLoop, Stepper},
};
use bitnet_kernels::{Cpu, Isa, KvType, Wanted};
use bitnet_model::{Batch, Limits, Logits, Model, Synthetic, Transformer};

use crate::support::*;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Counts the allocations of each thread, and their bytes.
struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator; counting touches a thread-local integer, which
// needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get() + layout.size());
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const RUNNING: usize = 256;

/// A scheduler with 256 running sequences, and a stepper for its plans.
fn running(max_draft: usize) -> (Scheduler, Stepper<'static>) {
    let limits = Limits { max_tokens: 1024, max_logit_rows: 512, kv_blocks: RUNNING * 9, state_slots: 0 };
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: RUNNING,
        max_tokens: limits.max_tokens,
        max_rows: limits.max_logit_rows,
        kv_blocks: limits.kv_blocks,
        state_slots: 0,
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

/// Drops all events.
struct Nobody;

impl Reader for Nobody {
    fn deliver(&mut self, scheduler: &mut Scheduler, _: &mut Stepper<'_>) {
        while scheduler.next_event().is_some() {}
    }
}

#[test]
fn a_steady_step_allocates_nothing() {
    for max_draft in [0, 2] {
        let (scheduler, stepper) = running(max_draft);
        // Else whether a draft is first accepted while allocations are counted depends on measured times.
        let scheduler = scheduler.drafting_at_any_cost();
        let mut steps = StepLoop::new(scheduler, stepper);
        // The loop's own vectors grow in the first steps.
        (0..58).for_each(|_| assert!(steps.step(&mut Nobody)));
        let before = ALLOCATIONS.get();
        (0..92).for_each(|_| assert!(steps.step(&mut Nobody)));
        assert_eq!(ALLOCATIONS.get() - before, 0, "with {max_draft} drafts");
        assert_eq!(steps.scheduler.running(), RUNNING);
    }
}

#[test]
fn choices_that_wait_share_one_copy_of_their_prompt() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: 2,
        max_tokens: 64,
        max_rows: 16,
        kv_blocks: 2000,
        state_slots: 0,
        context: 100_000,
        max_draft: 0,
        sizing: BatchSizing::Fixed(2),
        slow_reader: 1 << 40,
        eos: vec![EOS],
        text: None,
    });
    let prompt = vec![1; 90_000];
    let config = bitnet_inference::GenerationConfig { n: 128, ..greedy(5000) };
    let request = Arc::new(Request::new(prompt, config));
    let before = BYTES.get();
    scheduler.submit(0, 0, request, 1);
    let bytes = BYTES.get() - before;
    assert_eq!(scheduler.waiting(), 128);
    assert!(bytes < 90_000 * 4, "{bytes} bytes for 128 choices of a prompt of 360,000");
}

#[test]
fn a_forward_pass_on_the_cpu_allocates_nothing_not_even_the_first() {
    let source = Synthetic::named("tiny").unwrap();
    let limits = Limits { max_tokens: 64, max_logit_rows: 8, kv_blocks: 8, state_slots: 0 };
    for kv in KvType::ALL {
        // One thread, so that all work runs on this one.
        let cpu = Cpu::new(Isa::best(), 1).unwrap().keeping(kv);
        let mut model = Transformer::load(source.spec(), &source, cpu, limits, &mut |_, _| {}).unwrap();
        let mut batch = Batch::with_capacity(64, 8, 8);
        let mut logits = Logits::with_capacity(8, source.spec().vocab);
        // The largest step, then a small one; with bounds, then with all logits.
        for (tokens, start) in [(8, 0), (1, 8)] {
            for wanted in [Wanted::Top(1), Wanted::All] {
                batch.clear();
                for sequence in 0..8 {
                    let ids: [u32; 8] = std::array::from_fn(|i| (31 * i + sequence) as u32);
                    batch.push(&ids[..tokens], start, &[sequence as u32], tokens - 1..tokens);
                    batch.want(|_| wanted);
                }
                let before = ALLOCATIONS.get();
                model.forward(&batch, &mut logits).unwrap();
                assert_eq!(ALLOCATIONS.get() - before, 0, "{kv}, {tokens} tokens a sequence, {wanted:?}");
            }
        }
    }
}
