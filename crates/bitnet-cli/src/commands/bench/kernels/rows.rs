//! Measures kernels that work on rows: norms, quantisation, gates, and others of a layer.

use bitnet::kernels::{Inspect, KvShape, RowsKind, Run, Step};
use bitnet::model::{Batch, ModelSpec};
use bitnet::tensor::BitNetTensor;

use super::{Kernels, RUNS, Work, values};
use crate::error::CliError;

impl<B: Inspect> Kernels<'_, B> {
    /// Measures what a layer does to rows between its products.
    pub(super) fn rows_of_layers(&mut self, steps: &[usize]) -> Result<(), CliError> {
        let spec = self.spec;
        let (q, sub_norms) = (spec.q_width(), usize::from(spec.sub_norms));
        for &n in steps {
            let own = usize::from(spec.linear_norms.is_some());
            self.quantise(n, spec.hidden, RowsKind::Residual, 1 + own)?;
            self.quantise(n, q, RowsKind::Intermediate, sub_norms + own)?;
            if let Some(delta) = spec.delta() {
                self.quantise(n, delta.value_width(), RowsKind::Intermediate, 0)?;
            }
            if spec.linear_norms.is_some() {
                self.gate(n)?;
            }
            if spec.linear_norms.is_some() || spec.output_gate || spec.rotary_width() < spec.head_dim {
                self.norm_rope_store(n)?;
            }
            if spec.output_gate {
                self.output_gate(n)?;
            }
            if spec.hybrid.as_ref().is_some_and(|hybrid| hybrid.float_alpha_beta) {
                self.decays_and_rates(n)?;
            }
            if spec.post_norms {
                self.norm_add(n)?;
            }
            if spec.rotation.is_some() {
                self.transform(n, spec.hidden)?;
                self.transform(n, spec.ffn)?;
            }
        }
        Ok(())
    }

    /// Rows of the residual, or of what operations pass to each other.
    pub(super) fn filled(&mut self, n: usize, width: usize, kind: RowsKind) -> Result<B::Rows, CliError> {
        let mut rows = self.backend.rows(n, width, kind)?;
        self.backend.write(&mut rows, &values(n * width))?;
        Ok(rows)
    }

    /// Bytes of a value of this kind.
    fn bytes_of(&self, kind: RowsKind) -> usize {
        if kind == RowsKind::Residual { size_of::<f32>() } else { self.float }
    }

    fn quantise(&mut self, n: usize, width: usize, kind: RowsKind, norms: usize) -> Result<(), CliError> {
        let x = self.filled(n, width, kind)?;
        let gains = [0, 1].map(|at| (at < norms).then(|| self.norm(width)).transpose());
        let [first, second] = gains;
        let (first, second) = (first?, second?);
        let mut q = self.backend.int8_rows(n, width, self.grouping)?;
        let work = Work {
            operation: ["quantise", "norm and quantise", "two norms and quantise"][norms],
            shape: width.to_string(),
            tokens: n,
            bytes: n * width * (self.bytes_of(kind) + 1) + 4 * norms * width,
            // The maximum and the rounded product; for each norm the square, its sum and two products.
            operations: n * width * (2 + 4 * norms),
            peak: self.bounds.floats,
        };
        let norms = [first.as_ref(), second.as_ref()];
        self.time(work, RUNS, |b, _| b.norm_quantize(n, &x, norms, None, &mut q))
    }

    /// Measures the quantisation of rows with a transform.
    fn transform(&mut self, n: usize, width: usize) -> Result<(), CliError> {
        let x = self.filled(n, width, RowsKind::Intermediate)?;
        let rotation = self.rotation(width)?;
        let block = self.spec.rotation.as_ref().map_or(1, |rotation| rotation.block);
        let mut q = self.backend.int8_rows(n, width, self.grouping)?;
        let work = Work {
            operation: "transform",
            shape: format!("{width}/{block}"),
            tokens: n,
            bytes: n * width * (self.float + 1),
            operations: n * width * block.ilog2() as usize,
            peak: self.bounds.floats,
        };
        self.time(work, RUNS, |b, _| b.norm_quantize(n, &x, [None, None], rotation.as_ref(), &mut q))
    }

    /// Measures a gate whose halves are products of their own.
    fn gate(&mut self, n: usize) -> Result<(), CliError> {
        let ModelSpec { ffn, activation, .. } = *self.spec;
        let x = self.filled(n, 2 * ffn, RowsKind::Intermediate)?;
        let norm = self.norm(ffn)?;
        let mut q = self.backend.int8_rows(n, ffn, self.grouping)?;
        let work = Work {
            operation: "gate and quantise",
            shape: ffn.to_string(),
            tokens: n,
            bytes: n * ffn * (2 * self.float + 1) + 4 * ffn,
            // As for one norm, and the gate.
            operations: n * ffn * 8,
            peak: self.bounds.floats,
        };
        self.time(work, RUNS, |b, _| {
            b.gate_norm_quantize(n, &x, activation, [Some(&norm), None], None, &mut q)
        })
    }

    fn norm_rope_store(&mut self, n: usize) -> Result<(), CliError> {
        let spec = self.spec;
        let ModelSpec { heads, kv_heads, head_dim, .. } = *spec;
        let q = spec.q_width();
        let kv_width = spec.kv_width();
        let rotary = spec.rotary_width();
        let mut qkv = self.filled(n, q + 2 * kv_width, RowsKind::Intermediate)?;
        let norms = if spec.head_norms { Some([self.norm(head_dim)?, self.norm(head_dim)?]) } else { None };
        let norms = norms.as_ref().map(|[q, k]| [q, k]);
        let blocks: Vec<u32> = (0..n.div_ceil(Batch::BLOCK_TOKENS) as u32).collect();
        let mut kv = self.backend.kv(KvShape { blocks: blocks.len(), kv_heads, head_dim })?;
        let angles = vec![0.6; n * rotary / 2];
        let rope = self.backend.rope(&angles, &angles, rotary)?;
        let run = [Run { tokens: 0..n, start: 0, blocks: 0..blocks.len(), ..Run::default() }];
        let step = Step::new(&run, &blocks);
        let work = Work {
            operation: "rotate and store",
            shape: format!("{}x{head_dim}", heads + 2 * kv_heads),
            tokens: n,
            bytes: 2 * n * (q + 2 * kv_width) * self.float + 4 * n * rotary,
            // Norms, then four products and two sums for each pair.
            operations: n * (heads + kv_heads) * (4 * head_dim * usize::from(spec.head_norms) + 3 * rotary),
            peak: self.bounds.floats,
        };
        self.time(work, RUNS, |b, _| b.norm_rope_store(step, heads, &rope, norms, &mut qkv, &mut kv))
    }

    /// Measures a norm of rows of this kind, whose result is passed on.
    pub(super) fn norm_rows(
        &mut self,
        operation: &'static str,
        n: usize,
        kind: RowsKind,
    ) -> Result<(), CliError> {
        let hidden = self.spec.hidden;
        let rows: Vec<usize> = (0..n).collect();
        let x = self.filled(n, hidden, kind)?;
        let norm = self.norm(hidden)?;
        let mut out = self.backend.rows(n, hidden, RowsKind::Intermediate)?;
        let work = Work {
            operation,
            shape: hidden.to_string(),
            tokens: n,
            bytes: n * hidden * (self.bytes_of(kind) + self.float) + size_of::<f32>() * hidden,
            // The square, its sum and two products.
            operations: 4 * n * hidden,
            peak: self.bounds.floats,
        };
        self.time(work, RUNS, |b, _| b.norm_rows(&rows, &x, &norm, &mut out))
    }

    fn norm_add(&mut self, n: usize) -> Result<(), CliError> {
        let hidden = self.spec.hidden;
        let x = self.filled(n, hidden, RowsKind::Intermediate)?;
        let mut residual = self.filled(n, hidden, RowsKind::Residual)?;
        let norm = self.norm(hidden)?;
        let work = Work {
            operation: "norm and add",
            shape: hidden.to_string(),
            tokens: n,
            // The residual is read and written.
            bytes: n * hidden * (self.float + 2 * size_of::<f32>()) + size_of::<f32>() * hidden,
            // As for a norm, and the sum.
            operations: 5 * n * hidden,
            peak: self.bounds.floats,
        };
        self.time(work, RUNS, |b, _| b.norm_add(n, &x, &norm, &mut residual))
    }

    fn output_gate(&mut self, n: usize) -> Result<(), CliError> {
        let width = self.spec.q_width();
        let x = self.filled(n, width, RowsKind::Intermediate)?;
        let mut out = self.filled(n, width, RowsKind::Intermediate)?;
        let work = Work {
            operation: "output gate",
            shape: width.to_string(),
            tokens: n,
            bytes: 3 * n * width * self.float,
            operations: 4 * n * width,
            peak: self.bounds.floats,
        };
        self.time(work, RUNS, |b, _| b.sigmoid_gate(n, &x, 0, &mut out))
    }

    fn decays_and_rates(&mut self, n: usize) -> Result<(), CliError> {
        let hidden = self.spec.hidden;
        let rows = self.spec.delta().map_or(0, |delta| 2 * delta.value_heads);
        let refused = |e| CliError::refused(e, "decays and rates", "report this");
        let weights = BitNetTensor::from_f32([rows, hidden], &values(rows * hidden)).map_err(refused)?;
        let x = self.filled(n, hidden, RowsKind::Residual)?;
        let table = self.backend.table(&weights)?;
        let norm = self.norm(hidden)?;
        let mut out = self.backend.rows(n, rows, RowsKind::Intermediate)?;
        let work = Work {
            operation: "decays and rates",
            shape: format!("{rows}x{hidden}"),
            tokens: n,
            bytes: rows * hidden * self.float + 4 * n * hidden + n * rows * self.float,
            operations: 2 * n * rows * hidden,
            peak: self.bounds.floats,
        };
        self.time(work, RUNS, |b, _| b.dense(n, &x, &norm, &table, &mut out, 0))
    }
}
