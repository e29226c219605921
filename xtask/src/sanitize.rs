//! The tests under the compiler's sanitizers.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use bitnet_workspace::{cargo, output, run, target};
use clap::{Args, ValueEnum};

/// Run the tests of kernels, engine and server under one of the compiler's sanitizers; a stable compiler is enough
///
/// All tests of these packages run, except the GPU kernels on the simulator, which is safe code on one thread, a test that
/// judges the simulation by planted faults, and one of the system's heap, which sanitizers replace. Random tests get fewer
/// cases: 50 schedules of the scheduler and 16 cases of each property. The thread sanitizer reports tokio's `ScheduledIo`
/// falsely, because it does not see what goes through epoll.
#[derive(Args)]
pub(crate) struct Sanitize {
    /// Which one
    sanitizer: Sanitizer,
    /// Packages whose tests run
    #[arg(default_values = ["bitnet-kernels", "bitnet-inference", "bitnet-server"])]
    packages: Vec<String>,
    /// Only tests whose names contain one of these
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Number of parallel build jobs
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

/// Tests that find nothing here and take long, or do not apply.
const SKIPPED: [&str; 3] = ["gpu::", "every_planted_fault_is_caught", "heap::"];

#[derive(Clone, Copy, ValueEnum)]
enum Sanitizer {
    /// Finds memory errors and leaks
    Address,
    /// Finds data races; compiles the standard library too, because it has to see the locks in it
    Thread,
}

impl Sanitize {
    pub(crate) fn run(&self) -> Result<()> {
        // With --target, build scripts and macros are built without the sanitizer.
        let mut test = cargo(&["test", "--release", "--target", &host()?, "--tests", "--no-fail-fast"]);
        let name = match self.sanitizer {
            Sanitizer::Address => "address",
            Sanitizer::Thread => {
                let source = Path::new(&rustc(&["--print", "sysroot"])?).join("lib/rustlib/src/rust/library");
                let cure = "run `rustup component add rust-src`";
                ensure!(source.exists(), "{}: no source of the standard library: {cure}", source.display());
                test.arg("-Zbuild-std");
                "thread"
            }
        };
        for package in &self.packages {
            test.args(["--package", package]);
        }
        if let Some(jobs) = self.jobs {
            test.args(["--jobs", &jobs.to_string()]);
        }
        test.arg("--").args(&self.only);
        for name in SKIPPED {
            test.args(["--skip", name]);
        }
        test.env("CARGO_TARGET_DIR", target().join(name)).env("CARGO_INCREMENTAL", "0");
        test.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", format!("-Zsanitizer={name}"));
        test.env("BITNET_SIM_SEEDS", "50").env("PROPTEST_CASES", "16");
        run(test)
    }
}

/// The compiler's name for this machine.
fn host() -> Result<String> {
    let told = rustc(&["-vV"])?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc names no host")
}

/// What the compiler prints, without the end of the last line.
fn rustc(args: &[&str]) -> Result<String> {
    let mut rustc = Command::new("rustc");
    rustc.args(args);
    Ok(String::from_utf8(output(rustc)?)?.trim_end().to_owned())
}
