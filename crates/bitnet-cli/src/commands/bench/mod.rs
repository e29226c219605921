//! `bitnet bench`: checks that a batch is right, then measures prefill, decode and what else was requested.

mod cpu_time;
mod drafts;
mod folder;
mod json;
mod keep;
pub mod kernels;
mod report;
mod restart;
mod runs;
mod scaling;
mod sequences;
mod speed;
mod url;

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bitnet::{
    inference::names::ThroughputRecord,
    kernels::{
        BackendInfo,
        gpu::{
            Ceilings, Driver,
            tilings::{self, Line, Tiling},
        },
    },
    load::WeightBytes,
    model::{Checkpoint, Model},
};
use kernels::{Bounds, Sizes, TUNED};
pub use report::Report;
use report::{Gpu, Peaks, Prefill};
use runs::repeated;
use sequences::{RAGGED, Sequences};
use speed::Speed;

use crate::{
    args::{BenchArgs, Common, DEFAULT_DEPTH, DEFAULT_PROMPT},
    error::CliError,
    load::{Loaded, Machine, Want, cpu},
    memory, model_arg, output,
    output_file::{save, save_json},
    progress::Progress,
};

/// Maximum number of sequences decoded together.
const MAX_BATCH: usize = 1024;
/// Maximum number of drafts of a known quality in a step, unless another is given.
const KNOWN_DRAFTS: usize = 4;
/// Tokens compared between a batch and its members alone.
const COMPARED: usize = 16;

pub fn run(common: &Common, args: &BenchArgs) -> Result<(), CliError> {
    if let Some(url) = &args.url {
        return url::run(url, args);
    }
    if let Some(tokens) = args.restart {
        return restart::run(common, args, tokens);
    }
    if let Some(tokens) = args.keep {
        return keep::run(common, args, tokens);
    }
    let (threads, last) = scaling::threads(common);
    let scaling = if threads.is_empty() {
        Vec::new()
    } else {
        let checkpoint = model_arg::open(args.model.as_deref().unwrap_or_default())?;
        let want = want(args, &checkpoint)?;
        scaling::measure(&Machine::of(common), args, (&checkpoint, want), threads)?
    };
    let report = Report { scaling, ..measure(&Machine::of(&last), args)? };
    record(&report);
    if args.json { output::json(&report) } else { report::print(&report) }
}

/// Checks that a batch is right, then measures its speed, then everything else that was requested.
pub fn measure<D: Driver + 'static>(machine: &Machine<'_, D>, args: &BenchArgs) -> Result<Report, CliError> {
    let common = machine.common;
    let checkpoint = model_arg::open(args.model.as_deref().unwrap_or_default())?;
    let (want, prefill) = (want(args, &checkpoint)?, prefill(args));
    let loaded = machine.load(&checkpoint, want)?;
    let refused = loaded.refusal();
    let Loaded { mut model, weights, time, gpu, .. } = loaded;
    if args.tune.is_some() && model.device().is_none() {
        let what = "only a GPU can launch a product in several ways";
        return Err(CliError::usage(what, "--tune", "give --device cuda, or leave it out"));
    }
    let mut report = unmeasured(args, &checkpoint.name, &*model, (&weights, time), refused);
    let save = |report: &Report| args.save.as_ref().map_or(Ok(()), |file| save_json(file, report));
    let mut sequences = Sequences::new(&checkpoint.name, &mut *model, want.tokens);

    // At least two sequences, so that the comparison always means something.
    let members = args.batch.iter().copied().max().unwrap_or(1).max(2);
    let bar = Progress::new("comparing", members + 1);
    sequences.compare(members, args.decode.min(COMPARED), &bar)?;
    drop(bar);

    let bar = Progress::new("measuring", prefill.len() + args.depth.len() * args.batch.len());
    for &depth in &args.depth {
        for &batch in &args.batch {
            let begun = sequences.begin(&(0..batch).collect::<Vec<_>>(), depth)?;
            report.decode.push(sequences.decode_speed(&begun, depth, (args.decode, args.runs), &weights)?);
            save(&report)?;
            bar.step();
        }
    }
    for &tokens in prefill {
        let speed = Speed::of(tokens, repeated(args.runs.into(), || sequences.prefill(tokens))?);
        let first_token_ms = 1e3 * tokens as f64 / speed.tok_s;
        report.prefill.push(Prefill { tokens, speed, first_token_ms });
        save(&report)?;
        bar.step();
    }
    drop(bar);
    let drafts = args.speculate.map(usize::from);
    report.speculation =
        drafts.map_or(Ok(Vec::new()), |drafts| sequences.speculation(drafts, args.decode))?;
    if let Some(drafts) = known_drafts(args) {
        let mut known = sequences.drafts(drafts, args.decode);
        report.rows = known.rows()?;
        report.known_drafts = known.known(&args.draft_acceptance)?;
        save(&report)?;
    }
    if args.sampling {
        report.sampling = sequences.sampling(args.decode, &checkpoint)?;
    }
    // Before the bandwidth is measured, whose buffer would count too.
    report.peak_memory_bytes = bitnet::peak_memory_bytes();
    let device = model.device();
    report.gpu = device.map(Gpu::from);
    // The limits of the CPU do not apply to a GPU.
    if device.is_none() {
        report.memory_bandwidth_gb_s = memory::bandwidth(report.threads);
        report.integer_peak_tops = Some(2.0 * cpu(common)?.peak_products() / 1e12);
    }
    save(&report)?;
    // The kernels need the memory.
    drop(model);
    if args.kernels {
        kernels(machine, gpu.map_or(0, |gpu| gpu.index), args, &checkpoint, &mut report, &save)?;
    }
    Ok(report)
}

/// A report of what is known before anything is measured.
fn unmeasured(
    args: &BenchArgs,
    name: &str,
    model: &dyn Model,
    (weights, time): (&WeightBytes, Duration),
    refused: Option<String>,
) -> Report {
    let BackendInfo { device, isa, threads, kv } = model.backend();
    Report {
        device,
        isa,
        threads,
        model: name.to_owned(),
        kv,
        gpu_refused: refused,
        memory_bandwidth_gb_s: None,
        integer_peak_tops: None,
        load_seconds: time.as_secs_f64(),
        peak_memory_bytes: None,
        weight_layout: weights.layout,
        weight_bytes: weights.step,
        trits: weights.trits,
        gpu: None,
        step: model.limits().max_tokens,
        prefill: Vec::new(),
        decode_tokens: args.decode,
        decode: Vec::new(),
        scaling: Vec::new(),
        speculation: Vec::new(),
        rows: Vec::new(),
        known_drafts: Vec::new(),
        sampling: Vec::new(),
        kernels: Vec::new(),
        batch_equals_single: true,
    }
}

/// Measures the kernels of the backend in the report; `index` is the number of its GPU.
fn kernels<D: Driver + 'static>(
    machine: &Machine<'_, D>,
    index: usize,
    args: &BenchArgs,
    checkpoint: &Checkpoint,
    report: &mut Report,
    save: &dyn Fn(&Report) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let longest = prefill(args).iter().copied().max().unwrap_or(1);
    let prompt = longest.min(report.step);
    let mut steps = args.batch.clone();
    steps.push(prompt);
    // On average, half of the decoded tokens are before a token.
    let contexts: Vec<usize> = args.depth.iter().map(|depth| depth + args.decode / 2).collect();
    let tuned: &[usize] = if args.tune.is_some() { &TUNED } else { &[] };
    let sizes = Sizes { tuned, steps: &steps, batches: &args.batch, contexts: &contexts, prompt };
    if let Some(gpu) = &mut report.gpu {
        let mut backend = machine.gpu(index)?;
        let ceilings = backend.ceilings()?;
        gpu.ceilings = Some(Peaks::from(ceilings));
        let Ceilings { copy, int8, bf16 } = ceilings;
        let bounds = Bounds { memory: Some(copy), integers: Some(int8), floats: Some(bf16) };
        let tuned = kernels::measure(&mut backend, checkpoint, &sizes, bounds, &mut |kernel| {
            report.kernels.push(kernel);
            save(report)
        })?;
        let gpu = &backend.driver().info().name;
        return args.tune.as_ref().map_or(Ok(()), |file| save_tilings(file, gpu, tuned));
    }
    let memory = report.memory_bandwidth_gb_s.map(|gb_s| 1e9 * gb_s);
    let integers = report.integer_peak_tops.map(|tops| 1e12 * tops);
    let bounds = Bounds { memory, integers, floats: None };
    kernels::measure(&mut cpu(machine.common)?, checkpoint, &sizes, bounds, &mut |kernel| {
        report.kernels.push(kernel);
        save(report)
    })
    .map(drop)
}

/// Adds measured launches to a file, in place of those for the same products on the same GPU.
fn save_tilings(file: &Path, gpu: &str, tuned: Vec<Tiling>) -> Result<(), CliError> {
    let old = match fs::read_to_string(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.map_err(CliError::file("read", file))?,
    };
    let refused =
        |line| CliError::refused(format!("cannot read {line:?}"), file.display(), "delete the file");
    let old = tilings::parse(&old).map_err(refused)?;
    let new = tuned.into_iter().map(|tiling| Line { tiling, gpu: gpu.to_owned() }).collect();
    save(file, tilings::format(&tilings::merge(old, new)).as_bytes())
}

/// Saves the decode speeds for `batch_throughput_factor`. A failure is only a warning.
fn record(report: &Report) {
    // Speeds at other depths cannot be compared with recorded ones.
    let rows = report.decode.iter().filter(|d| d.depth == DEFAULT_DEPTH);
    let decode: Vec<_> = rows.map(|d| (d.batch, d.speed.tok_s)).collect();
    let Report { model, device, isa, threads, kv, .. } = report;
    let backend = BackendInfo { device: device.clone(), isa, threads: *threads, kv };
    let Some(path) = ThroughputRecord::path(model, &backend).filter(|_| !decode.is_empty()) else { return };
    let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let BackendInfo { device, threads, .. } = backend;
    let (model, isa, kv) = (model.clone(), (*isa).to_owned(), (*kv).to_owned());
    let record = ThroughputRecord { model, device, isa, threads, kv, unix_time, decode };
    match record.add_to(&path) {
        Ok(()) => output::note(format_args!("recorded in {}", path.display())),
        Err(error) => output::note(format_args!("warning: not recorded: {error}")),
    }
}

/// Returns the lengths of the prompts to measure.
fn prefill(args: &BenchArgs) -> &[usize] {
    args.prefill.as_deref().unwrap_or(&[DEFAULT_PROMPT])
}

/// Checks the requested numbers and returns what memory they need.
fn want(args: &BenchArgs, checkpoint: &Checkpoint) -> Result<Want, CliError> {
    let context = checkpoint.spec.context;
    let longest = prefill(args).iter().copied().max().unwrap_or(1);
    let deepest = args.depth.iter().copied().max().unwrap_or(0);
    let most_decode = context.saturating_sub(deepest + RAGGED);
    let numbers = [
        ("-p", prefill(args), context),
        ("-d", &args.depth, context.saturating_sub(RAGGED + 1)),
        ("-n", &[args.decode][..], most_decode),
        ("-b", args.batch.as_slice(), MAX_BATCH),
        ("--step", &[args.step], context),
    ];
    for (flag, values, most) in numbers {
        if let Some(value) = values.iter().find(|&&v| v == 0 || v > most) {
            let cure = format!("give 1 to {most} for this model");
            return Err(CliError::usage(format!("{value} cannot be measured"), flag, cure));
        }
    }
    let sequences = args.batch.iter().copied().max().unwrap_or(1).max(2);
    let begun = deepest.max(DEFAULT_DEPTH) + RAGGED;
    // One sequence with the longest prompt may need more blocks than those of the batch.
    let tokens = longest.div_ceil(sequences).max(begun + args.decode);
    let step = longest.max(begun).min(args.step).max(sequences);
    let drafts = known_drafts(args).unwrap_or(args.speculate.map_or(0, usize::from));
    Ok(Want { step, ..Want::sequences(sequences, tokens).drafting(drafts) })
}

/// Maximum number of drafts of a known quality in a step; `None` if they are not requested.
fn known_drafts(args: &BenchArgs) -> Option<usize> {
    (!args.draft_acceptance.is_empty()).then(|| args.speculate.map_or(KNOWN_DRAFTS, usize::from))
}
