//! The list of all checks, and what each needs from the machine.

use std::time::Instant;

use anyhow::Result;
use bitnet_workspace::{cargo, run as execute};

use crate::{arrows, claims, cluster, deny, docs, neon, page, python, size};

/// A check: its name, what it lacks on this machine, and the check itself.
type Check = (&'static str, fn() -> Option<String>, fn() -> Result<()>);

/// What a check lacks that needs nothing but Rust.
fn nothing() -> Option<String> {
    None
}

/// All checks, quick ones first.
fn checks() -> [Check; 17] {
    [
        ("format", nothing, || execute(cargo(&["fmt", "--all", "--check"]))),
        ("arrows between crates", nothing, arrows::check),
        ("size of the repository", nothing, size::check),
        ("claims and their tests", nothing, claims::check),
        ("dependencies", deny::missing, deny::offline),
        ("workflow files", docs::no_linters, docs::workflows),
        ("the user guide", docs::no_mdbook, docs::book),
        ("lints", nothing, || {
            let what = ["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];
            execute(cargo(&what))
        }),
        ("documentation", nothing, || {
            let mut doc = cargo(&["doc", "--release", "--workspace", "--no-deps"]);
            doc.env("RUSTDOCFLAGS", "-D warnings");
            execute(doc)
        }),
        ("assembler of the GPU kernels", nothing, bitnet_ptx_check::install),
        ("tests", nothing, || execute(cargo(&["test", "--release", "--workspace"]))),
        ("soak", nothing, bitnet_soak::quick),
        ("replicas behind a proxy", cluster::missing, cluster::quick),
        ("the chat page", page::missing, page::check),
        ("machine code of the GPU kernels", nothing, bitnet_ptx_check::in_ci),
        ("kernels of 64-bit Arm", neon::missing, neon::check),
        // It compiles the crates a second time, so it runs only where maturin is installed.
        ("the Python package", python::missing, python::check),
    ]
}

/// Runs all checks until one fails, and reports what is not checked here.
pub(crate) fn run() -> Result<()> {
    for (name, missing, check) in checks() {
        println!("== {name}");
        if let Some(missing) = missing() {
            println!("skipped: {name} ({missing})");
            continue;
        }
        let start = Instant::now();
        check()?;
        println!("== {name}: passed in {:.0} s", start.elapsed().as_secs_f64());
    }
    if cfg!(not(target_arch = "x86_64")) {
        println!("skipped: kernels of x86-64 (this machine is {})", std::env::consts::ARCH);
    }
    println!(
        "skipped: GPU kernels on silicon (continuous integration has no GPU; they ran on the simulator)"
    );
    Ok(())
}
