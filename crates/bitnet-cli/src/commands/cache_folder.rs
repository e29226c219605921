//! `bitnet cache`: what the folder of a cache holds, and removing it.

use std::{path::Path, time::SystemTime};

use bitnet::{
    CacheDir,
    cache::{FolderError, Listed, cache_salt},
};
use serde_json::json;

use crate::{
    args::CacheCommand,
    error::CliError,
    output::{self, size},
};

pub fn run(command: &CacheCommand) -> Result<(), CliError> {
    match command {
        CacheCommand::List { cache_dir, json } => list(cache_dir, *json),
        CacheCommand::Clear { cache_dir, salt } => clear(cache_dir, salt.as_deref()),
    }
}

fn failed(error: FolderError) -> CliError {
    CliError::refused(&error.problem, error.path.display(), error.cure)
}

fn list(folder: &Path, as_json: bool) -> Result<(), CliError> {
    let all = CacheDir::list(folder).map_err(failed)?;
    if as_json {
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
        output::note(format_args!("nothing is kept in {}", folder.display()));
    }
    Ok(())
}

fn clear(folder: &Path, salt: Option<&str>) -> Result<(), CliError> {
    let salt = salt.map(cache_salt);
    let cleared = CacheDir::clear(folder, salt).map_err(failed)?;
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
