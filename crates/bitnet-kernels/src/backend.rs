//! The trait that every backend implements: memory in its own layouts, and the few fused operations of a forward pass.
//! Forward passes are written against it once; arguments that need types of their own are in `operation`.

use std::borrow::Cow;

use bitnet_tensor::{BitNetTensor, TernaryTensor};

use crate::{
    DeltaShape, DeltaWeights, Drawn, Edits, ExpertShape, Gate, Grouping, HeadCopy, HeadCounts, HeadNorms,
    Int8Matrix, KernelError, KvShape, Norm, Norms, Panels, Rotate, RowOrder, RowsKind, SamplingParams, Step,
    Wanted,
    gpu::{Counts, Recorded, tilings::Tiling},
};

/// Describes what a backend runs on, for display and records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// `cpu`, `reference`, ...
    pub device: String,
    /// Instruction set of the kernels in use.
    pub isa: &'static str,
    /// Number of threads that share the work.
    pub threads: usize,
    /// Type of cached keys and values: `f32`, ...
    pub kv: &'static str,
}

/// Status of a device that has its own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Bytes of device memory that all programs together used when memory was last reserved for steps.
    pub memory_used: u64,
    /// Bytes of device memory.
    pub memory_total: u64,
    /// Work done since the backend was opened.
    pub counts: Counts,
    /// How launches that come again are handed to the device's driver.
    pub recorded: Recorded,
    /// Whether the device has failed; it then computes nothing more.
    pub lost: bool,
}

/// Size of the largest step, for which memory is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// Tokens in the step.
    pub tokens: usize,
    /// Rows of logits.
    pub logit_rows: usize,
    /// Entries in the block tables of all runs together.
    pub blocks: usize,
    /// Query heads per key head.
    pub group: usize,
    /// Logits in a row.
    pub vocab: usize,
    /// Whether some layers have a window ([`Step::within`]).
    pub windows: bool,
}

/// A matrix for [`Backend::linear`].
#[derive(Debug)]
pub enum Weights<'a> {
    /// In the canonical layout.
    Ternary(Cow<'a, TernaryTensor>),
    /// Already packed for the CPU.
    Panels(Panels),
    /// Not ternary: int8, with a scale for every block of columns; for projections only.
    Int8(Int8Matrix),
}

impl<'a> Weights<'a> {
    /// Columns that share a scale, 64 or 128; `None` if whole rows do.
    pub fn group(&self) -> Option<usize> {
        match self {
            Weights::Ternary(weights) => weights.group(),
            Weights::Panels(panels) => panels.group(),
            Weights::Int8(_) => Some(bitnet_tensor::quant::GROUP),
        }
    }

    /// The matrix in the canonical layout.
    pub(crate) fn canonical(self) -> Result<Cow<'a, TernaryTensor>, KernelError> {
        Ok(match self {
            Weights::Ternary(weights) => weights,
            Weights::Panels(panels) => Cow::Owned(panels.unpack(0..panels.rows())?),
            Weights::Int8(_) => return Err(KernelError::NoInt8),
        })
    }
}

/// A dense or ternary matrix for [`Backend::table`].
#[derive(Debug)]
pub enum TableWeights<'a> {
    /// Of any float type.
    Dense(&'a BitNetTensor),
    /// Ternary, with one scale per group of columns.
    Ternary(Weights<'a>),
}

impl<'a> From<&'a TernaryTensor> for Weights<'a> {
    fn from(weights: &'a TernaryTensor) -> Self {
        Weights::Ternary(Cow::Borrowed(weights))
    }
}

impl From<TernaryTensor> for Weights<'_> {
    fn from(weights: TernaryTensor) -> Self {
        Weights::Ternary(Cow::Owned(weights))
    }
}

impl From<Int8Matrix> for Weights<'_> {
    fn from(weights: Int8Matrix) -> Self {
        Weights::Int8(weights)
    }
}

impl From<Panels> for Weights<'_> {
    fn from(panels: Panels) -> Self {
        Weights::Panels(panels)
    }
}

impl<'a> From<&'a BitNetTensor> for TableWeights<'a> {
    fn from(weights: &'a BitNetTensor) -> Self {
        TableWeights::Dense(weights)
    }
}

impl<'a> From<&'a TernaryTensor> for TableWeights<'a> {
    fn from(weights: &'a TernaryTensor) -> Self {
        TableWeights::Ternary(weights.into())
    }
}

impl<'a> From<Weights<'a>> for TableWeights<'a> {
    fn from(weights: Weights<'a>) -> Self {
        TableWeights::Ternary(weights)
    }
}

/// The weights of a mixture of experts. Ternary matrices have a scale for every group of columns; the rows of an expert
/// follow those of the one before.
#[derive(Debug)]
pub struct ExpertWeights<'a> {
    /// Scores the experts for a token, `[count][hidden]` floats.
    pub router: &'a BitNetTensor,
    /// `[count * ffn][hidden]`
    pub gate: Weights<'a>,
    /// `[count * ffn][hidden]`
    pub up: Weights<'a>,
    /// `[count * hidden][ffn]`
    pub down: Weights<'a>,
}

/// Provides memory and the few fused operations of a forward pass.
///
/// A step has `n` tokens (rows). Buffers are made once for the largest step, and every operation works on their first
/// `n` rows. Shapes that do not match are bugs in the caller and panic; [`KernelError`] reports what can happen to a
/// correct caller. Operations take effect in the order of the calls.
pub trait Backend: Send {
    /// Activations, `[rows][width]`.
    type Rows: Send;
    /// int8 activations, `[rows][width]`, with scales and sums per row or per group.
    type Int8Rows: Send;
    /// A matrix in the layout of the kernels, with one scale per row or per group of columns.
    type Linear: Send;
    /// A dense or ternary matrix: the embedding or the output head.
    type Table: Send;
    /// The gain of a norm, `[width]` f32.
    type Gain: Send;
    /// Cosines and sines of the rotary embedding, `[positions][width / 2]` each.
    type Rope: Send;
    /// Keys and values of one layer, in blocks of [`crate::BLOCK_TOKENS`] tokens.
    type Kv: Send;
    /// The dense parameters of a gated-delta layer.
    type Delta: Send;
    /// The recurrent states of one gated-delta layer, in slots: one for each sequence.
    type State: Send;
    /// A Walsh-Hadamard transform with signs.
    type Rotation: Send;
    /// A mixture of experts.
    type Experts: Send;

    /// Whether panels and [`Backend::prepare_shortlist`] use the bytes of a file in place.
    const READS_PANELS: bool = false;

    /// Describes what this backend runs on.
    fn info(&self) -> BackendInfo;

    /// Makes zeroed activations.
    fn rows(&mut self, rows: usize, width: usize, kind: RowsKind) -> Result<Self::Rows, KernelError>;
    /// Makes zeroed int8 activations.
    fn int8_rows(
        &mut self,
        rows: usize,
        width: usize,
        grouping: Grouping,
    ) -> Result<Self::Int8Rows, KernelError>;
    /// Packs a matrix for [`Backend::bit_linear`] (order [`RowOrder::Plain`]) or for the operation named by `order`. It
    /// multiplies activations with the [`Grouping`] of its scales; an int8 matrix, activations in groups.
    fn linear<'a>(
        &mut self,
        weights: impl Into<Weights<'a>>,
        order: RowOrder,
    ) -> Result<Self::Linear, KernelError>;
    /// Loads an embedding or output head, without a copy if the backend can read it in place. If it is ternary,
    /// [`Backend::embed`] decodes its rows, and [`Backend::logits`] quantises activations in groups and multiplies as
    /// [`Backend::bit_linear`] does.
    fn table<'a>(&mut self, weights: impl Into<TableWeights<'a>>) -> Result<Self::Table, KernelError>;
    /// Loads the gain of a norm.
    fn gain(&mut self, gain: &[f32]) -> Result<Self::Gain, KernelError>;
    /// Loads the cosines and sines of the rotary embedding of the first `width` dimensions of a head,
    /// `[positions][width / 2]` each.
    fn rope(&mut self, cos: &[f32], sin: &[f32], width: usize) -> Result<Self::Rope, KernelError>;
    /// Makes an empty cache.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, KernelError>;
    /// Loads the dense parameters of a gated-delta layer.
    fn delta(&mut self, shape: DeltaShape, weights: &DeltaWeights<'_>) -> Result<Self::Delta, KernelError>;
    /// Makes `slots` recurrent states for one layer.
    fn state(&mut self, shape: DeltaShape, slots: usize) -> Result<Self::State, KernelError>;
    /// Loads a transform of rows of `width` columns.
    fn rotation(&mut self, width: usize, rotate: &Rotate<'_>) -> Result<Self::Rotation, KernelError>;
    /// Loads a mixture of experts for [`Backend::mix_experts`].
    fn experts(
        &mut self,
        shape: ExpertShape,
        weights: ExpertWeights<'_>,
    ) -> Result<Self::Experts, KernelError>;
    /// Declares that a ternary table contains a transform: [`Backend::embed`] undoes it, and [`Backend::logits`]
    /// applies it to its input.
    ///
    /// # Panics
    /// If the table is dense.
    fn rotate_table(&mut self, table: &mut Self::Table, rotation: Self::Rotation);

    /// Sets row `i` of `out` to row `tokens[i]` of `table`, times `factor`.
    fn embed(
        &mut self,
        table: &Self::Table,
        tokens: &[u32],
        factor: f32,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Applies `norms` to each row in turn, then `rotation`, and quantises the result to int8
    /// ([`bitnet_tensor::quant`]) with the grouping of `out`.
    fn norm_quantize(
        &mut self,
        n: usize,
        x: &Self::Rows,
        norms: Norms<'_, Self::Gain>,
        rotation: Option<&Self::Rotation>,
        out: &mut Self::Int8Rows,
    ) -> Result<(), KernelError>;

    /// Computes `out[t][column + r] = sum_k x[t][k] * w[r][k]` for all rows `r` of `w`, scaled as [`crate::order`]
    /// defines. With `add`, multiplies the result by that factor and adds it to `out`. The groupings of `x` and `w`
    /// must match.
    fn bit_linear(
        &mut self,
        n: usize,
        x: &Self::Int8Rows,
        w: &Self::Linear,
        out: &mut Self::Rows,
        column: usize,
        add: Option<f32>,
    ) -> Result<(), KernelError>;

    /// Normalises query and key heads if `norms` are given, rotates them by their positions, and stores keys and
    /// values.
    ///
    /// `qkv` is `[n][heads * head_dim | kv_heads * head_dim | kv_heads * head_dim | ..]`; further columns stay as they
    /// are. Queries are rotated in place. With the width `w` of `rope`, `x` in dimension `i` and `y` in dimension
    /// `i + w / 2` become `x' = x cos - y sin` and `y' = y cos + x sin`; dimensions after the first `w` stay as they
    /// are.
    fn norm_rope_store(
        &mut self,
        step: Step<'_>,
        heads: usize,
        rope: &Self::Rope,
        norms: HeadNorms<'_, Self::Gain>,
        qkv: &mut Self::Rows,
        kv: &mut Self::Kv,
    ) -> Result<(), KernelError>;

    /// Computes causal attention: every token attends to the positions of its sequence up to and including its own, or
    /// to the last of them ([`Step::within`]).
    ///
    /// Reads the queries from the first columns of `qkv` (as [`Backend::norm_rope_store`] left them) and writes
    /// `[n][heads * head_dim]`, the width of `out`.
    fn attention(
        &mut self,
        step: Step<'_>,
        qkv: &Self::Rows,
        kv: &Self::Kv,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Applies the gate to `gate_up` (`[n][ffn | ffn]`), then does the same as [`Backend::norm_quantize`].
    fn gate_norm_quantize(
        &mut self,
        n: usize,
        gate_up: &Self::Rows,
        gate: Gate,
        norms: Norms<'_, Self::Gain>,
        rotation: Option<&Self::Rotation>,
        out: &mut Self::Int8Rows,
    ) -> Result<(), KernelError>;

    /// [`Backend::bit_linear`] with a matrix in [`RowOrder::GateUp`], then [`Backend::gate_norm_quantize`].
    ///
    /// `gate_up` is `[n][ffn | ffn]`; its contents afterwards are unspecified.
    #[expect(clippy::too_many_arguments, reason = "the arguments of two operations")]
    fn bit_linear_gate_norm_quantize(
        &mut self,
        n: usize,
        x: &Self::Int8Rows,
        w: &Self::Linear,
        gate: Gate,
        norms: Norms<'_, Self::Gain>,
        rotation: Option<&Self::Rotation>,
        gate_up: &mut Self::Rows,
        out: &mut Self::Int8Rows,
    ) -> Result<(), KernelError> {
        self.bit_linear(n, x, w, gate_up, 0, None)?;
        self.gate_norm_quantize(n, gate_up, gate, norms, rotation, out)
    }

    /// [`Backend::bit_linear`] with a matrix in [`RowOrder::Rope`], then [`Backend::norm_rope_store`].
    ///
    /// Afterwards only the queries in `qkv` are defined.
    #[expect(clippy::too_many_arguments, reason = "the arguments of two operations")]
    fn bit_linear_norm_rope_store(
        &mut self,
        step: Step<'_>,
        x: &Self::Int8Rows,
        w: &Self::Linear,
        heads: usize,
        rope: &Self::Rope,
        norms: HeadNorms<'_, Self::Gain>,
        qkv: &mut Self::Rows,
        kv: &mut Self::Kv,
    ) -> Result<(), KernelError> {
        self.bit_linear(step.tokens(), x, w, qkv, 0, None)?;
        self.norm_rope_store(step, heads, rope, norms, qkv, kv)
    }

    /// Computes a gated-delta layer between its projections: convolution, norms of queries and keys, the delta rule,
    /// the norm of each head's output, and the output gate ([`crate::order`] has the formulas).
    ///
    /// `x` has the columns that [`DeltaShape`] describes, and `out` is `[n][value_width]`. Every run reads its slot of
    /// `state` and writes the state after its last token to it; no two runs may share a slot. A run
    /// first takes the state through the drafts of the previous run that were accepted, and leaves the state before its own
    /// drafts ([`crate::DraftLog`]).
    fn gated_delta(
        &mut self,
        step: Step<'_>,
        x: &Self::Rows,
        w: &Self::Delta,
        state: &mut Self::State,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Makes room for logs of up to `drafts` drafts, one beside every slot, where there is less; returns how many fit
    /// ([`crate::DraftLog`]).
    fn reserve_log(&mut self, state: &mut Self::State, drafts: usize) -> Result<usize, KernelError>;

    /// Copies the state in slot `from` to slot `to`, without its log.
    fn copy_state(&mut self, state: &mut Self::State, from: u32, to: u32) -> Result<(), KernelError>;

    /// Multiplies `out[t][i]` by `sigmoid(x[t][column + i])`, for every column of `out`.
    fn sigmoid_gate(
        &mut self,
        n: usize,
        x: &Self::Rows,
        column: usize,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Computes `out[t][column + r] = sum_k norm(x[t])[k] * w[r][k]` in floats, for all rows `r` of a dense table.
    fn dense(
        &mut self,
        n: usize,
        x: &Self::Rows,
        norm: &Norm<Self::Gain>,
        w: &Self::Table,
        out: &mut Self::Rows,
        column: usize,
    ) -> Result<(), KernelError>;

    /// Adds to every row of `x` what its experts compute from it, after it is normalised by `norm`: [`crate::order`] has
    /// the formulas.
    fn mix_experts(
        &mut self,
        n: usize,
        norm: &Norm<Self::Gain>,
        w: &Self::Experts,
        x: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Adds every row of `x`, normalised by `norm`, to the row of `out`.
    fn norm_add(
        &mut self,
        n: usize,
        x: &Self::Rows,
        norm: &Norm<Self::Gain>,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Sets row `i` of `out` to row `rows[i]` of `x`, normalised by `norm`.
    fn norm_rows(
        &mut self,
        rows: &[usize],
        x: &Self::Rows,
        norm: &Norm<Self::Gain>,
        out: &mut Self::Rows,
    ) -> Result<(), KernelError>;

    /// Computes `logits[t][v] = sum_k x[t][k] * table[v][k]`, or as many logits of row `t` as `wanted[t]` needs, which
    /// may refer to `edits`. If the table is ternary, `x` is quantised first, after the transform that the table contains.
    ///
    /// A backend that can draw a token stores it in `drawn` for each row that wants one; the logits of that row are
    /// then undefined. Other backends compute the logits that can decide the draw.
    fn logits(
        &mut self,
        x: &Self::Rows,
        table: &Self::Table,
        wanted: &[Wanted],
        edits: Edits<'_>,
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), KernelError>;

    /// Reads back the first `n` rows, `[n][width]`, with the precision of their [`RowsKind`].
    fn read(&mut self, x: &Self::Rows, n: usize) -> Result<Vec<f32>, KernelError>;

    /// Reserves everything that steps up to this size need in addition to their buffers, so that no step allocates.
    fn prepare(&mut self, _size: &StepSize) -> Result<(), KernelError> {
        Ok(())
    }

    /// Ends a step: waits until all operations have taken effect.
    fn finish(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Device status, or `None` on the CPU.
    fn device(&self) -> Option<DeviceStatus> {
        None
    }

    /// Work of the output head so far, if this backend counts it without asking a device.
    fn head_work(&self) -> Option<HeadCounts> {
        None
    }

    /// Whether this backend uses [`Backend::prepare_shortlist`].
    fn shortlists(&self) -> bool {
        false
    }

    /// Prepares a table so that the highest logits can be found without computing all of them, using the int8 copy
    /// `stored` in a file if given.
    fn prepare_shortlist(
        &mut self,
        table: &mut Self::Table,
        stored: Option<HeadCopy>,
    ) -> Result<(), KernelError> {
        let _ = (table, stored);
        Ok(())
    }

    /// Copies all keys and values of block `from` to block `to`.
    fn copy_block(&mut self, kv: &mut Self::Kv, from: u32, to: u32) -> Result<(), KernelError>;

    /// Bytes of a block of this layer, as [`Backend::read_block`] gives them.
    fn block_bytes(kv: &Self::Kv) -> usize;
    /// Copies all keys and values of a block to `to`, in the backend's own layout.
    ///
    /// # Panics
    /// If `to` does not have [`Backend::block_bytes`].
    fn read_block(&mut self, kv: &mut Self::Kv, block: u32, to: &mut [u8]) -> Result<(), KernelError>;
    /// Overwrites a block with bytes that [`Backend::read_block`] has given for a layer of the same sizes.
    ///
    /// # Panics
    /// If `from` does not have [`Backend::block_bytes`].
    fn write_block(&mut self, kv: &mut Self::Kv, block: u32, from: &[u8]) -> Result<(), KernelError>;
    /// Overwrites a block of these layers, one behind the other, with what `fill` writes, every byte once. Every slice is
    /// whole pieces of [`Backend::block_piece`] bytes, counted from the beginning of the first layer's block.
    fn fill_block(
        &mut self,
        layers: &mut [&mut Self::Kv],
        block: u32,
        fill: &Fill<'_>,
    ) -> Result<(), KernelError> {
        let mut start = 0;
        for kv in layers {
            let mut bytes = vec![0; Self::block_bytes(kv)];
            fill(start, &mut bytes);
            self.write_block(kv, block, &bytes)?;
            start += bytes.len();
        }
        Ok(())
    }
    /// A power of two, at most [`MOST_PIECE`], by which the bytes of a block of this layer are divided among threads.
    fn block_piece(kv: &Self::Kv) -> usize {
        1 << (Self::block_bytes(kv) | MOST_PIECE).trailing_zeros()
    }

    /// Bytes of a slot of this layer, as [`Backend::read_state`] gives them.
    fn state_bytes(state: &Self::State) -> usize;
    /// Copies the state in a slot to `to`, in the backend's own layout.
    ///
    /// # Panics
    /// If `to` does not have [`Backend::state_bytes`].
    fn read_state(&mut self, state: &mut Self::State, slot: u32, to: &mut [u8]) -> Result<(), KernelError>;
    /// Overwrites a slot with bytes that [`Backend::read_state`] has given for a layer of the same sizes.
    ///
    /// # Panics
    /// If `from` does not have [`Backend::state_bytes`].
    fn write_state(&mut self, state: &mut Self::State, slot: u32, from: &[u8]) -> Result<(), KernelError>;
}

/// Writes bytes of a block to a slice, whose first byte has this index in the block. Several threads may call it at once.
pub type Fill<'a> = dyn Fn(usize, &mut [u8]) + Sync + 'a;

/// Maximum number of bytes of a block that a thread writes at a time: small beside a layer's, so that threads end together.
pub const MOST_PIECE: usize = 32 << 10;

/// Access to activations, for tests and measurements; no forward pass needs it.
pub trait Inspect: Backend {
    /// Overwrites the first rows with `values`, `[n][width]`.
    fn write(&mut self, x: &mut Self::Rows, values: &[f32]) -> Result<(), KernelError>;

    /// Reads back the first `n` quantised rows: values, then multipliers and sums per row, or scales and sums per
    /// group.
    #[expect(clippy::type_complexity, reason = "three arrays")]
    fn read_int8_rows(
        &mut self,
        x: &Self::Int8Rows,
        n: usize,
    ) -> Result<(Vec<i8>, Vec<f32>, Vec<i32>), KernelError>;

    /// Draws a token from each row of logits, if this backend draws from all logits of a row. Returns whether it does.
    fn draw(&mut self, _logits: &Self::Rows, _params: &[SamplingParams]) -> Result<bool, KernelError> {
        Ok(false)
    }

    /// Names of the kernels of the last step that was handed to a GPU, each once. [`Backend::finish`] ends a step.
    fn kernels(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Ways to launch a product with `w` for `n` rows that are worth measuring, if there are several.
    fn tilings(&self, _w: &Self::Linear, _n: usize) -> Vec<Tiling> {
        Vec::new()
    }

    /// Launches products as `tilings` say, which must come from [`Inspect::tilings`], in place of earlier ones.
    fn use_tilings(&mut self, _tilings: &[Tiling]) -> Result<(), KernelError> {
        Ok(())
    }
}
