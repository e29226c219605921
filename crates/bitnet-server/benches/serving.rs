//! What HTTP costs, and what clients see when there are too many of them.
//!
//! Prints one JSON object, whose rows have what was measured, its value, unit and goal. `cargo xtask bench` runs it.
//! Clients, server and engine share the machine; throughputs are measured in turns within one process.

#![allow(clippy::print_stdout, reason = "a benchmark reports")]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/support.rs"]
mod support;

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use bitnet::inference::{BatchSizing, Engine, EngineConfig, GenerationConfig, Request, Update};
use bitnet::kernels::{Cpu, Isa};
use bitnet::model::{Limits, Model, Synthetic, Transformer};
use bitnet_client::{Client, Seen, percentile};
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use serde_json::{Value, json};
use support::{SOON, Server, bare, serve_weights};

const CLIENTS: usize = 8;
const PROMPT: usize = 16;
const NEW: usize = 48;
/// Requests of each client in a round.
const ASKED: usize = 3;
const ROUNDS: usize = 5;
const PATH: &str = "/v1/completions";

fn main() {
    let mut rows = vec![throughput()];
    rows.extend(overload());
    println!("{}", json!({ "isa": Isa::best().name(), "threads": threads(), "rows": rows }));
}

fn row(what: &str, value: f64, unit: &str, goal: &str) -> Value {
    json!({ "what": what, "value": value, "unit": unit, "goal": goal })
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn model() -> Box<dyn Model> {
    let synthetic = Synthetic::named("125m").unwrap();
    let cpu = Cpu::new(Isa::best(), threads()).unwrap();
    let limits = Limits { max_tokens: 512, max_logit_rows: 64, kv_blocks: 160, state_slots: 0 };
    Box::new(Transformer::load(synthetic.spec(), &synthetic, cpu, limits, &mut |_, _| {}).unwrap())
}

fn server(engine: EngineConfig, config: ServerConfig) -> Server {
    let weights = model();
    let service = serve_weights(bare("125m", &*weights), weights, engine, config);
    Server::start(App::ready(service), ConnectionLimits::default(), SOON)
}

fn prompt(i: usize) -> Vec<u32> {
    (0..PROMPT).map(|p| (((p + 1) * (2 * i + 7) * 2_654_435_761) % 32_000) as u32).collect()
}

fn body(i: usize) -> Value {
    json!({"prompt": prompt(i), "max_tokens": NEW, "ignore_eos": true, "temperature": 0, "stream": true})
}

/// What a client with a connection of its own sees of one request.
fn ask(server: &Server, body: &Value) -> Seen {
    let (client, mut seen) = (Client::new(&format!("http://{}", server.address), SOON), Seen::default());
    seen.ask(&client, PATH, &body.to_string());
    assert_eq!(seen.problem, None);
    seen
}

/// Returns the seconds that all clients take, each sending one request after the other.
fn seconds(ask: impl Fn(usize) + Sync) -> f64 {
    let begun = Instant::now();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let ask = &ask;
            scope.spawn(move || (0..ASKED).for_each(|i| ask(client + CLIENTS * i)));
        }
    });
    begun.elapsed().as_secs_f64()
}

/// Compares the throughput of 8 clients that stream over HTTP with that of 8 threads that use an engine directly.
fn throughput() -> Value {
    let engine = Engine::start_boxed(model(), EngineConfig::default()).unwrap();
    let server = server(EngineConfig::default(), ServerConfig::default());
    let alone = |i| {
        let config =
            GenerationConfig { max_new_tokens: NEW, ignore_eos: true, ..GenerationConfig::default() };
        let handle = engine.submit(Request::new(prompt(i), config)).unwrap();
        assert_eq!(handle.filter(|update| matches!(update, Update::Token { .. })).count(), NEW);
    };
    let over_http = |i| assert_eq!(ask(&server, &body(i)).tokens, NEW);
    let mut ratios: Vec<f64> = (0..ROUNDS).map(|_| seconds(alone) / seconds(over_http)).collect();
    ratios.sort_by(f64::total_cmp);
    row("throughput of 8 streams over HTTP, of that in process", ratios[ROUNDS / 2], "ratio", ">= 0.9")
}

/// Sends four times as many requests as can be answered, at regular intervals.
fn overload() -> Vec<Value> {
    const GOAL: Duration = Duration::from_millis(1500);
    const BATCH: usize = 8;
    const SECONDS: f64 = 20.0;
    let engine =
        EngineConfig { max_batch_size: BATCH, sizing: BatchSizing::Fixed(BATCH), ..EngineConfig::default() };
    let config = ServerConfig { ttft_goal: Some(GOAL), ..ServerConfig::default() };
    let server = server(engine, config);
    // The peak: a few more requests at a time than there are places, so that the queue is never empty. Their priority
    // is `batch`, to which the goal does not apply, so none is refused.
    let peak = {
        let (next, begun, requests) = (AtomicUsize::new(0), Instant::now(), 6 * BATCH);
        thread::scope(|scope| {
            for _ in 0..BATCH + 4 {
                scope.spawn(|| {
                    while let i @ 0.. = next.fetch_add(1, Relaxed)
                        && i < requests
                    {
                        let mut patient = body(i);
                        patient["priority"] = json!("batch");
                        assert_eq!(ask(&server, &patient).tokens, NEW);
                    }
                });
            }
        });
        requests as f64 / begun.elapsed().as_secs_f64()
    };
    let offered = 4.0 * peak;
    let requests = (offered * SECONDS) as usize;
    let begun = Instant::now();
    let seen: Vec<(Instant, Seen)> = thread::scope(|scope| {
        let asked: Vec<_> = (0..requests)
            .map(|i| {
                let due = begun + Duration::from_secs_f64(i as f64 / offered);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let server = &server;
                scope.spawn(move || {
                    let seen = ask(server, &body(i));
                    (Instant::now(), seen)
                })
            })
            .collect();
        asked.into_iter().map(|a| a.join().unwrap()).collect()
    });
    // Only answers while requests are being sent, without the beginning, when nothing waits yet.
    let window = begun + Duration::from_secs(3)..begun + Duration::from_secs_f64(SECONDS);
    let answered = seen.iter().filter(|(at, seen)| window.contains(at) && seen.answered == 1).count();
    let goodput = answered as f64 / (window.end - window.start).as_secs_f64();
    let mut all = seen.into_iter().fold(Seen::default(), |all, (_, seen)| all.and(seen));
    for times in [&mut all.first, &mut all.refusals] {
        times.sort_by(f64::total_cmp);
    }
    let rank = |times: &[f64], part| percentile(times, part).unwrap_or(f64::NAN);
    let goal = GOAL.as_secs_f64() * 1e3;
    vec![
        row("requests offered, of what can be answered", offered / peak, "ratio", "4"),
        row("99 % of first tokens within, of the goal", rank(&all.first, 0.99) / goal, "ratio", "<= 1.25"),
        row("requests answered in overload, of the peak", goodput / peak, "ratio", ">= 0.9"),
        row("median time of a refusal", rank(&all.refusals, 0.5), "ms", "<= 5"),
        row("requests refused", all.refusals.len() as f64 / requests as f64, "ratio", ""),
    ]
}
