//! Measures the products of a layer with ternary matrices, and how each is best launched.

use bitnet::kernels::{Inspect, KernelError, KvShape, RowOrder, RowsKind, Run, Step, gpu::tilings::Tiling};
use bitnet::model::{Batch, ModelSpec};
use bitnet::tensor::TernaryTensor;
use half::f16;

use super::{Kernels, Sizes, Work, median, values};
use crate::error::CliError;

/// What a model does with the sums of a product.
#[derive(Clone, Copy)]
enum Then {
    /// Stores them.
    Store,
    /// Adds them to the residual.
    Add,
    /// Gates them and quantises the result.
    Gate,
    /// Norms and rotates queries and keys, and stores keys and values in the cache.
    Rotate,
}

/// A product: its name, the rows and columns of its matrix, and what follows.
type Product = (&'static str, usize, usize, Then);

/// The products of a layer.
fn products(spec: &ModelSpec) -> Vec<Product> {
    let ModelSpec { hidden, ffn, .. } = *spec;
    let (q, kv) = (spec.q_width(), spec.kv_width());
    let gates = if spec.output_gate { q } else { 0 };
    let whole = !spec.output_gate && spec.rotary_width() == spec.head_dim;
    let then = if whole { Then::Rotate } else { Then::Store };
    let inputs = ("q, k, v", q + 2 * kv + gates, hidden, then);
    let mut products = if spec.experts.is_some() {
        vec![inputs, ("output", hidden, q, Then::Add)]
    } else if spec.linear_norms.is_some() {
        // Each matrix has its own input.
        let apart = [("gate or up", ffn), ("q", q), ("k or v", kv)];
        apart.map(|(name, rows)| (name, rows, hidden, Then::Store)).to_vec()
    } else {
        vec![("gate and up", 2 * ffn, hidden, Then::Gate), inputs]
    };
    if spec.experts.is_none() {
        products.extend([("down", hidden, ffn, Then::Add), ("output", hidden, q, Then::Add)]);
    }
    if let Some(hybrid) = &spec.hybrid {
        let dense = if hybrid.float_alpha_beta { 2 * hybrid.delta.value_heads } else { 0 };
        products.push(("delta's input", hybrid.delta.columns() - dense, hidden, Then::Store));
        products.push(("delta's output", hidden, hybrid.delta.value_width(), Then::Add));
    }
    products
}

/// Returns the tiling that takes the fewest seconds; among equals, the first.
fn fastest(
    tilings: Vec<Tiling>,
    mut seconds: impl FnMut(Tiling) -> Result<f64, CliError>,
) -> Result<Option<Tiling>, CliError> {
    let timed = tilings.into_iter().map(|tiling| Ok((seconds(tiling)?, tiling)));
    let timed = timed.collect::<Result<Vec<_>, CliError>>()?;
    Ok(timed.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, tiling)| tiling))
}

impl<B: Inspect> Kernels<'_, B> {
    /// Measures the products of a layer with the operations that follow each directly, after the choice of how each is
    /// launched.
    pub(super) fn projections(&mut self, &Sizes { tuned, steps, .. }: &Sizes<'_>) -> Result<(), CliError> {
        let (spec, grouping) = (self.spec, self.grouping);
        let ModelSpec { ffn, heads, kv_heads, head_dim, .. } = *spec;
        let grouped = spec.grouped.projections;
        for (operation, rows, cols, then) in products(spec) {
            let weights =
                rows * cols / 4 + if grouped { rows * cols.div_ceil(TernaryTensor::WIDE) * 2 } else { 0 };
            let order = match then {
                Then::Gate => RowOrder::GateUp,
                Then::Rotate => RowOrder::Rope { head_dim },
                Then::Store | Then::Add => RowOrder::Plain,
            };
            let copies = self.matrices(operation, [rows, cols], order, self.copies(weights))?;
            for (i, &n) in tuned.iter().chain(steps).enumerate() {
                let tune = i < tuned.len();
                let mut input = self.backend.rows(n, cols, RowsKind::Intermediate)?;
                self.backend.write(&mut input, &values(n * cols))?;
                let mut x = self.backend.int8_rows(n, cols, grouping)?;
                self.backend.norm_quantize(n, &input, [None, None], None, &mut x)?;
                let results = match then {
                    Then::Store | Then::Rotate => rows * self.float,
                    // The residual is read and written.
                    Then::Add => 2 * rows * size_of::<f32>(),
                    // Of the gated values only the int8 form is needed.
                    Then::Gate => ffn,
                };
                let work = Work {
                    operation,
                    shape: format!("{rows}x{cols}"),
                    tokens: n,
                    bytes: weights + n * cols + n * results,
                    operations: 2 * n * rows * cols,
                    peak: self.bounds.integers,
                };
                match then {
                    Then::Store | Then::Add => {
                        let (kind, factor) = match then {
                            Then::Add => (RowsKind::Residual, Some(1.0)),
                            _ => (RowsKind::Intermediate, None),
                        };
                        let mut out = self.backend.rows(n, rows, kind)?;
                        if n == 1 {
                            self.quantised_product(work.clone(), cols, &copies, &mut out, factor)?;
                        }
                        let run = |b: &mut B, i: usize| b.bit_linear(n, &x, &copies[i], &mut out, 0, factor);
                        self.product(work, &copies, tune, run)?;
                    }
                    Then::Gate => {
                        let norm = spec.sub_norms.then(|| self.norm(ffn)).transpose()?;
                        let rotation = self.rotation(ffn)?;
                        let mut out = self.backend.rows(n, rows, RowsKind::Intermediate)?;
                        let mut q = self.backend.int8_rows(n, ffn, grouping)?;
                        let (norms, gate) = ([norm.as_ref(), None], spec.activation);
                        self.product(work, &copies, tune, |b, i| {
                            let (out, q) = (&mut out, &mut q);
                            b.bit_linear_gate_norm_quantize(
                                n,
                                &x,
                                &copies[i],
                                gate,
                                norms,
                                rotation.as_ref(),
                                out,
                                q,
                            )
                        })?;
                    }
                    Then::Rotate => {
                        let norms = spec.head_norms.then(|| Ok([self.norm(head_dim)?, self.norm(head_dim)?]));
                        let norms = norms.transpose().map_err(|e: CliError| e)?;
                        let norms = norms.as_ref().map(|[q, k]| [q, k]);
                        let blocks: Vec<u32> = (0..n.div_ceil(Batch::BLOCK_TOKENS) as u32).collect();
                        let mut kv = self.backend.kv(KvShape { blocks: blocks.len(), kv_heads, head_dim })?;
                        let angles = vec![0.6; n * head_dim / 2];
                        let rope = self.backend.rope(&angles, &angles, head_dim)?;
                        let mut out = self.backend.rows(n, rows, RowsKind::Intermediate)?;
                        let run = [Run { tokens: 0..n, start: 0, blocks: 0..blocks.len(), ..Run::default() }];
                        let step = Step::new(&run, &blocks);
                        self.product(work, &copies, tune, |b, i| {
                            let (out, kv) = (&mut out, &mut kv);
                            b.bit_linear_norm_rope_store(step, &x, &copies[i], heads, &rope, norms, out, kv)
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Measures the quantisation of one token, with a norm if the model has one there, and the product after it, which a
    /// GPU may compute in one kernel.
    fn quantised_product(
        &mut self,
        work: Work,
        cols: usize,
        copies: &[B::Linear],
        out: &mut B::Rows,
        factor: Option<f32>,
    ) -> Result<(), CliError> {
        // What is added to the residual comes from within a layer; the input of others is the residual and has a norm.
        let (kind, normed) = match factor {
            Some(_) => (RowsKind::Intermediate, self.spec.sub_norms),
            None => (RowsKind::Residual, true),
        };
        let mut input = self.backend.rows(1, cols, kind)?;
        self.backend.write(&mut input, &values(cols))?;
        let norm = normed.then(|| self.norm(cols)).transpose()?;
        let operation = if norm.is_some() { "norm and product" } else { "int8 and product" };
        let mut x = self.backend.int8_rows(1, cols, self.grouping)?;
        self.time(Work { operation, ..work }, copies.len(), |b, i| {
            b.norm_quantize(1, &input, [norm.as_ref(), None], None, &mut x)?;
            b.bit_linear(1, &x, &copies[i], out, 0, factor)
        })
    }

    /// Measures a product; with `tune`, only finds out which launch takes the least time.
    fn product(
        &mut self,
        work: Work,
        copies: &[B::Linear],
        tune: bool,
        mut run: impl FnMut(&mut B, usize) -> Result<(), KernelError>,
    ) -> Result<(), CliError> {
        if !tune {
            return self.time(work, copies.len(), run);
        }
        let tilings = self.backend.tilings(&copies[0], work.tokens);
        if tilings.iter().any(|tiling| self.tuned.iter().any(|known| known.is_for_product_of(tiling))) {
            return Ok(());
        }
        let best = fastest(tilings, |tiling| {
            self.backend.use_tilings(&[tiling])?;
            Ok(median(&self.times(copies.len(), &mut run)?))
        })?;
        self.tuned.extend(best);
        Ok(self.backend.use_tilings(&self.tuned)?)
    }

    /// Makes copies of a matrix of this shape with the model's kind of scales: one per row, or one per 128 columns.
    fn matrices(
        &mut self,
        operation: &'static str,
        [rows, cols]: [usize; 2],
        order: RowOrder,
        copies: usize,
    ) -> Result<Vec<B::Linear>, CliError> {
        let refused = |e| CliError::refused(e, operation, "report this");
        let trits: Vec<i8> = (0..rows * cols).map(|i| (i * i % 7 % 3) as i8 - 1).collect();
        let matrix = TernaryTensor::from_trits(rows, cols, &trits, 1.0).map_err(refused)?;
        drop(trits);
        if !self.spec.grouped.projections {
            return (0..copies).map(|_| Ok(self.backend.linear(&matrix, order)?)).collect();
        }
        let scales = vec![f16::ONE; rows * cols.div_ceil(TernaryTensor::WIDE)];
        let codes = matrix.codes().to_vec();
        let matrix =
            TernaryTensor::from_groups(rows, cols, TernaryTensor::WIDE, codes, scales).map_err(refused)?;
        (0..copies).map(|_| Ok(self.backend.linear(&matrix, order)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bitnet::kernels::Grouping;

    use super::*;

    #[test]
    fn the_launch_that_takes_the_least_time_is_kept_and_the_first_of_equals() {
        let tiling =
            |tile| Tiling { grouping: Grouping::Row, rows: 64, cols: 128, tokens: 32, tile, splits: 1 };
        let tilings = [8, 16, 32, 64].map(tiling).to_vec();
        let seconds = |tiling: Tiling| Ok([4.0, 2.0, 2.0, 3.0][tiling.tile.ilog2() as usize - 3]);
        assert_eq!(fastest(tilings, seconds).unwrap(), Some(tiling(16)));
        assert_eq!(fastest(Vec::new(), seconds).unwrap(), None);
    }
}
