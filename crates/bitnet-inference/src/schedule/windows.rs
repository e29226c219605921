//! The blocks of sliding layers, a pool of their own: a sequence holds those that its next token reads, and gives the
//! others back.
//!
//! A block of this pool is published with the chain *before* it in the pool of the other layers, so both pools name the
//! same texts. A cached prefix can be used up to a position at which all blocks of a window are still here.

use bitnet_model::{Batch, CacheBytes, Model};

use super::sequence::Sequence;
use super::{Scheduler, seq_mut};

const BLOCK: usize = Batch::BLOCK_TOKENS;

/// The blocks that sliding layers have for themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCache {
    /// Number of keys that a token attends to in these layers, its own included.
    pub width: usize,
    /// Number of blocks.
    pub blocks: usize,
}

impl WindowCache {
    /// The blocks of a model; `None` if its sliding layers have none of their own.
    pub fn of(model: &dyn Model) -> Option<WindowCache> {
        let blocks = Some(model.window_blocks()).filter(|&blocks| blocks > 0)?;
        Some(WindowCache { width: model.spec().sliding_window()?, blocks })
    }

    /// The first block from which the token at `position` reads.
    pub(super) fn first(&self, position: usize) -> usize {
        Batch::first_block(self.width, position)
    }

    /// Maximum number of tokens in a run, for which an otherwise empty pool has blocks, beside one of `full` blocks for the
    /// other layers; 0 if it has none for one token.
    pub(super) fn longest_run(&self, full: usize) -> usize {
        if self.blocks >= full {
            return usize::MAX;
        }
        // A run may begin at the end of a block, and so need a block more than its tokens fill.
        self.blocks.checked_sub(1 + self.whole()).map_or(0, |more| more * BLOCK + 1)
    }

    /// Number of blocks with the window of a token that begins a block.
    pub(super) fn whole(&self) -> usize {
        (self.width - 1).div_ceil(BLOCK)
    }

    /// The bytes of parts that are copied out of a model with parts of these: a state includes a window.
    pub fn parts(&self, bytes: CacheBytes) -> CacheBytes {
        CacheBytes { state: bytes.state + self.whole() * bytes.window, ..bytes }
    }
}

/// A place in a table whose block was given back.
pub(crate) const GONE: u32 = u32::MAX;

/// Numbers of blocks, in both pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Blocks {
    /// Blocks of layers that attend to all tokens, or of all layers if sliding ones have none of their own.
    pub full: usize,
    /// Blocks of sliding layers.
    pub windows: usize,
}

impl Blocks {
    /// Whether these are within what is `available`.
    pub fn fit(self, available: Blocks) -> bool {
        self.full <= available.full && self.windows <= available.windows
    }

    /// One part in `parts` of these.
    pub fn share(self, parts: usize) -> Blocks {
        Blocks { full: self.full / parts, windows: self.windows / parts }
    }
}

impl std::ops::Add for Blocks {
    type Output = Blocks;

    fn add(self, other: Blocks) -> Blocks {
        Blocks { full: self.full + other.full, windows: self.windows + other.windows }
    }
}

impl Scheduler {
    /// Numbers of blocks that can be allocated.
    pub(super) fn available(&self) -> Blocks {
        Blocks { full: self.pool.available(), windows: self.windows.available() }
    }

    /// Maximum number of tokens of a sequence in a step.
    pub(super) fn longest_run(&self) -> usize {
        let run = self.window.map_or(usize::MAX, |window| window.longest_run(self.config.kv_blocks));
        run.min(self.config.max_tokens)
    }

    /// The first block of which sliding layers need their own when a text of `len` tokens, `computed` of which are in the
    /// cache, goes on. The last token is always computed, for its logits.
    pub(super) fn first_window(&self, computed: usize, len: usize) -> usize {
        self.window.map_or(0, |window| window.first(computed.min(len - 1)))
    }

    /// Whether a sequence still holds the window with which another text of the same first `len` tokens goes on.
    pub(super) fn holds_window(&self, s: &Sequence, len: usize) -> bool {
        s.passed <= self.first_window(len, len)
    }

    /// Gives back the blocks of sliding layers that are needed neither for the next token of a sequence nor for another text
    /// that goes on after its last full block. Those before the end of the prompt and before a branch stay in the prefix
    /// cache for as long as there is room; the others are used first.
    pub(super) fn pass(&mut self, slot: u32) {
        let Some(window) = self.window else { return };
        let s = seq_mut(&mut self.slots, slot);
        let passed = s.passed;
        s.passed = window.first(s.computed / BLOCK * BLOCK).min(s.windows.len()).max(passed);
        // Texts often branch a little before the end of a prompt.
        let kept =
            [s.branch, s.boundary()].map(|at| window.first(at.saturating_sub(window.width))..at / BLOCK);
        for index in passed..s.passed {
            let block = std::mem::replace(&mut s.windows[index], GONE);
            if self.windows.refs(block) == 1 && !kept.iter().any(|kept| kept.contains(&index)) {
                self.windows.unpublish(block);
            }
            self.windows.release(block);
        }
    }
}
