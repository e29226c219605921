//! Opens a checkpoint by the name of a model.

use std::{
    fmt,
    path::{Path, PathBuf},
};

#[cfg(feature = "hub")]
use bitnet_hub::{Hub, ModelId, Settings};
use bitnet_model::{Checkpoint, Synthetic};

use crate::Error;

/// A model with its files open but no weights loaded.
#[non_exhaustive]
pub struct Opened {
    /// The model.
    pub checkpoint: Checkpoint,
    /// Path of the file or folder; `None` for a model without files.
    pub path: Option<PathBuf>,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Opened");
        shown.field("name", &self.checkpoint.name).field("path", &self.path).finish_non_exhaustive()
    }
}

impl From<Checkpoint> for Opened {
    /// A checkpoint from elsewhere, without files.
    fn from(checkpoint: Checkpoint) -> Opened {
        Opened { checkpoint, path: None, notes: Vec::new() }
    }
}

/// Opens `org/name[@revision][:file]`, a `.gguf` file, a folder, `demo` or `synthetic:NAME`, without loading weights.
/// An existing path takes precedence over a name on the hub. `progress` receives the file being downloaded, the bytes
/// done and the total.
///
/// # Errors
/// If the model cannot be downloaded or read.
pub fn open_checkpoint(model: &str, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<Opened, Error> {
    let (checkpoint, path, mut notes) = match model.strip_prefix("synthetic:") {
        Some(name) => (Checkpoint::synthetic(model, Synthetic::named(name)?), None, Vec::new()),
        None if model == "demo" => (Checkpoint::demo()?, None, Vec::new()),
        None => {
            let (path, notes) =
                if Path::new(model).exists() { (model.into(), Vec::new()) } else { fetch(model, progress)? };
            (Checkpoint::open(&path)?, Some(path), notes)
        }
    };
    notes.extend(checkpoint.warnings.iter().map(|warning| format!("warning: {warning}")));
    Ok(Opened { checkpoint, path, notes })
}

/// Downloads a model by name and returns its path; anything that is not a name is taken as a path.
#[cfg(feature = "hub")]
fn fetch(model: &str, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<(PathBuf, Vec<String>), Error> {
    let Some(id) = ModelId::parse(model) else { return Ok((model.into(), Vec::new())) };
    let fetched = Hub::new(Settings::from_env()?).fetch(&id, progress)?;
    let note = |why| format!("warning: using the cached model, which may be outdated: {why}");
    Ok((fetched.path, fetched.unreachable.map(note).into_iter().collect()))
}

#[cfg(not(feature = "hub"))]
fn fetch(model: &str, _: &mut dyn FnMut(&str, u64, u64)) -> Result<(PathBuf, Vec<String>), Error> {
    let is_path =
        model.starts_with(['.', '/']) || model.matches('/').count() != 1 || model.ends_with(".gguf");
    if is_path { Ok((model.into(), Vec::new())) } else { Err(Error::NoHub { model: model.into() }) }
}
