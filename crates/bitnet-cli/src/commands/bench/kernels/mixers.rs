//! Measures attention, recurrent layers and experts, one kernel at a time.

use bitnet::kernels::{
    DeltaShape, DeltaWeights, DraftLog, ExpertShape, ExpertWeights, Footprint, Held, Inspect, KvShape,
    RowsKind, Run, Step, Weights,
};
use bitnet::model::{Batch, Experts, ModelSpec, Synthetic, TensorSource};
use bitnet::tensor::BitNetTensor;

use super::{Kernels, Work, values};
use crate::error::CliError;

impl<B: Footprint + Inspect> Kernels<'_, B> {
    /// Measures attention of the last `n` tokens of sequences of `context` tokens, to all keys or to those of a window.
    pub(super) fn attention(
        &mut self,
        operation: &'static str,
        sequences: usize,
        [n, context]: [usize; 2],
        window: Option<usize>,
    ) -> Result<(), CliError> {
        let (q, kv_width) = (self.spec.q_width(), self.spec.kv_width());
        let per = context.div_ceil(Batch::BLOCK_TOKENS);
        let run = |i: usize| Run {
            tokens: i * n..(i + 1) * n,
            start: context - n,
            blocks: i * per..(i + 1) * per,
            ..Run::default()
        };
        let runs: Vec<Run> = (0..sequences).map(run).collect();
        let blocks: Vec<u32> = (0..(sequences * per) as u32).collect();
        let shape =
            KvShape { blocks: blocks.len(), kv_heads: self.spec.kv_heads, head_dim: self.spec.head_dim };
        // Each token attends to itself and to those before it, or the last of them.
        let keys = |position: usize| window.unwrap_or(usize::MAX).min(position + 1);
        let read = n - 1 + keys(context - n);
        let cached = self.backend.bytes(&Held::Kv(shape)) * read / (per * Batch::BLOCK_TOKENS);
        let caches = (0..self.copies(cached).min(self.spec.layers))
            .map(|_| self.backend.kv(shape))
            .collect::<Result<Vec<_>, _>>()?;
        let tokens = sequences * n;
        let qkv = self.backend.rows(tokens, q + 2 * kv_width, RowsKind::Intermediate)?;
        let mut out = self.backend.rows(tokens, q, RowsKind::Intermediate)?;
        // Of each pair there is one product for the score and one for the value.
        let pairs = sequences * (context - n..context).map(keys).sum::<usize>();
        let work = Work {
            operation,
            shape: format!("{n}x{context}"),
            tokens,
            bytes: cached + 2 * tokens * q * self.float,
            operations: 4 * q * pairs,
            peak: self.bounds.floats,
        };
        let step = Step::new(&runs, &blocks).within(window);
        self.time(work, caches.len(), |b, i| b.attention(step, &qkv, &caches[i], &mut out))
    }

    /// Measures a mixture of experts, for `steps` tokens that choose evenly among them.
    pub(super) fn experts(&mut self, experts: Experts, steps: &[usize]) -> Result<(), CliError> {
        let ModelSpec { hidden, ffn, activation, .. } = *self.spec;
        let Experts { count, used } = experts;
        let of = |name: String| Synthetic::of(self.spec.clone()).ternary(&name);
        let refused = |e| CliError::refused(e, "experts", "report this");
        let part = |part: &str| of(format!("model.layers.0.mlp.experts.{part}_proj.weight")).map_err(refused);
        let (gate, up, down) = (part("gate")?, part("up")?, part("down")?);
        let router = BitNetTensor::from_f32([count, hidden], &values(count * hidden))
            .map_err(|e| CliError::refused(e, "experts", "report this"))?;
        let shape = ExpertShape { count, used, hidden, ffn, gate: activation };
        let weights = ExpertWeights {
            router: &router,
            gate: Weights::from(gate),
            up: Weights::from(up),
            down: Weights::from(down),
        };
        let mixture = self.backend.experts(shape, weights)?;
        let norm = self.norm(hidden)?;
        for &n in steps {
            let mut x = self.backend.rows(n, hidden, RowsKind::Residual)?;
            self.backend.write(&mut x, &values(n * hidden))?;
            let met = count as f64 * (1.0 - (1.0 - used as f64 / count as f64).powi(n as i32));
            let work = Work {
                operation: "experts",
                shape: format!("{used} of {count}x{ffn}x{hidden}"),
                tokens: n,
                bytes: (met * (3 * ffn * hidden) as f64 * 17.0 / 64.0) as usize + 4 * count * hidden,
                operations: 2 * n * (3 * used * ffn * hidden + count * hidden),
                peak: self.bounds.integers,
            };
            self.time(work, 1, |b, _| b.mix_experts(n, &norm, &mixture, &mut x))?;
        }
        Ok(())
    }

    /// Measures a gated-delta layer, between its projections, for the next `n` tokens of some sequences, whose logs `log`
    /// describes.
    pub(super) fn delta(
        &mut self,
        operation: &'static str,
        shape: DeltaShape,
        sequences: usize,
        n: usize,
        log: DraftLog,
    ) -> Result<(), CliError> {
        let b = &mut *self.backend;
        let conv = values(shape.channels() * shape.taps);
        let (heads, norm) = (vec![-0.1; shape.value_heads], vec![1.0; shape.head_dim]);
        let weights = DeltaWeights { conv: &conv, a: &heads, dt_bias: &heads, norm: &norm, eps: 1e-6 };
        let layer = b.delta(shape, &weights)?;
        let layers = self.spec.recurrent_layers();
        let mut states = (0..layers).map(|_| b.state(shape, sequences)).collect::<Result<Vec<_>, _>>()?;
        for state in &mut states {
            b.reserve_log(state, log.drafts)?;
        }
        let tokens = sequences * n;
        let mut x = b.rows(tokens, shape.columns(), RowsKind::Intermediate)?;
        b.write(&mut x, &values(tokens * shape.columns()))?;
        let mut out = b.rows(tokens, shape.value_width(), RowsKind::Intermediate)?;
        let run = |i: usize| Run {
            tokens: i * n..(i + 1) * n,
            start: 1 + log.accepted,
            blocks: 0..0,
            state: i as u32,
            log,
        };
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
        self.time(work, layers, |b, i| b.gated_delta(step, &x, &layer, &mut states[i], &mut out))
    }
}
