//! What comes before the first layer and after the last.

use bitnet::kernels::{Change, Edits, Footprint, Held, Inspect, RowsKind, SamplingParams, Wanted};
use bitnet::model::{Checkpoint, ModelSpec};
use bitnet::tensor::{DType, TernaryTensor};

use super::{Kernels, RUNS, Sizes, Work, values};
use crate::error::CliError;

const EMBEDDING: &str = "model.embed_tokens.weight";

/// Ways to draw a token.
const DRAWS: [(&str, SamplingParams); 5] = [
    ("draw, most likely", SamplingParams::GREEDY),
    ("draw, any", WARM),
    ("draw, top-k", SamplingParams { top_k: 50, ..WARM }),
    ("draw, top-p", SamplingParams { top_p: 0.9, ..WARM }),
    ("draw, min-p", SamplingParams { min_p: 0.05, ..WARM }),
];
const WARM: SamplingParams = SamplingParams { temperature: 0.8, ..SamplingParams::GREEDY };
/// Penalties of a row, as after a text of as many different tokens.
const PENALTIES: u32 = 64;

/// Logits whose probabilities follow a power law, as those of texts roughly do.
fn logits(n: usize, vocab: usize) -> Vec<f32> {
    // Neighbours have very different ranks.
    let rank = |token: usize| 1 + token * 7919 % vocab;
    (0..n * vocab).map(|i| -1.1 * (rank(i % vocab) as f32).ln()).collect()
}

impl<B: Footprint + Inspect> Kernels<'_, B> {
    /// Measures embedding, the last norm, the output head and draws.
    pub(super) fn ends(&mut self, checkpoint: &Checkpoint, sizes: &Sizes<'_>) -> Result<(), CliError> {
        let ModelSpec { tied_head, ref grouped, ref rotation, .. } = *self.spec;
        let turned = rotation.as_ref().is_some_and(|rotation| rotation.embedding);
        let mut table = self.table(checkpoint, EMBEDDING, grouped.embedding, turned)?;
        self.embed(&table, sizes.steps)?;
        let mut head = EMBEDDING;
        if !tied_head {
            let name = "lm_head.weight";
            head = name;
            let turned = rotation.as_ref().is_some_and(|rotation| rotation.weights.contains(name));
            table = self.table(checkpoint, name, grouped.head, turned)?;
        }
        let entry = checkpoint.tensors.entries().iter().find(|entry| entry.name == head);
        let dtype = entry.and_then(|entry| entry.dtype).unwrap_or(DType::BF16);
        self.backend.prepare_shortlist(&mut table, None)?;
        for &n in sizes.batches {
            self.norm_rows("last norm", n, RowsKind::Residual)?;
            self.heads(&table, dtype, n)?;
            self.draws(n)?;
        }
        Ok(())
    }

    /// Reads a table, which may be ternary, and may contain a transform.
    fn table(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        ternary: bool,
        turned: bool,
    ) -> Result<B::Table, CliError> {
        if !ternary {
            return Ok(self.backend.table(&checkpoint.tensors.dense(name)?)?);
        }
        let mut table = self.backend.table(&checkpoint.tensors.ternary(name)?)?;
        if let Some(rotation) = self.rotation(self.spec.hidden)?.filter(|_| turned) {
            self.backend.rotate_table(&mut table, rotation);
        }
        Ok(table)
    }

    fn embed(&mut self, table: &B::Table, steps: &[usize]) -> Result<(), CliError> {
        let ModelSpec { hidden, vocab, ref grouped, .. } = *self.spec;
        // The rows of the table are bf16 on a GPU, and as they are stored on the CPU, which is also bf16 mostly.
        let row = if grouped.embedding { ternary_row(hidden) } else { 2 * hidden };
        for &n in steps {
            let tokens: Vec<u32> = (0..n).map(|i| (i * 7919 % vocab) as u32).collect();
            let mut out = self.backend.rows(n, hidden, RowsKind::Residual)?;
            let work = Work {
                operation: "embedding",
                shape: hidden.to_string(),
                tokens: n,
                bytes: n * (row + size_of::<f32>() * hidden),
                operations: n * hidden,
                peak: self.bounds.floats,
            };
            self.time(work, RUNS, |b, _| b.embed(table, &tokens, 1.0, &mut out))?;
        }
        Ok(())
    }

    /// Measures the output head with the choice of the most likely token and, unless it is ternary, with a draw from bounds,
    /// also after penalties, and from all logits.
    fn heads(&mut self, table: &B::Table, dtype: DType, n: usize) -> Result<(), CliError> {
        let ModelSpec { hidden, vocab, ref grouped, .. } = *self.spec;
        if grouped.head {
            return self.head(
                table,
                n,
                ("head, choice", Wanted::Token(SamplingParams::GREEDY)),
                vocab * ternary_row(hidden),
            );
        }
        // Bounds read a copy, and a few rows of the table.
        let copy = self.backend.bytes(&Held::Shortlist { rows: vocab, cols: hidden, dtype });
        self.head(table, n, ("head, choice", Wanted::Token(SamplingParams::GREEDY)), copy)?;
        self.head(table, n, ("head, draw", Wanted::Token(WARM)), copy)?;
        let penalised = Wanted::Changed { params: WARM, from: 0, to: PENALTIES, mask: None };
        self.head(table, n, ("head, penalties", penalised), copy)?;
        // On a GPU, bounds do not decide top-p.
        let top_p = Wanted::Token(SamplingParams { top_p: 0.9, ..WARM });
        let all = self.backend.bytes(&Held::DenseTable { rows: vocab, cols: hidden, dtype });
        self.head(table, n, ("head, all logits", top_p), all)
    }

    /// Measures the output head, which reads this many bytes of weights, with the logits that a draw needs.
    fn head(
        &mut self,
        table: &B::Table,
        n: usize,
        (operation, wanted): (&'static str, Wanted),
        weights: usize,
    ) -> Result<(), CliError> {
        let ModelSpec { hidden, vocab, .. } = *self.spec;
        let ternary = self.spec.grouped.head;
        let mut x = self.backend.rows(n, hidden, RowsKind::Intermediate)?;
        self.backend.write(&mut x, &values(n * hidden))?;
        let wanted = vec![wanted; n];
        let penalty = |token| Change { token, repetition: 1.1, less: 0.5, more: 0.0 };
        let changes: Vec<Change> = (0..PENALTIES).map(penalty).collect();
        let edits = Edits { changes: &changes, masks: &[] };
        let (mut logits, mut drawn) = (vec![0.0; n * vocab], vec![None; n]);
        let work = Work {
            operation,
            shape: format!("{vocab}x{hidden}"),
            tokens: n,
            bytes: weights + n * hidden * self.float + 2 * 4 * n * vocab,
            operations: 2 * n * vocab * hidden,
            peak: if ternary { self.bounds.integers } else { self.bounds.floats },
        };
        self.time(work, 1, |b, _| b.logits(&x, table, &wanted, edits, &mut logits, &mut drawn))
    }

    /// Measures draws from logits, if the backend draws from all logits of a row. The CPU does so only where its bounds
    /// decide nothing.
    fn draws(&mut self, n: usize) -> Result<(), CliError> {
        let vocab = self.spec.vocab;
        let mut rows = self.backend.rows(n, vocab, RowsKind::Residual)?;
        self.backend.write(&mut rows, &logits(n, vocab))?;
        for (operation, params) in DRAWS {
            let params: Vec<SamplingParams> =
                (0..n).map(|row| SamplingParams { position: row as u32, ..params }).collect();
            if !self.backend.draw(&rows, &params)? {
                return Ok(());
            }
            let work = Work {
                operation,
                shape: vocab.to_string(),
                tokens: n,
                bytes: size_of::<f32>() * n * vocab,
                operations: n * vocab,
                peak: self.bounds.floats,
            };
            self.time(work, 1, |b, _| b.draw(&rows, &params).map(|_| ()))?;
        }
        Ok(())
    }
}

/// Bytes of a row of a ternary table.
fn ternary_row(cols: usize) -> usize {
    cols / 4 + 2 * cols.div_ceil(TernaryTensor::WIDE)
}
