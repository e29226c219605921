use std::ops::Range;

use bitnet_tensor::{BitNetTensor, GroupedTensor, TernaryTensor};

use crate::{Ask, Drawn, GroupedPanels, KernelError, KvShape, Panels, Screen, gpu::Counts};

/// What a backend runs on, for people and records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// `cpu`, `reference`, ...
    pub device: String,
    /// Instruction set of the kernels in use.
    pub isa: &'static str,
    /// Threads that share the work.
    pub threads: usize,
    /// Type of cached keys and values: `f32`, ...
    pub kv: &'static str,
}

/// What a device with memory of its own reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Bytes of its memory in use by all programs when memory was last reserved for steps.
    pub memory_used: u64,
    /// Bytes of its memory.
    pub memory_total: u64,
    /// What it has done.
    pub counts: Counts,
    /// Whether it has failed, and computes no more.
    pub lost: bool,
}

/// The largest step that memory is reserved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// Tokens.
    pub tokens: usize,
    /// Rows of logits.
    pub logit_rows: usize,
    /// Blocks in the lists of all runs.
    pub blocks: usize,
    /// Query heads that share a key head.
    pub group: usize,
    /// Logits of a row.
    pub vocab: usize,
}

/// Consecutive tokens of one sequence within a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Which rows of the step's activations they are.
    pub tokens: Range<usize>,
    /// Position of the first of them in its sequence.
    pub start: usize,
    /// Where the sequence's block table lies in the step's list of blocks.
    pub blocks: Range<usize>,
}

/// One RMSNorm: `y = x / sqrt(mean(x^2) + eps) * gain`.
#[derive(Debug)]
pub struct Norm<G> {
    /// Gain of every feature.
    pub gain: G,
    /// Added to the mean square.
    pub eps: f32,
}

/// The norms that a row passes before it is quantised, in this order.
pub type Norms<'a, G> = [Option<&'a Norm<G>>; 2];

/// The norms of every query head and of every key head before they are turned; their gains are as wide as a head.
pub type HeadNorms<'a, G> = Option<[&'a Norm<G>; 2]>;

/// Which int8 activations share a scale: it depends on the weights that they meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// A whole row, for matrices of [`Backend::linear`].
    Row,
    /// Groups of [`bitnet_tensor::quant::GROUP`] columns, for matrices of [`Backend::grouped`].
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

/// What rows are used for; a backend may store each kind in its own precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsKind {
    /// The sum that every layer adds to: f32 on every backend.
    Residual,
    /// The output of one operation and input of the next: f32 on the CPU, bf16 on a GPU.
    Between,
}

/// Which rows of a matrix the next operation needs together; a backend may store them side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// Every row by itself.
    Plain,
    /// Row `i` of the gate with row `i` of up, the matrix's halves: for [`Backend::bit_linear_gate_quantize`].
    GateUp,
    /// Dimension `i` of a head with dimension `i + head_dim / 2`: for [`Backend::bit_linear_rope_store`].
    Rope {
        /// Width of a head.
        head_dim: usize,
    },
}

/// Memory and the few fused operations that a forward pass is made of.
///
/// A step has `n` tokens (rows). Buffers are made once for the largest step, and every operation works on their first `n`
/// rows. Shapes that do not fit are a bug in the caller and panic; [`KernelError`] reports what can happen to a correct
/// caller. Operations take effect in the order of the calls.
pub trait Backend: Send {
    /// Activations, `[rows][width]`.
    type Rows: Send;
    /// int8 activations, `[rows][width]`, with scales and sums of rows or of groups.
    type Quants: Send;
    /// A matrix with one scale a row or with scales for groups of columns, in the layout of the kernels.
    type Linear: Send;
    /// A matrix of rows, dense or ternary: embedding, output head.
    type Table: Send;
    /// Gain of a norm, `[width]` f32.
    type Gain: Send;
    /// Cosines and sines of the rotary embedding, `[positions][head_dim / 2]` each.
    type Rope: Send;
    /// Keys and values of one layer, in blocks of [`crate::BLOCK_TOKENS`] tokens.
    type Kv: Send;

    /// Whether [`Backend::panels`], [`Backend::grouped_panels`], [`Backend::ternary_panels`] and [`Backend::screen`] use what a
    /// file holds as it lies there.
    const READS_PANELS: bool = false;

    /// What this backend runs on.
    fn info(&self) -> BackendInfo;

    /// Zeroed activations.
    fn rows(&mut self, rows: usize, width: usize, kind: RowsKind) -> Result<Self::Rows, KernelError>;
    /// Zeroed int8 activations.
    fn quants(&mut self, rows: usize, width: usize, grouping: Grouping) -> Result<Self::Quants, KernelError>;
    /// Packs a matrix for [`Backend::bit_linear`] (order [`RowOrder::Plain`]) or for the operation that `order`
    /// names.
    fn linear(&mut self, weights: &TernaryTensor, order: RowOrder) -> Result<Self::Linear, KernelError>;
    /// As [`Backend::linear`], for a matrix with scales for groups of columns. It multiplies activations of
    /// [`Grouping::Groups`].
    fn grouped(&mut self, weights: &GroupedTensor, order: RowOrder) -> Result<Self::Linear, KernelError>;
    /// As [`Backend::linear`], for a matrix that is already packed for the CPU.
    fn panels(&mut self, weights: Panels, order: RowOrder) -> Result<Self::Linear, KernelError> {
        self.linear(&weights.unpack(0..weights.rows())?, order)
    }
    /// As [`Backend::panels`], for a matrix with scales for groups of columns.
    fn grouped_panels(
        &mut self,
        weights: GroupedPanels,
        order: RowOrder,
    ) -> Result<Self::Linear, KernelError> {
        self.grouped(&weights.unpack(0..weights.rows())?, order)
    }
    /// Takes a dense matrix of any float type, without copying where the backend can read it in place.
    fn table(&mut self, weights: &BitNetTensor) -> Result<Self::Table, KernelError>;
    /// Takes a ternary matrix as a table: [`Backend::embed`] decodes its rows, [`Backend::logits`] quantises activations by
    /// groups and multiplies as [`Backend::bit_linear`] does.
    fn ternary_table(&mut self, weights: &GroupedTensor) -> Result<Self::Table, KernelError>;
    /// As [`Backend::ternary_table`], for a matrix that is already packed for the CPU.
    fn ternary_panels(&mut self, weights: GroupedPanels) -> Result<Self::Table, KernelError> {
        self.ternary_table(&weights.unpack(0..weights.rows())?)
    }
    /// Takes the gain of a norm.
    fn gain(&mut self, gain: &[f32]) -> Result<Self::Gain, KernelError>;
    /// Takes cosines and sines, `[positions][head_dim / 2]` each.
    fn rope(&mut self, cos: &[f32], sin: &[f32], head_dim: usize) -> Result<Self::Rope, KernelError>;
    /// An empty cache.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, KernelError>;

    /// Row `i` of `out` becomes row `tokens[i]` of `table` times `factor`.
    fn embed(
        &mut self,
        table: &Self::Table,
        tokens: &[u32],
        factor: f32,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Each row through `norms` in turn, then quantised to int8 ([`bitnet_tensor::quant`]) with the grouping of `out`.
    fn norm_quantize(
        &mut self,
        n: usize,
        x: &Self::Rows,
        norms: Norms<'_, Self::Gain>,
        out: &mut Self::Quants,
    ) -> Result<(), KernelError>;

    /// `out[t][column + r] = sum_k x[t][k] * w[r][k]` for all rows `r` of `w`, by the scales of both ([`crate::order`] says
    /// how); with `add` times this factor, and added to what is there. The grouping of `x` must be that of `w`.
    fn bit_linear(
        &mut self,
        n: usize,
        x: &Self::Quants,
        w: &Self::Linear,
        out: &mut Self::Rows,
        column: usize,
        add: Option<f32>,
    ) -> Result<(), KernelError>;

    /// Puts every query head and every key head through its norm, if there are norms, turns both by their positions, and
    /// stores keys and values.
    ///
    /// `qkv` is `[n][heads * head_dim | kv_heads * head_dim | kv_heads * head_dim]`; queries are turned in
    /// place: dimension `i` with `i + head_dim / 2`, `x' = x cos - y sin`, `y' = y cos + x sin`.
    fn rope_store(
        &mut self,
        runs: &[Run],
        blocks: &[u32],
        rope: &Self::Rope,
        norms: HeadNorms<'_, Self::Gain>,
        qkv: &mut Self::Rows,
        kv: &mut Self::Kv,
    ) -> Result<(), KernelError>;

    /// Causal attention of every token over its sequence's positions up to its own.
    ///
    /// Reads the queries from `qkv` (as [`Backend::rope_store`] left them), writes `[n][heads * head_dim]`.
    fn attention(
        &mut self,
        runs: &[Run],
        blocks: &[u32],
        qkv: &Self::Rows,
        kv: &Self::Kv,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Gates `gate_up` (`[n][ffn | ffn]`), then as [`Backend::norm_quantize`].
    fn gate_quantize(
        &mut self,
        n: usize,
        gate_up: &Self::Rows,
        gate: Gate,
        norms: Norms<'_, Self::Gain>,
        out: &mut Self::Quants,
    ) -> Result<(), KernelError>;

    /// [`Backend::bit_linear`] with a matrix in [`RowOrder::GateUp`], then [`Backend::gate_quantize`].
    ///
    /// `gate_up` is `[n][ffn | ffn]`; its contents afterwards are unspecified.
    #[expect(clippy::too_many_arguments, reason = "the arguments of two operations")]
    fn bit_linear_gate_quantize(
        &mut self,
        n: usize,
        x: &Self::Quants,
        w: &Self::Linear,
        gate: Gate,
        norms: Norms<'_, Self::Gain>,
        gate_up: &mut Self::Rows,
        out: &mut Self::Quants,
    ) -> Result<(), KernelError> {
        self.bit_linear(n, x, w, gate_up, 0, None)?;
        self.gate_quantize(n, gate_up, gate, norms, out)
    }

    /// [`Backend::bit_linear`] with a matrix in [`RowOrder::Rope`], then [`Backend::rope_store`].
    ///
    /// Afterwards only the queries in `qkv` are defined.
    #[expect(clippy::too_many_arguments, reason = "the arguments of two operations")]
    fn bit_linear_rope_store(
        &mut self,
        n: usize,
        x: &Self::Quants,
        w: &Self::Linear,
        runs: &[Run],
        blocks: &[u32],
        rope: &Self::Rope,
        norms: HeadNorms<'_, Self::Gain>,
        qkv: &mut Self::Rows,
        kv: &mut Self::Kv,
    ) -> Result<(), KernelError> {
        self.bit_linear(n, x, w, qkv, 0, None)?;
        self.rope_store(runs, blocks, rope, norms, qkv, kv)
    }

    /// Row `i` of `out` becomes row `wanted[i]` of `x` through `norm`.
    fn norm_rows(
        &mut self,
        wanted: &[usize],
        x: &Self::Rows,
        norm: &Norm<Self::Gain>,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// `logits[t][v] = sum_k x[t][k] * table[v][k]`; if the table is ternary, of the quantised rows.
    fn logits(
        &mut self,
        n: usize,
        x: &Self::Rows,
        table: &Self::Table,
        logits: &mut [f32],
    ) -> Result<(), KernelError>;

    /// As [`Backend::top_logits`], with one row of `x` for each of `asks`. A backend that draws tokens where it computes
    /// logits does so for rows with an ask and stores the result in `drawn`; the logits of those rows are then undefined.
    fn draw(
        &mut self,
        x: &Self::Rows,
        table: &Self::Table,
        keep: &[usize],
        asks: &[Option<Ask>],
        logits: &mut [f32],
        _drawn: &mut [Option<Drawn>],
    ) -> Result<(), KernelError> {
        self.top_logits(asks.len(), x, table, keep, logits)
    }

    /// Reserves everything that steps up to this size need beyond their buffers, so that no step allocates.
    fn prepare(&mut self, _size: &StepSize) -> Result<(), KernelError> {
        Ok(())
    }

    /// Ends a step: waits until all operations have taken effect.
    fn finish(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// What the device reports; `None` if it is the host.
    fn device(&self) -> Option<DeviceStatus> {
        None
    }

    /// Whether this backend uses [`Backend::screen`].
    fn screens(&self) -> bool {
        false
    }

    /// Prepares a table for [`Backend::top_logits`] of up to `rows` rows, from the copy that a file holds if there is one.
    fn screen(
        &mut self,
        table: &mut Self::Table,
        stored: Option<Screen>,
        rows: usize,
    ) -> Result<(), KernelError> {
        let _ = (table, stored, rows);
        Ok(())
    }

    /// As [`Backend::logits`], for a caller that needs only the `keep[t]` highest logits of row `t` and those equal to the
    /// last of them: all others may be negative infinity.
    fn top_logits(
        &mut self,
        n: usize,
        x: &Self::Rows,
        table: &Self::Table,
        keep: &[usize],
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        let _ = keep;
        self.logits(n, x, table, logits)
    }

    /// Copies all keys and values of block `from` to block `to`.
    fn copy_block(&mut self, kv: &mut Self::Kv, from: u32, to: u32) -> Result<(), KernelError>;

    /// Reads back the first `n` rows, `[n][width]`, for tests and diagnosis.
    fn read(&mut self, x: &Self::Rows, n: usize) -> Result<Vec<f32>, KernelError>;

    /// Writes the first rows from `[n][width]`, for tests.
    fn write(&mut self, x: &mut Self::Rows, values: &[f32]) -> Result<(), KernelError>;

    /// Reads back the first `n` quantised rows, for tests: values, multipliers and sums of rows, or scales and sums of groups.
    #[expect(clippy::type_complexity, reason = "three arrays")]
    fn read_quants(
        &mut self,
        x: &Self::Quants,
        n: usize,
    ) -> Result<(Vec<i8>, Vec<f32>, Vec<i32>), KernelError>;
}
