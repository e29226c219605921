//! The trait between scheduling and numbers: [`Model`] runs a step of many sequences.
//! Its limits are fixed at load, and a step beyond them is refused before anything is written.

use bitnet_kernels::{BackendInfo, DeviceStatus, Fill, HeadCounts, KernelError, gpu::GpuError};

use crate::{
    net::{Batch, Logits},
    spec::ModelSpec,
};

/// A language model with its weights and key-value cache: the one dynamic boundary between scheduling and numbers.
pub trait Model: Send {
    /// The model's sizes and switches.
    fn spec(&self) -> &ModelSpec;

    /// The sizes it was loaded for.
    fn limits(&self) -> Limits;

    /// Number of blocks that sliding layers have for themselves, so that a sequence keeps only their window
    /// ([`Batch::set_windows`]). If it is 0, these layers keep all tokens, in the blocks of the other layers.
    fn window_blocks(&self) -> usize {
        0
    }

    /// The backend it runs on.
    fn backend(&self) -> BackendInfo;

    /// Runs one step: stores the keys and values of all its tokens and writes the requested rows of logits, in the
    /// order of [`Batch::logit_rows`]. Logits that the batch does not need ([`Batch::wanted`]) may be negative
    /// infinity. If the batch asks for a token to be drawn and the model can draw it on the device that computes the
    /// logits, it does ([`Logits::drawn`]). If the batch wants a hidden state and the model has one, it sets it
    /// ([`Logits::hidden`]): the output of the final norm over the logit divisor, `[hidden]` f32, on a GPU
    /// rounded to bf16.
    ///
    /// A token's logits depend on the tokens of its sequence up to and including it, and on nothing else in the step.
    /// Recurrent layers read the state of a run's slot as the sequence's previous run left it, zeros if the run starts
    /// at position 0, and leave the state after the run's last token there, or before its drafts if it has any in the
    /// slot's log ([`Model::reserve_log`]).
    ///
    /// # Errors
    /// If the step does not fit, before anything is written. [`ForwardError::Kernel`] if the backend fails; the cached
    /// keys and values and the states of this step's runs are then unspecified.
    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError>;

    /// Whether the model has a head that drafts tokens, so that [`Model::draft`] works.
    fn has_draft_head(&self) -> bool {
        false
    }

    /// Runs one pass of the draft head: a token of the batch, at position `p` of a run, is the one *after* position `p`
    /// of its sequence, and is paired with the hidden state of position `p`. Stores the keys and values of these pairs
    /// in slots `p` of the head's own cache, in the blocks of the batch, and writes the logits of the tokens after them.
    ///
    /// # Errors
    /// If the model has no head ([`ForwardError::NoDraftHead`]) or the pass does not fit, before anything is written, or
    /// if the backend fails.
    fn draft(
        &mut self,
        batch: &Batch,
        hidden: HiddenRows<'_>,
        logits: &mut Logits,
    ) -> Result<(), ForwardError> {
        let _ = (batch, hidden, logits);
        Err(ForwardError::NoDraftHead)
    }

    /// Device status, or `None` on the CPU.
    fn device(&self) -> Option<DeviceStatus> {
        None
    }

    /// Work of the output head so far, or `None` if unknown.
    fn head_work(&self) -> Option<HeadCounts> {
        None
    }

    /// Share of positions in the last forward pass that held no token, from 0 to 1, or `None` if unknown.
    fn padding(&self) -> Option<f64> {
        None
    }

    /// Copies the keys and values from one block to another, of all layers that have no blocks of their own.
    ///
    /// # Errors
    /// If the backend fails.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError>;

    /// Copies the keys and values of sliding layers from one of their own blocks to another. A model without such
    /// blocks ([`Model::window_blocks`]) has none, and this is never called.
    ///
    /// # Errors
    /// If a block does not exist or the backend fails.
    fn copy_window(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        Err(ForwardError::BlockOutOfRange { block: from.max(to), blocks: self.window_blocks() })
    }

    /// Makes room for up to `drafts` drafts in a log beside every state slot, and returns how many fit. A run may then
    /// end with drafts: the state in the slot stops before them, and the next run says how many it accepts
    /// ([`Batch::set_log`]), so that a rejected draft costs nothing. A model that returns 0 takes no such runs: if it has
    /// state slots, it gets no drafts that may be rejected.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn reserve_log(&mut self, drafts: usize) -> Result<usize, ForwardError> {
        let _ = drafts;
        Ok(0)
    }

    /// Copies the recurrent state of all layers from one slot to another, without the log. A model without recurrent layers has no
    /// slots, and this is never called.
    ///
    /// # Errors
    /// If a slot does not exist or the backend fails.
    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        Err(ForwardError::StateOutOfRange { slot: from.max(to), slots: self.limits().state_slots })
    }

    /// Bytes of a block of each kind and of a state outside the model, or `None` for a model whose cache stays inside.
    fn cache_bytes(&self) -> Option<CacheBytes> {
        None
    }

    /// Copies the keys and values in a block to `to`, or the recurrent state of all layers in a slot.
    ///
    /// # Errors
    /// If there is no such block or slot, `to` does not have its [`CacheBytes`], or the backend fails.
    fn read_cache(&mut self, place: CachePlace, to: &mut [u8]) -> Result<(), ForwardError> {
        let _ = (place, to);
        Err(ForwardError::CacheStays)
    }

    /// Overwrites a block or a slot with what [`Model::read_cache`] has copied, in this model or in another of the same
    /// weights, cache type and device.
    ///
    /// # Errors
    /// As [`Model::read_cache`]. If the backend fails, the block or slot is unspecified.
    fn write_cache(&mut self, place: CachePlace, from: &[u8]) -> Result<(), ForwardError> {
        let _ = (place, from);
        Err(ForwardError::CacheStays)
    }

    /// Overwrites a block with what `fill` writes, every byte once: what [`Model::read_cache`] has copied. Every slice is
    /// whole pieces of [`CacheBytes::piece`], or ends with the block.
    ///
    /// # Errors
    /// As [`Model::write_cache`].
    fn fill_block(&mut self, block: u32, fill: &Fill<'_>) -> Result<(), ForwardError> {
        let mut bytes = vec![0; self.cache_bytes().map_or(0, |bytes| bytes.block)];
        fill(0, &mut bytes);
        self.write_cache(CachePlace::Block(block), &bytes)
    }
}

/// A part of a model's cache that can be copied out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CachePlace {
    /// Keys and values in the block with this number, of all layers that have no blocks of their own.
    Block(u32),
    /// Keys and values of sliding layers, in their own block with this number.
    Window(u32),
    /// Recurrent state of all layers, in the slot with this number.
    State(u32),
}

/// Bytes of the parts of a model's cache outside the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheBytes {
    /// Keys and values in a block, of all layers that have no blocks of their own.
    pub block: usize,
    /// Keys and values in a block of sliding layers' own; 0 in a model without such blocks.
    pub window: usize,
    /// Recurrent state of all layers; 0 in a model without.
    pub state: usize,
    /// A power of two, at most [`MOST_PIECE`](bitnet_kernels::MOST_PIECE): a block is written in whole pieces of as many bytes.
    pub piece: usize,
}

impl CacheBytes {
    /// Bytes of the part in this place.
    pub fn of(&self, place: CachePlace) -> usize {
        match place {
            CachePlace::Block(_) => self.block,
            CachePlace::Window(_) => self.window,
            CachePlace::State(_) => self.state,
        }
    }
}

/// The hidden states that a draft head reads, one for each token of its batch.
#[derive(Debug, Clone, Copy)]
pub enum HiddenRows<'a> {
    /// Of these tokens of the last [`Model::forward`].
    Forward(&'a [usize]),
    /// Of these rows of logits of the last [`Model::draft`]: the head's own.
    Drafted(&'a [usize]),
}

impl<'a> HiddenRows<'a> {
    /// The rows.
    pub fn rows(&self) -> &'a [usize] {
        let (HiddenRows::Forward(rows) | HiddenRows::Drafted(rows)) = *self;
        rows
    }
}

/// The sizes that a model was loaded for. All memory is allocated at load, so they never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of tokens in a step.
    pub max_tokens: usize,
    /// Maximum number of rows of logits in a step.
    pub max_logit_rows: usize,
    /// Number of blocks in the key-value cache, of [`Batch::BLOCK_TOKENS`] tokens each.
    pub kv_blocks: usize,
    /// Number of state slots, in a model with recurrent layers; 0 in others.
    pub state_slots: usize,
}

impl Limits {
    /// Number of blocks that sliding layers have for themselves in a model that keeps only their windows, of `window` keys:
    /// enough for every sequence that a step has a row for and for the tokens of a step, as many again for the prefix
    /// cache, and never more than other layers have.
    pub fn window_blocks(&self, window: usize) -> usize {
        let sequences = self.max_logit_rows.saturating_mul(2 * Batch::blocks_of_window(window, 1));
        // A run may begin and end within blocks.
        let step = self.max_tokens / Batch::BLOCK_TOKENS + self.max_logit_rows;
        self.kv_blocks.min(sequences.saturating_add(step))
    }
}

/// Why a step could not run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum ForwardError {
    /// The step is larger than the model's [`Limits`].
    #[error("the step has {actual} {what}, the maximum is {limit}: split it, or raise the limit at start")]
    StepTooLarge {
        /// What exceeds its limit: `tokens` or `logit rows`.
        what: &'static str,
        actual: usize,
        limit: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("token {token} at index {index} of the step: the vocabulary has {vocab} ids, 0 to {}", .vocab - 1)]
    TokenOutOfRange { index: usize, token: u32, vocab: usize },
    /// A position is beyond the model's context.
    #[error("position {position}: the model's context ends at {context}")]
    ContextExceeded { position: usize, context: usize },
    /// A block table names a block that does not exist.
    #[error("block {block}: the cache has {blocks} blocks")]
    BlockOutOfRange { block: u32, blocks: usize },
    /// A run names no block of sliding layers for a position that it reads or writes.
    #[error(
        "position {position}: sliding layers have blocks of their own, and the run names none for it: set its windows"
    )]
    WindowMissing { position: usize },
    /// A run names a state slot that does not exist.
    #[error("state slot {slot}: the model has {slots} state slots")]
    StateOutOfRange { slot: u32, slots: usize },
    /// Two runs name the same state slot.
    #[error("state slot {slot} belongs to two runs of the step: give every sequence its own")]
    StateShared { slot: u32 },
    /// A run has more drafts, or accepts more, than the log of its state slot has.
    #[error(
        "a run accepts {accepted} of {logged} drafts and adds {drafts} to the log of state slot {slot}, which has room \
         for {room}: let it accept drafts of the run before it, and have other tokens before its own"
    )]
    LogExceeded { slot: u32, accepted: usize, logged: usize, drafts: usize, room: usize },
    /// A hidden state is wanted of a model that computes logits by other means.
    #[error("this model gives no hidden states: ask it for logits or tokens")]
    NoHiddenState,
    /// The model has no head that drafts tokens, or it was not loaded.
    #[error("this model has no head that drafts tokens: use one that has, or draft by other means")]
    NoDraftHead,
    /// The cache of this model cannot be copied out of it.
    #[error("the cache of this model stays in its memory: leave out the folder for it")]
    CacheStays,
    /// Bytes for the cache have another size than the place for them.
    #[error(
        "{actual} bytes for a part of the cache that has {expected}: take those of the same model and cache type"
    )]
    CacheSize { actual: usize, expected: usize },
    /// The backend failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl ForwardError {
    /// Whether the step was refused before anything was written, so that keys, values and states are unchanged.
    pub fn is_refusal(&self) -> bool {
        !matches!(self, ForwardError::Kernel(_))
    }

    /// Whether the device failed and lost its memory, so that no further step can run.
    pub fn is_lost(&self) -> bool {
        matches!(self, ForwardError::Kernel(KernelError::Gpu(GpuError::Failed { .. })))
    }
}
