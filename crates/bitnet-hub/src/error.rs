use std::{io, path::PathBuf};

/// Why a model could not be fetched: `<what> (<where>): <cure>`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The hub has no such model or revision.
    #[error(
        "there is no such model or revision ({repo}@{revision}): check the name, and the revision after @"
    )]
    NoModel {
        /// `org/name`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
    },
    /// The hub does not show the model to us.
    #[error(
        "the hub does not give access to the model ({repo}): check the name; for a private or gated one, accept its terms at {endpoint}/{repo} and set HF_TOKEN to a token that may read it"
    )]
    Denied {
        /// `org/name`.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// The repository does not have the file asked for.
    #[error("the repository has no file {file} ({repo}): {cure}")]
    NoFile {
        /// `org/name`.
        repo: String,
        /// The file.
        file: String,
        /// Which files there are to choose from.
        cure: String,
    },
    /// The cache does not have what is needed, and the network is not to be used.
    #[error(
        "{file} is not in the cache and HF_HUB_OFFLINE is set ({repo}@{revision}): unset it, or fetch the model once while online"
    )]
    Offline {
        /// `org/name`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// What is missing.
        file: String,
    },
    /// No answer came.
    #[error(
        "no answer from the hub: {problem} ({url}): check the connection, HF_ENDPOINT and proxy; a model that was fetched before would be used"
    )]
    Network {
        /// The address.
        url: String,
        /// What the system or TLS said.
        problem: String,
    },
    /// An answer that is no success.
    #[error("the hub answered {status} ({url}): {cure}")]
    Status {
        /// The address.
        url: String,
        /// HTTP status.
        status: u16,
        /// What helps.
        cure: &'static str,
    },
    /// An answer that makes no sense.
    #[error(
        "the answer is not that of a Hugging Face hub: {problem} ({url}): check HF_ENDPOINT and proxy, or try again later"
    )]
    Answer {
        /// The address.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A transfer broke, and broke again.
    #[error(
        "the transfer broke after {have} of {size} bytes: {problem} ({file}): run the command again, it goes on where it was"
    )]
    Broken {
        /// The file.
        file: String,
        /// Bytes that are there.
        have: u64,
        /// Bytes that there should be.
        size: u64,
        /// Why.
        problem: String,
    },
    /// A file arrived that is not what the hub announced.
    #[error("the file arrived damaged: {problem} ({file}): run the command again to fetch it anew")]
    Damaged {
        /// The file.
        file: String,
        /// Size or hash that differs.
        problem: String,
    },
    /// Somebody else is fetching the same file.
    #[error("another process is fetching this file ({}): wait for it, then run the command again", .path.display())]
    Busy {
        /// The unfinished file.
        path: PathBuf,
    },
    /// The cache cannot be used.
    #[error("cannot {action} ({}): {source}: check permissions and free space, or set HF_HUB_CACHE or HF_HOME", .path.display())]
    Cache {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no place for the cache.
    #[error(
        "there is no home folder for the cache (HF_HUB_CACHE): set it to a folder that can be written to"
    )]
    NoHome,
    /// This machine has no TLS.
    #[error(
        "https needs a processor with AES instructions (x86-64 of 2014 or later, or 64-bit Arm) ({url}): download the model elsewhere and give its folder, or set HF_ENDPOINT to a mirror with http"
    )]
    NoTls {
        /// The address.
        url: String,
    },
}

impl HubError {
    /// Whether the hub could not be asked, or was too busy to answer.
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
