//! Assembles every GPU kernel with NVIDIA's assembler and holds the machine code to the kernel's row in the table.

mod header;
mod judge;
mod tools;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use anyhow::{Result, bail};
use bitnet_kernels::gpu::table::{KERNELS, Kernel};
use clap::Args;

pub(crate) use tools::Tools;

/// Architectures that the kernels must assemble for.
const ARCHITECTURES: [&str; 6] = ["80", "86", "89", "90", "100", "120"];

/// Assemble every GPU kernel for every architecture and check spills, registers, instructions and headers
#[derive(Args)]
pub(crate) struct PtxCheck {
    /// Fail where the assembler cannot be had, after trying to install it with pip
    #[arg(long)]
    require: bool,
}

impl PtxCheck {
    pub(crate) fn run(&self) -> Result<()> {
        let found = if self.require { Tools::find_or_install()? } else { Tools::find() };
        match found {
            Some(tools) => check(&tools),
            None if self.require => bail!("no ptxas: {}", tools::CURE),
            None => {
                headers()?;
                println!("skipped: machine code of {} kernels (no ptxas: {})", KERNELS.len(), tools::CURE);
                Ok(())
            }
        }
    }
}

/// For continuous integration, before the tests, some of which need the assembler: installs it where pip can, and says
/// so where it cannot.
pub(crate) fn install() -> Result<()> {
    if Tools::find_or_install()?.is_none() {
        println!("skipped: tests that plant faults in machine code (no ptxas: {})", tools::CURE);
    }
    Ok(())
}

/// For continuous integration, after [`install`]: what pip can have is required.
pub(crate) fn in_ci() -> Result<()> {
    PtxCheck { require: tools::has_pip() }.run()
}

/// Every header says what the table says.
fn headers() -> Result<()> {
    report(KERNELS.iter().flat_map(|kernel| header::differences(kernel)).collect())
}

fn check(tools: &Tools) -> Result<()> {
    headers()?;
    let work: Vec<(&Kernel, &str)> =
        KERNELS.iter().flat_map(|&kernel| ARCHITECTURES.map(|architecture| (kernel, architecture))).collect();
    let (next, problems) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&(kernel, architecture)) = work.get(next.fetch_add(1, Relaxed)) {
                    let found = tools.assemble(kernel, architecture).map_or_else(
                        |e| vec![format!("{} for sm_{architecture}: {e:#}", kernel.name)],
                        |code| judge::problems(kernel, architecture, &code),
                    );
                    problems.lock().expect("no thread panicked").extend(found);
                }
            });
        }
    });
    report(problems.into_inner().expect("no thread panicked"))?;
    println!("{} kernels assemble for sm_{}", KERNELS.len(), ARCHITECTURES.join(", "));
    Ok(())
}

fn report(mut problems: Vec<String>) -> Result<()> {
    problems.sort();
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} problems:\n{}", problems.len(), problems.join("\n"))
}
