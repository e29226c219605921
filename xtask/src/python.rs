use std::{
    ffi::OsStr,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use bitnet_workspace::{bitnet, on_path, output, root, run, target};

use crate::size::fits;

/// Maximum size of the wheel in bytes.
const LIMIT: u64 = 25_000_000;

/// What continuous integration lacks to build and test the wheel.
pub(crate) fn missing() -> Option<String> {
    let [Some(_), Some(python)] = ["maturin", "python3"].map(|name| on_path(name).next()) else {
        return Some("needs python3 and maturin; cargo xtask python installs maturin".into());
    };
    let mut venv = Command::new(python);
    venv.args(["-c", "import ensurepip, venv"]);
    output(venv).is_err().then(|| "needs Python's venv".into())
}

/// Builds the wheel, installs it into a new environment and runs its tests there.
pub(crate) fn check() -> Result<()> {
    let tools = target().join("python/tools");
    environment(&tools, &[])?;
    pip(&tools, ["maturin>=1.9.4,<2"])?;
    let (package, wheels) = (root().join("crates/bitnet-py"), target().join("python/wheels"));
    if wheels.exists() {
        fs::remove_dir_all(&wheels)?;
    }
    // The package is a workspace of its own, with the versions of the product's dependencies.
    fs::copy(root().join("Cargo.lock"), package.join("Cargo.lock"))?;
    let mut build = Command::new(tools.join("bin/maturin"));
    build.args(["build", "--release", "--quiet", "--out"]).arg(&wheels);
    build.current_dir(&package).env("CARGO_TARGET_DIR", target());
    run(build)?;
    let wheel = fs::read_dir(&wheels)?.next().context("maturin writes a wheel")??;
    let size = wheel.metadata()?.len();
    println!("{}: {:.1} MB", wheel.file_name().display(), size as f64 / 1e6);
    fits("the wheel", size, LIMIT)?;

    let clean = target().join("python/clean");
    environment(&clean, &["--clear"])?;
    // Nothing is compiled where the wheel is installed.
    pip(&clean, ["--only-binary=:all:".as_ref(), "pytest".as_ref(), wheel.path().as_os_str()])?;
    let mut test = Command::new(clean.join("bin/python"));
    test.args(["-m", "pytest", "--quiet"]).current_dir(package).env("BITNET_PROGRAM", bitnet()?);
    run(test)
}

fn environment(folder: &Path, flags: &[&str]) -> Result<()> {
    let mut create = Command::new("python3");
    create.args(["-m", "venv"]).args(flags).arg(folder).stdout(Stdio::null());
    run(create)
}

/// Installs packages into a virtual environment.
fn pip(folder: &Path, what: impl IntoIterator<Item: AsRef<OsStr>>) -> Result<()> {
    let mut install = Command::new(folder.join("bin/pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check"]).args(what);
    run(install)
}
