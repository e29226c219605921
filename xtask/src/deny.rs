use std::{env, fs, path::PathBuf, process::Command};

use anyhow::Result;
use bitnet_workspace::{on_path, output, root, run};

/// Checks all dependencies by `deny.toml`: licences, sources, duplicates, and known vulnerabilities, whose list comes over
/// the network. Then says how recent that list is, because a mirror may be years behind.
pub(crate) fn check() -> Result<()> {
    run(deny(&["check"]))?;
    let lists = lists();
    for list in &lists {
        let mut log = Command::new("git");
        log.args(["log", "-1", "--format=%cs"]).current_dir(list);
        let date = String::from_utf8(output(log)?)?;
        println!("not checked: vulnerabilities published after {}, the date of the list", date.trim());
    }
    if lists.is_empty() {
        println!("not checked: how recent the list of vulnerabilities is (cargo-deny keeps it elsewhere)");
    }
    Ok(())
}

/// The folders where cargo-deny keeps lists of vulnerabilities; each is a git repository.
fn lists() -> Vec<PathBuf> {
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let entries = cargo.and_then(|cargo| fs::read_dir(cargo.join("advisory-dbs")).ok());
    let folders = entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    folders.filter(|folder| folder.join(".git").exists()).collect()
}

/// What continuous integration lacks.
pub(crate) fn missing() -> Option<String> {
    let installed = on_path("cargo-deny").next().is_some();
    (!installed).then(|| "needs cargo-deny: cargo install cargo-deny".into())
}

/// The part that needs no network.
pub(crate) fn offline() -> Result<()> {
    println!(
        "skipped: known vulnerabilities of dependencies (their list comes over the network: cargo xtask deny)"
    );
    run(deny(&["--offline", "check", "licenses", "bans", "sources"]))
}

fn deny(args: &[&str]) -> Command {
    let mut command = Command::new("cargo-deny");
    command.args(args).current_dir(root());
    command
}
