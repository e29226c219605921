//! What must hold before a version is released.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use bitnet_workspace::{cargo, git, on_path, output, root, run};
use clap::Args;

use crate::{VERSION, notes, publish::LIBRARIES};

/// Packages that speak to a network; the crate `bitnet` must build without them.
const NETWORK: [&str; 5] = ["bitnet-hub", "hf-hub", "rustls", "tokio", "ureq"];

/// Check that the tag fits version and changelog, that every feature compiles alone, and that the public API changed
/// only as the version says; needs cargo-hack and cargo-semver-checks
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The tag of the release, like v0.1.0
    #[arg(long)]
    tag: Option<String>,
    /// Report a missing cargo-hack or cargo-semver-checks instead of failing
    #[arg(long)]
    skip_missing: bool,
}

impl Check {
    pub(crate) fn run(&self) -> Result<()> {
        if let Some(tag) = &self.tag {
            fits_version(tag, VERSION, notes::has(VERSION)?)?;
        }
        without_network()?;
        if self.has("cargo-hack")? {
            let mut hack = cargo(&["hack", "check", "--each-feature", "--no-dev-deps"]);
            hack.args(LIBRARIES.iter().flat_map(|package| ["--package", package]));
            run(hack)?;
        }
        match previous(self.tag.as_deref()) {
            None => println!("skipped: the public API (there is no earlier release to compare with)"),
            Some(earlier) if self.has("cargo-semver-checks")? => {
                run(cargo(&["semver-checks", "--workspace", "--baseline-rev", &earlier]))?;
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Whether a tool is installed; an error if it must be.
    fn has(&self, tool: &str) -> Result<bool> {
        if on_path(&format!("{tool}{}", std::env::consts::EXE_SUFFIX)).next().is_some() {
            return Ok(true);
        }
        let cure = format!("cargo install --locked {tool}");
        ensure!(self.skip_missing, "{tool} is not installed: {cure}");
        println!("skipped: {tool} ({cure})");
        Ok(false)
    }
}

/// Compiles the workspace with the oldest Rust that it allows.
pub(crate) fn oldest_rust() -> Result<()> {
    let version = env!("CARGO_PKG_RUST_VERSION");
    let rustup = |args: &[&str]| {
        let mut rustup = Command::new("rustup");
        rustup.args(args).current_dir(root());
        run(rustup)
    };
    rustup(&["toolchain", "install", version, "--profile", "minimal"])?;
    rustup(&["run", version, "cargo", "check", "--workspace", "--locked"])
}

fn fits_version(tag: &str, version: &str, described: bool) -> Result<()> {
    ensure!(tag == format!("v{version}"), "the tag is {tag}, but Cargo.toml says {version}: tag v{version}");
    ensure!(described, "CHANGELOG.md has no part {version}: give \"Unreleased\" that name");
    Ok(())
}

/// The last tag before this release.
fn previous(tag: Option<&str>) -> Option<String> {
    let tags = git(&["tag", "--list", "v*", "--sort=-version:refname", "--merged"]).ok()?;
    tags.lines().find(|&name| Some(name) != tag).map(str::to_owned)
}

/// Fails if the crate `bitnet` without its default features needs a package that speaks to a network.
fn without_network() -> Result<()> {
    let tree = cargo(&[
        "tree",
        "--package",
        "bitnet",
        "--no-default-features",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let tree = String::from_utf8(output(tree)?).context("cargo tree prints text")?;
    let needs = |package: &&str| tree.lines().any(|line| line.split(' ').next() == Some(package));
    match NETWORK.iter().find(|package| needs(package)) {
        Some(package) => bail!("bitnet without default features needs {package}, which speaks to a network"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crate_without_default_features_has_no_network_code() {
        without_network().unwrap();
    }

    #[test]
    fn a_tag_must_fit_the_version_and_the_changelog() {
        assert!(fits_version("v0.1.0", "0.1.0", true).is_ok());
        assert!(fits_version("v0.1.0", "0.2.0", true).unwrap_err().to_string().contains("v0.2.0"));
        assert!(fits_version("v0.1.0", "0.1.0", false).unwrap_err().to_string().contains("CHANGELOG"));
    }
}
