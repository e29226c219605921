//! Engines with a folder for the cache, as `bench --restart` and `bench --keep` start them.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use bitnet::{
    Draft,
    inference::{Engine, EngineConfig, GenerationConfig, Request, TierCounts},
};

use crate::{
    args::{BenchArgs, CacheFlags, Common, FolderFlags, Speculation},
    error::CliError,
    load, model_arg,
};

/// How often to look whether an idle engine still works, and how long at most.
const LOOK: Duration = Duration::from_millis(500);
const WORKING: Duration = Duration::from_secs(60);

/// Starts an engine for this many sequences, with a folder or none. The model drafts nothing.
pub fn start(
    common: &Common,
    args: &BenchArgs,
    sequences: usize,
    folder: Option<&Path>,
) -> Result<bitnet::Model, CliError> {
    let opened = model_arg::open_files(args.model.as_deref().unwrap_or_default())?;
    let cache_dir = folder.map(|folder| folder.join("cache"));
    let cache = CacheFlags { folder: FolderFlags { cache_dir, cache_size: u64::MAX }, cache_host: None };
    let config = EngineConfig { max_batch_size: sequences, ..EngineConfig::default() };
    load::start(common, opened, &Speculation { draft: Draft::None, speculate: 0 }, config, &cache)
}

/// A new folder, which is removed again.
pub fn make(args: &BenchArgs) -> Result<tempfile::TempDir, CliError> {
    let place = args.restart_in.clone().unwrap_or_else(std::env::temp_dir);
    tempfile::tempdir_in(&place).map_err(CliError::file("write", &place))
}

/// A request with a prompt of `tokens` tokens without a pattern, which begin otherwise for each `number`.
pub fn request(
    engine: &Engine,
    number: usize,
    tokens: usize,
    most: usize,
    flag: &'static str,
) -> Result<Request, CliError> {
    if tokens + most > engine.context() {
        let what = format!("{tokens} tokens and {most} after them do not fit into {}", engine.context());
        return Err(CliError::refused(what, flag, "give fewer, or more memory with --memory"));
    }
    let vocab = engine.vocab() as u64;
    let token = |i: u64| ((i + 7 * number as u64) * 48_271 % 2_147_483_647 % vocab) as u32;
    let prompt: Vec<u32> = (0..tokens as u64).map(token).collect();
    let config = GenerationConfig { max_new_tokens: most, ignore_eos: true, ..GenerationConfig::default() };
    Ok(Request::new(prompt, config))
}

/// What the engine's tier has counted.
pub fn counts(engine: &Engine) -> TierCounts {
    engine.status().tier.unwrap_or_default()
}

/// Waits, at least for this long, until an idle engine prepares no more memory and writes nothing.
pub fn rest(engine: &Engine, least: Duration) {
    let done = || {
        let counts = counts(engine);
        (counts.prepared_bytes, counts.shelf.written_bytes)
    };
    let begun = Instant::now();
    let mut before = done();
    while begun.elapsed() < WORKING {
        sleep(LOOK);
        let now = done();
        if now == before && begun.elapsed() >= least {
            return;
        }
        before = now;
    }
}
