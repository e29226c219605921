//! Measures the host's part of a step on a GPU: the forward pass, and the whole engine, on a driver that does nothing.
//!
//! The model has the layers and heads of 2B-4T, and so its launches, but narrow rows and few tokens, so that loading is
//! quick. Prints a JSON object with a row for each measurement; `cargo xtask bench` runs it.

#![allow(clippy::print_stdout, reason = "a benchmark reports")]

use std::time::Instant;

use bitnet_inference::{Engine, EngineConfig, GenerationConfig, Request};
use bitnet_kernels::{SamplingParams, Wanted, gpu::Gpu};
use bitnet_model::{Batch, Limits, Logits, Model, ModelSpec, Synthetic, Transformer};
use bitnet_tests::Null;
use serde_json::{Value, json};

/// Sequences that run at once, with the goal for a step in microseconds, engine included.
const SEQUENCES: [(usize, &str); 3] = [(1, "at most 30"), (32, "at most 30"), (256, "at most 60")];
/// Tokens of a sequence before the steps that are measured.
const CONTEXT: usize = 128;
/// Blocks of a sequence.
const BLOCKS: usize = 8;
const LIMITS: Limits =
    Limits { max_tokens: 512, max_logit_rows: 256, kv_blocks: 256 * BLOCKS, state_slots: 0 };

fn main() {
    let forward = SEQUENCES.iter().map(|&(sequences, _)| forward(sequences));
    let engine = SEQUENCES.iter().map(|&(sequences, goal)| engine(sequences, goal));
    let rows: Vec<Value> = forward.chain([prompt()]).chain(engine).collect();
    println!("{}", json!({ "threads": 1, "isa": "a GPU that does nothing", "rows": rows }));
}

fn load() -> Transformer<Gpu<Null>> {
    let large = Synthetic::named("2b4t").unwrap();
    let small = Synthetic::of(ModelSpec { hidden: 128, ffn: 128, vocab: 512, ..large.spec().clone() });
    let gpu = Gpu::new(Null::default()).unwrap();
    Transformer::load(small.spec(), &small, gpu, LIMITS, &mut |_, _| {}).unwrap()
}

/// A row with the median and the extremes of several runs, in microseconds.
fn row(what: String, mut values: Vec<f64>, goal: &str) -> Value {
    values.sort_by(f64::total_cmp);
    let [value, min, max] = [values.len() / 2, 0, values.len() - 1].map(|at| values[at]);
    json!({ "what": what, "value": value, "min": min, "max": max, "unit": "us", "goal": goal })
}

/// The forward pass of a token of each sequence. Every step has other positions.
fn forward(sequences: usize) -> Value {
    const STEPS: usize = 300;
    let mut model = load();
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let mut times = Vec::new();
    for step in 0..STEPS {
        batch.clear();
        for sequence in 0..sequences {
            let blocks: Vec<u32> = (0..BLOCKS).map(|block| (sequence * BLOCKS + block) as u32).collect();
            batch.push(&[1], CONTEXT + step, &blocks, 0..1);
            batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
        }
        let begun = Instant::now();
        model.forward(&batch, &mut logits).unwrap();
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    row(format!("forward pass, sequences at once: {sequences}"), times.split_off(STEPS / 10), "no goal")
}

/// The forward pass of 32 sequences and a prompt, of another length in every step, so that no recording equals it.
fn prompt() -> Value {
    const SEQUENCES: usize = 32;
    let mut model = load();
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let times = (1..200).map(|length| {
        batch.clear();
        for sequence in 0..=SEQUENCES {
            let blocks: Vec<u32> = (0..BLOCKS).map(|block| (sequence * BLOCKS + block) as u32).collect();
            let (tokens, start) = if sequence == SEQUENCES { (1 + length, 0) } else { (1, CONTEXT) };
            batch.push(&vec![1; tokens], start, &blocks, tokens - 1..tokens);
            batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
        }
        let begun = Instant::now();
        model.forward(&batch, &mut logits).unwrap();
        begun.elapsed().as_secs_f64() * 1e6
    });
    row("forward pass, a prompt of a new length beside 32 sequences".to_owned(), times.collect(), "no goal")
}

/// A step of the engine: the additional time of requests for more tokens, divided by the additional steps.
fn engine(sequences: usize, goal: &str) -> Value {
    const FEW: usize = 32;
    const MANY: usize = 288;
    let config = EngineConfig { max_batch_size: sequences, ..EngineConfig::default() };
    let engine = Engine::start(load(), config).unwrap();
    let mut salt = 0;
    let mut run = |new| {
        let config =
            GenerationConfig { max_new_tokens: new, ignore_eos: true, ..GenerationConfig::default() };
        let begun = Instant::now();
        let requests = (0..sequences).map(|_| {
            salt += 1;
            Request { salt, ..Request::new(vec![1, 2, 3], config.clone()) }
        });
        let handles: Vec<_> = requests.map(|request| engine.submit(request).unwrap()).collect();
        handles
            .into_iter()
            .for_each(|handle| assert_eq!(handle.wait().unwrap().choices[0].tokens.len(), new));
        begun.elapsed().as_secs_f64() * 1e6
    };
    let times = (0..9).map(|_| {
        let few = run(FEW);
        (run(MANY) - few) / (MANY - FEW) as f64
    });
    row(format!("step of the engine, sequences at once: {sequences}"), times.collect(), goal)
}
