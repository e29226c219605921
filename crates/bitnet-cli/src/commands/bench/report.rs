//! The measurements, as JSON and as a table.

use bitnet::kernels::{DeviceStatus, HeadCounts, gpu::Ceilings};
use serde::Serialize;

use super::drafts::{Known, Rows};
use super::kernels::Kernel;
use super::speed::Speed;
use crate::{error::CliError, memory, output};

#[derive(Serialize)]
pub struct Report {
    pub device: String,
    pub isa: &'static str,
    pub threads: usize,
    pub model: String,
    pub kv: &'static str,
    /// Why the GPU that was tried is not used; null if none was tried, or if it is used.
    pub gpu_refused: Option<String>,
    /// Of the CPU; null if a GPU computes.
    pub memory_bandwidth_gb_s: Option<f64>,
    /// 10^12 integer operations per second of the CPU from registers, a product counting as two; null if a GPU
    /// computes.
    pub integer_peak_tops: Option<f64>,
    pub load_seconds: f64,
    /// Peak resident memory, including weights and cache; null if the system does not report it.
    pub peak_memory_bytes: Option<u64>,
    pub weight_layout: &'static str,
    /// Bytes of weights that a step reads.
    pub weight_bytes: u64,
    /// Trits that each token is multiplied by.
    pub trits: u64,
    /// Work of the GPU; null on the CPU.
    pub gpu: Option<Gpu>,
    /// Maximum number of prompt tokens in a step.
    pub step: usize,
    pub prefill: Vec<Prefill>,
    pub decode_tokens: usize,
    pub decode: Vec<Decode>,
    /// Decoding with several numbers of threads, if requested; everything else was measured with the last of them.
    pub scaling: Vec<OnThreads>,
    /// Decoding with draft tokens, if requested.
    pub speculation: Vec<Speculation>,
    /// Times of steps with several tokens of one sequence, if drafts of a known quality are requested.
    pub rows: Vec<Rows>,
    /// Decoding with drafts of a known quality, if requested.
    pub known_drafts: Vec<Known>,
    /// Decoding with tokens drawn otherwise than greedily, if requested.
    pub sampling: Vec<Sampling>,
    /// Single kernels, if requested.
    pub kernels: Vec<Kernel>,
    pub batch_equals_single: bool,
}

#[derive(Serialize)]
pub struct Gpu {
    memory_used_bytes: u64,
    memory_total_bytes: u64,
    kernel_launches: u64,
    /// Steps that ran as one recorded graph.
    replays: u64,
    /// Tokens drawn on the GPU.
    drawn: u64,
    launch_seconds: f64,
    transfer_seconds: f64,
    compute_seconds: f64,
    /// Limits of its kernels, if they were measured.
    #[serde(flatten)]
    pub ceilings: Option<Peaks>,
}

/// Measured limits of a GPU, which no kernel can exceed.
#[derive(Serialize, Clone, Copy)]
pub struct Peaks {
    /// 10^9 bytes per second, read and written together.
    pub copy_gb_s: f64,
    /// 10^12 int8 operations per second of the matrix units; a product counts as two.
    pub int8_tops: f64,
    /// The same for bf16.
    pub bf16_tflops: f64,
}

impl From<Ceilings> for Peaks {
    fn from(Ceilings { copy, int8, bf16 }: Ceilings) -> Self {
        Peaks { copy_gb_s: copy / 1e9, int8_tops: int8 / 1e12, bf16_tflops: bf16 / 1e12 }
    }
}

impl From<DeviceStatus> for Gpu {
    fn from(DeviceStatus { memory_used, memory_total, counts, .. }: DeviceStatus) -> Self {
        Gpu {
            memory_used_bytes: memory_used,
            memory_total_bytes: memory_total,
            kernel_launches: counts.launches,
            replays: counts.replays,
            drawn: counts.drawn,
            launch_seconds: counts.times.launch.as_secs_f64(),
            transfer_seconds: counts.times.transfer.as_secs_f64(),
            compute_seconds: counts.times.compute.as_secs_f64(),
            ceilings: None,
        }
    }
}

#[derive(Serialize)]
pub struct Prefill {
    pub tokens: usize,
    #[serde(flatten)]
    pub speed: Speed,
    /// Median time from the whole prompt to the first token drawn.
    pub first_token_ms: f64,
}

/// One sequence decoded with draft tokens.
#[derive(Serialize)]
pub struct Speculation {
    pub text: &'static str,
    /// Maximum number of draft tokens in a step.
    pub drafts: usize,
    #[serde(flatten)]
    pub speed: Speed,
    /// The same without draft tokens.
    pub plain: Speed,
    pub drafted: u64,
    pub accepted: u64,
}

/// One sequence decoded as common requests draw their tokens.
#[derive(Serialize)]
pub struct Sampling {
    /// How tokens were drawn.
    pub how: &'static str,
    #[serde(flatten)]
    pub speed: Speed,
    /// The same with the most likely tokens, in turns.
    pub greedy: Speed,
    /// The speed over that.
    pub of_greedy: f64,
    /// Work of the output head in all runs, prompts included; null if unknown.
    pub head: Option<HeadRows>,
}

/// Work of the output head.
#[derive(Serialize)]
pub struct HeadRows {
    /// Rows of logits from which bounds drew a token.
    pub drawn: u64,
    /// Rows whose token was drawn from few allowed tokens.
    pub allowed: u64,
    /// Rows that bounds left undecided.
    pub undecided: u64,
    /// Rows for which all logits were computed, undecided ones included.
    pub whole: u64,
    /// Logits computed one by one.
    pub rescored: u64,
    /// Rows of the head that a token needed on average, as a part of all; a row of the int8 copy counts as half.
    pub of_head: f64,
}

impl HeadRows {
    /// The work for `tokens` tokens of a vocabulary of `vocab`.
    pub fn of(head: &HeadCounts, tokens: usize, vocab: usize) -> Self {
        let &HeadCounts { drawn, allowed, undecided, whole, rescored, .. } = head;
        let rows = vocab as f64 * (whole as f64 + (drawn + undecided) as f64 / 2.0) + rescored as f64;
        HeadRows { drawn, allowed, undecided, whole, rescored, of_head: rows / (tokens * vocab) as f64 }
    }
}

#[derive(Serialize)]
pub struct Decode {
    pub batch: usize,
    /// Tokens before the first decoded one, in the shortest sequence.
    pub depth: usize,
    #[serde(flatten)]
    pub speed: Speed,
    /// Weights read, in 10^9 bytes per second.
    pub gb_s: f64,
    /// Keys and values read, in 10^9 bytes per second; null if layers slide, which do not read all.
    pub cache_gb_s: Option<f64>,
    /// Milliseconds of processor time for a token, of all threads together; null if the system does not tell.
    pub cpu_ms: Option<f64>,
}

/// One sequence decoded with a number of threads.
#[derive(Serialize)]
pub struct OnThreads {
    pub threads: usize,
    #[serde(flatten)]
    pub decode: Decode,
    /// What as many threads read from memory together, in 10^9 bytes per second; null if it could not be measured.
    pub bandwidth_gb_s: Option<f64>,
    /// The part of that at which weights are read.
    pub of_bandwidth: Option<f64>,
}

fn percent(part: Option<f64>, of: &str) -> String {
    part.map_or(String::new(), |part| format!("  {:5.1} % of the {of}", 100.0 * part))
}

fn cpu_text(cpu_ms: Option<f64>) -> String {
    cpu_ms.map_or(String::new(), |ms| format!("  {ms:8.3} ms of processor time a token"))
}

pub fn print(r: &Report) -> Result<(), CliError> {
    let Report { model, device, isa, threads, kv, .. } = r;
    let mut lines = vec![
        format!(
            "{model} on {device}, isa {isa}, {threads} threads, kv {kv}, loaded in {:.2} s",
            r.load_seconds
        ),
        format!(
            "memory bandwidth {}, integer peak {}, peak memory {}, weights of {:.1} MB per step",
            memory::bandwidth_text(r.memory_bandwidth_gb_s),
            r.integer_peak_tops.map_or("unknown".into(), |tops| format!("{tops:.2} TOPS")),
            r.peak_memory_bytes.map_or("unknown".into(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6)),
            r.weight_bytes as f64 / 1e6
        ),
        format!("weights: {}", r.weight_layout),
    ];
    if let Some(gpu) = &r.gpu {
        lines.push(format!(
            "gpu memory {:.1} of {:.1} GB, {} kernels launched, {} steps replayed, {} tokens drawn on the GPU",
            gpu.memory_used_bytes as f64 / 1e9,
            gpu.memory_total_bytes as f64 / 1e9,
            gpu.kernel_launches,
            gpu.replays,
            gpu.drawn
        ));
        lines.extend(gpu.ceilings.map(|Peaks { copy_gb_s, int8_tops, bf16_tflops }| {
            format!("gpu copies {copy_gb_s:.0} GB/s, multiplies {int8_tops:.0} TOPS, {bf16_tflops:.0} TFLOPS")
        }));
    }
    for p in &r.prefill {
        let of_peak = r.integer_peak_tops.map(|peak| 2e-12 * p.speed.tok_s * r.trits as f64 / peak);
        let tokens = p.tokens;
        let speed = p.speed.text();
        let of_peak = percent(of_peak, "integer peak");
        lines.push(format!(
            "prefill {tokens:5} tokens   {speed}{of_peak}  first token {:.2} ms",
            p.first_token_ms
        ));
    }
    for OnThreads { threads, decode, of_bandwidth, .. } in &r.scaling {
        let Decode { speed, gb_s, cpu_ms, .. } = decode;
        let (speed, of_bandwidth) = (speed.text(), percent(*of_bandwidth, "bandwidth"));
        lines.push(format!(
            "decode  {threads:5} threads  {speed}  {gb_s:7.2} GB/s of weights{of_bandwidth}{}",
            cpu_text(*cpu_ms)
        ));
    }
    for Decode { batch, depth, speed, gb_s, cache_gb_s, cpu_ms } in &r.decode {
        let speed = speed.text();
        let cache = cache_gb_s.map_or(String::new(), |gb_s| format!(", {gb_s:6.2} GB/s of the cache"));
        let both = r.memory_bandwidth_gb_s.zip(*cache_gb_s).map(|(all, cache)| (gb_s + cache) / all);
        lines.push(format!(
            "decode  batch {batch:5}    {speed}  {gb_s:7.2} GB/s of weights{cache}{}{}, after {depth} tokens",
            percent(both, "bandwidth"),
            cpu_text(*cpu_ms)
        ));
    }
    for s in &r.speculation {
        let Speculation { text, drafts, speed, plain, drafted, accepted } = s;
        lines.push(format!(
            "decode  {drafts:2} drafts      {}, without {:.2}; text that {text}, {accepted} of {drafted} accepted",
            speed.text(),
            plain.tok_s
        ));
    }
    for Rows { tokens, ms, most } in &r.rows {
        lines.push(format!("step    {tokens:2} tokens      {ms:9.2} ms, at most {most:.2} times as fast"));
    }
    for k in &r.known_drafts {
        let Known { acceptance, most, speed, plain, gain, drafted, accepted, steps } = k;
        lines.push(format!(
            "decode  {most:2} drafts      {}, {gain:.3} of {:.2} without; right with chance {acceptance}: \
             {accepted} of {drafted} accepted in {steps} steps",
            speed.text(),
            plain.tok_s
        ));
    }
    for s in &r.sampling {
        let head = s.head.as_ref().map_or(String::new(), |head| {
            let HeadRows { drawn, allowed, undecided, whole, rescored, of_head } = head;
            format!(
                "; {drawn} drawn by bounds, {allowed} of few allowed, {undecided} undecided, {whole} whole rows, \
                 {rescored} logits, {:.1} % of the head a token",
                100.0 * of_head
            )
        });
        let (how, speed) = (s.how, s.speed.text());
        lines.push(format!("decode  {how:36} {speed}, {:.3} of greedy{head}", s.of_greedy));
    }
    for k in &r.kernels {
        let Kernel { operation, shape, kernels, tokens, microseconds, gb_s, tera_ops_s, .. } = k;
        let kernels = kernels.iter().map(|name| format!("  {name}")).collect::<String>();
        lines.push(format!(
            "kernel  {operation:22} {shape:>12} {tokens:5} tokens  {microseconds:9.2} us  {gb_s:7.1} GB/s{}  \
             {tera_ops_s:7.2} Tops/s{}{kernels}",
            percent(k.of_bandwidth, "bandwidth"),
            percent(k.of_peak, "peak")
        ));
    }
    lines.push("the tokens of a batch equal those of its members alone".into());
    output::line(lines.join("\n"))
}
