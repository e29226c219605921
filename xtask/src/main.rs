//! `cargo xtask`: what maintainers and continuous integration run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints its results")]

mod arrows;
mod bench;
mod ci;
mod circles;
mod claims;
mod cluster;
mod deny;
mod docs;
mod fuzz;
mod gpu_bundle;
mod neon;
mod page;
mod ptx_gen;
mod python;
mod sanitize;
mod sim;
mod sim_kernels;
mod size;

use std::process::ExitCode;

use bitnet_ptx_check::PtxCheck;
use bitnet_release::{Dist, Publish, Release, cubins::Cubins};
use bitnet_soak::Soak;
use bitnet_workspace::{cargo, run};
use clap::{Parser, Subcommand};

/// The packages whose tests run on every platform.
const LIBRARIES: [&str; 18] = [
    "-p",
    "bitnet-tensor",
    "-p",
    "bitnet-kernels",
    "-p",
    "bitnet-model",
    "-p",
    "bitnet-inference",
    "-p",
    "bitnet",
    "-p",
    "bitnet-hub",
    "-p",
    "bitnet-client",
    "-p",
    "bitnet-server",
    "-p",
    "bitnet-cli",
];

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
    PtxCheck(PtxCheck),
    Cubins(Cubins),
    /// Print the product's promises, known mistakes of other engines and the faults that it must survive, each with its
    /// tests; fail if one has none
    Claims,
    /// Run the scheduler through random schedules, or real models through random batches
    Sim(sim::Sim),
    SimKernels(sim_kernels::SimKernels),
    GpuBundle(gpu_bundle::GpuBundle),
    Dist(Dist),
    Release(Release),
    Publish(Publish),
    /// Run the tests of the libraries, the server and the program, which pass on every platform
    Libraries,
    /// Run the 64-bit Arm kernels under emulation: compare them with the reference, and the demo with this machine
    Neon,
    /// Check the kernels against the reference, then measure prefill, decode, kernels, engine and server
    Bench(bench::Bench),
    /// Build the Python package, install it into a new virtual environment and run its tests there
    Python,
    Soak(Soak),
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
        Task::Dist(dist) => dist.run(),
        Task::Release(release) => release.run(),
        Task::Publish(publish) => publish.run(),
        Task::Libraries => run(cargo(&[&["test", "--release"][..], &LIBRARIES].concat())),
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
