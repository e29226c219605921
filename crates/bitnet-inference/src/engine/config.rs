//! How an engine is configured, and why it does not start.
//! No setting changes a token, except which tokens end a text.

use std::sync::Arc;
use std::time::Duration;

use bitnet_model::{Batch, Model};

use super::metrics::Recorder;
use crate::sample::TokenText;
use crate::schedule::{BatchSizing, SchedulerConfig};
use crate::tier::{CacheFolder, FolderError};

/// Configuration of an engine. No setting changes a token; only `eos` decides where a text ends. Take the other fields
/// from `..EngineConfig::default()`, because fields may be added.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Maximum number of sequences in a forward pass; others wait. With recurrent layers, at most seven eighths of the
    /// state slots are for running sequences; the others keep snapshots for the prefix cache.
    pub max_batch_size: usize,
    /// How many of these sequences run, and how much of a step goes to prompts. By default all of them run, and prompt
    /// chunks are small enough that the time between two tokens of a sequence stays below [`BatchSizing::DEFAULT_ITL`].
    pub sizing: BatchSizing,
    /// How long an idle engine waits for a second request before it starts a step, if one is likely to come.
    pub max_wait_time: Duration,
    /// Maximum number of waiting sequences, each choice of a request counted as one; further requests are refused.
    pub max_queued_requests: usize,
    /// Maximum number of waiting prompt tokens; further requests are refused.
    pub max_queued_tokens: usize,
    /// Maximum number of drafted tokens for a sequence in a step; 0 turns drafting off.
    pub max_draft: usize,
    /// Number of unread updates at which a request pauses.
    pub mailbox: usize,
    /// Maximum time that a request stays paused because it is not read; then it fails.
    pub slow_reader_timeout: Duration,
    /// How long a step may run before the engine counts as stalled ([`Engine::stalled`](super::Engine::stalled)) and its last plans are
    /// reported. When the time of a shutdown is over, it does not wait for a stalled step.
    pub step_limit: Duration,
    /// Tokens that end a text, instead of the model's own.
    pub eos: Option<Vec<u32>>,
    /// Maps tokens to text; needed only for stop strings.
    pub text: Option<Arc<dyn TokenText>>,
    /// A folder that keeps parts of the cache which leave memory, so that later texts with the same beginning need not be
    /// computed, in other processes too. None by default.
    pub folder: Option<CacheFolder>,
    /// Bytes of host memory that keep parts of the cache which leave the memory of a GPU; 0 by default. The folder is then
    /// below it.
    pub host_cache: u64,
    /// Recorder to report to, in addition to [`Engine::metrics`](super::Engine::metrics).
    pub recorder: Option<Arc<dyn Recorder>>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_batch_size: 64,
            sizing: BatchSizing::paced(usize::MAX),
            max_wait_time: Duration::from_millis(5),
            max_queued_requests: 256,
            max_queued_tokens: 1 << 20,
            max_draft: 0,
            mailbox: 1024,
            slow_reader_timeout: Duration::from_secs(60),
            step_limit: Duration::from_secs(120),
            eos: None,
            text: None,
            folder: None,
            host_cache: 0,
            recorder: None,
        }
    }
}

/// Maximum number of blocks in a cache: enough for a billion tokens.
const MAX_BLOCKS: usize = 1 << 24;

/// Why an engine did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum StartError {
    /// A limit that must be positive is 0.
    #[error("{field} is 0: it must be at least 1")]
    Zero { field: &'static str },
    /// An end token is not in the vocabulary.
    #[error("end token {token} is not in the vocabulary of {vocab} tokens")]
    UnknownEos { token: u32, vocab: usize },
    /// The key-value cache has too many blocks.
    #[error(
        "{blocks} key-value blocks, the maximum is {MAX_BLOCKS}: use fewer sequences or a shorter context"
    )]
    TooManyBlocks { blocks: usize },
    /// The folder for the cache cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The model's cache cannot be kept in a folder.
    #[error("the cache of this model stays in its memory")]
    CacheStays,
    /// A cache in host memory was asked for, but the model's own cache is there.
    #[error("the cache is in host memory already, because no GPU computes (host_cache)")]
    NoGpu,
    /// There is no memory for the drafts that are kept beside recurrent states.
    #[error("cannot draft {drafts} tokens: {message}: draft fewer, or use fewer sequences")]
    NoLogs { drafts: usize, message: String },
    /// The operating system could not start a thread.
    #[error("cannot start a thread: {message}: close other programs, or raise the limit on threads")]
    Thread { message: String },
}

impl EngineConfig {
    /// The limits of a scheduler for this model in an engine of this configuration.
    pub fn scheduler(&self, model: &dyn Model) -> SchedulerConfig {
        let limits = model.limits();
        let places = match limits.state_slots {
            0 => self.max_batch_size,
            slots => self.max_batch_size.min(slots - slots / 8),
        };
        SchedulerConfig {
            max_running: places.min(limits.max_tokens).min(limits.max_logit_rows),
            max_tokens: limits.max_tokens,
            max_rows: limits.max_logit_rows,
            kv_blocks: limits.kv_blocks,
            state_slots: limits.state_slots,
            context: model.spec().context.min(limits.kv_blocks.saturating_mul(Batch::BLOCK_TOKENS)),
            max_draft: self.max_draft.min(limits.max_logit_rows),
            sizing: self.sizing,
            slow_reader: self.slow_reader_timeout.as_micros().try_into().unwrap_or(u64::MAX),
            eos: self.eos.clone().unwrap_or_else(|| model.spec().eos.clone()),
            text: self.text.clone(),
        }
    }
}

/// Checks that an engine can run with these limits.
pub(super) fn check(
    config: &EngineConfig,
    scheduler: &SchedulerConfig,
    vocab: usize,
) -> Result<(), StartError> {
    for (field, value) in [
        ("max_batch_size", config.max_batch_size),
        ("max_queued_requests", config.max_queued_requests),
        ("max_queued_tokens", config.max_queued_tokens),
        ("mailbox", config.mailbox),
        ("the model's vocabulary", vocab),
        ("the model's context", scheduler.context),
        ("the model's token limit", scheduler.max_tokens),
        ("the model's limit of logit rows", scheduler.max_rows),
        ("the model's number of key-value blocks", scheduler.kv_blocks),
    ] {
        if value == 0 {
            return Err(StartError::Zero { field });
        }
    }
    if scheduler.kv_blocks > MAX_BLOCKS {
        return Err(StartError::TooManyBlocks { blocks: scheduler.kv_blocks });
    }
    match scheduler.eos.iter().find(|&&token| token as usize >= vocab) {
        Some(&token) => Err(StartError::UnknownEos { token, vocab }),
        None => Ok(()),
    }
}
