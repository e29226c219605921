use std::time::Instant;

use anyhow::Result;

use crate::{
    arrows, cargo, claims, cluster, deny, neon, page, ptx_check, python, run as execute, size, soak,
};

type Check = (&'static str, fn() -> Result<()>);

/// All checks, quick ones first.
fn checks() -> [Check; 15] {
    [
        ("format", || execute(cargo(&["fmt", "--all", "--check"]))),
        ("arrows between crates", arrows::check),
        ("size of the repository", size::check),
        ("claims and their tests", claims::check),
        ("dependencies", deny::in_ci),
        ("lints", || {
            let what = ["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];
            execute(cargo(&what))
        }),
        ("assembler of the GPU kernels", ptx_check::install),
        ("tests", || execute(cargo(&["test", "--release", "--workspace"]))),
        ("soak", soak::in_ci),
        ("replicas behind a proxy", cluster::in_ci),
        ("the chat page", page::in_ci),
        ("machine code of the GPU kernels", ptx_check::in_ci),
        ("kernels of 64-bit Arm", neon::in_ci),
        ("the Python package", python::in_ci),
        ("documentation", || {
            let mut doc = cargo(&["doc", "--release", "--workspace", "--no-deps"]);
            doc.env("RUSTDOCFLAGS", "-D warnings");
            execute(doc)
        }),
    ]
}

/// Runs all checks until one fails, and reports what is not checked here.
pub(crate) fn run() -> Result<()> {
    for (name, check) in checks() {
        println!("== {name}");
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
