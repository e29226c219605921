//! `bench --restart N`: a prompt of N tokens is computed, the engine ends and starts again, and the same prompt is read
//! from the folder of the cache.

use std::{
    fs::File,
    io::Read,
    path::Path,
    time::{Duration, Instant},
};

use bitnet::{
    Draft,
    inference::{EngineConfig, GenerationConfig, Request, TierCounts, Update},
};
use serde::Serialize;

use crate::{
    args::{BenchArgs, CacheFlags, Common, FolderFlags, Speculation},
    error::CliError,
    load, model_arg, output,
};

/// How long an engine may take to write its cache when it ends.
const WRITING: Duration = Duration::from_secs(600);

/// What was measured. Times are from the submission of the prompt to its first token, in seconds.
#[derive(Debug, Serialize)]
struct Restart {
    model: String,
    kv: String,
    prompt_tokens: usize,
    computed_seconds: f64,
    read_seconds: f64,
    /// `read_seconds / computed_seconds`
    ratio: f64,
    tokens_read: u64,
    /// Bytes of the parts, and how fast the engine and a plain program read them, one after another. The engine's time
    /// ends when it holds the last part; the first token comes later, because the end of a prompt is always computed.
    bytes: u64,
    read_gb_s: f64,
    plain_read_gb_s: f64,
}

/// One start of an engine: the first token, its time, and what the tier counted.
struct Start {
    token: Option<u32>,
    seconds: f64,
    tier: TierCounts,
    kv: String,
}

pub fn run(common: &Common, args: &BenchArgs, tokens: usize) -> Result<(), CliError> {
    let model = args.model.as_deref().unwrap_or_default();
    let place = args.restart_in.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(&place).map_err(CliError::file("write", &place))?;
    let cache_dir = Some(folder.path().join("cache"));
    let cache = CacheFlags { folder: FolderFlags { cache_dir, cache_size: u64::MAX }, cache_host: None };
    let computed = start(common, model, tokens, &cache)?;
    let read = start(common, model, tokens, &cache)?;
    if computed.token != read.token {
        let what = "the prompt that was read continues otherwise than the one that was computed";
        return Err(CliError::Wrong { what: what.into(), place: model.into() });
    }
    let (bytes, seconds) = read_plainly(folder.path())?;
    let gb_s = |bytes: u64, seconds: f64| bytes as f64 / 1e9 / seconds.max(1e-9);
    let shelf = read.tier.shelf;
    let report = Restart {
        model: model.into(),
        kv: read.kv,
        prompt_tokens: tokens,
        computed_seconds: computed.seconds,
        read_seconds: read.seconds,
        ratio: read.seconds / computed.seconds,
        tokens_read: read.tier.hit_tokens,
        bytes: shelf.read_bytes,
        read_gb_s: gb_s(shelf.read_bytes, shelf.read_micros as f64 / 1e6),
        plain_read_gb_s: gb_s(bytes, seconds),
    };
    if args.json {
        return output::json(&report);
    }
    output::line(format_args!(
        "restart, then the same {tokens} tokens: computed {:.2} s, read {:.3} s, 1/{:.0}; {} tokens and {:.2} GB read at \
         {:.2} GB/s, plain reading {:.2} GB/s",
        report.computed_seconds,
        report.read_seconds,
        1.0 / report.ratio,
        report.tokens_read,
        bytes as f64 / 1e9,
        report.read_gb_s,
        report.plain_read_gb_s,
    ))
}

/// Starts an engine, lets it begin to answer a prompt, and ends it.
fn start(common: &Common, model: &str, tokens: usize, cache: &CacheFlags) -> Result<Start, CliError> {
    let opened = model_arg::open_files(model)?;
    let config = EngineConfig { max_batch_size: 1, ..EngineConfig::default() };
    let speculation = Speculation { draft: Draft::None, speculate: 0 };
    let model = load::start(common, opened, &speculation, config, cache)?;
    let engine = model.engine();
    let vocab = engine.vocab() as u64;
    if tokens >= engine.context() {
        let what = format!("{tokens} tokens do not fit into {}", engine.context());
        return Err(CliError::refused(what, "--restart", "give fewer, or more memory with --memory"));
    }
    // Tokens without a pattern.
    let prompt: Vec<u32> = (0..tokens as u64).map(|i| (i * 48_271 % 2_147_483_647 % vocab) as u32).collect();
    let request = Request::new(
        prompt,
        GenerationConfig { max_new_tokens: 1, ignore_eos: true, ..GenerationConfig::default() },
    );
    let begun = Instant::now();
    let mut handle = engine.submit(request).map_err(|e| CliError::refused(e, "bench", "report this"))?;
    let mut first = None;
    while let Some(update) = handle.recv() {
        if let Update::Token { token, .. } = update {
            first.get_or_insert((token, begun.elapsed().as_secs_f64()));
        }
    }
    let end = begun.elapsed().as_secs_f64();
    let kv = engine.backend().kv.to_owned();
    let tier = engine.status().tier.unwrap_or_default();
    engine.shutdown(WRITING);
    Ok(Start { token: first.map(|f| f.0), seconds: first.map_or(end, |f| f.1), tier, kv })
}

/// Reads all files in a folder, one after another; returns their bytes and the time that it took.
fn read_plainly(folder: &Path) -> Result<(u64, f64), CliError> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().map_err(CliError::file("read", &folder))?.flatten() {
            let list = if entry.path().is_dir() { &mut folders } else { &mut files };
            list.push(entry.path());
        }
    }
    let (mut buffer, mut bytes, begun) = (vec![0; 4 << 20], 0, Instant::now());
    for file in files {
        let mut open = File::open(&file).map_err(CliError::file("read", &file))?;
        loop {
            match open.read(&mut buffer).map_err(CliError::file("read", &file))? {
                0 => break,
                n => bytes += n as u64,
            }
        }
    }
    Ok((bytes, begun.elapsed().as_secs_f64()))
}
