//! Files and folders that appear under their name only when they are complete.
//! [`OutputFile`] writes beside the place and renames.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

/// A file or folder that is written under a hidden name next to its place, renamed when it is complete, and deleted if
/// it is dropped before that.
#[derive(Debug)]
pub struct OutputFile {
    place: PathBuf,
    /// `None` if the place itself is written, or once it is complete.
    hidden: Option<PathBuf>,
}

impl OutputFile {
    /// Creates an empty file immediately, so that a folder that cannot be written is reported before the work is done.
    /// A device or a pipe is written directly.
    pub fn create(place: &Path) -> io::Result<Self> {
        if fs::metadata(place).is_ok_and(|about| !about.is_file() && !about.is_dir()) {
            return Ok(OutputFile { place: place.into(), hidden: None });
        }
        if place.is_dir() {
            return Err(io::Error::other("it is a folder"));
        }
        Self::hidden(place, |path| fs::File::create(path).map(drop))
    }

    /// Creates an empty folder.
    pub fn create_folder(place: &Path) -> io::Result<Self> {
        Self::hidden(place, |path| fs::create_dir(path))
    }

    fn hidden(place: &Path, create: impl Fn(&Path) -> io::Result<()>) -> io::Result<Self> {
        let name = place.file_name().ok_or(io::Error::other("it has no name"))?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.tmp", std::process::id()));
        let hidden = place.with_file_name(hidden);
        create(&hidden)?;
        Ok(OutputFile { place: place.into(), hidden: Some(hidden) })
    }

    /// The path to write to.
    pub fn path(&self) -> &Path {
        self.hidden.as_ref().unwrap_or(&self.place)
    }

    /// Writes the whole file and completes it.
    pub fn write(self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        fs::write(self.path(), bytes)?;
        self.commit()
    }

    /// Completes the file or folder: gives it its name, in place of an older file.
    pub fn commit(mut self) -> io::Result<()> {
        if let Some(hidden) = &self.hidden {
            fs::rename(hidden, &self.place)?;
        }
        self.hidden = None;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // If this fails, a hidden file is left, and nothing more can be done about it here.
            let _ = if hidden.is_dir() { fs::remove_dir_all(hidden) } else { fs::remove_file(hidden) };
        }
    }
}
