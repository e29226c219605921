use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bitnet_kernels::BackendInfo;
use serde::{Deserialize, Serialize};

/// What a benchmark measured of one model on one machine, kept in a file for whoever asks later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThroughputRecord {
    /// The model's name.
    pub model: String,
    /// [`BackendInfo::device`].
    pub device: String,
    /// [`BackendInfo::isa`].
    pub isa: String,
    /// [`BackendInfo::threads`].
    pub threads: usize,
    /// [`BackendInfo::kv`].
    pub kv: String,
    /// Seconds since 1970 when it was measured.
    pub unix_time: u64,
    /// Sequences decoded together, and the tokens per second of all of them.
    pub decode: Vec<(usize, f64)>,
}

/// Why a record cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}: run `bitnet bench` again, or set BITNET_CACHE to a folder of yours", path.display())]
pub struct RecordError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub source: io::Error,
}

impl ThroughputRecord {
    /// Where the record of a model on a backend lies: in `BITNET_CACHE`, else in the user's cache folder. `None` on a
    /// system that names neither.
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

    /// Reads a record; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, RecordError> {
        let error = |source| RecordError { path: path.into(), source };
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| error(e.into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(error(e)),
        }
    }

    /// Writes the record, beside and then over an older one.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        let beside = path.with_extension("new");
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            fs::write(&beside, serde_json::to_vec_pretty(self)?)?;
            fs::rename(&beside, path)
        };
        write().map_err(|source| RecordError { path: path.into(), source })
    }

    /// Writes the record; sizes that it does not have keep what was measured of them before, with the same model on
    /// the same backend. A file that cannot be read is replaced.
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

    /// How many times the tokens per second of one sequence a batch gave; `None` if either was not measured.
    pub fn factor(&self, batch_size: usize) -> Option<f64> {
        let of = |size| self.decode.iter().find(|row| row.0 == size).map(|row| row.1);
        Some(of(batch_size)? / of(1)?)
    }

    /// Whether it was measured with this model on this backend.
    pub fn is_of(&self, model: &str, backend: &BackendInfo) -> bool {
        self.origin() == (model, &backend.device, backend.isa, backend.threads, backend.kv)
    }

    /// What was measured on what.
    fn origin(&self) -> (&str, &str, &str, usize, &str) {
        (&self.model, &self.device, &self.isa, self.threads, &self.kv)
    }
}
