//! Measures the cost and gain of batching, scheduling and drafting, on real kernels, through the public names.
//!
//! Prints a JSON object. Each row has the name of the measurement, the median, minimum and maximum of its runs, the
//! unit and the goal. `cargo xtask bench` runs it; arguments such as `gain` or `speculation-125m` run only those
//! parts. Both sides of a ratio take turns within one process, so that noise on the machine affects both alike.

#![allow(clippy::print_stdout, reason = "a benchmark reports")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bitnet_hash_model::HashModel;
use bitnet_inference::{
    BatchSizing, Engine, EngineConfig, GenerationConfig, Request, Update,
    names::GpuInferenceEngine,
    sampling::{Draw, Sampler, random_u64},
    scheduling::{Reader, Scheduler, SchedulerConfig, StepLoop, StepTimes, Stepper},
};
use bitnet_kernels::{Cpu, Isa, Wanted, memory_bandwidth};
use bitnet_model::{
    Batch, Limits, Logits, Model, Synthetic, TensorEntry, TensorKind, TensorSource, Transformer,
};
use serde_json::{Value, json};

const LIMITS: Limits = Limits { max_tokens: 512, max_logit_rows: 64, kv_blocks: 160, state_slots: 0 };
const PROMPT: usize = 16;
const NEW: usize = 48;

/// A part of the benchmark, which returns its rows.
type Part = fn() -> Vec<Value>;

fn main() {
    let parts: [(&str, Part); 8] = [
        ("scheduling", scheduling),
        ("sampling", sampling),
        ("gain-125m", || gain("125m")),
        ("gain-700m", || gain("700m")),
        ("lone", lone_request),
        ("speculation-125m", || speculation("125m")),
        ("speculation-700m", || speculation("700m")),
        ("between", time_between_tokens),
    ];
    // Cargo adds its own flags.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.starts_with(w.as_str()));
    let rows: Vec<Value> =
        parts.into_iter().filter(|(name, _)| is_wanted(name)).flat_map(|(_, measure)| measure()).collect();
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

/// For rows without a goal, which explain others.
const NO_GOAL: &str = "no goal";

/// A row with the median and the extremes of several runs.
fn row(what: impl Into<String>, mut values: Vec<f64>, unit: &str, goal: &str) -> Value {
    values.sort_by(f64::total_cmp);
    let [value, min, max] = [values.len() / 2, 0, values.len() - 1].map(|at| values[at]);
    json!({ "what": what.into(), "value": value, "min": min, "max": max, "unit": unit, "goal": goal })
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

/// Drops all events.
struct Nobody;

impl Reader for Nobody {
    fn deliver(&mut self, scheduler: &mut Scheduler, _: &mut Stepper<'_>) {
        while scheduler.next_event().is_some() {}
    }
}

/// Plan and commit of 256 running sequences.
fn scheduling() -> Vec<Value> {
    const RUNNING: usize = 256;
    let limits = Limits { max_tokens: 1024, max_logit_rows: 512, kv_blocks: RUNNING * 9, state_slots: 0 };
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: RUNNING,
        max_tokens: limits.max_tokens,
        max_rows: limits.max_logit_rows,
        kv_blocks: limits.kv_blocks,
        state_slots: 0,
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
    let stepper = Stepper::new(Box::new(HashModel::new(50, 512, limits)));
    let mut steps = StepLoop::new(scheduler, stepper);
    let mut times = Vec::new();
    for _ in 0..400 {
        assert!(steps.step(&mut Nobody));
        let StepTimes { plan, commit, .. } = steps.times();
        times.push((plan + commit).as_secs_f64() * 1e6);
    }
    let mut steady = times.split_off(50);
    steady.sort_by(f64::total_cmp);
    let p99 = steady[steady.len() * 99 / 100];
    vec![
        row("plan and commit of 256 sequences, median", steady, "us", "at most 25"),
        row("plan and commit of 256 sequences, p99", vec![p99], "us", "at most 80"),
    ]
}

/// Drawing a token from a vocabulary of 128,256.
fn sampling() -> Vec<Value> {
    // Roughly normal logits, as flat as the flattest real rows.
    let part = |i, c| (random_u64(5, c, i) >> 40) as f32 / (1 << 24) as f32 - 0.5;
    let logits: Vec<f32> = (0..128_256).map(|i| (0..6).map(|c| part(i, c)).sum::<f32>() * 4.0).collect();
    let mut sampler = Sampler::new(logits.len());
    let plain = GenerationConfig { temperature: 1.0, ..GenerationConfig::default() };
    let mut draw = |what, config: GenerationConfig, goal| {
        let (config, tokens) = (&config, &[1, 2, 3]);
        let at = Draw { config, tokens, prompt_len: 3, banned: &[], allowed: None, seed: 1, choice: 0 };
        let mut once = || assert!(sampler.draw(&logits, &at).unwrap() < 128_256);
        let times = (0..20).map(|_| seconds(&mut once) * 1e3).collect();
        row(format!("one token of 128,256, {what}"), times, "ms", goal)
    };
    vec![
        draw("the most likely", GenerationConfig::default(), "at most 0.5"),
        draw("from all", plain.clone(), "at most 2"),
        draw("from the first 50", GenerationConfig { top_k: 50, ..plain.clone() }, "at most 2"),
        draw("from nine tenths", GenerationConfig { top_p: 0.9, ..plain }, "at most 3"),
    ]
}

/// Minimum bytes of weights that a step reads: trits at two bits, and the output head.
fn step_bytes(model: &Synthetic) -> f64 {
    let head = if model.spec().tied_head { "model.embed_tokens.weight" } else { "lm_head.weight" };
    let bytes = |entry: &TensorEntry| match entry.kind {
        TensorKind::Ternary => entry.shape.iter().product::<usize>() / 4,
        // 2 bits for each weight, and 16 for every 128 weights.
        TensorKind::Grouped if entry.name == head || entry.name != "model.embed_tokens.weight" => {
            entry.shape.iter().product::<usize>() * 17 / 64
        }
        // Synthetic tables are bf16.
        TensorKind::Dense if entry.name == head => 2 * entry.shape.iter().product::<usize>(),
        TensorKind::Grouped | TensorKind::Dense | TensorKind::Norm => 0,
    };
    model.entries().iter().map(bytes).sum::<usize>() as f64
}

/// Tokens per second of a single request, as a fraction of the limit by memory bandwidth, and of several at once, as a
/// multiple of one after another.
fn gain(name: &str) -> Vec<Value> {
    const SIZES: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    const ROUNDS: usize = 3;
    let config = EngineConfig { max_batch_size: 16, ..EngineConfig::default() };
    let gpu = GpuInferenceEngine::new(model(name, LIMITS), config).unwrap();
    let vocab = gpu.engine().vocab();
    let requests: Vec<_> = (0..16).map(|i| (prompt(i, PROMPT, vocab), greedy(NEW))).collect();
    let alone: Vec<Vec<u32>> = requests.iter().map(|(p, c)| gpu.generate_tokens_gpu(p, c).unwrap()).collect();
    let (mut speeds, mut bandwidths) = (vec![Vec::new(); SIZES.len()], Vec::new());
    for _ in 0..ROUNDS {
        for (size, speeds) in SIZES.into_iter().zip(&mut speeds) {
            let mut tokens = Vec::new();
            let time = seconds(|| tokens = gpu.process_batch_gpu(&requests[..size]).unwrap());
            assert!(tokens == alone[..size], "a batch of {size} gives what its members get alone");
            speeds.push((size * NEW) as f64 / time);
        }
        bandwidths.extend(memory_bandwidth(threads(), None).map(|gb_s| gb_s * 1e9));
    }
    // Ratios are within one round, so that both sides had the same conditions.
    let over = |at: usize, by: usize| speeds[at].iter().zip(&speeds[by]).map(|(a, b)| a / b).collect();
    let mut rows = vec![row(format!("{name}, one request"), speeds[0].clone(), "tok/s", NO_GOAL)];
    if !bandwidths.is_empty() {
        // The minimum time of a token: its bytes divided by the bandwidth.
        let bytes = step_bytes(&Synthetic::named(name).unwrap());
        let parts = speeds[0].iter().zip(&bandwidths).map(|(speed, bandwidth)| bytes * speed / bandwidth);
        let what = format!("{name}, one request, part of the speed that memory bandwidth allows");
        rows.push(row(what, parts.collect(), "x", "at least 0.5"));
    }
    for (at, size) in SIZES.into_iter().enumerate().skip(1) {
        let goal = match size {
            4 => "at least 1.6",
            8 => "at least 2.0",
            _ => NO_GOAL,
        };
        rows.push(row(format!("{name}, {size} requests over one after the other"), over(at, 0), "x", goal));
        let what = format!("{name}, {size} requests over the size before");
        rows.push(row(what, over(at, at - 1), "x", "at least 0.97"));
    }
    rows
}

/// The engine's overhead for a lone request, compared to a bare loop over the model.
fn lone_request() -> Vec<Value> {
    let mut bare = model("125m", LIMITS);
    let engine = Engine::start(model("125m", LIMITS), EngineConfig::default()).unwrap();
    let prompt = prompt(0, PROMPT, engine.vocab());
    let (mut by_loop, mut by_engine) = (Vec::new(), Vec::new());
    let ratio = |salt| {
        let looped = seconds(|| by_loop = decode(&mut bare, &prompt));
        let request = Request { salt, ..Request::new(prompt.clone(), greedy(NEW)) };
        let batched = seconds(|| {
            by_engine = engine.submit(request).unwrap().wait().unwrap().choices.remove(0).tokens;
        });
        batched / looped
    };
    let ratios = (0..21).map(ratio).collect();
    assert_eq!(by_loop, by_engine);
    vec![row("125m, time of a lone request over a bare loop", ratios, "x", "at most 1.03")]
}

/// A bare loop of greedy decoding.
fn decode(model: &mut dyn Model, prompt: &[u32]) -> Vec<u32> {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let (mut tokens, mut out) = (prompt.to_vec(), Vec::new());
    let mut start = 0;
    while out.len() < NEW {
        batch.clear();
        batch.push(&tokens[start..], start, &[0, 1], tokens.len() - start - 1..tokens.len() - start);
        // The same part of the head as in the engine.
        batch.want(|_| Wanted::Top(1));
        model.forward(&batch, &mut logits).unwrap();
        let row = logits.row(0);
        let best = (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        start = tokens.len();
        tokens.push(best as u32);
        out.push(best as u32);
    }
    out
}

/// A request with and without drafts: on text that repeats itself, on text whose past recurs but continues differently,
/// and on text without repetition.
fn speculation(name: &str) -> Vec<Value> {
    const DRAFTS: usize = 4;
    let start = |max_draft| {
        let config = EngineConfig { max_draft, ..EngineConfig::default() };
        Engine::start(model(name, LIMITS), config).unwrap()
    };
    let (plain, drafting) = (start(0), start(DRAFTS));
    let sampled = GenerationConfig { temperature: 1.0, seed: Some(1), ..greedy(160) };
    let only = |tokens: std::ops::Range<u32>| tokens.map(|token| (token, 100.0)).collect();
    let texts = [
        ("repeats itself", GenerationConfig { logit_bias: only(5..6), ..sampled.clone() }, "at least 1.5"),
        ("varies", GenerationConfig { logit_bias: only(5..8), ..sampled.clone() }, "at least 0.97"),
        ("never comes again", sampled, "at least 0.97"),
    ];
    let mut rows = Vec::new();
    for (text, config, goal) in texts {
        let before = drafting.status().scheduler;
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
            let ((without, want), (with, got)) = (run(&plain), run(&drafting));
            assert_eq!(got, want, "a draft changes no token");
            without / with
        };
        let ratios = (0..9).map(ratio).collect();
        let after = drafting.status().scheduler;
        let (drafted, right) = (after.drafted - before.drafted, after.accepted - before.accepted);
        assert!(drafted > 0 || text == "never comes again", "text that {text} is drafted");
        rows.push(row(
            format!("{name}, speed with up to {DRAFTS} drafts, text that {text}"),
            ratios,
            "x",
            goal,
        ));
        let told = [("right", right), ("wrong, or not reached", drafted - right)];
        rows.extend(told.map(|(which, count)| {
            row(format!("{name}, drafts {which}, text that {text}"), vec![count as f64], "tokens", NO_GOAL)
        }));
    }
    rows
}

/// A long prompt arrives during eight streams, with a goal for the time between their tokens.
fn time_between_tokens() -> Vec<Value> {
    const GOAL: Duration = Duration::from_millis(25);
    let sizing = BatchSizing::Auto { ttft: Duration::from_secs(5), itl: GOAL };
    let config = EngineConfig { sizing, max_batch_size: 16, ..EngineConfig::default() };
    let engine = Engine::start(model("125m", LIMITS), config).unwrap();
    let vocab = engine.vocab();
    let (gaps, [begun, ended]) = std::thread::scope(|scope| {
        let streams: Vec<_> = (0..8)
            .map(|i| {
                let handle = engine.submit(Request::new(prompt(i, PROMPT, vocab), greedy(300))).unwrap();
                scope.spawn(move || {
                    let (mut last, mut gaps) = (None, Vec::new());
                    for update in handle {
                        if let Update::Token { .. } = update {
                            let now = Instant::now();
                            gaps.extend(last.replace(now).map(|last| [last, now]));
                        }
                    }
                    gaps
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        let begun = Instant::now();
        let long = engine.submit(Request::new(prompt(9, 2048, vocab), greedy(1))).unwrap();
        drop(long.wait().unwrap());
        let long = [begun, Instant::now()];
        (streams.into_iter().flat_map(|s| s.join().unwrap()).collect::<Vec<_>>(), long)
    });
    let beside = gaps.into_iter().filter(|[last, now]| *last < ended && *now > begun);
    let mut over: Vec<f64> =
        beside.map(|[last, now]| (now - last).as_secs_f64() / GOAL.as_secs_f64()).collect();
    assert!(over.len() > 8 * 20, "the streams outlast the prompt");
    over.sort_by(f64::total_cmp);
    let p95 = over[over.len() * 95 / 100];
    vec![
        row(
            "125m, p95 between tokens of 8 streams beside a prompt of 2,048, over the goal of 25 ms",
            vec![p95],
            "x",
            "at most 1.25",
        ),
        row("125m, time between those tokens, over the goal", over, "x", NO_GOAL),
    ]
}
