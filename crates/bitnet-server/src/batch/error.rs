//! Why a batch run ended early.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a batch run ended early. The answers up to then are kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what happened, and name the fields")]
pub enum BatchRunError {
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried: `read` or `write`.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is both input and output", path.display())]
    SameFile { path: PathBuf },
    #[error("{} is being written by another run", path.display())]
    Locked { path: PathBuf },
    /// The existing answers are not from an earlier run of the same input and options.
    #[error("line {line} of {} does not answer line {line} of this input with these options", path.display())]
    OtherRun {
        path: PathBuf,
        /// Number of the line, from 1, not counting blank lines.
        line: u64,
    },
    /// An earlier run had another version, model, cache type or device, which may answer the same line differently.
    #[error("line {line} of {} was answered with {difference}", path.display())]
    OtherIdentity {
        path: PathBuf,
        /// Number of the line, from 1, not counting blank lines.
        line: u64,
        /// How the earlier run differed from this one, such as `kv i8 instead of f32`.
        difference: String,
    },
    #[error("the engine has stopped")]
    Stopped,
}

impl BatchRunError {
    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| BatchRunError::File { what, path, source }
    }

    /// What the user can do.
    pub fn cure(&self) -> &'static str {
        match self {
            BatchRunError::File { what: "write", .. } => {
                "make room for it and start again: complete lines are kept"
            }
            BatchRunError::File { .. } => "check the path",
            BatchRunError::SameFile { .. } => "choose another output",
            BatchRunError::Locked { .. } => "wait for it, or choose another output",
            BatchRunError::OtherRun { .. } => {
                "remove that file to start over, or repeat the command it belongs to"
            }
            BatchRunError::OtherIdentity { .. } => {
                "run it with the same model, version, --kv and device as before, or remove the file"
            }
            BatchRunError::Stopped => "start again: complete lines are kept",
        }
    }
}
