use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::error::CliError;

/// A file that is written under a temporary name and renamed when it is complete.
pub struct OutputFile {
    place: PathBuf,
    /// `None` if there is none, or once it is renamed.
    temporary: Option<PathBuf>,
}

impl OutputFile {
    /// Creates the temporary file immediately, so that a folder that cannot be written is reported before the work is
    /// done.
    pub fn create(place: &Path) -> Result<Self, CliError> {
        let fail = CliError::file("write", place);
        // A device or a pipe must not be replaced by a file.
        if fs::metadata(place).is_ok_and(|about| !about.is_file() && !about.is_dir()) {
            return Ok(OutputFile { place: place.into(), temporary: None });
        }
        let Some(name) = place.file_name().filter(|_| !place.is_dir()) else {
            return Err(fail(std::io::Error::other("it is a folder")));
        };
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.tmp", std::process::id()));
        let temporary = place.with_file_name(temporary);
        fs::File::create(&temporary).map_err(fail)?;
        Ok(OutputFile { place: place.into(), temporary: Some(temporary) })
    }

    /// The path to write to.
    pub fn path(&self) -> &Path {
        self.temporary.as_ref().unwrap_or(&self.place)
    }

    /// Renames the finished file.
    pub fn commit(mut self) -> Result<(), CliError> {
        match &self.temporary {
            Some(temporary) => {
                fs::rename(temporary, &self.place).map_err(CliError::file("write", &self.place))?
            }
            None => return Ok(()),
        }
        self.temporary = None;
        Ok(())
    }
}

/// Replaces the file with a value as JSON, atomically: readers see the old or the new content, always complete.
pub fn save_json(place: &Path, value: &impl Serialize) -> Result<(), CliError> {
    let fail = CliError::file("write", place);
    let file = OutputFile::create(place)?;
    let text = serde_json::to_vec(value).map_err(|e| CliError::file("write", place)(e.into()))?;
    fs::write(file.path(), text).map_err(fail)?;
    file.commit()
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // If this fails, a hidden file is left, and nothing more can be done about it here.
            let _ = fs::remove_file(temporary);
        }
    }
}
