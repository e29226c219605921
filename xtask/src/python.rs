//! The tests of the Python package, in an environment of its own.

use std::process::Command;

use anyhow::Result;
use bitnet_release::{build_wheel, environment, pip};
use bitnet_workspace::{bitnet, on_path, output, root, run, target};

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
    let wheel = build_wheel(&root(), &target().join("python/wheels"), &[])?;
    let clean = target().join("python/clean");
    environment(&clean, &["--clear"])?;
    // Nothing is compiled where the wheel is installed.
    pip(&clean, ["--only-binary=:all:".as_ref(), "pytest".as_ref(), wheel.as_os_str()])?;
    let mut test = Command::new(clean.join("bin/python"));
    test.args(["-m", "pytest", "--quiet"]).current_dir(root().join("crates/bitnet-py"));
    test.env("BITNET_PROGRAM", bitnet()?);
    run(test)
}
