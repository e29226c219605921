use std::path::Path;

use bitnet::model::OutputFile;
use serde::Serialize;

use crate::error::CliError;

/// Creates a file that appears only when it is complete.
pub fn create(place: &Path) -> Result<OutputFile, CliError> {
    OutputFile::create(place).map_err(CliError::file("write", place))
}

/// Writes a file, atomically: readers see the old or the new content, always complete.
pub fn save(place: &Path, bytes: &[u8]) -> Result<(), CliError> {
    create(place)?.write(bytes).map_err(CliError::file("write", place))
}

/// [`save`] of a value as JSON.
pub fn save_json(place: &Path, value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_vec(value).map_err(|e| CliError::file("write", place)(e.into()))?;
    save(place, &text)
}
