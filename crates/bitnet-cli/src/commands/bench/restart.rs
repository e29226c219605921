//! `bench --restart N`: a prompt of N tokens is computed, the engine ends and starts again, and the same prompt is read
//! from the folder of the cache.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bitnet::inference::{TierCounts, Update};
use serde::Serialize;

use super::folder;
use crate::{
    args::{BenchArgs, Common},
    error::CliError,
    output,
};

/// How long an engine may take to write its cache when it ends.
const WRITING: Duration = Duration::from_secs(600);
/// How long an engine is idle at least before a prompt that comes after a pause.
const PAUSE: Duration = Duration::from_secs(2);

/// What was measured. Times are from the submission of the prompt to its first token, in seconds.
#[derive(Debug, Serialize)]
struct Restart {
    model: String,
    kv: String,
    prompt_tokens: usize,
    computed_seconds: f64,
    starts: Vec<Start>,
}

/// A start after which the prompt was read.
#[derive(Debug, Serialize)]
struct Start {
    /// When the prompt came, and where the system had the files.
    case: Case,
    seconds: f64,
    /// `seconds / computed_seconds`
    ratio: f64,
    tokens_read: u64,
    /// Bytes of the parts, and how fast the engine and a plain program read them, one after another. The engine's time
    /// ends when it holds the last part; the first token comes later, because the end of a prompt is always computed.
    bytes: u64,
    read_gb_s: f64,
    plain_read_gb_s: f64,
    /// How long copying or reading the parts into the model's memory took, part of the time of reading.
    copy_seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Case {
    /// The prompt comes as soon as the engine runs.
    AtOnce,
    /// It comes when the engine has been idle for a while.
    AfterAPause,
    /// As before, and the system has forgotten the files, as after a reboot.
    FromTheDisk,
}

/// The first token of a prompt, its time, and what the tier counted.
struct First {
    token: Option<u32>,
    seconds: f64,
    tier: TierCounts,
    kv: String,
}

pub fn run(common: &Common, args: &BenchArgs, tokens: usize) -> Result<(), CliError> {
    let model = args.model.as_deref().unwrap_or_default();
    let place = folder::make(args)?;
    let first = |case| first(common, args, tokens, place.path(), case);
    let computed = first(None)?;
    let mut report = Restart {
        model: model.into(),
        kv: computed.kv,
        prompt_tokens: tokens,
        computed_seconds: computed.seconds,
        starts: Vec::new(),
    };
    for case in [Case::AtOnce, Case::AfterAPause, Case::FromTheDisk] {
        if case == Case::FromTheDisk && cfg!(not(target_os = "linux")) {
            continue;
        }
        let read = first(Some(case))?;
        if computed.token != read.token {
            let what = "the prompt that was read continues otherwise than the one that was computed";
            return Err(CliError::Wrong { what: what.into(), place: model.into() });
        }
        let plain_read_gb_s = read_plainly(place.path(), case)?;
        let (shelf, seconds) = (read.tier.shelf, read.seconds);
        report.starts.push(Start {
            case,
            seconds,
            ratio: seconds / computed.seconds,
            tokens_read: read.tier.hit_tokens,
            bytes: shelf.read_bytes,
            read_gb_s: gb_s(shelf.read_bytes, read.tier.load_micros as f64 / 1e6),
            plain_read_gb_s,
            copy_seconds: read.tier.in_micros as f64 / 1e6,
        });
    }
    if args.json { output::json(&report) } else { print(&report) }
}

fn print(report: &Restart) -> Result<(), CliError> {
    let Restart { prompt_tokens, computed_seconds, starts, .. } = report;
    output::line(format_args!(
        "{prompt_tokens} tokens computed in {computed_seconds:.2} s; after a restart:"
    ))?;
    for Start { case, seconds, ratio, tokens_read, bytes, read_gb_s, plain_read_gb_s, copy_seconds } in starts
    {
        let case = match case {
            Case::AtOnce => "at once",
            Case::AfterAPause => "after a pause",
            Case::FromTheDisk => "after a pause, from the disk",
        };
        output::line(format_args!(
            "  {case}: first token after {seconds:.3} s, 1/{:.0}; {tokens_read} tokens and {:.2} GB read at \
             {read_gb_s:.2} GB/s, plain reading {plain_read_gb_s:.2} GB/s; copied into memory in {copy_seconds:.2} s",
            1.0 / ratio,
            *bytes as f64 / 1e9,
        ))?;
    }
    Ok(())
}

fn gb_s(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / 1e9 / seconds.max(1e-9)
}

/// Starts an engine, lets it begin to answer the prompt, and ends it.
fn first(
    common: &Common,
    args: &BenchArgs,
    tokens: usize,
    place: &Path,
    case: Option<Case>,
) -> Result<First, CliError> {
    let model = folder::start(common, args, 1, Some(place))?;
    let engine = model.engine();
    let request = folder::request(engine, 0, tokens, 1, "--restart")?;
    if case.is_some_and(|case| case != Case::AtOnce) {
        folder::rest(engine, PAUSE);
    }
    // Just before the prompt, as before plain reading: both then wait for the system's memory alike.
    if case == Some(Case::FromTheDisk) {
        forget(place)?;
    }
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
    let tier = folder::counts(engine);
    engine.shutdown(WRITING);
    Ok(First { token: first.map(|f| f.0), seconds: first.map_or(end, |f| f.1), tier, kv })
}

/// The files in a folder and those below it.
fn files(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().map_err(CliError::file("read", &folder))?.flatten() {
            let list = if entry.path().is_dir() { &mut folders } else { &mut files };
            list.push(entry.path());
        }
    }
    Ok(files)
}

/// Has the system write the files to the disk and forget what it holds of them.
fn forget(folder: &Path) -> Result<(), CliError> {
    for file in files(folder)? {
        let open = File::open(&file).map_err(CliError::file("read", &file))?;
        open.sync_all().map_err(CliError::file("write", &file))?;
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|e| CliError::file("read", &file)(e.into()))?;
    }
    Ok(())
}

/// Reads all files in a folder, one after another; returns billions of bytes a second.
fn read_plainly(folder: &Path, case: Case) -> Result<f64, CliError> {
    if case == Case::FromTheDisk {
        forget(folder)?;
    }
    let (mut buffer, mut bytes, begun) = (vec![1; 1 << 20], 0, Instant::now());
    for file in files(folder)? {
        let mut open = File::open(&file).map_err(CliError::file("read", &file))?;
        loop {
            match open.read(&mut buffer).map_err(CliError::file("read", &file))? {
                0 => break,
                n => bytes += n as u64,
            }
        }
    }
    Ok(gb_s(bytes, begun.elapsed().as_secs_f64()))
}
