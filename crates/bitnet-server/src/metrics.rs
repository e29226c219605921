//! Counters and measurements for Prometheus. Histograms have vLLM's bucket edges, so that its dashboards work.

use std::{sync::Arc, time::Duration};

use bitnet::{
    inference::{
        Engine, Priority, TierCounts,
        metrics::{Counter, Measure, Recorder},
    },
    kernels::HeadCounts,
};
use parking_lot::Mutex;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, TextEncoder,
    core::{Atomic, Collector, GenericCounter},
    proto::{Metric, MetricFamily, MetricType},
};
use serde_json::{Map, Value, json};

use crate::{
    overload::Overload,
    process,
    tier_metrics::{self, Kept, Read},
};

const QUEUE: &[f64] =
    &[0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0];
const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0,
];
const BETWEEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const STEP: &[f64] =
    &[1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0];
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0];

const RATIO: &[f64] = &[0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0];

/// What an engine counts.
const COUNTERS: [(Counter, &str, &str); 6] = [
    (Counter::PromptTokens, "bitnet_prompt_tokens_total", "Prompt tokens of accepted requests."),
    (Counter::GeneratedTokens, "bitnet_generation_tokens_total", "Tokens generated."),
    (Counter::Steps, "bitnet_steps_total", "Forward passes."),
    (Counter::Pauses, "bitnet_slow_reader_pauses_total", "Times a request paused for a slow reader."),
    (Counter::Restarts, "bitnet_engine_restarts_total", "Times the engine restarted after a fault."),
    (
        Counter::BrokenRules,
        "bitnet_invariant_violations_total",
        "Violated scheduler invariants, each a bug; always 0 in a correct program.",
    ),
];

/// What an engine measures, and the edges of the buckets.
const MEASURES: [(Measure, &str, &str, &[f64]); 9] = [
    (Measure::QueueTime, "bitnet_queue_time_seconds", "From submission to a place in a batch.", QUEUE),
    (Measure::FirstToken, "bitnet_time_to_first_token_seconds", "From submission to the first token.", FIRST),
    (Measure::InterToken, "bitnet_inter_token_latency_seconds", "Between two tokens of a choice.", BETWEEN),
    (Measure::EndToEnd, "bitnet_e2e_latency_seconds", "From submission to the end.", QUEUE),
    (
        Measure::CancelToFree,
        "bitnet_cancel_to_free_seconds",
        "From the cancellation of a request until its memory is free.",
        STEP,
    ),
    (Measure::BatchSize, "bitnet_step_rows", "Sequences in a step.", ROWS),
    (Measure::StepTokens, "bitnet_step_tokens", "Tokens in a step.", ROWS),
    (
        Measure::Padding,
        "bitnet_step_padding_ratio",
        "Fraction of a step's positions that hold no token.",
        RATIO,
    ),
    (
        Measure::StepModelError,
        "bitnet_step_model_error_ratio",
        "Error of a step's predicted time, as a fraction of its measured time.",
        RATIO,
    ),
];

/// The phases of a step, by their label.
const PHASES: [(Measure, &str); 9] = [
    (Measure::StepPlan, "plan"),
    (Measure::StepPack, "pack"),
    (Measure::StepForward, "forward"),
    (Measure::StepSample, "sample"),
    (Measure::StepCommit, "commit"),
    (Measure::StepDistribute, "distribute"),
    (Measure::KernelLaunch, "launch"),
    (Measure::MemoryTransfer, "transfer"),
    (Measure::DeviceCompute, "device"),
];

const GAUGES: [Kept; 8] = [
    ("bitnet_requests_running", "Sequences in the batch.", |e| e.status().running as u64),
    ("bitnet_requests_waiting", "Sequences without a place in a batch yet.", |e| e.queue().sequences as u64),
    ("bitnet_requests_paused", "Sequences of slow readers.", |e| e.status().paused as u64),
    ("bitnet_queue_tokens", "Prompt tokens of waiting requests.", |e| e.queue().tokens as u64),
    ("bitnet_batch_target", "Current limit on running sequences.", |e| e.status().batch_size as u64),
    ("bitnet_kv_blocks", "Blocks of the key-value cache.", |e| e.status().kv_blocks as u64),
    ("bitnet_kv_blocks_used", "Blocks in use.", |e| e.status().kv_used as u64),
    ("bitnet_kv_blocks_cached", "Free blocks in the prefix cache.", |e| e.status().kv_cached as u64),
];

/// Only of a model whose sliding layers have blocks of their own.
const WINDOW_GAUGES: [Kept; 3] = [
    ("bitnet_window_blocks", "Blocks of sliding layers.", |e| e.status().window_blocks as u64),
    ("bitnet_window_blocks_used", "Blocks of sliding layers in use.", |e| e.status().windows_used as u64),
    ("bitnet_window_blocks_cached", "Free blocks of sliding layers in the prefix cache.", |e| {
        e.status().windows_cached as u64
    }),
];

/// Only of a model with recurrent layers.
const STATE_GAUGES: [Kept; 3] = [
    ("bitnet_state_slots", "Slots of recurrent state.", |e| e.status().state_slots as u64),
    ("bitnet_state_slots_used", "State slots that sequences own.", |e| e.status().states_used as u64),
    ("bitnet_state_snapshots", "State slots that hold snapshots.", |e| e.status().states_saved as u64),
];

/// Only of a GPU.
const GPU_GAUGES: [Kept; 3] = [
    ("bitnet_gpu_memory_used_bytes", "GPU memory in use when the model was loaded.", |e| {
        e.status().device.map_or(0, |d| d.memory_used)
    }),
    ("bitnet_gpu_memory_total_bytes", "GPU memory.", |e| e.status().device.map_or(0, |d| d.memory_total)),
    ("bitnet_gpu_lost", "1 if the GPU has failed; nothing is computed any more.", |e| {
        u64::from(e.lost().is_some())
    }),
];

const KEPT_COUNTERS: [Kept; 16] = [
    ("bitnet_preemptions_total", "Times a sequence had to give its blocks back.", |e| {
        e.status().scheduler.preemptions
    }),
    ("bitnet_recomputed_tokens_total", "Tokens computed again after preemptions.", |e| {
        e.status().scheduler.recomputed_tokens
    }),
    ("bitnet_prefix_cache_queries_tokens_total", "Tokens looked up in the cache.", |e| {
        e.status().scheduler.prefix_tokens
    }),
    ("bitnet_prefix_cache_hits_tokens_total", "Tokens found in the cache.", |e| {
        e.status().scheduler.prefix_hits
    }),
    ("bitnet_spec_drafted_tokens_total", "Tokens drafted.", |e| e.status().scheduler.drafted),
    ("bitnet_spec_accepted_tokens_total", "Drafted tokens that were accepted.", |e| {
        e.status().scheduler.accepted
    }),
    ("bitnet_spec_runs_total", "Times that a sequence got drafts in a step.", |e| {
        e.status().scheduler.drafted_runs
    }),
    (
        "bitnet_spec_drafter_faults_total",
        "Failures of the drafter, which cost drafts and nothing else.",
        |e| e.status().faults.drafter,
    ),
    ("bitnet_step_faults_total", "Forward passes that failed.", |e| e.status().faults.failed_forwards),
    ("bitnet_step_retries_total", "Forward passes tried again, whole or halved.", |e| {
        e.status().faults.retries
    }),
    ("bitnet_host_draws_total", "Tokens drawn from rows of logits.", |e| e.status().draws.host),
    ("bitnet_head_drawn_rows_total", "Tokens drawn from bounds of their logits.", |e| head(e).drawn),
    (
        "bitnet_head_undecided_rows_total",
        "Draws that bounds left open, so that all logits were computed.",
        |e| head(e).undecided,
    ),
    ("bitnet_head_whole_rows_total", "Rows for which all logits were computed.", |e| head(e).whole),
    (
        "bitnet_head_allowed_rows_total",
        "Tokens drawn from the logits of few allowed tokens, which alone were computed.",
        |e| head(e).allowed,
    ),
    (
        "bitnet_head_rescored_logits_total",
        "Logits computed one by one: of allowed tokens, or because bounds did not rule them out.",
        |e| head(e).rescored,
    ),
];

/// Only of a GPU.
const GPU_COUNTERS: [Kept; 4] = [
    ("bitnet_gpu_draws_total", "Tokens drawn on the GPU.", |e| e.status().draws.device),
    ("bitnet_gpu_launches_total", "Kernels launched.", |e| {
        e.status().device.map_or(0, |d| d.counts.launches)
    }),
    ("bitnet_gpu_replays_total", "Recordings of launches replayed.", |e| {
        e.status().device.map_or(0, |d| d.counts.replays)
    }),
    ("bitnet_gpu_recording_failures_total", "Recordings that the driver failed to make or to run.", |e| {
        e.status().device.map_or(0, |d| d.counts.unrecorded)
    }),
];

/// Where drafts come from, with how many were made and how many accepted.
const DRAFTS: [(&str, Read, Read); 4] = [
    ("forced", |e| e.status().scheduler.sources[0][0], |e| e.status().scheduler.sources[0][1]),
    ("prediction", |e| e.status().scheduler.sources[1][0], |e| e.status().scheduler.sources[1][1]),
    ("text", |e| e.status().scheduler.sources[2][0], |e| e.status().scheduler.sources[2][1]),
    ("drafter", |e| e.status().scheduler.sources[3][0], |e| e.status().scheduler.sources[3][1]),
];

/// Places of a run of drafts, with how many drafts there were accepted; the last is for all later places.
const PLACES: [(&str, Read); 4] = [
    ("1", |e| e.status().scheduler.accepted_at[0]),
    ("2", |e| e.status().scheduler.accepted_at[1]),
    ("3", |e| e.status().scheduler.accepted_at[2]),
    ("4+", |e| e.status().scheduler.accepted_at[3]),
];
/// Work of the output head; zeros on a GPU, which counts it by itself.
fn head(engine: &Engine) -> HeadCounts {
    engine.status().head.unwrap_or_default()
}

/// Causes for which sequences fail alone.
const FAULTS: [(&str, Read); 4] = [
    ("forward", |e| e.status().faults.forward),
    ("sampling", |e| e.status().faults.sampling),
    ("constraint", |e| e.status().faults.constraint),
    ("panic", |e| e.status().faults.panics),
];

/// The metrics of one served model.
pub(crate) struct ServerMetrics {
    registry: Registry,
    overload: Arc<Overload>,
    requests: IntCounterVec,
    rejected: IntCounterVec,
    answers: IntCounterVec,
    counters: Vec<(Counter, IntCounter)>,
    measures: Vec<(Measure, Histogram)>,
    /// Has an entry for each phase that was measured.
    phases: HistogramVec,
    /// The lock makes requests for metrics take turns.
    polled: Mutex<Polled>,
}

/// Metrics whose numbers the engine keeps, copied when they are requested.
struct Polled {
    gauges: Vec<(IntGauge, Read)>,
    counters: Vec<(IntCounter, Read)>,
    usage: Gauge,
    step_age: Gauge,
    process: Process,
}

/// Metrics of this process; without members where the system does not tell them.
#[derive(Default)]
struct Process {
    cpu: Option<prometheus::Counter>,
    gauges: Vec<Gauge>,
}

impl Process {
    fn new(r: &Registry) -> Self {
        let Some([(cpu, help, _), gauges @ ..]) = process::metrics() else { return Process::default() };
        let cpu = registered(r, prometheus::Counter::new(cpu, help).expect("a valid name"));
        let float = |(name, help, _)| registered(r, Gauge::new(name, help).expect("a valid name"));
        Process { cpu: Some(cpu), gauges: gauges.map(float).into() }
    }

    fn poll(&self) {
        let (Some(cpu), Some([(_, _, seconds), gauges @ ..])) = (&self.cpu, process::metrics()) else {
            return;
        };
        cpu.reset();
        cpu.inc_by(seconds);
        self.gauges.iter().zip(gauges).for_each(|(gauge, (_, _, value))| gauge.set(value));
    }
}

impl Polled {
    fn new(r: &Registry, engine: &Engine) -> Self {
        let status = engine.status();
        let device = status.device.is_some();
        let float = |name, help| registered(r, Gauge::new(name, help).expect("a valid name"));
        let age = "How long the current step has been running; 0 between steps.";
        Polled {
            gauges: gauges(r, [device, status.window_blocks > 0, status.state_slots > 0], status.tier),
            counters: counters(r, device, status.tier),
            usage: float("bitnet_kv_cache_usage_ratio", "Fraction of the cache in use, 0 to 1."),
            step_age: float("bitnet_step_age_seconds", age),
            process: Process::new(r),
        }
    }
}

impl ServerMetrics {
    /// Makes the metrics, with the label `model` for the name that clients use.
    pub fn new(model: &str, engine: &Engine, overload: Arc<Overload>) -> Self {
        let labels = [("model".to_owned(), model.to_owned())].into();
        let registry = Registry::new_custom(None, Some(labels)).expect("one label");
        let r = &registry;
        describe(r, engine);
        let requests = Opts::new("bitnet_requests_total", "Requests that have ended, by class and reason.");
        let rejected = Opts::new("bitnet_requests_rejected_total", "Requests that were refused, by reason.");
        let answers =
            "HTTP requests that were answered, by method, route and status. A stream counts when it begins.";
        let answers = Opts::new("bitnet_http_requests_total", answers);
        ServerMetrics {
            requests: registered(r, IntCounterVec::new(requests, &["class", "reason"]).expect("valid")),
            rejected: registered(r, IntCounterVec::new(rejected, &["reason"]).expect("valid")),
            answers: registered(
                r,
                IntCounterVec::new(answers, &["method", "path", "status"]).expect("valid"),
            ),
            counters: COUNTERS.map(|(count, name, help)| (count, counter(r, name, help))).into(),
            measures: MEASURES.map(|(of, name, help, edges)| (of, histogram(r, name, help, edges))).into(),
            phases: phases(r),
            polled: Mutex::new(Polled::new(r, engine)),
            registry,
            overload,
        }
    }

    /// Counts a request that has ended.
    pub fn ended(&self, priority: Priority, reason: &str) {
        self.requests.with_label_values(&[priority.name(), reason]).inc();
    }

    /// Counts a request that was refused.
    pub fn rejected(&self, reason: &str) {
        self.rejected.with_label_values(&[reason]).inc();
    }

    /// Counts an HTTP request that was answered.
    pub fn answered(&self, method: &str, path: &str, status: &str) {
        self.answers.with_label_values(&[method, path, status]).inc();
    }

    /// All metrics, in the text format of Prometheus.
    pub fn text(&self, engine: &Engine) -> String {
        let mut text = Vec::new();
        let written = TextEncoder::new().encode(&self.gather(engine), &mut text);
        written.expect("memory takes everything");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// All metrics, as JSON: under each name a list of objects, each with its labels, and a value or a count and a sum.
    pub fn json(&self, engine: &Engine) -> Value {
        let families = self.gather(engine);
        let rows = |f: &MetricFamily| f.get_metric().iter().map(|m| row(f.get_field_type(), m)).collect();
        families.iter().map(|f| (f.name().to_owned(), rows(f))).collect::<Map<_, _>>().into()
    }

    fn gather(&self, engine: &Engine) -> Vec<MetricFamily> {
        let polled = self.polled.lock();
        for (gauge, value) in &polled.gauges {
            gauge.set(value(engine).cast_signed());
        }
        for (counter, value) in &polled.counters {
            set(counter, value(engine));
        }
        polled.process.poll();
        let status = engine.status();
        polled.usage.set(status.kv_used as f64 / status.kv_blocks.max(1) as f64);
        polled.step_age.set(status.step_age.map_or(0.0, |age| age.as_secs_f64()));
        self.registry.gather()
    }
}

fn row(kind: MetricType, metric: &Metric) -> Value {
    let labels = metric.get_label().iter().map(|l| (l.name().to_owned(), l.value().into()));
    let numbers = match kind {
        MetricType::COUNTER => vec![("value", json!(metric.get_counter().get_value()))],
        MetricType::GAUGE => vec![("value", json!(metric.get_gauge().get_value()))],
        _ => {
            let values = metric.get_histogram();
            vec![("count", json!(values.get_sample_count())), ("sum", json!(values.get_sample_sum()))]
        }
    };
    let numbers = numbers.into_iter().map(|(name, value)| (name.to_owned(), value));
    labels.chain(numbers).collect::<Map<_, _>>().into()
}

/// Receives reports on the engine's own threads.
impl Recorder for ServerMetrics {
    fn stalled(&self, age: Duration, plans: &str) {
        tracing::error!(target: "bitnet::server", ?age, plans, "a step takes too long: /live fails until it ends");
    }

    fn add(&self, counter: Counter, by: u64) {
        if let Some((_, counter)) = self.counters.iter().find(|(counted, _)| *counted == counter) {
            counter.inc_by(by);
        }
    }

    fn observe(&self, measure: Measure, value: f64) {
        match measure {
            Measure::QueueTime => self.overload.admitted(value),
            Measure::FirstToken => self.overload.first_token(value),
            _ => {}
        }
        if let Some((_, histogram)) = self.measures.iter().find(|(measured, _)| *measured == measure) {
            histogram.observe(value);
        }
        if let Some((_, phase)) = PHASES.iter().find(|(measured, _)| *measured == measure) {
            self.phases.with_label_values(&[*phase]).observe(value);
        }
    }
}

/// Metrics that are always 1, whose labels describe the server.
fn describe(r: &Registry, engine: &Engine) {
    let build =
        Opts::new("bitnet_build_info", "The program.").const_label("version", env!("CARGO_PKG_VERSION"));
    registered(r, IntGauge::with_opts(build).expect("valid labels")).set(1);
    let backend = engine.backend();
    let opts = Opts::new("bitnet_backend_info", "What the model runs on.");
    let opts = opts.const_label("device", &backend.device).const_label("isa", backend.isa);
    let opts = opts.const_label("kv", backend.kv);
    registered(r, IntGauge::with_opts(opts).expect("valid labels")).set(1);
}

fn phases(r: &Registry) -> HistogramVec {
    let help = "Phases of a step: plan, pack, forward, sample, commit, distribute; on a GPU, also parts of forward: \
                launch (host time to launch kernels), transfer and device (both in GPU time).";
    let opts = HistogramOpts::new("bitnet_step_seconds", help).buckets(STEP.to_vec());
    registered(r, HistogramVec::new(opts, &["phase"]).expect("valid"))
}

fn gauges(
    r: &Registry,
    [device, windows, recurrent]: [bool; 3],
    tier: Option<TierCounts>,
) -> Vec<(IntGauge, Read)> {
    let of_windows = WINDOW_GAUGES.into_iter().filter(|_| windows);
    let of_states = STATE_GAUGES.into_iter().filter(|_| recurrent);
    let of_gpu = GPU_GAUGES.into_iter().filter(|_| device);
    let all = GAUGES.into_iter().chain(of_windows).chain(of_states).chain(of_gpu);
    let all = all.chain(tier_metrics::gauges(tier));
    all.map(|(name, help, read)| (gauge(r, name, help), read)).collect()
}

fn counters(r: &Registry, device: bool, tier: Option<TierCounts>) -> Vec<(IntCounter, Read)> {
    let faults = Opts::new("bitnet_row_faults_total", "Sequences that failed alone, by cause.");
    let faults = registered(r, IntCounterVec::new(faults, &["kind"]).expect("valid"));
    let faults = FAULTS.into_iter().map(|(kind, read)| (faults.with_label_values(&[kind]), read));
    let by_label = |name, help, label| {
        registered(r, IntCounterVec::new(Opts::new(name, help), &[label]).expect("valid"))
    };
    let help = "Tokens drafted, by where they come from; forced ones cannot be rejected.";
    let drafted = by_label("bitnet_spec_source_drafted_tokens_total", help, "source");
    let help = "Drafted tokens that were accepted, by where they come from.";
    let accepted = by_label("bitnet_spec_source_accepted_tokens_total", help, "source");
    let help = "Drafted tokens that were accepted, by their place in a run of drafts.";
    let placed = by_label("bitnet_spec_position_accepted_tokens_total", help, "position");
    let drafts = DRAFTS.into_iter().flat_map(|(source, made, kept)| {
        [(&drafted, made), (&accepted, kept)].map(|(of, read)| (of.with_label_values(&[source]), read))
    });
    let places = PLACES.into_iter().map(|(place, read)| (placed.with_label_values(&[place]), read));
    let labelled: Vec<(IntCounter, Read)> = drafts.chain(places).collect();
    let of_gpu = GPU_COUNTERS.into_iter().filter(|_| device);
    let kept = KEPT_COUNTERS.into_iter().chain(of_gpu).chain(tier_metrics::counters(tier));
    kept.map(|(name, help, read)| (counter(r, name, help), read)).chain(faults).chain(labelled).collect()
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> C {
    registry.register(Box::new(metric.clone())).expect("names differ");
    metric
}

fn counter(r: &Registry, name: &str, help: &str) -> IntCounter {
    registered(r, IntCounter::new(name, help).expect("a valid name"))
}

fn gauge(r: &Registry, name: &str, help: &str) -> IntGauge {
    registered(r, IntGauge::new(name, help).expect("a valid name"))
}

fn histogram(r: &Registry, name: &str, help: &str, edges: &[f64]) -> Histogram {
    let opts = HistogramOpts::new(name, help).buckets(edges.to_vec());
    registered(r, Histogram::with_opts(opts).expect("a valid name"))
}

fn set<P: Atomic<T = u64>>(counter: &GenericCounter<P>, value: u64) {
    counter.reset();
    counter.inc_by(value);
}
