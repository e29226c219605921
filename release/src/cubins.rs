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
    for ((architecture, kernel, _), code) in texts.iter().zip(&codes) {
        let made_for = architecture_of(code);
        ensure!(made_for == Some(*architecture), "{} for sm_{architecture} is for {made_for:?}", kernel.name);
    }
    let parts =
        texts.iter().zip(&codes).map(|((architecture, _, text), code)| (*architecture, &**text, &**code));
    let file = pack(parts);
    fs::write(&path, &file).with_context(|| path.display().to_string())?;
    Ok(Some(file.len() as u64))
}

/// The architecture that machine code is for, from the flags in its header: in the low byte up to version 7 of NVIDIA's
/// ABI, and in the one after that from version 8 on. `None` if it is not machine code.
fn architecture_of(code: &[u8]) -> Option<u32> {
    let header = code.first_chunk::<52>().filter(|header| header.starts_with(b"\x7fELF"))?;
    let flags = &header[48..];
    Some(flags[usize::from(header[8] >= 8)].into())
}
