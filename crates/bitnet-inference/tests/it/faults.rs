//! Deliberate faults in every phase of a request: only the request at fault fails, with a typed error, all blocks are
//! released, and all other requests get the same tokens as alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bitnet_hash_model::HashModel;
use bitnet_inference::{
    BatchSizing, Constraint, ConstraintError, Engine, EngineConfig, GenerationConfig, Request, RequestError,
    SampleError, TokenSet,
    metrics::Counter,
    scheduling::{Event, Plan, RunOutcome, SampledToken, Scheduler, SchedulerConfig, StepOutcome, Stepper},
};
use bitnet_kernels::KernelError;
use bitnet_model::{Batch, ForwardError, Limits, Logits};

use crate::support::*;

/// First token of the culprit's prompt; other prompts have only lower tokens.
const CULPRIT: u32 = 48;
/// Number of tokens in the culprit's prompt, more than a block.
const PROMPT: usize = 40;

/// The fault of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    NanLogits,
    ForwardErrorOnce,
    ForwardError,
    /// The pass fails after it has changed the states of its runs.
    SpoiledOnce,
    Spoiled,
    ForwardPanic,
    /// The last row of logits is missing.
    SamplingPanic,
    ConstraintError,
    ConstraintPanic,
}

impl Fault {
    const ALL: [Fault; 9] = [
        Fault::NanLogits,
        Fault::ForwardErrorOnce,
        Fault::ForwardError,
        Fault::SpoiledOnce,
        Fault::Spoiled,
        Fault::ForwardPanic,
        Fault::SamplingPanic,
        Fault::ConstraintError,
        Fault::ConstraintPanic,
    ];

    fn is_told_as(self, error: &RequestError) -> bool {
        match self {
            Fault::NanLogits => matches!(error, RequestError::Sample(SampleError::NotANumber { .. })),
            Fault::ForwardErrorOnce | Fault::SpoiledOnce => false,
            Fault::Spoiled => *error == RequestError::Forward(spoiled()),
            Fault::ForwardError => *error == RequestError::Forward(planted()),
            Fault::ConstraintError => *error == RequestError::Constraint { message: "planted".into() },
            Fault::ForwardPanic | Fault::SamplingPanic | Fault::ConstraintPanic => {
                matches!(error, RequestError::Panic { .. })
            }
        }
    }
}

fn planted() -> ForwardError {
    ForwardError::StepTooLarge { what: "planted", actual: 1, limit: 0 }
}

fn spoiled() -> ForwardError {
    ForwardError::Kernel(KernelError::OutOfMemory { what: "planted", bytes: 1 })
}

/// Recognises the culprit in each step by its first block.
#[derive(Default)]
struct Follow {
    blocks: HashSet<u32>,
}

impl Follow {
    /// The culprit's run in a step and its rows of logits.
    fn find(&mut self, batch: &Batch) -> Option<(usize, std::ops::Range<usize>)> {
        for run in batch.runs().iter().filter(|run| run.start == 0) {
            let first = batch.table(run)[0];
            match batch.tokens()[run.tokens.start] {
                CULPRIT => self.blocks.insert(first),
                _ => self.blocks.remove(&first),
            };
        }
        let at = batch.runs().iter().position(|run| self.blocks.contains(&batch.table(run)[0]))?;
        let before = |end| batch.logit_rows().iter().filter(|&&index| index < end).count();
        let tokens = &batch.runs()[at].tokens;
        Some((at, before(tokens.start)..before(tokens.end)))
    }
}

/// A model that fails the culprit's run once it reaches position `at`.
fn model(fault: Fault, at: usize, (kv_blocks, state_slots): (usize, usize)) -> HashModel {
    let (mut follow, mut failed) = (Follow::default(), false);
    let hook = move |batch: &Batch, logits: Option<&mut Logits>| {
        let Some((run, rows)) = follow.find(batch) else { return Ok(()) };
        let run = &batch.runs()[run];
        if run.start + run.tokens.len() <= at {
            return Ok(());
        }
        match (fault, logits) {
            (Fault::ForwardErrorOnce, None) if !std::mem::replace(&mut failed, true) => Err(planted()),
            (Fault::ForwardError, None) => Err(planted()),
            (Fault::SpoiledOnce, Some(_)) if !std::mem::replace(&mut failed, true) => Err(spoiled()),
            (Fault::Spoiled, Some(_)) => Err(spoiled()),
            (Fault::ForwardPanic, None) => panic!("planted"),
            (Fault::NanLogits, Some(logits)) => {
                rows.for_each(|row| logits.row_mut(row)[20] = f32::NAN);
                Ok(())
            }
            (Fault::SamplingPanic, Some(logits)) if rows.end == logits.rows() && !rows.is_empty() => {
                logits.resize(rows.start, VOCAB);
                Ok(())
            }
            _ => Ok(()),
        }
    };
    let limits = Limits { kv_blocks, state_slots, ..limits() };
    HashModel::new(VOCAB, CONTEXT, limits).with_hook(Box::new(hook))
}

/// Allows everything until `after` tokens are generated, then fails.
#[derive(Debug)]
struct Failing {
    after: usize,
    panics: bool,
}

impl Constraint for Failing {
    fn allow(&self, _: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        (0..VOCAB as u32).for_each(|token| allowed.insert(token));
        if generated.len() < self.after {
            return Ok(());
        }
        if self.panics { panic!("planted") } else { Err(ConstraintError("planted".into())) }
    }
}

fn culprit(fault: Fault, at: usize) -> Request {
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|p| if p == 0 { CULPRIT } else { p % 40 }).collect();
    let constraint = matches!(fault, Fault::ConstraintError | Fault::ConstraintPanic).then(|| {
        let panics = fault == Fault::ConstraintPanic;
        Arc::new(Failing { after: (at + 1).saturating_sub(PROMPT), panics }) as Arc<dyn Constraint>
    });
    Request { constraint, ..Request::new(prompt, greedy(60)) }
}

/// Runs one fault in one phase. With few blocks, other sequences are preempted and recomputed meanwhile.
fn strike(fault: Fault, at: usize, max_draft: usize, (kv_blocks, states): (usize, usize)) {
    let what = format!("{fault:?} at {at}, {max_draft} drafts, {kv_blocks} blocks, {states} states");
    let model = model(fault, at, (kv_blocks, states));
    let engine = Engine::start(model, EngineConfig { max_draft, ..config() }).unwrap();
    let alone = |prompt: &[u32], config: &GenerationConfig| alone_with(states, prompt, config);
    let mut mix = mixed(24, 7 * at as u64 + max_draft as u64);
    mix.iter_mut().for_each(|(_, config)| config.max_new_tokens += 20);
    let mut requests: Vec<Request> = mix.iter().map(|(p, c)| Request::new(p.clone(), c.clone())).collect();
    // The last row belongs to the youngest sequence.
    let place = if fault == Fault::SamplingPanic { requests.len() } else { 5 };
    requests.insert(place, culprit(fault, at));
    let mut handles = engine.submit_all(requests).unwrap();
    let end = handles.remove(place).wait();
    match fault {
        // The step is repeated without any visible effect.
        Fault::ForwardErrorOnce | Fault::SpoiledOnce => {
            let request = culprit(fault, at);
            assert_eq!(end.unwrap().choices[0].tokens, alone(&request.prompt, &request.config), "{what}");
        }
        _ => assert!(end.as_ref().is_err_and(|error| fault.is_told_as(error)), "{what}: {end:?}"),
    }
    for (handle, (prompt, config)) in handles.into_iter().zip(&mix) {
        assert_eq!(handle.wait().unwrap().choices[0].tokens, alone(prompt, config), "{what}");
    }
    let count = |counter| engine.metrics().snapshot().get(counter);
    let heals = matches!(fault, Fault::ForwardErrorOnce | Fault::SpoiledOnce);
    assert_eq!(count(Counter::Failed), u64::from(!heals), "{what}");
    assert_eq!((count(Counter::Restarts), count(Counter::BrokenRules)), (0, 0), "{what}");
    until(|| engine.status().kv_used + engine.status().states_used == 0);
    // A text that needs all blocks gets them.
    let all = CONTEXT.min(kv_blocks * Batch::BLOCK_TOKENS) - 2;
    let done = engine.submit(Request::new([1, 2], greedy(all))).unwrap().wait().unwrap();
    assert_eq!(done.choices[0].tokens, alone(&[1, 2], &greedy(all)), "{what}");
    assert!(engine.shutdown(std::time::Duration::from_secs(20)).complete, "{what}");
}

#[test]
fn a_fault_in_any_phase_fails_the_culprit_alone_and_all_blocks_return() {
    for fault in Fault::ALL {
        // During the prompt, at the first token, and later.
        for at in [0, PROMPT - 1, PROMPT + 9] {
            for (max_draft, kv_blocks) in [(0, 64), (4, 64), (0, 16), (4, 16)] {
                // Without recurrent states, with one for each place, and with others for snapshots.
                for states in [0, 8, 14] {
                    strike(fault, at, max_draft, (kv_blocks, states));
                }
            }
        }
    }
}

#[test]
fn while_every_forward_pass_fails_all_requests_do_and_afterwards_all_are_served() {
    let broken = Arc::new(AtomicBool::new(false));
    let hook = {
        let broken = Arc::clone(&broken);
        move |_: &Batch, _: Option<&mut Logits>| if broken.load(Relaxed) { Err(planted()) } else { Ok(()) }
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let engine = Engine::start(model, config()).unwrap();
    for round in 0..3 {
        let mix = mixed(20, round);
        let submit = || {
            let requests = mix.iter().map(|(p, c)| {
                let config = GenerationConfig { max_new_tokens: 1 + c.max_new_tokens, ..c.clone() };
                Request::new(p.clone(), config)
            });
            engine.submit_all(requests.collect()).unwrap()
        };
        broken.store(true, Relaxed);
        for handle in submit() {
            assert_eq!(handle.wait(), Err(RequestError::Forward(planted())));
        }
        broken.store(false, Relaxed);
        for (handle, (prompt, config)) in submit().into_iter().zip(&mix) {
            let config = GenerationConfig { max_new_tokens: 1 + config.max_new_tokens, ..config.clone() };
            assert_eq!(handle.wait().unwrap().choices[0].tokens, alone(prompt, &config));
        }
        until(|| engine.status().kv_used == 0);
    }
}

/// A clock that stands still, jumps ahead by up to hours, and goes back.
fn clock(step: u64) -> u64 {
    const HOUR: u64 = 3_600_000_000;
    match bitnet_hash_model::mix(step, 99) % 5 {
        0 => HOUR,
        1 => 0,
        2 => HOUR + step * 2000,
        3 => step % 7 * HOUR,
        _ => u64::MAX - 5,
    }
}

#[test]
fn a_clock_that_jumps_and_goes_back_changes_no_token_and_loses_no_request() {
    for round in 0..40 {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            max_running: 8,
            max_tokens: 64,
            max_rows: 16,
            kv_blocks: if round % 2 == 0 { 64 } else { 16 },
            state_slots: 0,
            context: CONTEXT,
            max_draft: round % 3,
            sizing: BatchSizing::paced(8),
            slow_reader: u64::MAX,
            eos: vec![EOS],
            text: None,
        });
        let mut stepper = Stepper::new(Box::new(HashModel::new(
            VOCAB,
            CONTEXT,
            Limits { kv_blocks: if round % 2 == 0 { 64 } else { 16 }, ..limits() },
        )));
        let mix = mixed(20, round as u64);
        let mut got = vec![Vec::new(); mix.len()];
        let mut ended = vec![0; mix.len()];
        let (mut plan, mut outcome) = (Plan::default(), StepOutcome::default());
        let mut tick = 1000 * round as u64;
        let mut now = || {
            tick += 1;
            clock(tick)
        };
        for (i, (prompt, config)) in mix.iter().enumerate() {
            let request = Request::new(prompt.clone(), config.clone());
            scheduler.submit(now(), i as u64, Arc::new(request), config.seed.unwrap_or(0));
        }
        for step in 0.. {
            assert!(step < 20_000, "round {round}: it does not end");
            scheduler.tick(now());
            if scheduler.plan(now(), &mut plan) {
                stepper.run(&scheduler, &plan, &mut outcome);
                outcome.micros = now();
                scheduler.commit(now(), &plan, &mut outcome);
            }
            while let Some(event) = scheduler.next_event() {
                match event {
                    Event::Token(id, token, _) => got[id.request as usize].push(token),
                    Event::Ended(id, end) => {
                        end.unwrap();
                        ended[id.request as usize] += 1;
                    }
                    Event::Admitted(..) => {}
                }
            }
            assert_eq!(scheduler.check(), Ok(()));
            if scheduler.is_empty() {
                break;
            }
        }
        assert!(ended.iter().all(|&ends| ends == 1), "{ended:?}");
        for ((prompt, config), tokens) in mix.iter().zip(&got) {
            assert_eq!(*tokens, alone(prompt, config), "round {round}");
        }
        assert_eq!(scheduler.pool().available(), scheduler.pool().total());
    }
}

#[test]
fn a_clock_that_jumps_ends_requests_with_a_timeout_and_no_others() {
    let mut scheduler = scheduler(BatchSizing::Fixed(8));
    let timed = |timeout| Request { timeout, ..Request::new([1, 2, 3], greedy(5)) };
    scheduler.submit(1_000_000, 0, Arc::new(timed(Some(std::time::Duration::from_secs(60)))), 0);
    scheduler.submit(1_000_000, 1, Arc::new(timed(None)), 0);
    let (mut plan, mut outcome) = (Plan::default(), StepOutcome::default());
    let mut events = Vec::new();
    // First back to 0, then a day ahead, then back again.
    for now in [0, 86_400_000_000, 5, 6, 7, 8, 9, 10] {
        scheduler.tick(now);
        if scheduler.plan(now, &mut plan) {
            for run in &plan.runs {
                let from = outcome.drawn.len();
                outcome.drawn.extend((run.rows > 0).then_some(SampledToken::from(1)));
                outcome.runs.push(RunOutcome::Done(from..outcome.drawn.len()));
            }
            scheduler.commit(now, &plan, &mut outcome);
            outcome = StepOutcome::default();
        }
        events.extend(std::iter::from_fn(|| scheduler.next_event()));
    }
    let ends: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Ended(id, end) => Some((id.request, end.is_ok())),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [(0, false), (1, true)]);
    // Both were admitted at 0, before they arrived according to the clock.
    let waits: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Admitted(id, wait) => Some((id.request, *wait)),
            _ => None,
        })
        .collect();
    assert_eq!(waits, [(0, 0), (1, 0)]);
    assert!(scheduler.is_empty() && scheduler.check() == Ok(()));
}
