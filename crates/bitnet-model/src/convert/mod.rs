//! Writes a model in another format, so that the format's own tools can read it ([`convert`]).
//! A result appears under its name only when it is complete.

mod gguf;
mod packed;

use std::{
    borrow::Borrow,
    fmt,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{ModelError, files::Checkpoint};

/// A format to write models in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// A GGUF file for bitnet.cpp.
    I2S,
    /// A GGUF file for llama.cpp, 1.69 bits a weight.
    Tq1_0,
    /// A GGUF file for llama.cpp, 2.06 bits a weight.
    Tq2_0,
    /// A GGUF file for llama.cpp with a scale for every 64 weights, 2.25 bits a weight.
    Q2_0,
    /// A GGUF file for PrismML's fork of llama.cpp with a scale for every 128 weights, 2.125 bits a weight.
    Pq2_0,
    /// A GGUF file for this program only, in the layouts of its CPU kernels. It loads immediately, because nothing is
    /// packed at load, and processes share its pages.
    Panels,
    /// A Hugging Face folder for transformers, 2 bits a weight.
    Packed,
}

impl Target {
    const ALL: [(Target, &str); 7] = [
        (Target::I2S, "i2_s"),
        (Target::Tq1_0, "tq1_0"),
        (Target::Tq2_0, "tq2_0"),
        (Target::Q2_0, "q2_0"),
        (Target::Pq2_0, "pq2_0"),
        (Target::Panels, "panels"),
        (Target::Packed, "packed"),
    ];
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(t, _)| t == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Target {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self, ModelError> {
        let found = Self::ALL.iter().find(|(_, n)| *n == name).map(|(t, _)| *t);
        found.ok_or_else(|| {
            let cure = "choose i2_s, tq1_0, tq2_0, q2_0, pq2_0, panels or packed";
            ModelError::unsupported("--to", "format", name, cure)
        })
    }
}

/// Writes `checkpoint` to `destination`: a file for the GGUF formats, a new folder for packed. `progress` receives the
/// name of each tensor before it is written, and the number of tensors.
///
/// The trits and the defaults for sampling are the same in every format. Scales are exact in I2_S, Q2_0, PQ2_0, panels
/// and packed, and rounded to 16 bits in the TQ formats. Matrices whose rows are not whole blocks of 128 (I2_S) or 256
/// weights (the TQ formats) are stored as floats, with the same trits and scales. A model with a scale for every group of
/// weights can be written as Q2_0, PQ2_0 or panels, any other as I2_S, TQ1_0, TQ2_0, panels or packed. The result appears
/// under its name only when it is complete. To write over the checkpoint's own file, pass the checkpoint by value: Windows
/// does not replace a file that is mapped.
///
/// # Errors
/// [`ModelError::Convert`] if the format cannot hold the model, before anything is written; otherwise any error of
/// reading or writing.
pub fn convert(
    checkpoint: impl Borrow<Checkpoint>,
    target: Target,
    destination: &Path,
    progress: &mut dyn FnMut(&str, usize),
) -> Result<(), ModelError> {
    let output = match target {
        Target::Packed => packed::write(checkpoint.borrow(), destination, progress)?,
        _ => gguf::write(checkpoint.borrow(), target, destination, progress)?,
    };
    drop(checkpoint);
    output.commit().map_err(ModelError::io("write", destination))
}

/// The error for something that a target cannot hold.
fn refuse(target: Target, what: &str, problem: impl ToString, cure: &'static str) -> ModelError {
    let what = crate::error::one_line(what);
    let problem = crate::error::one_line(problem);
    ModelError::Convert { what, format: target.to_string(), problem, cure }
}

/// Bytes written at a time: a file written in whole huge pages is cached and mapped in huge pages.
const PIECE: usize = 2 << 20;

/// A file that counts the bytes written.
struct Output {
    path: PathBuf,
    file: File,
    /// Bytes not yet flushed, less than a piece.
    rest: Vec<u8>,
    at: u64,
}

impl Output {
    fn create(path: &Path) -> Result<Self, ModelError> {
        let file = File::create(path).map_err(ModelError::io("create", path))?;
        Ok(Output { path: path.into(), file, rest: Vec::with_capacity(PIECE), at: 0 })
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), ModelError> {
        self.at += bytes.len() as u64;
        while self.rest.len() + bytes.len() >= PIECE {
            let (now, later) = bytes.split_at(PIECE - self.rest.len());
            self.rest.extend_from_slice(now);
            self.flush()?;
            bytes = later;
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ModelError> {
        self.file.write_all(&self.rest).map_err(ModelError::io("write", &self.path))?;
        self.rest.clear();
        Ok(())
    }

    /// Writes zeros up to the next multiple of `alignment`.
    fn align(&mut self, alignment: u64) -> Result<(), ModelError> {
        let zeros = vec![0; (self.at.next_multiple_of(alignment) - self.at) as usize];
        self.write(&zeros)
    }

    fn finish(mut self) -> Result<(), ModelError> {
        self.flush()
    }
}
