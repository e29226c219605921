//! What batching, scheduling and speculation cost and give, on real kernels, through the public names.
//!
//! Prints one JSON object: each row has what was measured, in which unit, and the goal. `cargo xtask bench` runs it;
//! ratios are between runs that took turns within one process, so that a noisy machine disturbs both sides alike.

#![allow(clippy::print_stdout, reason = "a benchmark reports")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bitnet_inference::sim::HashModel;
use bitnet_inference::{
    BatchSizing, Engine, EngineConfig, GenerationConfig, GpuInferenceEngine, Plan, Request, Scheduler,
    SchedulerConfig, StepOutcome, Stepper, Update,
};
use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{Batch, Limits, Logits, Model, Synthetic, Transformer};
use serde_json::{Value, json};

const LIMITS: Limits = Limits { max_tokens: 512, max_logit_rows: 64, kv_blocks: 160 };
const PROMPT: usize = 16;
const NEW: usize = 48;

fn main() {
    let mut rows = scheduling();
    for name in ["125m", "700m"] {
        rows.extend(gain(name));
    }
    rows.extend(lone_request());
    rows.extend(speculation());
    rows.push(time_between_tokens());
    println!("{}", json!({ "threads": threads(), "isa": Isa::best().name(), "rows": rows }));
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn model(name: &str, limits: Limits) -> Transformer<Cpu> {
    let synthetic = Synthetic::named(name).unwrap();
    let cpu = Cpu::new(Isa::best(), threads()).unwrap();
    Transformer::load(synthetic.spec(), &synthetic, cpu, limits, &mut |_, _| {}).unwrap()
}

fn row(what: impl Into<String>, value: f64, unit: &str, goal: &str) -> Value {
    json!({ "what": what.into(), "value": value, "unit": unit, "goal": goal })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds(run: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_secs_f64()
}

fn prompt(member: usize, length: usize, vocab: usize) -> Vec<u32> {
    (0..length).map(|i| ((i + 1) * (2 * member + 7) * 2_654_435_761 % vocab) as u32).collect()
}

fn greedy(max_new_tokens: usize) -> GenerationConfig {
    GenerationConfig { max_new_tokens, ignore_eos: true, ..GenerationConfig::default() }
}

/// Plan and commit of 256 running sequences.
fn scheduling() -> Vec<Value> {
    const RUNNING: usize = 256;
    let limits = Limits { max_tokens: 1024, max_logit_rows: 512, kv_blocks: RUNNING * 9 };
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: RUNNING,
        max_tokens: limits.max_tokens,
        max_rows: limits.max_logit_rows,
        kv_blocks: limits.kv_blocks,
        context: 512,
        max_draft: 0,
        sizing: BatchSizing::Fixed(RUNNING),
        slow_reader: u64::MAX,
        eos: vec![],
        text: None,
    });
    for i in 0..RUNNING {
        let request = Request::new(prompt(i, 20 + i % 50, 48), greedy(440));
        scheduler.submit(0, i as u64, Arc::new(request), 1);
    }
    let mut stepper = Stepper::new(Box::new(HashModel::new(50, 512, limits)));
    let (mut plan, mut outcome, mut times) = (Plan::default(), StepOutcome::default(), Vec::new());
    for step in 0..400 {
        let planned = seconds(|| assert!(scheduler.plan(step, &mut plan)));
        stepper.run(&scheduler, &plan, &mut outcome);
        let committed = seconds(|| scheduler.commit(step, &plan, &mut outcome));
        while scheduler.next_event().is_some() {}
        times.push((planned + committed) * 1e6);
    }
    let mut steady = times.split_off(50);
    steady.sort_by(f64::total_cmp);
    let at = |part: f64| steady[(steady.len() as f64 * part) as usize];
    vec![
        row("plan and commit of 256 sequences, median", at(0.5), "us", "at most 25"),
        row("plan and commit of 256 sequences, p99", at(0.99), "us", "at most 80"),
    ]
}

/// Tokens per second of several requests at once, as a multiple of one after the other.
fn gain(name: &str) -> Vec<Value> {
    const SIZES: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    const ROUNDS: usize = 3;
    let config = EngineConfig { max_batch_size: 16, ..EngineConfig::default() };
    let gpu = GpuInferenceEngine::new(model(name, LIMITS), config).unwrap();
    let vocab = gpu.engine().vocab();
    let requests: Vec<_> = (0..16).map(|i| (prompt(i, PROMPT, vocab), greedy(NEW))).collect();
    let alone: Vec<Vec<u32>> = requests.iter().map(|(p, c)| gpu.generate_tokens_gpu(p, c).unwrap()).collect();
    let mut speeds = vec![Vec::new(); SIZES.len()];
    for _ in 0..ROUNDS {
        for (size, speeds) in SIZES.into_iter().zip(&mut speeds) {
            let mut tokens = Vec::new();
            let time = seconds(|| tokens = gpu.process_batch_gpu(&requests[..size]).unwrap());
            assert!(tokens == alone[..size], "a batch of {size} gives what its members get alone");
            speeds.push((size * NEW) as f64 / time);
        }
    }
    let speeds: Vec<f64> = speeds.into_iter().map(median).collect();
    let mut rows = vec![row(format!("{name}, one request"), speeds[0], "tok/s", "half of the floor")];
    for (at, size) in SIZES.into_iter().enumerate().skip(1) {
        let goal = match size {
            4 => "at least 1.6",
            8 => "at least 2.0",
            _ => "at least 0.97 of the size before",
        };
        rows.push(row(
            format!("{name}, {size} requests over one after the other"),
            speeds[at] / speeds[0],
            "x",
            goal,
        ));
        rows.push(row(
            format!("{name}, {size} requests over the size before"),
            speeds[at] / speeds[at - 1],
            "x",
            goal,
        ));
    }
    rows
}

/// What the engine adds to a bare loop over the model, for a request alone.
fn lone_request() -> Vec<Value> {
    let mut bare = model("125m", LIMITS);
    let engine = Engine::start(model("125m", LIMITS), EngineConfig::default()).unwrap();
    let prompt = prompt(0, PROMPT, engine.vocab());
    let (mut by_loop, mut by_engine) = (Vec::new(), Vec::new());
    // A few percent drown in what else the machine does: the least of many is what each side can do.
    let (mut looped, mut batched) = (f64::INFINITY, f64::INFINITY);
    for salt in 0..20 {
        looped = looped.min(seconds(|| by_loop = decode(&mut bare, &prompt)));
        let request = Request { salt, ..Request::new(prompt.clone(), greedy(NEW)) };
        batched = batched.min(seconds(|| {
            by_engine = engine.submit(request).unwrap().wait().unwrap().choices.remove(0).tokens;
        }));
    }
    assert_eq!(by_loop, by_engine);
    vec![row("125m, time of a lone request over a bare loop", batched / looped, "x", "at most 1.03")]
}

/// Greedy decoding with nothing around it.
fn decode(model: &mut dyn Model, prompt: &[u32]) -> Vec<u32> {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let (mut tokens, mut out) = (prompt.to_vec(), Vec::new());
    let mut start = 0;
    while out.len() < NEW {
        batch.clear();
        batch.push(&tokens[start..], start, &[0, 1], tokens.len() - start - 1..tokens.len() - start);
        model.forward(&batch, &mut logits).unwrap();
        let row = logits.row(0);
        let best = (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        start = tokens.len();
        tokens.push(best as u32);
        out.push(best as u32);
    }
    out
}

/// Text that repeats itself, and text that does not, with guesses and without.
fn speculation() -> Vec<Value> {
    let start = |max_draft| {
        let config = EngineConfig { max_draft, ..EngineConfig::default() };
        Engine::start(model("125m", LIMITS), config).unwrap()
    };
    let (plain, guessing) = (start(0), start(8));
    let repeating = GenerationConfig { logit_bias: vec![(5, 100.0)], ..greedy(160) };
    let other = GenerationConfig { temperature: 1.0, seed: Some(1), ..greedy(160) };
    let speedup = |config: &GenerationConfig| {
        let ratio = |salt| {
            let run = |engine: &Engine| {
                let request =
                    Request { salt, ..Request::new(prompt(1, PROMPT, engine.vocab()), config.clone()) };
                let mut tokens = Vec::new();
                let time = seconds(|| {
                    tokens = engine.submit(request).unwrap().wait().unwrap().choices.remove(0).tokens
                });
                (time, tokens)
            };
            let ((without, want), (with, got)) = (run(&plain), run(&guessing));
            assert_eq!(got, want, "a guess changes no token");
            without / with
        };
        // The first runs teach the engine the times of its steps.
        median((0..9).map(ratio).skip(2).collect())
    };
    vec![
        row("125m, speed with guesses on text that repeats itself", speedup(&repeating), "x", "at least 1.5"),
        row("125m, speed with guesses on text that does not", speedup(&other), "x", "at least 0.97"),
    ]
}

/// A long prompt arrives beside eight streams, under a goal for the time between their tokens.
fn time_between_tokens() -> Value {
    const GOAL: Duration = Duration::from_millis(25);
    let sizing = BatchSizing::Auto { ttft: Duration::from_secs(5), itl: GOAL };
    let config = EngineConfig { sizing, max_batch_size: 16, ..EngineConfig::default() };
    let engine = Engine::start(model("125m", LIMITS), config).unwrap();
    let vocab = engine.vocab();
    let mut gaps: Vec<f64> = std::thread::scope(|scope| {
        let streams: Vec<_> = (0..8)
            .map(|i| {
                let handle = engine.submit(Request::new(prompt(i, PROMPT, vocab), greedy(300))).unwrap();
                scope.spawn(move || {
                    let (mut last, mut gaps) = (None, Vec::new());
                    for update in handle {
                        if let Update::Token { .. } = update {
                            let now = Instant::now();
                            gaps.extend(last.replace(now).map(|last| (now - last).as_secs_f64() * 1e3));
                        }
                    }
                    gaps
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        let long = engine.submit(Request::new(prompt(9, 2048, vocab), greedy(1))).unwrap();
        drop(long.wait().unwrap());
        streams.into_iter().flat_map(|s| s.join().unwrap()).collect()
    });
    gaps.sort_by(f64::total_cmp);
    let p95 = gaps[gaps.len() * 95 / 100];
    let ratio = p95 / (GOAL.as_secs_f64() * 1e3);
    row(
        "125m, p95 between tokens of 8 streams beside a prompt of 2,048, over the goal of 25 ms",
        ratio,
        "x",
        "at most 1.25",
    )
}
