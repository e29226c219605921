//! Assembles the GPU kernels for common GPUs, so that a driver need not compile them when the program starts.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result, ensure};
use bitnet_kernels::gpu::cubins::{FILE, pack, texts};
use bitnet_ptx_check::Tools;
use bitnet_workspace::{in_parallel, root};
use clap::Args;

/// Assemble the GPU kernels for common GPUs into a file for beside the program; needs ptxas, which pip installs
#[derive(Debug, Args)]
pub struct Cubins {
    /// The folder of the program
    #[arg(default_value = "target/release")]
    folder: PathBuf,
}

impl Cubins {
    /// Writes the file beside the program.
    ///
    /// # Errors
    /// If there is no assembler, or it refuses a kernel.
    pub fn run(&self) -> Result<()> {
        let bytes = write(&root().join(&self.folder))?.context("no ptxas, and pip cannot install it")?;
        println!("{} holds {:.1} MB", self.folder.join(FILE).display(), bytes as f64 / 1e6);
        Ok(())
    }
}

/// Writes the file into a folder and returns its size in bytes. Without an assembler it writes nothing, prints that, and
/// returns `None`: drivers then compile the texts.
///
/// # Errors
/// If the assembler refuses a kernel, or the file cannot be written.
pub fn write(folder: &Path) -> Result<Option<u64>> {
    let path = folder.join(FILE);
    if path.exists() {
        fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    let Some(tools) = Tools::find_or_install()? else {
        println!("skipped: machine code of GPU kernels (no ptxas)");
        return Ok(None);
    };
    let texts = texts();
    let tools = tools.for_old_drivers()?;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let codes = in_parallel(&texts, threads, |(architecture, kernel, text)| {
        tools
            .machine_code(text, *architecture)
            .with_context(|| format!("{} for sm_{architecture}", kernel.name))
    });
    let codes = codes.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(codes.iter().all(|code| code.starts_with(b"\x7fELF")), "ptxas wrote something other than ELF");
    let parts =
        texts.iter().zip(&codes).map(|((architecture, _, text), code)| (*architecture, &**text, &**code));
    let file = pack(parts);
    fs::write(&path, &file).with_context(|| path.display().to_string())?;
    Ok(Some(file.len() as u64))
}
