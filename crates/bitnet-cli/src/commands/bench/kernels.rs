//! Measures single kernels at a model's shapes: how long each takes, and how close it comes to the machine's limits.
//!
//! Weights are cold, as in a step: enough copies of each matrix take turns to exceed any cache.

use std::time::{Duration, Instant};

use bitnet::kernels::{
    Cpu, DeltaShape, DeltaWeights, Grouping, Inspect, KvShape, Rotate, RowOrder, RowsKind, Run,
    SamplingParams, Step, Wanted,
};
use bitnet::model::{Batch, Checkpoint, ModelSpec};
use bitnet::tensor::{GroupedTensor, TernaryTensor};
use half::f16;
use serde::Serialize;

use super::runs::{REPEATS, repeated};
use crate::error::CliError;

/// Rounds before the measurement, in which a GPU records its launches.
const WARM: usize = 2;

/// A kernel at one shape. Times are per launch.
#[derive(Serialize)]
pub struct Kernel {
    pub operation: &'static str,
    /// Outputs by inputs or, for attention, tokens by context.
    pub shape: String,
    pub tokens: usize,
    /// Median.
    pub microseconds: f64,
    microseconds_min: f64,
    microseconds_max: f64,
    /// Read and written, in 10^9 bytes per second.
    pub gb_s: f64,
    /// Fraction of the memory bandwidth, if that is known.
    pub of_bandwidth: Option<f64>,
    /// 10^12 operations per second; a product counts as two.
    pub tera_ops_s: f64,
    /// Fraction of the arithmetic peak, if that is known.
    pub of_peak: Option<f64>,
}

/// The sizes to measure.
pub struct Sizes<'a> {
    /// Tokens in a step.
    pub steps: &'a [usize],
    /// Sequences decoded together.
    pub batches: &'a [usize],
    /// Tokens that each sequence attends to.
    pub contexts: &'a [usize],
    /// Prompt tokens in one step.
    pub prompt: usize,
}

/// The limits of the machine, if known: bytes per second and operations per second.
#[derive(Clone, Copy, Default)]
pub struct Bounds {
    pub memory: Option<f64>,
    pub integers: Option<f64>,
    pub floats: Option<f64>,
}

/// The work of one launch.
struct Work {
    operation: &'static str,
    shape: String,
    tokens: usize,
    bytes: usize,
    operations: usize,
    /// Limit on its operations per second.
    peak: Option<f64>,
}

/// Measures every kernel of a layer, and the output head.
pub fn measure<B: Inspect>(
    backend: &mut B,
    checkpoint: &Checkpoint,
    sizes: &Sizes<'_>,
    bounds: Bounds,
    each: &mut dyn FnMut(Kernel) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let float = if backend.device().is_some() { 2 } else { 4 };
    let mut kernels = Kernels { backend, spec: &checkpoint.spec, bounds, float, each };
    kernels.projections(sizes.steps)?;
    kernels.rotations(sizes.steps)?;
    if let Some(delta) = checkpoint.spec.delta() {
        for &batch in sizes.batches {
            kernels.delta("delta rule", delta, batch, 1)?;
        }
        kernels.delta("prompt's delta rule", delta, 1, sizes.prompt)?;
    }
    kernels.head(checkpoint, sizes.batches)?;
    for &context in sizes.contexts {
        for &batch in sizes.batches {
            kernels.attention("decode", batch, 1, context)?;
        }
    }
    kernels.attention("prompt", 1, sizes.prompt, sizes.prompt)
}

struct Kernels<'a, B: Inspect> {
    backend: &'a mut B,
    spec: &'a ModelSpec,
    bounds: Bounds,
    /// Bytes of a float passed between operations.
    float: usize,
    each: &'a mut dyn FnMut(Kernel) -> Result<(), CliError>,
}

impl<B: Inspect> Kernels<'_, B> {
    fn projections(&mut self, steps: &[usize]) -> Result<(), CliError> {
        let ModelSpec { hidden, ffn, .. } = *self.spec;
        let grouped = self.spec.grouped.projections;
        let grouping = if grouped { Grouping::Groups } else { Grouping::Row };
        let (q, kv) = (self.spec.q_width(), self.spec.kv_width());
        let gates = if self.spec.output_gate { q } else { 0 };
        let mut shapes = vec![
            ("gate and up", 2 * ffn, hidden),
            ("down", hidden, ffn),
            ("q, k, v", q + 2 * kv + gates, hidden),
            ("output", hidden, q),
        ];
        if let Some(hybrid) = &self.spec.hybrid {
            let dense = if hybrid.float_alpha_beta { 2 * hybrid.delta.value_heads } else { 0 };
            shapes.push(("delta's input", hybrid.delta.columns() - dense, hidden));
            shapes.push(("delta's output", hidden, hybrid.delta.value_width()));
        }
        for (operation, rows, cols) in shapes {
            let bytes =
                rows * cols / 4 + if grouped { rows * cols.div_ceil(GroupedTensor::WIDE) * 2 } else { 0 };
            let copies = self.matrices(operation, rows, cols, self.copies(bytes))?;
            for &n in steps {
                let mut input = self.backend.rows(n, cols, RowsKind::Between)?;
                self.backend.write(&mut input, &values(n * cols))?;
                let mut x = self.backend.quants(n, cols, grouping)?;
                self.backend.norm_quantize(n, &input, [None, None], None, &mut x)?;
                let mut out = self.backend.rows(n, rows, RowsKind::Between)?;
                let work = Work {
                    operation,
                    shape: format!("{rows}x{cols}"),
                    tokens: n,
                    bytes: bytes + n * cols + n * rows * self.float,
                    operations: 2 * n * rows * cols,
                    peak: self.bounds.integers,
                };
                self.time(
                    work,
                    copies.len(),
                    |b, i| Ok(b.bit_linear(n, &x, &copies[i], &mut out, 0, None)?),
                )?;
            }
        }
        Ok(())
    }

    /// Makes copies of a matrix of this shape with the model's kind of scales: one per row, or one per 128 columns.
    fn matrices(
        &mut self,
        operation: &'static str,
        rows: usize,
        cols: usize,
        copies: usize,
    ) -> Result<Vec<B::Linear>, CliError> {
        let refused = |e| CliError::refused(e, operation, "report this");
        let trits: Vec<i8> = (0..rows * cols).map(|i| (i * i % 7 % 3) as i8 - 1).collect();
        let matrix = TernaryTensor::from_trits(rows, cols, &trits, 1.0).map_err(refused)?;
        drop(trits);
        if !self.spec.grouped.projections {
            let one = |_| Ok(self.backend.linear(&matrix, RowOrder::Plain)?);
            return (0..copies).map(one).collect();
        }
        let scales = vec![f16::ONE; rows * cols.div_ceil(GroupedTensor::WIDE)];
        let codes = matrix.codes().to_vec();
        let matrix = GroupedTensor::new(rows, cols, GroupedTensor::WIDE, codes, scales).map_err(refused)?;
        (0..copies).map(|_| Ok(self.backend.linear(&matrix, RowOrder::Plain)?)).collect()
    }

    /// Measures the output head with the choice of the most likely token.
    fn head(&mut self, checkpoint: &Checkpoint, batches: &[usize]) -> Result<(), CliError> {
        let ModelSpec { hidden, vocab, tied_head, .. } = *self.spec;
        let name = if tied_head { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let ternary = self.spec.grouped.head;
        let mut table = if ternary {
            self.backend.table(&checkpoint.tensors.grouped(name)?)?
        } else {
            self.backend.table(&checkpoint.tensors.dense(name)?)?
        };
        self.backend.screen(&mut table, None)?;
        // The CPU reads all of a ternary table; of other tables it reads an int8 copy and a few rows.
        let weights = match self.backend.device() {
            Some(_) => vocab * hidden * self.float,
            None if ternary => vocab * (hidden / 4 + 2 * hidden.div_ceil(GroupedTensor::WIDE)),
            None => Cpu::screen_bytes(vocab, hidden),
        };
        for &n in batches {
            let mut x = self.backend.rows(n, hidden, RowsKind::Between)?;
            self.backend.write(&mut x, &values(n * hidden))?;
            let wanted = vec![Wanted::Token(SamplingParams::GREEDY); n];
            let (mut logits, mut drawn) = (vec![0.0; n * vocab], vec![None; n]);
            let work = Work {
                operation: "head, choice",
                shape: format!("{vocab}x{hidden}"),
                tokens: n,
                bytes: weights + n * hidden * self.float + 2 * 4 * n * vocab,
                operations: 2 * n * vocab * hidden,
                peak: if ternary { self.bounds.integers } else { self.bounds.floats },
            };
            self.time(work, 1, |b, _| Ok(b.logits(&x, &table, &wanted, &mut logits, &mut drawn)?))?;
        }
        Ok(())
    }

    /// Measures attention of the last `n` tokens of sequences of `context` tokens.
    fn attention(
        &mut self,
        operation: &'static str,
        sequences: usize,
        n: usize,
        context: usize,
    ) -> Result<(), CliError> {
        let (q, kv_width) = (self.spec.q_width(), self.spec.kv_width());
        let per = context.div_ceil(Batch::BLOCK_TOKENS);
        let run = |i: usize| Run {
            tokens: i * n..(i + 1) * n,
            start: context - n,
            blocks: i * per..(i + 1) * per,
            state: 0,
        };
        let runs: Vec<Run> = (0..sequences).map(run).collect();
        let blocks: Vec<u32> = (0..(sequences * per) as u32).collect();
        let shape =
            KvShape { blocks: blocks.len(), kv_heads: self.spec.kv_heads, head_dim: self.spec.head_dim };
        let (info, device) = (self.backend.info(), self.backend.device().is_some());
        let whole = match info.kv.parse() {
            Ok(kv) if !device => shape.cpu_bytes(kv),
            _ => shape.gpu_bytes(),
        };
        let cached = whole * context / (per * Batch::BLOCK_TOKENS);
        let caches = (0..self.copies(cached).min(self.spec.layers))
            .map(|_| self.backend.kv(shape))
            .collect::<Result<Vec<_>, _>>()?;
        let tokens = sequences * n;
        let qkv = self.backend.rows(tokens, q + 2 * kv_width, RowsKind::Between)?;
        let mut out = self.backend.rows(tokens, q, RowsKind::Between)?;
        // Each token attends to those before it and to itself, with one product for the score and one for the value.
        let pairs = sequences * (n * (context - n) + n * (n + 1) / 2);
        let work = Work {
            operation: if operation == "decode" { "attention" } else { "prompt's attention" },
            shape: format!("{n}x{context}"),
            tokens,
            bytes: cached + 2 * tokens * q * self.float,
            operations: 4 * q * pairs,
            peak: self.bounds.floats,
        };
        let step = Step::new(&runs, &blocks);
        self.time(work, caches.len(), |b, i| Ok(b.attention(step, &qkv, &caches[i], &mut out)?))
    }

    /// Measures the quantisation of rows with a transform, if the model's weights contain one.
    fn rotations(&mut self, steps: &[usize]) -> Result<(), CliError> {
        let Some(rotation) = &self.spec.rotation else { return Ok(()) };
        let (block, hidden, ffn) = (rotation.block, self.spec.hidden, self.spec.ffn);
        for width in [hidden, ffn] {
            let signs = rotation.signs.get(&width).map(|signs| &signs[..]);
            let turned = self.backend.rotation(width, &Rotate { block, signs, grouped: None })?;
            for &n in steps {
                let mut x = self.backend.rows(n, width, RowsKind::Between)?;
                self.backend.write(&mut x, &values(n * width))?;
                let mut q = self.backend.quants(n, width, Grouping::Groups)?;
                let work = Work {
                    operation: "transform",
                    shape: format!("{width}/{block}"),
                    tokens: n,
                    bytes: n * width * (self.float + 1),
                    operations: n * width * block.ilog2() as usize,
                    peak: self.bounds.floats,
                };
                self.time(work, 1, |b, _| {
                    Ok(b.norm_quantize(n, &x, [None, None], Some(&turned), &mut q)?)
                })?;
            }
        }
        Ok(())
    }

    /// Measures a gated-delta layer, between its projections, for the next `n` tokens of some sequences.
    fn delta(
        &mut self,
        operation: &'static str,
        shape: DeltaShape,
        sequences: usize,
        n: usize,
    ) -> Result<(), CliError> {
        let b = &mut *self.backend;
        let conv = values(shape.channels() * shape.taps);
        let (heads, norm) = (vec![-0.1; shape.value_heads], vec![1.0; shape.head_dim]);
        let weights = DeltaWeights { conv: &conv, a: &heads, dt_bias: &heads, norm: &norm, eps: 1e-6 };
        let layer = b.delta(shape, &weights)?;
        let layers = self.spec.recurrent_layers();
        let mut states = (0..layers).map(|_| b.state(shape, sequences)).collect::<Result<Vec<_>, _>>()?;
        let tokens = sequences * n;
        let mut x = b.rows(tokens, shape.columns(), RowsKind::Between)?;
        b.write(&mut x, &values(tokens * shape.columns()))?;
        let mut out = b.rows(tokens, shape.value_width(), RowsKind::Between)?;
        let run = |i: usize| Run { tokens: i * n..(i + 1) * n, start: 1, blocks: 0..0, state: i as u32 };
        let runs: Vec<Run> = (0..sequences).map(run).collect();
        let step = Step::new(&runs, &[]);
        let work = Work {
            operation,
            shape: format!("{}x{}^2", shape.value_heads, shape.head_dim),
            tokens,
            // Every state is read and written.
            bytes: sequences * 2 * 4 * shape.state_len()
                + tokens * (shape.columns() + shape.value_width()) * self.float,
            // Two products with the state, its decay and its change.
            operations: 7 * tokens * shape.value_width() * shape.head_dim,
            peak: self.bounds.floats,
        };
        self.time(work, layers, |b, i| Ok(b.gated_delta(step, &x, &layer, &mut states[i], &mut out)?))
    }

    /// Number of copies of a matrix of `bytes` bytes that together are as large as half of the model's largest
    /// matrices.
    fn copies(&self, bytes: usize) -> usize {
        let ModelSpec { hidden, ffn, layers, .. } = *self.spec;
        (layers * ffn * hidden / 4).div_ceil(bytes).max(1)
    }

    /// Times rounds of `launches` launches, with the device's clock if there is one.
    fn time(
        &mut self,
        work: Work,
        launches: usize,
        mut run: impl FnMut(&mut B, usize) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let computed = |b: &B| b.device().map(|device| device.counts.times.compute);
        let mut round = || {
            self.backend.finish()?;
            let (before, start) = (computed(self.backend), Instant::now());
            (0..launches).try_for_each(|i| run(self.backend, i))?;
            self.backend.finish()?;
            let elapsed = start.elapsed();
            Ok(computed(self.backend).zip(before).map_or(elapsed, |(after, before)| after - before))
        };
        for _ in 0..WARM {
            round()?;
        }
        let mut times = repeated(REPEATS, || round().map(|time: Duration| time / launches as u32))?;
        times.sort_by(f64::total_cmp);
        let (seconds, least, most) = (times[times.len() / 2], times[0], times[times.len() - 1]);
        let Work { operation, shape, tokens, bytes, operations, peak } = work;
        let (bytes, operations) = (bytes as f64 / seconds, operations as f64 / seconds);
        (self.each)(Kernel {
            operation,
            shape,
            tokens,
            microseconds: 1e6 * seconds,
            microseconds_min: 1e6 * least,
            microseconds_max: 1e6 * most,
            gb_s: bytes / 1e9,
            of_bandwidth: self.bounds.memory.map(|most| bytes / most),
            tera_ops_s: operations / 1e12,
            of_peak: peak.map(|most| operations / most),
        })
    }
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect()
}
