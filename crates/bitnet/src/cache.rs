//! A folder in which the cache of a model outlives the process.

use std::path::{Path, PathBuf};

use bitnet_inference::{self as inference, CacheFolder};
use bitnet_model::{Model, cache_identity, remembered_identity};

use crate::{Error, Opened};

pub use bitnet_inference::{Cleared, FolderError, Listed};
pub use bitnet_model::cache_salt;

/// A folder for the caches of all models, and the maximum of bytes in it.
///
/// Prompts that begin as an earlier one are read from it instead of computed, in later processes too, and with the same
/// tokens. Several processes can share a folder. It holds prompts and answers, so only their owner may read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheDir {
    /// The folder, which is made if it is missing.
    pub path: PathBuf,
    /// Maximum number of bytes of all files; the least recently used go first.
    pub bytes: u64,
}

impl CacheDir {
    /// The default for [`CacheDir::bytes`].
    pub const BYTES: u64 = 20_000_000_000;

    /// The part of the folder for a loaded model, for [`EngineConfig::folder`](inference::EngineConfig::folder). Hashes
    /// the weights, unless it has done so before and the files have not changed. `progress` receives the number of
    /// tensors hashed and the total.
    ///
    /// # Errors
    /// If a tensor cannot be read.
    pub fn folder(
        &self,
        opened: &Opened,
        model: &dyn Model,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CacheFolder, Error> {
        let Opened { checkpoint, path, .. } = opened;
        let memory = self.path.join("identities");
        let weights = remembered_identity(checkpoint, path.as_deref(), &memory, progress)?;
        let (backend, gpu) = (model.backend(), model.device().is_some());
        Ok(CacheFolder {
            path: self.path.clone(),
            bytes: self.bytes,
            identity: cache_identity(&weights, &backend, gpu),
            about: format!("{}, {}, {}", checkpoint.name, backend.kv, backend.device),
        })
    }

    /// Lists what is in a folder, by model and salt.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn list(path: &Path) -> Result<Vec<Listed>, FolderError> {
        inference::list_folder(path)
    }

    /// Removes what requests with this salt ([`cache_salt`]) have left in a folder, or everything.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn clear(path: &Path, salt: Option<u64>) -> Result<Cleared, FolderError> {
        inference::clear_folder(path, salt)
    }
}
