//! The arguments of operations that all backends share.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Consecutive tokens of one sequence within a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Run {
    /// Rows of the step's activations that hold these tokens.
    pub tokens: Range<usize>,
    /// Position of the first token in its sequence.
    pub start: usize,
    /// Part of the step's list of blocks that is the sequence's block table.
    pub blocks: Range<usize>,
    /// Slot with the recurrent state of the sequence; meaningless in a model without recurrent layers. A run that
    /// starts at position 0 begins with zeros, whatever the slot holds.
    pub state: u32,
    /// What the run means to the log of the slot.
    pub log: DraftLog,
}

/// The part of a run in the log of drafts that belongs to a slot ([`crate::Backend::reserve_log`]). Without drafts before
/// and in the run, all is zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftLog {
    /// Number of drafts of the sequence's last run that were accepted. They come between the state in the slot and the
    /// run's first token.
    pub accepted: usize,
    /// Number of drafts at the end of the run, fewer than it has tokens: the state in the slot stops before them, and the
    /// log keeps what the next run needs to take them up.
    pub drafts: usize,
}

/// Where the tokens of a step belong.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    pub(crate) runs: &'a [Run],
    pub(crate) blocks: &'a [u32],
    /// Every call of [`Step::new`] has another one, so that what follows from a step is computed by the first layer and
    /// not by each.
    pub(crate) number: u64,
    /// Number of keys that a token attends to, its own included; all if `None`.
    pub(crate) window: Option<usize>,
}

impl<'a> Step<'a> {
    /// Makes a step of `runs`, in order, which together have the first rows of the step's activations, without gaps.
    /// `blocks` are the block tables of all runs, concatenated.
    pub fn new(runs: &'a [Run], blocks: &'a [u32]) -> Self {
        static STEPS: AtomicU64 = AtomicU64::new(1);
        Step { runs, blocks, number: STEPS.fetch_add(1, Relaxed), window: None }
    }

    /// The same step for a layer whose tokens attend to the last `window` keys, their own included.
    ///
    /// # Panics
    /// If the window is 0.
    pub fn within(self, window: Option<usize>) -> Self {
        assert!(window != Some(0), "a token attends at least to itself");
        Step { window, ..self }
    }

    /// Position of the first key to which the token at `position` attends.
    pub(crate) fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

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

impl Grouping {
    /// Which activations a matrix multiplies: `group` is the number of columns that share a scale of its weights, or `None`
    /// if whole rows do.
    pub fn of(group: Option<usize>) -> Self {
        if group.is_some() { Grouping::Groups } else { Grouping::Row }
    }
}

/// The gate of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// `max(gate, 0)^2 * up`.
    SquaredRelu,
    /// `gate / (1 + exp(-gate)) * up`.
    Silu,
    /// The same with `min(gate, limit)` for `gate` and `max(-limit, min(up, limit))` for `up`.
    ClampedSilu {
        /// The largest gate, and the largest magnitude of `up`.
        limit: f32,
    },
    /// GELU, approximated with tanh: `gate / (1 + exp(-2 z)) * up` with `z = sqrt(2 / pi) (gate + 0.044715 gate^3)`.
    Gelu,
}

impl Gate {
    /// The largest gate, and the largest magnitude of `up`.
    pub(crate) fn limit(self) -> f32 {
        if let Gate::ClampedSilu { limit } = self { limit } else { f32::INFINITY }
    }
}

/// Sizes of a mixture of experts: feed-forward layers of which every token passes a few.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertShape {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that a token passes.
    pub used: usize,
    /// Width of the layer's input and output.
    pub hidden: usize,
    /// Width between the projections of an expert.
    pub ffn: usize,
    /// The gate of every expert.
    pub gate: Gate,
}

/// What activation rows are used for; a backend may store each kind in a different precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsKind {
    /// The residual that every layer adds to: f32 on every backend.
    Residual,
    /// Output of one operation and input of the next: f32 on the CPU, bf16 on a GPU.
    Intermediate,
}

/// Which rows of a matrix the next operation needs together; a backend may store them side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The next operation uses each row on its own.
    Plain,
    /// The halves of the matrix are gate and up, and row `i` of one is needed with row `i` of the other:
    /// for [`crate::Backend::bit_linear_gate_norm_quantize`].
    GateUp,
    /// Dimension `i` of a head is needed with dimension `i + head_dim / 2`: for [`crate::Backend::bit_linear_norm_rope_store`].
    Rope {
        /// Width of a head.
        head_dim: usize,
    },
}

/// Sizes of a gated-delta layer: a short convolution over time, then a state for each value head that decays and is
/// updated with every token.
///
/// Its input has the columns `[queries | keys | values | output gates | decays | rates]`, with `key_width`,
/// `key_width`, `value_width`, `value_width`, `value_heads` and `value_heads` of them. Value head `j` reads key head
/// `j % key_heads`: the *tiled* order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and of keys.
    pub key_heads: usize,
    /// Heads of values, each with a state; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of every head, of keys and of values.
    pub head_dim: usize,
    /// Tokens that the convolution covers, including the current one.
    pub taps: usize,
}

impl DeltaShape {
    /// Columns of all queries, equal to those of all keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.head_dim
    }

    /// Columns of all values, equal to those of the output gates and of the layer's output.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.head_dim
    }

    /// Columns that the convolution covers: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Columns of the layer's input.
    pub fn columns(&self) -> usize {
        self.channels() + self.value_width() + 2 * self.value_heads
    }

    /// Floats in a slot: a state of `[head_dim values][head_dim keys]` for every value head, and the inputs of the
    /// convolution that the next token needs. Values (on a GPU, keys) and channels are padded to multiples of 16.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.head_len() + self.window_len()
    }

    /// Floats that a step on the CPU keeps for every token between the passes of a layer, once for all layers: queries,
    /// keys and values after the convolution, then the decays and the rates of all value heads.
    pub fn between_len(&self) -> usize {
        self.channels().next_multiple_of(16) + 2 * self.value_heads.next_multiple_of(16)
    }

    /// Floats that the log of a slot on the CPU keeps for a draft: its input of the convolution, then its keys and values
    /// after it, and the decays and the rates of all value heads.
    pub fn log_len(&self) -> usize {
        self.channels().next_multiple_of(16) + self.learned_len()
    }

    /// Floats of a token in the row of [`DeltaShape::between_len`] that change a state: all but the queries.
    pub(crate) fn learned_len(&self) -> usize {
        self.between_len() - self.key_width()
    }

    /// Floats that the kernels of a layer on a GPU pass to each other for every token, once for all layers: queries, keys
    /// and values after the convolution, each head padded, then the decays and the rates of all value heads.
    pub fn gpu_between_len(&self) -> usize {
        let heads = 2 * self.key_heads + self.value_heads;
        (heads * self.head_dim.next_multiple_of(16) + 2 * self.value_heads).next_multiple_of(4)
    }

    /// Floats that the log of a slot on a GPU keeps for a draft: its input of the convolution, then its keys, what the
    /// state of each value head changes by along the key, and the decays of all value heads.
    pub fn gpu_log_len(&self) -> usize {
        let heads = self.key_heads + self.value_heads;
        self.channels().next_multiple_of(16) + heads * self.head_dim.next_multiple_of(16) + self.value_heads
    }

    /// Floats of one head's state.
    pub(crate) fn head_len(&self) -> usize {
        self.head_dim.next_multiple_of(16) * self.head_dim
    }

    /// Floats of the convolution's past inputs.
    pub(crate) fn window_len(&self) -> usize {
        (self.taps - 1) * self.channels().next_multiple_of(16)
    }
}

/// Dense parameters of a gated-delta layer. Value heads and their columns are in tiled order.
#[derive(Debug, Clone, Copy)]
pub struct DeltaWeights<'a> {
    /// Factors of the convolution, `[channels][taps]`; the last tap is the current token.
    pub conv: &'a [f32],
    /// Factor of each value head's decay, `-exp(A_log)`.
    pub a: &'a [f32],
    /// Added to each value head's decay.
    pub dt_bias: &'a [f32],
    /// Gain of the norm of each head's output, `[head_dim]`.
    pub norm: &'a [f32],
    /// Added to the mean square of that norm.
    pub eps: f32,
}

/// A Walsh-Hadamard transform with signs; the weights of a matrix have already been transformed to match it.
///
/// The input of such a matrix is permuted, multiplied by the signs, and transformed, in this order, before it is
/// quantised. The rows of such a table are transformed and then multiplied by the signs.
#[derive(Debug, Clone, Copy)]
pub struct Rotate<'a> {
    /// Columns that are transformed together: a power of two that divides the width.
    pub block: usize,
    /// `1` or `-1` for every column; `None` stands for `1` everywhere.
    pub signs: Option<&'a [i8]>,
    /// Key heads, and value heads per key head, if columns must first be brought from the tiled to the *grouped* order of
    /// value heads, in which those that read the same key head are neighbours.
    pub grouped: Option<(usize, usize)>,
}
