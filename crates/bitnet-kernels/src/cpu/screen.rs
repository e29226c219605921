//! An int8 copy of a dense table, and what a step needs to tell by it which rows cannot have one of the highest
//! logits.
//!
//! ```text
//! panel   64 rows, all columns; panels one after another
//! quad    4 columns of a panel: 256 bytes; byte 4 r + j holds row r, column j, as q + 128
//! ```
//!
//! The lanes are those of [`super::panels`], with one column where that has four. How the copy bounds a logit is in
//! [`super::generic::screen`].

use bitnet_tensor::BitNetTensor;

use crate::{
    KernelError,
    cpu::{buffer::Buffer, generic::screen::Split, panels::PANEL_ROWS},
};

/// Bytes of a panel's quad.
pub(crate) const QUAD_BYTES: usize = 4 * PANEL_ROWS;

/// Most columns whose sums fit 32 bits: a column adds at most 255 * 128.
pub(crate) const MOST_COLS: usize = 1 << 16;

/// A table's int8 copy.
pub(crate) struct Screen {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// `[panels][quads][256]`.
    pub(crate) codes: Buffer<u8>,
    /// What 1 of a row's codes is worth, padded to whole panels, as are the next two.
    pub(crate) scales: Buffer<f32>,
    /// At least the length of a row.
    pub(crate) norms: Buffer<f32>,
    /// At least the length of the difference between a row and its copy; infinite for rows that are not there.
    pub(crate) errors: Buffer<f32>,
}

impl Screen {
    /// Bytes of the copy of a table of this shape.
    pub(crate) fn bytes(rows: usize, cols: usize) -> usize {
        rows.next_multiple_of(PANEL_ROWS) * (cols.next_multiple_of(4) + 3 * size_of::<f32>())
    }

    /// An empty copy, to be filled a panel at a time.
    pub(crate) fn zeroed(table: &BitNetTensor) -> Result<Self, KernelError> {
        let (rows, cols) = (table.rows(), table.cols());
        let padded = rows.next_multiple_of(PANEL_ROWS);
        let floats = || Buffer::zeroed(padded, "bounds of the output head");
        let codes = Buffer::zeroed(padded * cols.next_multiple_of(4), "int8 copy of the output head")?;
        Ok(Screen { rows, cols, codes, scales: floats()?, norms: floats()?, errors: floats()? })
    }

    pub(crate) fn panels(&self) -> usize {
        self.scales.len() / PANEL_ROWS
    }

    pub(crate) fn quads(&self) -> usize {
        self.cols.div_ceil(4)
    }
}

/// What a step needs beside the copy; grown when a copy is made, so that steps find it there.
#[derive(Default)]
pub(crate) struct Screening {
    /// Activations as two planes of int8, `[tokens][2][stride]`.
    pub(crate) planes: Vec<i8>,
    /// One a token that is screened.
    pub(crate) splits: Vec<Split>,
    /// Which tokens these are.
    pub(crate) tokens: Vec<usize>,
    /// How many of their highest logits count.
    pub(crate) keep: Vec<usize>,
    /// A logit that so many rows reach.
    pub(crate) thresholds: Vec<f32>,
    /// Tokens all of whose logits are computed.
    pub(crate) whole: Vec<usize>,
    /// The highest lower bound of each panel, `[tokens][panels]`.
    pub(crate) best: Vec<f32>,
}

impl Screening {
    /// Room for `tokens` tokens against `screen`.
    pub(crate) fn reserve(&mut self, tokens: usize, screen: &Screen) {
        let planes = 2 * tokens * plane_stride(screen.cols);
        self.planes.resize(self.planes.len().max(planes), 0);
        self.best.resize(self.best.len().max(tokens * screen.panels()), 0.0);
        self.splits.clear();
        self.splits.reserve(tokens);
        self.thresholds.clear();
        self.thresholds.reserve(tokens);
        for list in [&mut self.tokens, &mut self.keep, &mut self.whole] {
            list.clear();
            list.reserve(tokens);
        }
    }

    /// From the highest lower bound of every panel to a logit that `keep` rows reach: rows of `keep` panels do.
    pub(crate) fn set_thresholds(&mut self, panels: usize) {
        for (best, &keep) in self.best.chunks_exact_mut(panels).zip(&self.keep) {
            let threshold = match keep {
                1 => best.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                _ => *best.select_nth_unstable_by(keep - 1, |a, b| b.total_cmp(a)).1,
            };
            self.thresholds.push(threshold);
        }
    }
}

/// Bytes from one plane of activations to the next.
pub(crate) fn plane_stride(cols: usize) -> usize {
    cols.next_multiple_of(64)
}
