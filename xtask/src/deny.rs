use std::process::Command;

use anyhow::Result;

use crate::{on_path, root, run};

/// Checks all dependencies by `deny.toml`: licences, sources, duplicates, and known vulnerabilities, whose list comes over
/// the network.
pub(crate) fn check() -> Result<()> {
    run(deny(&["check"]))
}

/// The part that needs no network; skipped with a note where `cargo-deny` is not installed.
pub(crate) fn in_ci() -> Result<()> {
    if on_path("cargo-deny").next().is_none() {
        println!("skipped: licences, sources and duplicates of dependencies (cargo install cargo-deny)");
        return Ok(());
    }
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
