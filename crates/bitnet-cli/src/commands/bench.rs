use std::{
    ops::ControlFlow,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bitnet_inference::{EngineConfig, Generated, GenerationConfig, ThroughputRecord, generate};
use bitnet_kernels::{Ask, BackendInfo, DeviceStatus, Drawn};
use bitnet_model::{Batch, Checkpoint, Logits, Model};
use serde::Serialize;

use crate::{
    args::{BenchArgs, Common, DEFAULT_DEPTH},
    error::CliError,
    load::{Loaded, Want, cpu, load},
    memory, model_arg, output,
    progress::Progress,
};

/// Most tokens in one step.
const STEP: usize = 512;
/// Most sequences decoded together.
const MAX_BATCH: usize = 1024;
/// Prompts of a batch are up to so much longer than its shortest, so that no two members are at the same position.
const RAGGED: usize = 5;
/// Tokens compared between a batch and its members alone.
const COMPARED: usize = 16;
/// Each speed is measured this often, as long as that takes no longer than [`PATIENCE`]; the median counts.
const REPEATS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Serialize)]
struct Report {
    device: String,
    isa: &'static str,
    threads: usize,
    model: String,
    kv: &'static str,
    memory_bandwidth_gb_s: Option<f64>,
    /// Integer operations a second of the CPU out of registers, 10^12, a product being two; null where a GPU computes.
    integer_peak_tops: Option<f64>,
    load_seconds: f64,
    /// Resident memory at its most, with weights and cache; null where the system does not tell.
    peak_memory_bytes: Option<u64>,
    /// Bytes of weights that a step reads.
    weight_bytes: u64,
    /// Trits that a token is multiplied with.
    trits: u64,
    /// What a GPU did; null on the CPU.
    gpu: Option<Gpu>,
    prefill: Vec<Prefill>,
    decode_tokens: usize,
    /// Tokens before those.
    decode_depth: usize,
    decode: Vec<Decode>,
    /// What guessing ahead gives, if that was asked for.
    speculation: Vec<Speculation>,
    batch_equals_single: bool,
}

/// Tokens per second over several runs: the median, and the extremes.
#[derive(Serialize, Clone, Copy)]
struct Speed {
    tok_s: f64,
    tok_s_min: f64,
    tok_s_max: f64,
    runs: usize,
}

impl Speed {
    /// Of runs that computed `tokens` in these seconds each.
    fn of(tokens: usize, mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let (runs, speed) = (seconds.len(), |at: usize| tokens as f64 / seconds[at]);
        Speed { tok_s: speed(runs / 2), tok_s_min: speed(runs - 1), tok_s_max: speed(0), runs }
    }

    fn told(&self) -> String {
        let Speed { tok_s, tok_s_min, tok_s_max, .. } = self;
        format!("{tok_s:9.2} tok/s ({tok_s_min:.2} to {tok_s_max:.2})")
    }
}

#[derive(Serialize)]
struct Gpu {
    memory_used_bytes: u64,
    memory_total_bytes: u64,
    kernel_launches: u64,
    /// Steps that ran as one recorded piece of work.
    replays: u64,
    /// Tokens drawn where their logits were made.
    drawn: u64,
    launch_seconds: f64,
    transfer_seconds: f64,
    compute_seconds: f64,
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
        }
    }
}

#[derive(Serialize)]
struct Prefill {
    tokens: usize,
    #[serde(flatten)]
    speed: Speed,
}

/// One sequence decoded with guesses.
#[derive(Serialize)]
struct Speculation {
    text: &'static str,
    /// Most tokens guessed in a step.
    guesses: usize,
    #[serde(flatten)]
    speed: Speed,
    /// The same without guesses.
    plain: Speed,
    drafted: u64,
    accepted: u64,
}

#[derive(Serialize)]
struct Decode {
    batch: usize,
    #[serde(flatten)]
    speed: Speed,
    /// Weights read, in 10^9 bytes a second.
    gb_s: f64,
}

/// `bitnet bench`.
pub fn run(common: &Common, args: &BenchArgs) -> Result<(), CliError> {
    let checkpoint = match (&args.url, &args.model) {
        (Some(url), _) => return super::bench_url::run(url, args),
        (None, model) => model_arg::open(model.as_deref().unwrap_or_default())?,
    };
    let want = want(args, &checkpoint)?;
    let Loaded { mut model, weights, time } = load(common, &checkpoint, want)?;
    let mut bench = Bench::new(&checkpoint.name, &mut *model, args.depth, want.tokens);

    // One sequence is compared as well, with itself beside another: so that the answer always means something.
    let members = args.batch.iter().copied().max().unwrap_or(1).max(2);
    let bar = Progress::new("comparing", members + 1);
    bench.compare(members, args.decode.min(COMPARED), &bar)?;
    drop(bar);

    let bar = Progress::new("measuring", args.prefill.len() + args.batch.len() + 1);
    let prefill = args.prefill.iter().map(|&tokens| {
        let speed = Speed::of(tokens, repeated(|| bench.prefill(tokens))?);
        bar.step();
        Ok(Prefill { tokens, speed })
    });
    let prefill = prefill.collect::<Result<Vec<_>, CliError>>()?;
    let decode = args.batch.iter().map(|&batch| {
        let times = repeated(|| bench.decode(batch, args.decode).map(|(time, _)| time))?;
        bar.step();
        let speed = Speed::of(batch * args.decode, times);
        Ok(Decode { batch, speed, gb_s: weights.step as f64 * speed.tok_s / batch as f64 / 1e9 })
    });
    let decode = decode.collect::<Result<Vec<_>, CliError>>()?;
    let guesses = args.speculate.map(usize::from);
    let speculation = guesses.map_or(Ok(Vec::new()), |guesses| bench.speculation(guesses, args.decode))?;
    let info = model.backend();
    // Before the bandwidth, whose buffer is not the model's.
    let peak_memory_bytes = memory::peak_bytes();
    // Of the host's memory, which is not what bounds a GPU.
    let device = model.device();
    let memory_bandwidth_gb_s = if device.is_none() { memory::bandwidth(info.threads) } else { None };
    let peak = match device {
        None => Some(cpu(common)?.peak_products()),
        Some(_) => None,
    };
    drop(bar);

    let report = Report {
        device: info.device,
        isa: info.isa,
        threads: info.threads,
        model: checkpoint.name.clone(),
        kv: info.kv,
        memory_bandwidth_gb_s,
        integer_peak_tops: peak.map(|products| 2.0 * products / 1e12),
        load_seconds: time.as_secs_f64(),
        peak_memory_bytes,
        weight_bytes: weights.step,
        trits: weights.trits,
        gpu: device.map(Gpu::from),
        prefill,
        decode_tokens: args.decode,
        decode_depth: args.depth,
        decode,
        speculation,
        batch_equals_single: true,
    };
    // A speed at another depth is not one that recorded speeds can be compared with.
    if args.depth == DEFAULT_DEPTH {
        record(&report);
    }
    if args.json { output::json(&report) } else { print(&report) }
}

/// Keeps the decode speeds for `batch_throughput_factor`; a machine where that fails has been measured all the same.
fn record(report: &Report) {
    let Report { model, device, isa, threads, kv, .. } = report;
    let backend = BackendInfo { device: device.clone(), isa, threads: *threads, kv };
    let Some(path) = ThroughputRecord::path(model, &backend) else { return };
    let decode = report.decode.iter().map(|d| (d.batch, d.speed.tok_s)).collect();
    let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let BackendInfo { device, threads, .. } = backend;
    let (model, isa, kv) = (model.clone(), (*isa).to_owned(), (*kv).to_owned());
    let record = ThroughputRecord { model, device, isa, threads, kv, unix_time, decode };
    match record.add_to(&path) {
        Ok(()) => output::note(format_args!("recorded in {}", path.display())),
        Err(error) => output::note(format_args!("warning: not recorded: {error}")),
    }
}

/// Checks the numbers asked for, and says what memory they need.
fn want(args: &BenchArgs, checkpoint: &Checkpoint) -> Result<Want, CliError> {
    let context = checkpoint.spec.context;
    let longest = args.prefill.iter().copied().max().unwrap_or(1);
    let most_decode = context.saturating_sub(args.depth + RAGGED);
    let numbers = [
        ("-p", args.prefill.as_slice(), context),
        ("-d", &[args.depth][..], context.saturating_sub(RAGGED + 1)),
        ("-n", &[args.decode][..], most_decode),
        ("-b", args.batch.as_slice(), MAX_BATCH),
    ];
    for (flag, values, most) in numbers {
        if let Some(value) = values.iter().find(|&&v| v == 0 || v > most) {
            let cure = format!("give 1 to {most} for this model");
            return Err(CliError::usage(format!("{value} cannot be measured"), flag, cure));
        }
    }
    let sequences = args.batch.iter().copied().max().unwrap_or(1).max(2);
    // One sequence of the longest prompt may need more blocks than any of the batch.
    let prompt = args.depth + RAGGED;
    let tokens = longest.div_ceil(sequences).max(prompt + args.decode);
    let step = longest.max(prompt).min(STEP).max(sequences);
    let drafts = args.speculate.map_or(0, usize::from);
    Ok(Want { step, all_logits: false, sequences, drafts, tokens, least: tokens })
}

/// The times of some runs, in seconds.
fn repeated(mut run: impl FnMut() -> Result<Duration, CliError>) -> Result<Vec<f64>, CliError> {
    let (start, mut times) = (Instant::now(), Vec::with_capacity(REPEATS));
    while times.is_empty() || (times.len() < REPEATS && start.elapsed() <= PATIENCE) {
        times.push(run()?.as_secs_f64());
    }
    Ok(times)
}

/// A model, and room for its steps.
struct Bench<'a> {
    name: &'a str,
    model: &'a mut dyn Model,
    /// Tokens of the shortest prompt that decode begins with.
    depth: usize,
    /// Blocks that each sequence of a batch has for itself.
    blocks: usize,
    batch: Batch,
    logits: Logits,
}

impl<'a> Bench<'a> {
    fn new(name: &'a str, model: &'a mut dyn Model, depth: usize, tokens: usize) -> Self {
        let blocks = tokens.div_ceil(Batch::BLOCK_TOKENS);
        Bench { name, model, depth, blocks, batch: Batch::new(), logits: Logits::default() }
    }

    /// Some token ids that are the same every time; `member` sets them apart.
    fn prompt(&self, member: usize, tokens: usize) -> Vec<u32> {
        let vocab = self.model.spec().vocab;
        (0..tokens).map(|i| ((i + 1) * (2 * member + 7) * 2_654_435_761 % vocab) as u32).collect()
    }

    /// Time of one prompt from its first token to its last logits.
    fn prefill(&mut self, tokens: usize) -> Result<Duration, CliError> {
        let prompt = self.prompt(0, tokens);
        let table: Vec<u32> = (0..tokens.div_ceil(Batch::BLOCK_TOKENS) as u32).collect();
        let start = Instant::now();
        self.read(&prompt, &table)?;
        Ok(start.elapsed())
    }

    /// Computes a prompt; its last token's logits are the only ones, in the last step.
    fn read(&mut self, prompt: &[u32], table: &[u32]) -> Result<Vec<u32>, CliError> {
        let (mut done, mut next) = (0, Vec::new());
        for chunk in prompt.chunks(self.model.limits().max_tokens) {
            let last = done + chunk.len() == prompt.len();
            self.batch.clear();
            self.batch.push(chunk, done, table, if last { chunk.len() - 1..chunk.len() } else { 0..0 });
            self.batch.only_top(1);
            next = self.most_likely()?;
            done += chunk.len();
        }
        Ok(next)
    }

    /// Decodes `batch` sequences together; gives the time of the steps and the tokens of each sequence.
    fn decode(&mut self, batch: usize, tokens: usize) -> Result<(Duration, Vec<Vec<u32>>), CliError> {
        let members: Vec<usize> = (0..batch).collect();
        self.decode_members(&members, tokens)
    }

    fn decode_members(
        &mut self,
        members: &[usize],
        tokens: usize,
    ) -> Result<(Duration, Vec<Vec<u32>>), CliError> {
        let blocks = self.blocks;
        let table = |seat: usize| ((seat * blocks) as u32..((seat + 1) * blocks) as u32).collect::<Vec<_>>();
        let tables: Vec<Vec<u32>> = (0..members.len()).map(table).collect();
        let (mut sequences, mut next) = (Vec::new(), Vec::new());
        for (&member, table) in members.iter().zip(&tables) {
            let prompt = self.prompt(member, self.depth + member % (RAGGED + 1));
            next.append(&mut self.read(&prompt, table)?);
            sequences.push((prompt.len(), Vec::with_capacity(tokens)));
        }
        let start = Instant::now();
        for _ in 0..tokens {
            self.batch.clear();
            for (((len, out), token), table) in sequences.iter_mut().zip(&next).zip(&tables) {
                self.batch.push(&[*token], *len, table, 0..1);
                self.batch.only_top(1);
                *len += 1;
                out.push(*token);
            }
            next = self.most_likely()?;
        }
        Ok((start.elapsed(), sequences.into_iter().map(|(_, tokens)| tokens).collect()))
    }

    /// Decodes one sequence with up to `guesses` tokens guessed in a step, and without: where the text repeats itself,
    /// and where its past comes again and goes on otherwise.
    fn speculation(&mut self, guesses: usize, tokens: usize) -> Result<Vec<Speculation>, CliError> {
        let prompt = self.prompt(0, self.depth);
        let repeating = GenerationConfig { logit_bias: vec![(1, 100.0)], ..GenerationConfig::default() };
        let varying = GenerationConfig {
            temperature: 1.0,
            seed: Some(1),
            logit_bias: (1..4).map(|token| (token, 100.0)).collect(),
            ..GenerationConfig::default()
        };
        let mut rows = Vec::new();
        for (text, config) in [("repeats itself", repeating), ("varies", varying)] {
            let config = GenerationConfig { max_new_tokens: tokens, ignore_eos: true, ..config };
            let (mut last, mut plain, mut guessed) = (None, Vec::new(), Vec::new());
            // Side by side, so that a disturbance meets both.
            for _ in 0..REPEATS {
                for (max_draft, times) in [(0, &mut plain), (guesses, &mut guessed)] {
                    let engine = EngineConfig { max_draft, ..EngineConfig::default() };
                    let each = |_| ControlFlow::Continue(());
                    let done = generate(self.model, &prompt, &config, &engine, each);
                    let done = done.map_err(CliError::Generate)?;
                    times.extend(done.decode.map(|time| time.as_secs_f64()));
                    last = Some(done);
                }
            }
            let (Some(last), false) = (last, plain.is_empty() || guessed.is_empty()) else {
                return Err(CliError::usage("one token cannot be guessed", "-n", "give at least 2"));
            };
            let decoded = last.drawn - 1;
            let (speed, plain) = (Speed::of(decoded, guessed), Speed::of(decoded, plain));
            let Generated { drafted, accepted, .. } = last;
            rows.push(Speculation { text, guesses, speed, plain, drafted, accepted });
        }
        Ok(rows)
    }

    /// Runs the batch and takes the most likely token of each wanted row, where its logits are if the model can.
    fn most_likely(&mut self) -> Result<Vec<u32>, CliError> {
        let rows = self.batch.logit_rows().len();
        let mut drawn = vec![None; rows];
        let asks = vec![Some(Ask::GREEDY); rows];
        self.model.forward_drawing(&self.batch, &asks, &mut self.logits, &mut drawn)?;
        let token = |(row, drawn): (usize, &Option<Drawn>)| match drawn {
            Some(Drawn::Token(token)) => Some(*token),
            Some(_) => None,
            None => argmax(self.logits.row(row)),
        };
        let tokens = drawn.iter().enumerate().map(token).collect::<Option<_>>();
        tokens.ok_or_else(|| CliError::NotFinite { model: self.name.into() })
    }

    /// Fails if any of `members` sequences has other tokens in a batch than alone.
    fn compare(&mut self, members: usize, tokens: usize, bar: &Progress) -> Result<(), CliError> {
        let (_, together) = self.decode(members, tokens)?;
        bar.step();
        for (member, in_batch) in together.iter().enumerate() {
            let (_, alone) = self.decode_members(&[member], tokens)?;
            bar.step();
            if let Some(at) = (0..tokens).find(|&i| alone[0][i] != in_batch[i]) {
                return Err(CliError::Wrong {
                    what: format!(
                        "token {at} of sequence {member} in a batch of {members} differs from that alone"
                    ),
                    place: "bench".into(),
                });
            }
        }
        Ok(())
    }
}

/// The most likely token, the lowest one of equals; none if any logit is NaN or the highest infinite. Those that
/// cannot be the highest may be negative infinity.
fn argmax(row: &[f32]) -> Option<u32> {
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        if x.is_nan() {
            return None;
        }
        if *x > row[best] {
            best = i;
        }
    }
    row[best].is_finite().then_some(best as u32)
}

fn print(r: &Report) -> Result<(), CliError> {
    let Report { model, device, isa, threads, kv, .. } = r;
    let mut lines = vec![
        format!(
            "{model} on {device}, isa {isa}, {threads} threads, kv {kv}, loaded in {:.2} s",
            r.load_seconds
        ),
        format!(
            "memory bandwidth {}, integer peak {}, memory at most {}, weights of {:.1} MB a step",
            memory::bandwidth_told(r.memory_bandwidth_gb_s),
            r.integer_peak_tops.map_or("unknown".into(), |tops| format!("{tops:.2} TOPS")),
            r.peak_memory_bytes.map_or("unknown".into(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6)),
            r.weight_bytes as f64 / 1e6
        ),
    ];
    if let Some(gpu) = &r.gpu {
        lines.push(format!(
            "gpu memory {:.1} of {:.1} GB, {} kernels launched, {} steps replayed, {} tokens drawn there",
            gpu.memory_used_bytes as f64 / 1e9,
            gpu.memory_total_bytes as f64 / 1e9,
            gpu.kernel_launches,
            gpu.replays,
            gpu.drawn
        ));
    }
    for p in &r.prefill {
        let tops = 2e-12 * p.speed.tok_s * r.trits as f64;
        let of_peak =
            r.integer_peak_tops.map(|peak| format!("  {:5.1} % of the integer peak", 100.0 * tops / peak));
        let (tokens, speed) = (p.tokens, p.speed.told());
        lines.push(format!("prefill {tokens:5} tokens   {speed}{}", of_peak.unwrap_or_default()));
    }
    for d in &r.decode {
        let (batch, speed) = (d.batch, d.speed.told());
        let depth = r.decode_depth;
        lines.push(format!(
            "decode  batch {batch:5}    {speed}  {:7.2} GB/s of weights, after {depth} tokens",
            d.gb_s
        ));
    }
    for s in &r.speculation {
        let Speculation { text, guesses, speed, plain, drafted, accepted } = s;
        lines.push(format!(
            "decode  {guesses:2} guesses     {}, without {:.2}; text that {text}, {accepted} of {drafted} right",
            speed.told(),
            plain.tok_s
        ));
    }
    lines.push("tokens of a batch equal those of its members alone".into());
    output::line(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::{Speed, argmax};

    #[test]
    fn a_speed_is_the_median_of_its_runs_and_tells_their_extremes() {
        let Speed { tok_s, tok_s_min, tok_s_max, runs } = Speed::of(60, vec![3.0, 1.0, 2.0, 6.0, 5.0]);
        assert_eq!((tok_s, tok_s_min, tok_s_max, runs), (20.0, 10.0, 60.0, 5));
    }

    #[test]
    fn a_row_that_is_not_finite_has_no_most_likely_token() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(argmax(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY]), Some(1));
        for broken in [f32::NAN, f32::INFINITY] {
            assert_eq!(argmax(&[1.0, broken, 0.5]), None);
        }
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), None);
    }
}
