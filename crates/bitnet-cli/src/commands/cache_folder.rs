//! `bitnet cache`: what the folder of a cache holds, and removing it.

use std::time::SystemTime;

use bitnet::{
    CacheDir,
    cache::{FolderError, Listed, cache_salt},
};
use serde_json::json;

use crate::{
    args::{CacheClearArgs, CacheCommand, CacheListArgs},
    error::CliError,
    output,
};

pub fn run(command: &CacheCommand) -> Result<(), CliError> {
    match command {
        CacheCommand::List(args) => list(args),
        CacheCommand::Clear(args) => clear(args),
    }
}

fn failed(error: FolderError) -> CliError {
    CliError::refused(&error.problem, error.path.display(), error.cure)
}

fn list(args: &CacheListArgs) -> Result<(), CliError> {
    let all = CacheDir::list(&args.cache_dir).map_err(failed)?;
    if args.json {
        let rows: Vec<_> = (all.iter())
            .map(|l| {
                let idle = idle_seconds(l);
                json!({"model": l.about, "salt": salt(l), "parts": l.parts, "bytes": l.bytes, "idle_seconds": idle})
            })
            .collect();
        return output::json(&rows);
    }
    for l in &all {
        let (size, days) = (size(l.bytes), idle_seconds(l) / 86_400);
        let salt = salt(l).map(|salt| format!(", salt {salt}")).unwrap_or_default();
        output::line(format_args!(
            "{:>9}  {} parts, last used {days} days ago: {}{salt}",
            size, l.parts, l.about
        ))?;
    }
    if all.is_empty() {
        output::note(format_args!("nothing is kept in {}", args.cache_dir.display()));
    }
    Ok(())
}

fn clear(args: &CacheClearArgs) -> Result<(), CliError> {
    let salt = args.salt.as_deref().map(cache_salt);
    let cleared = CacheDir::clear(&args.cache_dir, salt).map_err(failed)?;
    output::note(format_args!("removed {} parts, {}", cleared.parts, size(cleared.bytes)));
    Ok(())
}

/// The salt as it is named in the folder; nobody can tell from it which text it was made of.
fn salt(listed: &Listed) -> Option<String> {
    (listed.salt > 0).then(|| format!("{:016x}", listed.salt))
}

fn idle_seconds(listed: &Listed) -> u64 {
    SystemTime::now().duration_since(listed.used).unwrap_or_default().as_secs()
}

fn size(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.1} GB", bytes as f64 / 1e9),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
