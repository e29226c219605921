//! `cargo xtask`: what maintainers and continuous integration run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints its results")]

mod arrows;
mod bench;
mod ci;
mod circles;
mod claims;
mod cluster;
mod cubins;
mod deny;
mod dist;
mod fuzz;
mod gpu_bundle;
mod gpu_model;
mod neon;
mod page;
mod ptx_check;
mod ptx_gen;
mod python;
mod sanitize;
mod sim;
mod sim_kernels;
mod size;
mod soak;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "The workspace's tool for maintainers and continuous integration")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that continuous integration runs: format, lints, arrows, size, tests, docs
    Ci,
    /// Check that dependencies between the crates point down only, and that no two files of a crate use each other
    Arrows,
    /// Check that committed files stay small
    Size,
    /// Print the unrolled PTX kernels from their templates
    PtxGen,
    PtxCheck(ptx_check::PtxCheck),
    Cubins(cubins::Cubins),
    /// Print the product's promises, known mistakes of other engines and the faults that it must survive, each with its
    /// tests; fail if one has none
    Claims,
    /// Run the scheduler through random schedules, or real models through random batches
    Sim(sim::Sim),
    SimKernels(sim_kernels::SimKernels),
    GpuBundle(gpu_bundle::GpuBundle),
    GpuModel(gpu_model::GpuModel),
    Dist(dist::Dist),
    /// Run the 64-bit Arm kernels under emulation: compare them with the reference, and the demo with this machine
    Neon,
    /// Check the kernels against the reference, then measure prefill, decode, kernels, engine and server
    Bench(bench::Bench),
    /// Build the Python package, install it into a new virtual environment and run its tests there
    Python,
    Soak(soak::Soak),
    ClusterSmoke(cluster::ClusterSmoke),
    Page(page::Page),
    /// Cause every fault of the table and check that only the request at fault fails
    Faults,
    Sanitize(sanitize::Sanitize),
    /// Check licences, sources, duplicates and known vulnerabilities of all dependencies with cargo-deny
    Deny,
    /// Damage model files of every kind and check how they are handled
    Fuzz(fuzz::Fuzz),
    /// Compare every form of the golden checkpoints with its oracle, on every instruction set of this machine
    Fixtures {
        /// Required; there is no other action
        #[arg(long, required = true)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Ci => ci::run(),
        Task::Arrows => arrows::check(),
        Task::Size => size::check(),
        Task::PtxCheck(check) => check.run(),
        Task::Cubins(cubins) => cubins.run(),
        Task::PtxGen => ptx_gen::write(),
        Task::Claims => claims::check(),
        Task::Sim(sim) => sim.run(),
        Task::SimKernels(sim) => sim.run(),
        Task::GpuBundle(bundle) => bundle.run(),
        Task::GpuModel(model) => model.run(),
        Task::Dist(dist) => dist.run(),
        Task::Neon => neon::check(),
        Task::Bench(bench) => bench.run(),
        Task::Python => python::check(),
        Task::Soak(soak) => soak.run(),
        Task::ClusterSmoke(smoke) => smoke.run(),
        Task::Page(page) => page.run(),
        Task::Faults => claims::run_faults(),
        Task::Sanitize(sanitize) => sanitize.run(),
        Task::Deny => deny::check(),
        Task::Fuzz(fuzz) => fuzz.run(),
        Task::Fixtures { .. } => {
            run(cargo(&["test", "--release", "-p", "bitnet-tests", "--test", "it", "goldens::"]))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").into()
}

/// Where cargo builds.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// Programs with this name, in the order of PATH.
fn on_path(name: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let programs: Vec<PathBuf> = env::split_paths(&path).map(|folder| folder.join(name)).collect();
    programs.into_iter().filter(|program| program.is_file())
}

/// Builds `bitnet` and returns its path. Builds what the tests build too: for the program alone, cargo would choose other
/// features of its dependencies, and compile most crates a second time.
fn bitnet() -> Result<PathBuf> {
    run(cargo(&["build", "--release", "--quiet", "--workspace", "--bins", "--examples"]))?;
    Ok(target().join("release/bitnet"))
}

/// A cargo command in the workspace.
fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(args).current_dir(root());
    command
}

/// Runs a command and fails if it does.
fn run(mut command: Command) -> Result<()> {
    let what = format!("{command:?}");
    let status = command.status().with_context(|| what.clone())?;
    ensure!(status.success(), "{what} failed: {status}");
    Ok(())
}

/// Works on all items, on several threads, and returns the results in any order.
fn in_parallel<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Relaxed)) {
                    let result = work(item);
                    results.lock().expect("no thread panicked").push(result);
                }
            });
        }
    });
    results.into_inner().expect("no thread panicked")
}

/// Runs git in the workspace and returns what it prints, without the last line's end.
fn git(args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(args).current_dir(root());
    Ok(String::from_utf8(output(git)?)?.trim_end().to_owned())
}

/// Runs a command and returns what it prints.
fn output(mut command: Command) -> Result<Vec<u8>> {
    let what = format!("{command:?}");
    let out = command.output().with_context(|| what.clone())?;
    ensure!(out.status.success(), "{what} failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(out.stdout)
}
