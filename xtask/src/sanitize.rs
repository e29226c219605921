use std::process::Command;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::{cargo, output, run, target};

/// Run the tests of kernels, engine and server under one of the compiler's sanitizers; a stable compiler is enough
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

#[derive(Clone, Copy, ValueEnum)]
enum Sanitizer {
    /// Finds memory errors and leaks
    Address,
    /// Finds data races
    Thread,
}

impl Sanitize {
    pub(crate) fn run(&self) -> Result<()> {
        let (name, flags) = match self.sanitizer {
            Sanitizer::Address => ("address", "-Zsanitizer=address"),
            // The standard library as shipped is not instrumented; its generic parts are, where the product uses them.
            Sanitizer::Thread => ("thread", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"),
        };
        let host = host()?;
        // With --target, build scripts and macros are built without the sanitizer.
        let mut test = cargo(&["test", "--release", "--target", &host, "--tests"]);
        for package in &self.packages {
            test.args(["--package", package]);
        }
        if let Some(jobs) = self.jobs {
            test.args(["--jobs", &jobs.to_string()]);
        }
        test.arg("--").args(&self.only);
        test.env("CARGO_TARGET_DIR", target().join(name)).env("CARGO_INCREMENTAL", "0");
        test.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags).env("TSAN_OPTIONS", "halt_on_error=1");
        run(test)
    }
}

/// The compiler's name for this machine.
fn host() -> Result<String> {
    let mut rustc = Command::new("rustc");
    rustc.arg("-vV");
    let told = String::from_utf8(output(rustc)?)?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc names no host")
}
