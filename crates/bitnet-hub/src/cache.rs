//! Hugging Face's cache: blobs named by their hashes, and for every commit a folder of links to them.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use sha2::{Digest, Sha256};

use crate::{HubError, ModelId, id::is_plain};

pub(crate) struct Folder {
    cache: CacheRepo,
    revision: String,
}

impl Folder {
    pub(crate) fn of(cache: &Path, id: &ModelId) -> Folder {
        let repo = Repo::with_revision(id.repo.clone(), RepoType::Model, id.revision.clone());
        Folder { cache: Cache::new(cache.into()).repo(repo), revision: id.revision.clone() }
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.cache.pointer_path(commit)
    }

    fn root(&self) -> PathBuf {
        let mut root = self.snapshot("commit");
        root.pop();
        root.pop();
        root
    }

    /// Returns the commit that the revision pointed to when it was last fetched.
    pub(crate) fn commit(&self) -> Option<String> {
        let reference = self.root().join("refs").join(&self.revision);
        let known = fs::read_to_string(reference).ok().map(|commit| commit.trim().to_owned());
        // The revision may itself be a commit.
        let commit = known.unwrap_or_else(|| self.revision.clone());
        (is_plain(&commit) && self.snapshot(&commit).is_dir()).then_some(commit)
    }

    /// Records the commit that the revision points to.
    pub(crate) fn remember(&self, commit: &str) -> Result<(), HubError> {
        self.cache.create_ref(commit).map_err(HubError::cache("write", self.root().join("refs")))
    }

    /// Links a finished blob into the folder of a commit.
    pub(crate) fn link(&self, commit: &str, file: &str, content: &str) -> Result<PathBuf, HubError> {
        let path = self.snapshot(commit).join(file);
        let fail = |e| HubError::cache("write", &path)(e);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(fail)?;
        }
        // A cleaned cache may leave a dangling link.
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).map_err(fail)?;
        }
        let up = "../".repeat(2 + file.matches('/').count());
        link(&format!("{up}blobs/{content}"), &self.blob(content), &path).map_err(fail)?;
        Ok(path)
    }

    fn blob(&self, content: &str) -> PathBuf {
        self.root().join("blobs").join(content)
    }

    pub(crate) fn has(&self, content: &str) -> bool {
        self.blob(content).is_file()
    }

    /// Opens the unfinished blob and locks it against other processes.
    pub(crate) fn unfinished(&self, content: &str) -> Result<Unfinished, HubError> {
        let path = self.root().join("blobs").join(format!("{content}.incomplete"));
        let fail = |e| HubError::cache("write", &path)(e);
        fs::create_dir_all(self.root().join("blobs")).map_err(fail)?;
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = file.map_err(fail)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HubError::Busy { path }),
            Err(TryLockError::Error(e)) => return Err(fail(e)),
        }
        let length = file.seek(io::SeekFrom::End(0)).map_err(fail)?;
        Ok(Unfinished { path, file, length, content: content.into(), blob: self.blob(content) })
    }
}

#[cfg(unix)]
fn link(relative: &str, _: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, path)
}

/// Makes a hard link: on other systems, users may not have the right to make symbolic links.
#[cfg(not(unix))]
fn link(_: &str, blob: &Path, path: &Path) -> io::Result<()> {
    fs::hard_link(blob, path)
}

/// A blob that is being fetched.
pub(crate) struct Unfinished {
    path: PathBuf,
    file: File,
    /// Bytes fetched so far.
    pub length: u64,
    content: String,
    blob: PathBuf,
}

impl Unfinished {
    /// Discards the bytes fetched so far.
    pub(crate) fn restart(&mut self) -> Result<(), HubError> {
        self.length = 0;
        let restart = self.file.set_len(0).and_then(|()| self.file.rewind());
        restart.map_err(HubError::cache("write", &self.path))
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(HubError::cache("write", &self.path))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Checks the blob against its hash if it is a SHA-256, and renames it.
    pub(crate) fn finish(mut self, file: &str) -> Result<(), HubError> {
        let fail = |e| HubError::cache("read", &self.path)(e);
        // Large files are named by their SHA-256, small ones by a different hash.
        if self.content.len() == 64 {
            self.file.rewind().map_err(fail)?;
            let mut hash = Sha256::new();
            let mut buffer = vec![0; 1 << 20];
            loop {
                match self.file.read(&mut buffer).map_err(fail)? {
                    0 => break,
                    n => hash.update(&buffer[..n]),
                }
            }
            let hash: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
            if hash != self.content {
                fs::remove_file(&self.path).map_err(fail)?;
                let problem = format!("its SHA-256 is {hash}, not {}", self.content);
                return Err(HubError::Damaged { file: file.into(), problem });
            }
        }
        self.file.sync_all().map_err(fail)?;
        fs::rename(&self.path, &self.blob).map_err(HubError::cache("write", &self.blob))
    }
}
