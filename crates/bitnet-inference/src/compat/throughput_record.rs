//! Keeps the results of a benchmark in a file, for later runs to read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bitnet_kernels::BackendInfo;
use bitnet_model::OutputFile;
use serde::{Deserialize, Serialize};

/// The results of a benchmark of a model on one backend ([`BackendInfo`]), kept in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as in `BackendInfo`")]
pub struct ThroughputRecord {
    pub model: String,
    pub device: String,
    pub isa: String,
    pub threads: usize,
    pub kv: String,
    /// Time of the measurement, in seconds since 1970.
    pub unix_time: u64,
    /// Number of sequences decoded together, and their total tokens per second.
    pub decode: Vec<(usize, f64)>,
}

/// A record cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}: run `bitnet bench` again, or set BITNET_CACHE to a writable folder", path.display())]
#[allow(missing_docs, reason = "the message names the fields")]
pub struct RecordError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl ThroughputRecord {
    /// Path of the record of a model on a backend: in `BITNET_CACHE`, or else in the user's cache folder. `None` if
    /// neither is set.
    pub fn path(model: &str, backend: &BackendInfo) -> Option<PathBuf> {
        let folder = |name: &str| std::env::var_os(name).filter(|f| !f.is_empty()).map(PathBuf::from);
        let cache = folder("BITNET_CACHE")
            .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("bitnet")))
            .or_else(|| Some(folder("HOME")?.join(".cache/bitnet")))
            .or_else(|| Some(folder("LOCALAPPDATA")?.join("bitnet")))?;
        let plain = |text: &str| -> String {
            text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
        };
        let BackendInfo { device, isa, threads, kv } = backend;
        let name = format!("{}-{}-{isa}-{threads}-{kv}.json", plain(model), plain(device));
        Some(cache.join("throughput").join(name))
    }

    /// Reads a record, or returns `None` if the file does not exist.
    pub fn read(path: &Path) -> Result<Option<Self>, RecordError> {
        let error = |source| RecordError { path: path.into(), source };
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| error(e.into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(error(e)),
        }
    }

    /// Writes the record, in place of an older one.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            OutputFile::create(path)?.write(serde_json::to_vec_pretty(self)?)
        };
        write().map_err(|source| RecordError { path: path.into(), source })
    }

    /// Writes the record, keeping older results for the same model and backend at other batch sizes. A file that
    /// cannot be read is replaced.
    pub fn add_to(mut self, path: &Path) -> Result<(), RecordError> {
        if let Some(old) = Self::read(path).ok().flatten().filter(|old| old.origin() == self.origin()) {
            let kept =
                old.decode.into_iter().filter(|(size, _)| self.decode.iter().all(|row| row.0 != *size));
            let kept: Vec<_> = kept.collect();
            self.decode.extend(kept);
            self.decode.sort_by_key(|row| row.0);
        }
        self.write(path)
    }

    /// Tokens per second of a batch divided by those of a single sequence; `None` if either was not measured.
    pub fn factor(&self, batch_size: usize) -> Option<f64> {
        let of = |size| self.decode.iter().find(|row| row.0 == size).map(|row| row.1);
        Some(of(batch_size)? / of(1)?)
    }

    /// Whether the record is of this model on this backend.
    pub fn is_of(&self, model: &str, backend: &BackendInfo) -> bool {
        self.origin() == (model, &backend.device, backend.isa, backend.threads, backend.kv)
    }

    /// The model and the backend.
    fn origin(&self) -> (&str, &str, &str, usize, &str) {
        (&self.model, &self.device, &self.isa, self.threads, &self.kv)
    }
}
