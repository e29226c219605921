//! The arguments of operations that all backends share.

use std::ops::Range;

/// Consecutive tokens of one sequence within a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Rows of the step's activations that hold these tokens.
    pub tokens: Range<usize>,
    /// Position of the first token in its sequence.
    pub start: usize,
    /// Part of the step's list of blocks that is the sequence's block table.
    pub blocks: Range<usize>,
    /// Slot with the recurrent state of the sequence; without meaning in a model that has none.
    pub state: u32,
}

/// Where the tokens of a step belong.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The runs, in order; together they have the first rows of the step's activations, without gaps.
    pub runs: &'a [Run],
    /// The block tables of all runs, concatenated.
    pub blocks: &'a [u32],
}

impl Step<'_> {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.runs.last().map_or(0, |run| run.tokens.end)
    }
}

/// One RMSNorm: `y = x / sqrt(mean(x^2) + eps) * gain`.
#[derive(Debug)]
pub struct Norm<G> {
    /// One gain per feature.
    pub gain: G,
    /// Added to the mean square.
    pub eps: f32,
}

/// The norms applied to a row before it is quantised, in this order.
pub type Norms<'a, G> = [Option<&'a Norm<G>>; 2];

/// The norms of query heads and key heads, applied before the rotary embedding; their gains are as wide as a head.
pub type HeadNorms<'a, G> = Option<[&'a Norm<G>; 2]>;

/// Which int8 activations share a scale; the weights that multiply them decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// A whole row, for matrices with one scale per range of rows.
    Row,
    /// Groups of [`bitnet_tensor::quant::GROUP`] columns, for matrices with one scale per group of columns.
    Groups,
}

/// The gate of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `max(gate, 0)^2 * up`.
    SquaredRelu,
    /// `gate / (1 + exp(-gate)) * up`.
    Silu,
}

/// What activation rows are used for; a backend may store each kind in a different precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsKind {
    /// The residual that every layer adds to: f32 on every backend.
    Residual,
    /// Output of one operation and input of the next: f32 on the CPU, bf16 on a GPU.
    Between,
}

/// Which rows of a matrix the next operation needs together; a backend may store them side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The next operation uses each row on its own.
    Plain,
    /// The halves of the matrix are gate and up, and row `i` of one is needed with row `i` of the other:
    /// for [`crate::Backend::bit_linear_gate_quantize`].
    GateUp,
    /// Dimension `i` of a head is needed with dimension `i + head_dim / 2`: for [`crate::Backend::bit_linear_rope_store`].
    Rope {
        /// Width of a head.
        head_dim: usize,
    },
}
