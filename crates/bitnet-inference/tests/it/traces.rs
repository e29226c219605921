//! The decisions of automatic sizing, for given arrivals on a model whose steps take known times.

use std::sync::Arc;
use std::time::Duration;

use bitnet_inference::{
    BatchSizing, Priority, Request,
    scheduling::{Event, Plan, RunOutcome, SampledToken, Scheduler, SchedulerConfig, StepLoad, StepOutcome},
};

use crate::support::*;

/// 2 ms plus 0.5 ms for each sequence, 0.3 us for each token before it, 0.1 ms for each prompt token, and 0.05 us for
/// each token before that.
fn micros(load: StepLoad) -> u64 {
    let StepLoad { decodes, context, prefill, attended, .. } = load;
    2000 + 500 * decodes as u64 + 3 * context as u64 / 10 + 100 * prefill as u64 + attended as u64 / 20
}

const GOAL: u64 = 10_000;

/// The decisions in a step.
#[derive(Debug, Clone, Copy)]
struct Step {
    begun: u64,
    load: StepLoad,
    batch_size: usize,
    micros: u64,
}

struct Trace {
    steps: Vec<Step>,
    /// The times at which each request was admitted and ended, by its number.
    admitted: Vec<u64>,
    ended: Vec<u64>,
}

/// Plays requests of (arrival in microseconds, prompt tokens, new tokens).
fn play(arrivals: &[(u64, usize, usize)]) -> Trace {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: 64,
        max_tokens: 512,
        max_rows: 64,
        kv_blocks: 1000,
        state_slots: 0,
        context: 4096,
        max_draft: 0,
        sizing: BatchSizing::Auto { ttft: Duration::from_millis(500), itl: Duration::from_micros(GOAL) },
        slow_reader: u64::MAX,
        eos: vec![],
        text: None,
    });
    for decodes in 1..20 {
        let load =
            StepLoad { decodes, context: 40 * decodes, prefill: 7 * (decodes % 4), ..StepLoad::default() };
        scheduler.learn(load, micros(load));
    }
    let (mut now, mut next, mut steps) = (0, 0, Vec::new());
    let (mut admitted, mut ended) = (vec![0; arrivals.len()], vec![0; arrivals.len()]);
    let (mut plan, mut outcome) = (Plan::default(), StepOutcome::default());
    while next < arrivals.len() || !scheduler.is_empty() {
        while let Some(&(at, prompt, new)) = arrivals.get(next).filter(|a| a.0 <= now) {
            // A unique prefix, so that nothing comes from the prefix cache.
            let prompt: Vec<u32> = (0..prompt).map(|p| (p + 3 * next) as u32 % 48).collect();
            let request = Request { salt: next as u64, ..Request::new(prompt, greedy(new)) };
            scheduler.submit(at, next as u64, Arc::new(request), 0);
            next += 1;
        }
        scheduler.tick(now);
        if !scheduler.plan(now, &mut plan) {
            now = arrivals[next].0;
            continue;
        }
        let batch_size = scheduler.pace().batch_size();
        outcome.micros = micros(plan.load);
        for run in &plan.runs {
            let from = outcome.drawn.len();
            if run.rows > 0 {
                outcome.drawn.push(SampledToken::from(1));
            }
            outcome.runs.push(RunOutcome::Done(from..outcome.drawn.len()));
        }
        steps.push(Step { begun: now, load: plan.load, batch_size, micros: outcome.micros });
        now += outcome.micros;
        scheduler.commit(now, &plan, &mut outcome);
        while let Some(event) = scheduler.next_event() {
            match event {
                Event::Admitted(id, waited) => admitted[id.request as usize] = waited,
                Event::Ended(id, end) => {
                    end.unwrap();
                    ended[id.request as usize] = now;
                }
                Event::Token(..) => {}
            }
        }
    }
    Trace { steps, admitted, ended }
}

#[test]
fn a_low_load_is_served_immediately_and_leaves_the_batch_size_alone() {
    let arrivals: Vec<_> = (0..50).map(|i| (i * 400_000, 30, 20)).collect();
    let trace = play(&arrivals);
    assert!(trace.steps.iter().all(|s| s.batch_size == 4 && s.load.decodes <= 1), "{:?}", trace.steps);
    assert!(trace.admitted.iter().all(|&waited| waited == 0));
    // A prompt without decoding sequences is computed whole.
    assert!(trace.steps.iter().all(|s| s.load.prefill == 0 || s.load.prefill == 30));
}

#[test]
fn a_burst_grows_the_batch_by_one_a_step_and_keeps_the_goal() {
    let arrivals: Vec<_> = (0..40).map(|_| (1000, 20, 60)).collect();
    let trace = play(&arrivals);
    let sizes: Vec<usize> = trace.steps.iter().map(|s| s.batch_size).collect();
    assert!(sizes.windows(2).all(|w| w[1] <= w[0] + 1), "{sizes:?}");
    // 2 + 0.5 n ms and a little context stay within 9 ms up to 13. Once requests wait longer than their own goal, the
    // whole 10 ms are used.
    let early = trace.steps.iter().filter(|s| s.begun < 400_000).map(|s| s.batch_size);
    assert!((12..=14).contains(&early.max().unwrap()), "{sizes:?}");
    assert!((14..=16).contains(sizes.iter().max().unwrap()), "{sizes:?}");
    let over = trace.steps.iter().filter(|s| s.load.decodes > 1 && s.micros > GOAL * 5 / 4).count();
    assert!(over * 20 <= trace.steps.len(), "{over} of {} steps break the goal", trace.steps.len());
}

#[test]
fn a_flood_with_one_long_prompt_keeps_the_goal_and_the_long_one_ends() {
    let mut arrivals: Vec<_> = (0..120).map(|i| (i * 20_000, 20, 50)).collect();
    arrivals.insert(30, (30 * 20_000, 2048, 10));
    let trace = play(&arrivals);
    let beside: Vec<&Step> =
        trace.steps.iter().filter(|s| s.load.decodes > 1 && s.load.prefill > 0).collect();
    assert!(beside.len() > 20);
    let mut times: Vec<u64> = beside.iter().map(|s| s.micros).collect();
    times.sort_unstable();
    assert!(times[times.len() * 95 / 100] <= GOAL * 5 / 4, "{times:?}");
    // The long prompt takes many steps, none of which delays the others, and finishes before the flood.
    let long = 30;
    assert!(trace.ended[long] < *trace.ended.iter().max().unwrap());
    let waited = trace.admitted.iter().max().unwrap();
    assert!(*waited < 2_500_000, "waited {waited} us");
    assert!(beside.iter().all(|s| s.load.prefill <= 80), "a prompt gets what decoding leaves of the goal");
}

#[test]
fn chunks_of_a_long_prompt_shorten_as_its_attention_grows() {
    let mut arrivals: Vec<_> = (0..4).map(|_| (0, 20, 400)).collect();
    arrivals.push((500_000, 2048, 1));
    let trace = play(&arrivals);
    let beside: Vec<&Step> =
        trace.steps.iter().filter(|s| s.begun >= 500_000 && s.load.prefill > 0).collect();
    let chunks: Vec<usize> = beside.iter().map(|s| s.load.prefill).collect();
    assert!(chunks.iter().sum::<usize>() >= 2048 && beside.iter().all(|s| s.load.decodes == 4), "{chunks:?}");
    let (first, last) = (&chunks[3..8], &chunks[chunks.len() - 8..chunks.len() - 1]);
    assert!(first.iter().min() > last.iter().map(|n| n * 3 / 2).max().as_ref(), "{chunks:?}");
    let late: Vec<u64> = beside[beside.len() / 2..].iter().map(|s| s.micros).collect();
    assert!(late.iter().all(|&t| t <= GOAL), "{late:?}");
}

#[test]
fn with_a_goal_for_the_first_token_no_request_is_passed_over_for_longer_than_half_of_it() {
    let (ttft, itl) = (Duration::from_secs(1), Duration::from_millis(500));
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: 1,
        max_tokens: 64,
        max_rows: 16,
        kv_blocks: 64,
        state_slots: 0,
        context: CONTEXT,
        max_draft: 0,
        sizing: BatchSizing::Auto { ttft, itl },
        slow_reader: u64::MAX,
        eos: vec![],
        text: None,
    });
    let (mut plan, mut outcome) = (Plan::default(), StepOutcome::default());
    let request = |priority| Arc::new(Request { priority, ..Request::new([1, 2, 3], greedy(1)) });
    scheduler.submit(0, 0, request(Priority::Normal), 0);
    // A step takes 100 ms, and before each a more urgent request comes.
    for step in 0..200 {
        let now = 100_000 * step;
        scheduler.submit(now, 1 + step, request(Priority::Interactive), 0);
        scheduler.tick(now);
        assert!(scheduler.plan(now, &mut plan));
        for run in &plan.runs {
            let from = outcome.drawn.len();
            outcome.drawn.extend((run.rows > 0).then_some(SampledToken::from(1)));
            outcome.runs.push(RunOutcome::Done(from..outcome.drawn.len()));
        }
        outcome.micros = 100_000;
        scheduler.commit(now + 100_000, &plan, &mut outcome);
        while let Some(event) = scheduler.next_event() {
            if let Event::Admitted(id, waited) = event
                && id.request == 0
            {
                assert!((500_000..=600_000).contains(&waited), "{waited} us");
                return;
            }
        }
    }
    panic!("it has not been admitted in 20 s");
}
