//! What can go wrong in fetching a model, each with its cure.

use std::{io, path::PathBuf};

/// An error in fetching a model, displayed as `<what> (<where>): <cure>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum HubError {
    /// The hub has no such model or revision.
    #[error(
        "there is no such model or revision ({repo}@{revision}): check the name, and the revision after @"
    )]
    NoModel {
        /// `org/name`.
        repo: String,
        revision: String,
    },
    /// The hub denies access to the model.
    #[error(
        "the hub does not give access to the model ({repo}): check the name; for a private or gated model, accept its terms at {endpoint}/{repo} and set HF_TOKEN to a token that can read it"
    )]
    Denied {
        /// `org/name`.
        repo: String,
        endpoint: String,
    },
    /// The repository does not have the file.
    #[error("the repository has no file {file} ({repo}): {cure}")]
    NoFile {
        /// `org/name`.
        repo: String,
        file: String,
        cure: String,
    },
    /// The cache does not have the file, and the network must not be used.
    #[error(
        "{file} is not in the cache and HF_HUB_OFFLINE is set ({repo}@{revision}): unset it, or fetch the model once while online"
    )]
    Offline {
        /// `org/name`.
        repo: String,
        revision: String,
        file: String,
    },
    /// The hub could not be reached, or did not answer.
    #[error(
        "no answer from the hub: {problem} ({url}): check the connection, HF_ENDPOINT and proxy; only a model that is in the cache works without the hub"
    )]
    Network { url: String, problem: String },
    /// The hub answered with an error status.
    #[error("the hub answered {status} ({url}): {cure}")]
    Status { url: String, status: u16, cure: &'static str },
    /// The answer is not one that a hub gives.
    #[error(
        "the answer is not that of a Hugging Face hub: {problem} ({url}): check HF_ENDPOINT and proxy, or try again later"
    )]
    Answer { url: String, problem: String },
    /// A transfer broke and could not be resumed.
    #[error(
        "the transfer broke after {have} of {size} bytes: {problem} ({file}): run the command again to resume it"
    )]
    Broken {
        file: String,
        /// Bytes fetched so far.
        have: u64,
        /// Size of the file in bytes.
        size: u64,
        problem: String,
    },
    /// A file differs from what the hub announced.
    #[error("the file arrived damaged: {problem} ({file}): run the command again to fetch it again")]
    Damaged { file: String, problem: String },
    /// Another process is fetching the same file.
    #[error("another process is fetching this file ({}): wait for it, then run the command again", .path.display())]
    Busy { path: PathBuf },
    /// The cache does not hold the model.
    #[error("{repo} is not in the cache ({}): `bitnet list` shows what is", .cache.display())]
    NotCached { repo: String, cache: PathBuf },
    /// The cache cannot be used.
    #[error("cannot {action} ({}): {source}: check permissions and free space, or set HF_HUB_CACHE or HF_HOME", .path.display())]
    Cache { action: &'static str, path: PathBuf, source: io::Error },
    /// There is no home folder for the cache.
    #[error(
        "there is no home folder for the cache (HF_HUB_CACHE): set it to a folder that can be written to"
    )]
    NoHome,
    /// TLS does not run on this machine.
    #[error(
        "https needs a processor with AES instructions (x86-64 from 2014 or later, or 64-bit Arm) ({url}): download the model elsewhere and give its folder, or set HF_ENDPOINT to a mirror with http"
    )]
    NoTls { url: String },
}

impl HubError {
    /// Whether the hub could not be reached, or was too busy to answer.
    pub(crate) fn is_unreachable(&self) -> bool {
        match self {
            HubError::Network { .. } | HubError::NoTls { .. } => true,
            HubError::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    pub(crate) fn cache(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> HubError {
        move |source| HubError::Cache { action, path: path.into(), source }
    }
}
