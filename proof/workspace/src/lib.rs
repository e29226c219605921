//! Where the workspace is, and how `cargo xtask` and the crates of `proof/` run cargo, git and other programs.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use anyhow::{Context, Result, ensure};

/// The workspace's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("two folders below the workspace's")
        .into()
}

/// The folder into which cargo builds.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// Programs with this name, in the order of PATH.
pub fn on_path(name: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let programs: Vec<PathBuf> = env::split_paths(&path).map(|folder| folder.join(name)).collect();
    programs.into_iter().filter(|program| program.is_file())
}

/// Builds `bitnet` and returns its path. Builds what the tests build too: for the program alone, cargo would choose other
/// features of its dependencies, and compile most crates a second time.
///
/// # Errors
/// If it cannot be built.
pub fn bitnet() -> Result<PathBuf> {
    run(cargo(&["build", "--release", "--quiet", "--workspace", "--bins", "--examples"]))?;
    Ok(target().join("release/bitnet"))
}

/// A cargo command in the workspace.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(args).current_dir(root());
    command
}

/// Runs a command.
///
/// # Errors
/// If it cannot be started or fails.
pub fn run(mut command: Command) -> Result<()> {
    let what = format!("{command:?}");
    let status = command.status().with_context(|| what.clone())?;
    ensure!(status.success(), "{what} failed: {status}");
    Ok(())
}

/// Runs a command and returns what it prints.
///
/// # Errors
/// If it cannot be started or fails; the error contains what it said.
pub fn output(mut command: Command) -> Result<Vec<u8>> {
    let what = format!("{command:?}");
    let out = command.output().with_context(|| what.clone())?;
    ensure!(out.status.success(), "{what} failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(out.stdout)
}

/// Runs git in the workspace and returns what it prints, without the last line's end.
///
/// # Errors
/// If git is missing or fails.
pub fn git(args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(args).current_dir(root());
    Ok(String::from_utf8(output(git)?)?.trim_end().to_owned())
}

/// Works on all items, on several threads, and returns the results in the order of the items.
///
/// # Panics
/// If `work` does.
pub fn in_parallel<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    let Some(item) = items.get(at) else { break };
                    let result = work(item);
                    results.lock().expect("no thread panicked").push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panicked");
    results.sort_unstable_by_key(|&(at, _)| at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn results_are_in_the_order_of_their_items() {
        let waits = [40, 0, 20, 0, 10];
        let done = in_parallel(&waits, 3, |&wait| {
            thread::sleep(Duration::from_millis(wait));
            wait
        });
        assert_eq!(done, waits);
    }
}
