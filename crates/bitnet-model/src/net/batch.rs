//! The input and the output of one step: a ragged [`Batch`] of the tokens of many sequences, and the [`Logits`] of the
//! rows that someone needs.

use std::ops::Range;

use bitnet_kernels::{Change, Drawn, Edits, SamplingParams, Step, Wanted};
pub use bitnet_kernels::{DraftLog, Run};

/// The tokens of one step: prompt chunks and single tokens of many sequences side by side, without padding.
///
/// Keys and values live in blocks of [`Batch::BLOCK_TOKENS`] tokens. Position `p` of a run's sequence lives in block
/// `blocks[p / BLOCK_TOKENS]`, slot `p % BLOCK_TOKENS`. The forward pass writes the slots of the run's own tokens and
/// reads those of all earlier positions.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    tokens: Vec<u32>,
    runs: Vec<Run>,
    blocks: Vec<u32>,
    /// Tables of sliding layers' own blocks, at the places of `blocks`; shorter if the last runs have none.
    windows: Vec<u32>,
    logit_rows: Vec<usize>,
    /// One for each row of logits.
    wanted: Vec<Wanted>,
    /// Changes of logits, row by row.
    changes: Vec<Change>,
    /// Sets of allowed tokens, row by row; see [`Edits`].
    masks: Vec<u32>,
}

impl Batch {
    /// Tokens in a block of the key-value cache, on every backend.
    pub const BLOCK_TOKENS: usize = bitnet_kernels::BLOCK_TOKENS;

    /// An empty step.
    pub fn new() -> Self {
        Batch::default()
    }

    /// An empty step with room for the given sizes.
    pub fn with_capacity(tokens: usize, runs: usize, blocks: usize) -> Self {
        Batch {
            tokens: Vec::with_capacity(tokens),
            runs: Vec::with_capacity(runs),
            blocks: Vec::with_capacity(blocks),
            windows: Vec::new(),
            logit_rows: Vec::with_capacity(tokens),
            wanted: Vec::with_capacity(tokens),
            changes: Vec::new(),
            masks: Vec::new(),
        }
    }

    /// Empties the step but keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.runs.clear();
        self.blocks.clear();
        self.windows.clear();
        self.logit_rows.clear();
        self.wanted.clear();
        self.changes.clear();
        self.masks.clear();
    }

    /// Adds `tokens` at positions `start..` of the sequence whose block table is `blocks`. `logits` selects the tokens
    /// of this run, counted from its first, whose logits are needed: all logits of each, unless [`Batch::want`] asks
    /// for fewer.
    ///
    /// # Panics
    /// If the run is empty, the table does not cover its last position, or `logits` reaches past its end.
    pub fn push(&mut self, tokens: &[u32], start: usize, blocks: &[u32], logits: Range<usize>) {
        assert!(!tokens.is_empty(), "a run has at least one token");
        assert!(
            (blocks.len() * Self::BLOCK_TOKENS).checked_sub(start).is_some_and(|room| tokens.len() <= room),
            "the block table covers every position of the run"
        );
        assert!(logits.end <= tokens.len(), "rows of logits lie within the run");
        let first = self.tokens.len();
        let table = self.blocks.len();
        self.tokens.extend_from_slice(tokens);
        self.blocks.extend_from_slice(blocks);
        self.runs.push(Run {
            tokens: first..self.tokens.len(),
            start,
            blocks: table..self.blocks.len(),
            state: 0,
            log: DraftLog::default(),
        });
        self.logit_rows.extend(logits.map(|i| first + i));
        self.wanted.resize(self.logit_rows.len(), Wanted::All);
    }

    /// Sets the blocks of the last run's sequence in sliding layers, for a model in which these have blocks of their own
    /// ([`crate::Model::window_blocks`]). `blocks` is as long as the run's block table; those that no token of the run
    /// reads or writes ([`Batch::first_block`]) may have any number.
    ///
    /// # Panics
    /// If the table has another length.
    pub fn set_windows(&mut self, blocks: &[u32]) {
        let Some(run) = self.runs.last() else { return };
        assert_eq!(blocks.len(), run.blocks.len(), "both block tables of a run have the same length");
        self.windows.resize(run.blocks.start, 0);
        self.windows.extend_from_slice(blocks);
    }

    /// Index of the first block from which the token at `position` reads, in layers in which a token attends to `window`
    /// keys.
    pub const fn first_block(window: usize, position: usize) -> usize {
        (position + 1).saturating_sub(window) / Self::BLOCK_TOKENS
    }

    /// Maximum number of blocks of a sequence during a run of `tokens` tokens, in layers in which a token attends to
    /// `window` keys: those from which the first token of the run's first block reads, to that of the last token.
    pub const fn blocks_of_window(window: usize, tokens: usize) -> usize {
        // The run may begin at the end of a block.
        (window - 1).div_ceil(Self::BLOCK_TOKENS)
            + (Self::BLOCK_TOKENS - 1 + tokens).div_ceil(Self::BLOCK_TOKENS)
    }

    /// Sets the slot with the recurrent state of the last run's sequence; 0 unless set.
    pub fn set_state(&mut self, slot: u32) {
        if let Some(run) = self.runs.last_mut() {
            run.state = slot;
        }
    }

    /// Sets what the last run means to the log of its slot ([`Model::reserve_log`](crate::Model::reserve_log)); nothing
    /// unless set.
    pub fn set_log(&mut self, log: DraftLog) {
        if let Some(run) = self.runs.last_mut() {
            run.log = log;
        }
    }

    /// Sets what is needed of each row of logits of the last run. `wanted` receives the row's number within the run,
    /// from 0. Needing fewer logits saves most of the output head's work.
    pub fn want(&mut self, wanted: impl Fn(usize) -> Wanted) {
        let Some(run) = self.runs.last() else { return };
        let before = self.logit_rows.iter().rposition(|&row| row < run.tokens.start);
        let first = before.map_or(0, |row| row + 1);
        for (row, to) in self.wanted[first..].iter_mut().enumerate() {
            *to = wanted(row);
        }
    }

    /// Asks for a token of a row of the last run, counted as by [`Batch::want`], drawn after `changes` of its logits, each
    /// of a different token. With a `mask`, a set as in [`Edits::masks`] that includes the changed tokens, no other token is
    /// drawn.
    pub fn want_changed(
        &mut self,
        row: usize,
        params: SamplingParams,
        changes: &[Change],
        mask: Option<&[u32]>,
    ) {
        let Some(run) = self.runs.last() else { return };
        let before = self.logit_rows.iter().rposition(|&row| row < run.tokens.start);
        let from = self.changes.len() as u32;
        self.changes.extend_from_slice(changes);
        let to = self.changes.len() as u32;
        let mask = mask.map(|mask| {
            let at = self.masks.len() as u32;
            self.masks.extend_from_slice(mask);
            at
        });
        self.wanted[before.map_or(0, |row| row + 1) + row] = Wanted::Changed { params, from, to, mask };
    }

    /// All tokens, run by run.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The runs, in the order they were pushed.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The block tables of all runs, concatenated.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The block table of a run.
    pub fn table(&self, run: &Run) -> &[u32] {
        &self.blocks[run.blocks.clone()]
    }

    /// The table of a run in sliding layers; empty if it was not set.
    pub fn windows(&self, run: &Run) -> &[u32] {
        self.windows.get(run.blocks.clone()).unwrap_or_default()
    }

    /// Indices into [`Batch::tokens`] of the tokens whose logits are needed, ascending.
    pub fn logit_rows(&self) -> &[usize] {
        &self.logit_rows
    }

    /// What is needed of each of these rows.
    pub fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }

    /// The edits of logits to which [`Batch::wanted`] refers.
    pub fn edits(&self) -> Edits<'_> {
        Edits { changes: &self.changes, masks: &self.masks }
    }

    /// The set of the only tokens of `vocab` that may be drawn from a row of logits, if it was given one.
    pub fn mask(&self, row: usize, vocab: usize) -> Option<&[u32]> {
        match self.wanted[row] {
            Wanted::Changed { mask: Some(at), .. } => Some(&self.masks[at as usize..][..vocab.div_ceil(32)]),
            _ => None,
        }
    }

    /// Where the tokens belong.
    pub fn step(&self) -> Step<'_> {
        Step::new(&self.runs, &self.blocks)
    }

    /// Where they belong in sliding layers that have blocks of their own.
    pub fn window_step(&self) -> Step<'_> {
        Step::new(&self.runs, &self.windows)
    }
}

/// The logits of a step, `[rows][vocab]` f32, in the order of [`Batch::logit_rows`], with the tokens that a device drew
/// from them and the hidden states that were wanted instead.
#[derive(Debug, Clone, Default)]
pub struct Logits {
    vocab: usize,
    values: Vec<f32>,
    drawn: Vec<Option<Drawn>>,
    /// `[rows][hidden]`; empty unless a row wants its hidden state.
    hidden: Vec<f32>,
}

impl Logits {
    /// No rows yet, with room for `rows` rows of `vocab` logits.
    pub fn with_capacity(rows: usize, vocab: usize) -> Self {
        let values = Vec::with_capacity(rows * vocab);
        let drawn = Vec::with_capacity(rows);
        Logits { vocab, values, drawn, hidden: Vec::new() }
    }

    /// Sets the size for a step, without drawn tokens, and returns all logits for writing; their old values are
    /// unspecified.
    pub fn resize(&mut self, rows: usize, vocab: usize) -> &mut [f32] {
        self.resize_with_drawn(rows, vocab).0
    }

    /// As [`Logits::resize`], with a place for a drawn token per row.
    pub fn resize_with_drawn(&mut self, rows: usize, vocab: usize) -> (&mut [f32], &mut [Option<Drawn>]) {
        self.vocab = vocab;
        self.values.resize(rows * vocab, 0.0);
        self.hidden.clear();
        self.drawn.clear();
        self.drawn.resize(rows, None);
        (&mut self.values, &mut self.drawn)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.vocab).unwrap_or(0)
    }

    /// The logits of one row, `[vocab]`.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.vocab..][..self.vocab]
    }

    /// The token that a device drew from this row; the row's logits are then undefined.
    pub fn drawn(&self, row: usize) -> Option<Drawn> {
        self.drawn[row]
    }

    /// Sets the hidden states of all rows, `[rows][hidden]`.
    pub fn set_hidden(&mut self, values: Vec<f32>) {
        self.hidden = values;
    }

    /// The hidden state of one row, `[hidden]`, if the model has set it for a row that wants it ([`Wanted::Hidden`]).
    /// The row's logits are then undefined.
    pub fn hidden(&self, row: usize) -> Option<&[f32]> {
        let width = self.hidden.len().checked_div(self.drawn.len()).filter(|&width| width > 0)?;
        self.hidden.get(row * width..)?.get(..width)
    }

    /// The logits of one row, for a sampler that works in place.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.vocab..][..self.vocab]
    }
}
