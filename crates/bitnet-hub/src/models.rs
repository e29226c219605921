//! The models in the cache: what there is, and how to remove one.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use crate::{HubError, Settings};

/// The folder of a repository in the cache begins with this; `--` takes the place of the slash.
const PREFIX: &str = "models--";

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedModel {
    /// `org/name`.
    pub repo: String,
    /// The branches and tags that were fetched.
    pub revisions: Vec<String>,
    /// Size of all its files in bytes, including unfinished ones.
    pub bytes: u64,
    /// Its folder.
    pub path: PathBuf,
}

/// Returns the models in the cache, ordered by name.
///
/// # Errors
/// If the folder of the cache exists and cannot be read.
pub fn cached_models(settings: &Settings) -> Result<Vec<CachedModel>, HubError> {
    let fail = |e| HubError::cache("read", &settings.cache)(e);
    let folders = match fs::read_dir(&settings.cache) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        folders => folders.map_err(fail)?,
    };
    let mut models = Vec::new();
    for folder in folders {
        let folder = folder.map_err(fail)?;
        let name = folder.file_name();
        let repo = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once("--"));
        if let Some((org, name)) = repo.filter(|_| folder.path().is_dir()) {
            models.push(described(format!("{org}/{name}"), folder.path()).map_err(fail)?);
        }
    }
    models.sort_by(|a, b| a.repo.cmp(&b.repo));
    Ok(models)
}

/// Removes a model with all its revisions, and returns what it was.
///
/// # Errors
/// If the cache does not hold the model, another process is fetching it, or a file cannot be removed.
pub fn remove_cached(settings: &Settings, repo: &str) -> Result<CachedModel, HubError> {
    let model = cached_models(settings)?.into_iter().find(|model| model.repo == repo);
    let model =
        model.ok_or_else(|| HubError::NotCached { repo: repo.into(), cache: settings.cache.clone() })?;
    for blob in files(&model.path.join("blobs")).map_err(HubError::cache("read", &model.path))? {
        if blob.extension().is_some_and(|end| end == "incomplete")
            && let Ok(file) = File::open(&blob)
            && let Err(TryLockError::WouldBlock) = file.try_lock()
        {
            return Err(HubError::Busy { path: blob });
        }
    }
    fs::remove_dir_all(&model.path).map_err(HubError::cache("remove", &model.path))?;
    Ok(model)
}

fn described(repo: String, path: PathBuf) -> io::Result<CachedModel> {
    let bytes =
        files(&path.join("blobs"))?.iter().filter_map(|blob| Some(fs::metadata(blob).ok()?.len())).sum();
    let refs = path.join("refs");
    let name = |file: &PathBuf| Some(file.strip_prefix(&refs).ok()?.to_str()?.to_owned());
    let mut revisions: Vec<String> = files(&refs)?.iter().filter_map(name).collect();
    revisions.sort_unstable();
    Ok(CachedModel { repo, revisions, bytes, path })
}

/// Returns the files in a folder and its folders; none if there is no such folder.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}
