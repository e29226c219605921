//! What is in the folder of a cache, for people, and how it is removed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use super::folder::{FolderError, folders, stored};

/// What a model has in a folder under a salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The model, cache type and device.
    pub about: String,
    /// The salt; 0 is none.
    pub salt: u64,
    /// Number of blocks and states.
    pub parts: usize,
    /// Their bytes.
    pub bytes: u64,
    /// When one of them was last used.
    pub used: SystemTime,
}

/// What was removed from a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleared {
    /// Number of blocks and states.
    pub parts: usize,
    /// Their bytes.
    pub bytes: u64,
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> FolderError + '_ {
    |e| FolderError {
        path: path.to_owned(),
        problem: format!("the folder cannot be read: {e}"),
        cure: "give the folder of a cache",
    }
}

/// Lists what is in a folder, by model and salt.
///
/// # Errors
/// If it cannot be read.
pub fn list_folder(path: &Path) -> Result<Vec<Listed>, FolderError> {
    let mut all: BTreeMap<(String, u64), Listed> = BTreeMap::new();
    for file in stored(path).map_err(failed(path))? {
        let of = all.entry((file.home.clone(), file.salt)).or_insert_with(|| {
            let about = fs::read_to_string(path.join(&file.home).join("about"));
            let about = about.unwrap_or_else(|_| file.home.clone());
            Listed { about, salt: file.salt, parts: 0, bytes: 0, used: file.used }
        });
        of.parts += usize::from(file.part.is_some());
        of.bytes += file.bytes;
        of.used = of.used.max(file.used);
    }
    Ok(all.into_values().collect())
}

/// Removes what was kept under a salt, or everything if there is none, of all models. Files that are no parts stay.
/// Running processes only find less than before.
///
/// # Errors
/// If the folder cannot be read.
pub fn clear_folder(path: &Path, salt: Option<u64>) -> Result<Cleared, FolderError> {
    let mut cleared = Cleared::default();
    let files = stored(path).map_err(failed(path))?;
    for file in files.iter().filter(|file| salt.is_none_or(|salt| file.salt == salt)) {
        if fs::remove_file(&file.path).is_ok() {
            cleared.parts += usize::from(file.part.is_some());
            cleared.bytes += file.bytes;
        }
    }
    // Only empty folders can be removed this way.
    for home in folders(path, |name| name.starts_with('v')).map_err(failed(path))? {
        for salted in folders(&home, |_| true).map_err(failed(path))? {
            let _ = fs::remove_dir(salted);
        }
        let left = fs::read_dir(&home).map(|entries| entries.flatten().count()).unwrap_or(0);
        if left == 1 && fs::remove_file(home.join("about")).is_ok() {
            let _ = fs::remove_dir(&home);
        }
    }
    Ok(cleared)
}
