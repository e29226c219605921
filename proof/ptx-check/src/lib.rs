//! Assembles every GPU kernel with NVIDIA's assembler, and checks the machine code against the kernel's row in the
//! table.
#![allow(clippy::print_stdout, reason = "its tool prints results")]

mod judge;
#[cfg(test)]
mod operands;
mod shapes;
mod tools;

use std::thread;

use anyhow::{Context, Result, bail};
use bitnet_kernels::gpu::table::{KERNELS, overlapped, waits};
use bitnet_tests::instructions::{HEADER, INSTRUCTIONS};
use bitnet_workspace::in_parallel;
use clap::Args;

pub use tools::Tools;

/// Assemble every text that can reach a GPU, for every architecture: check spills, registers, instructions, and shapes
/// that the assembler is known to miscompile
#[derive(Debug, Args)]
pub struct PtxCheck {
    /// Fail if there is no assembler, after trying to install it with pip
    #[arg(long)]
    require: bool,
    /// Use the assemblers of eight versions of CUDA, installed with pip; run this before a release
    #[arg(long)]
    versions: bool,
}

impl PtxCheck {
    /// Checks the texts, and the machine code if there is an assembler.
    ///
    /// # Errors
    /// What is wrong with which kernel, or what is missing.
    pub fn run(&self) -> Result<()> {
        texts()?;
        let found = if self.require || self.versions { Tools::find_or_install()? } else { Tools::find() };
        match found {
            Some(tools) => {
                check(&tools, &tools::ARCHITECTURES, true)?;
                if self.versions { versions(&tools) } else { Ok(()) }
            }
            None if self.require || self.versions => bail!("no ptxas: {}", tools::CURE),
            None => {
                println!("skipped: machine code of {} kernels (no ptxas: {})", KERNELS.len(), tools::CURE);
                Ok(())
            }
        }
    }
}

/// For continuous integration: installs the assembler, which some tests need, or reports that pip cannot.
///
/// # Errors
/// If what pip installed is not the assembler.
pub fn install() -> Result<()> {
    if Tools::find_or_install()?.is_none() {
        println!("skipped: tests that plant faults in machine code (no ptxas: {})", tools::CURE);
    }
    Ok(())
}

/// For continuous integration, after [`install`]: requires the assembler if pip can install it.
///
/// # Errors
/// As [`PtxCheck::run`].
pub fn in_ci() -> Result<()> {
    PtxCheck { require: tools::has_pip(), versions: false }.run()
}

/// Finds shapes in the texts that the assembler miscompiles.
fn texts() -> Result<()> {
    report(KERNELS.iter().flat_map(|kernel| shapes::found(kernel)).collect())
}

fn versions(tools: &Tools) -> Result<()> {
    for version in &tools::VERSIONS {
        println!("{}:", version.package);
        check(&tools.of_version(version)?, version.architectures, version.overlaps)
            .context(version.package)?;
    }
    Ok(())
}

fn check(tools: &Tools, architectures: &[&str], overlaps: bool) -> Result<()> {
    let mut work = Vec::new();
    for (&kernel, &architecture) in
        KERNELS.iter().flat_map(|kernel| architectures.iter().map(move |architecture| (kernel, architecture)))
    {
        work.push((kernel, kernel.text.to_owned(), architecture, format!("sm_{architecture}")));
        if overlaps && architecture.parse().is_ok_and(|number: u32| number >= 90) && waits(kernel.text) {
            let target = format!("sm_{architecture}, overlapped");
            work.push((kernel, overlapped(kernel.text), architecture, target));
        }
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let found = in_parallel(&work, threads, |(kernel, text, architecture, target)| {
        tools.assemble(text, architecture).map_or_else(
            |e| vec![format!("{} for {target}: {e:#}", kernel.name)],
            |code| judge::problems(kernel, target, &code),
        )
    });
    let mut problems = found.concat();
    let instructions = instructions();
    for architecture in architectures {
        let refused = tools.refusal(&instructions, architecture)?;
        problems
            .extend(refused.map(|why| format!("instructions for sm_{architecture}: {why}\n{instructions}")));
    }
    report(problems)?;
    println!(
        "{} texts of {} kernels and {} instructions assemble for sm_{}",
        work.len(),
        KERNELS.len(),
        INSTRUCTIONS.len(),
        architectures.join(", ")
    );
    Ok(())
}

/// Joins all texts that check single instructions into one module.
fn instructions() -> String {
    let entries = INSTRUCTIONS.iter().enumerate().map(|(i, case)| case.entry(&format!("case{i}")));
    HEADER.to_owned() + &entries.collect::<String>()
}

fn report(mut problems: Vec<String>) -> Result<()> {
    problems.sort();
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} problems:\n{}", problems.len(), problems.join("\n"))
}
