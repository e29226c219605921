//! What a release uploads: archives, wheels and images of a commit, their checksums, a bill of materials, notes,
//! installers, and packages for registries. Each step is a command of `cargo xtask` that also runs on a developer's
//! machine; the workflow files only call them.
#![allow(clippy::print_stdout, reason = "its tool prints results")]

mod assemble;
mod check;
pub mod cubins;
mod dist;
mod image;
mod notes;
mod pack;
mod publish;
mod sbom;
mod wheel;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};

pub use dist::Dist;
pub use publish::Publish;
pub use wheel::{build as build_wheel, environment, pip};

/// The version of all packages of the product.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The steps of a release after the archives, which `cargo xtask dist` makes
#[derive(Debug, Args)]
pub struct Release {
    #[command(subcommand)]
    step: Step,
}

#[derive(Debug, Subcommand)]
enum Step {
    Check(check::Check),
    /// Compile the workspace with the oldest Rust that Cargo.toml allows, which rustup installs
    OldestRust,
    Wheel(wheel::Wheel),
    Image(image::Image),
    Assemble(assemble::Assemble),
    /// Print this version's part of CHANGELOG.md
    Notes,
    /// Print the dependencies of the program as a CycloneDX bill of materials
    Sbom,
}

impl Release {
    /// Runs the step.
    ///
    /// # Errors
    /// What is missing, or what failed.
    pub fn run(&self) -> Result<()> {
        match &self.step {
            Step::Check(check) => check.run(),
            Step::OldestRust => check::oldest_rust(),
            Step::Wheel(wheel) => wheel.run(),
            Step::Image(image) => image.run(),
            Step::Assemble(assemble) => assemble.run(),
            Step::Notes => {
                print!("{}", notes::of(VERSION)?);
                Ok(())
            }
            Step::Sbom => {
                println!("{}", sbom::of_program()?);
                Ok(())
            }
        }
    }
}

/// Fails if something has too many bytes.
///
/// # Errors
/// What is too large, with its size and the limit.
pub fn fits(what: &str, bytes: u64, limit: u64) -> Result<()> {
    ensure!(bytes < limit, "{what}: {bytes} bytes are more than the limit of {limit}");
    Ok(())
}
