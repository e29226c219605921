//! The wheel of the Python package.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use bitnet_workspace::{root, run, target};
use clap::Args;

use crate::{fits, publish};

/// Maximum size of the wheel in bytes.
const LIMIT: u64 = 25_000_000;

/// Build the wheel as it is uploaded, named bitnet-engine, for Python 3.10 and newer on this platform or another
#[derive(Debug, Args)]
pub(crate) struct Wheel {
    /// The folder for the wheel
    #[arg(default_value = "target/dist")]
    folder: PathBuf,
    /// The platform to compile for, if not this one
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Link with zig, for Linux with glibc 2.17 and newer
    #[arg(long)]
    old_glibc: bool,
}

impl Wheel {
    pub(crate) fn run(&self) -> Result<()> {
        let mut flags: Vec<&str> = Vec::new();
        if self.old_glibc {
            flags.extend(["--zig", "--compatibility", "manylinux2014"]);
        }
        flags.extend(self.target.iter().flat_map(|triple| ["--target", triple]));
        let wheel = build(&publish::copy()?, &target().join("python/uploaded"), &flags)?;
        let name = wheel.file_name().context("a wheel has a name")?;
        let folder = root().join(&self.folder);
        fs::create_dir_all(&folder)?;
        fs::copy(&wheel, folder.join(name)).with_context(|| wheel.display().to_string())?;
        Ok(())
    }
}

/// Builds the wheel of a tree with maturin, which pip installs, into a folder that is emptied first. Returns its path.
///
/// # Errors
/// If it cannot be built or is too large.
pub fn build(tree: &Path, wheels: &Path, flags: &[&str]) -> Result<PathBuf> {
    let tools = target().join("python/tools");
    environment(&tools, &[])?;
    let zig = flags.contains(&"--zig");
    pip(&tools, [if zig { "maturin[zig]>=1.9.4,<2" } else { "maturin>=1.9.4,<2" }])?;
    if wheels.exists() {
        fs::remove_dir_all(wheels)?;
    }
    let package = tree.join("crates/bitnet-py");
    // The package is a workspace of its own, with the versions of the product's dependencies.
    fs::copy(tree.join("Cargo.lock"), package.join("Cargo.lock"))?;
    let mut build = Command::new(program(&tools, "maturin"));
    build.args(["build", "--release", "--quiet", "--out"]).arg(wheels).args(flags);
    build.current_dir(&package).env("CARGO_TARGET_DIR", target());
    run(build)?;
    let wheel = fs::read_dir(wheels)?.next().context("maturin writes a wheel")??;
    let size = wheel.metadata()?.len();
    println!("{}: {:.1} MB", wheel.file_name().display(), size as f64 / 1e6);
    fits("the wheel", size, LIMIT)?;
    ensure!(wheel.path().extension().is_some_and(|end| end == "whl"), "maturin wrote something else");
    Ok(wheel.path())
}

/// Makes a virtual environment.
///
/// # Errors
/// If Python or its module venv is missing.
pub fn environment(folder: &Path, flags: &[&str]) -> Result<()> {
    let mut create = Command::new(if cfg!(windows) { "python" } else { "python3" });
    create.args(["-m", "venv"]).args(flags).arg(folder).stdout(Stdio::null());
    run(create)
}

/// Installs packages into a virtual environment.
///
/// # Errors
/// If pip cannot install them.
pub fn pip(folder: &Path, what: impl IntoIterator<Item: AsRef<OsStr>>) -> Result<()> {
    let mut install = Command::new(program(folder, "pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check"]).args(what);
    run(install)
}

/// A program of a virtual environment.
fn program(folder: &Path, name: &str) -> PathBuf {
    folder.join(if cfg!(windows) { "Scripts" } else { "bin" }).join(name)
}
