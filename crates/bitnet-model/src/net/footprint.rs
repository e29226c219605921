//! The memory that a model takes on a backend, computed from its sizes before a tensor is read. It lists what
//! `transformer.rs`, `layer.rs` and `draft_head.rs` make.

use std::{collections::HashMap, fmt};

use bitnet_kernels::{ExpertShape, Footprint, Grouping, Held, KvShape, RowsKind, StepSize};
use bitnet_tensor::{DType, TernaryTensor};

use crate::{
    files::{TensorEntry, TensorKind, TensorSource},
    names::{self, Expected, PanelMatrix, Part},
    net::{Batch, Limits, weights::read_router},
    spec::{ModelSpec, Windows},
};

/// Maximum number of launches of a layer in a step on a GPU.
const LAYER_LAUNCHES: usize = 12;
/// Launches that experts need in addition.
const EXPERT_LAUNCHES: usize = 4;
/// The same for matrices with norms of their own, so that each is a product by itself.
const NORMED_LAUNCHES: usize = 6;
/// The same for norms before the residual.
const POST_NORM_LAUNCHES: usize = 2;
/// Maximum number of launches of a step outside its layers.
const STEP_LAUNCHES: usize = 16;

/// The memory that a model will take on a backend: exactly what loading it allocates, or at most that where only the
/// values of a file decide ([`TensorEntry`]).
pub struct ModelFootprint<'a, B> {
    backend: &'a B,
    spec: &'a ModelSpec,
    weights: Vec<Weight>,
    windows: bool,
    drafts: usize,
}

/// Sizes of a model's weights in memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightBytes {
    /// Their layout, for display.
    pub layout: &'static str,
    /// Bytes of all weights.
    pub total: u64,
    /// Bytes that a greedy step reads in full: trits, norms, and the int8 copy of the output head.
    pub step: u64,
    /// Number of trits that each token is multiplied with.
    pub trits: u64,
}

/// Weights that a backend holds.
struct Weight {
    held: Held,
    /// What part of them a greedy step reads: numerator and denominator.
    read: [usize; 2],
    trits: usize,
}

impl<'a, B: Footprint> ModelFootprint<'a, B> {
    /// The footprint of a model on `backend`. Its draft head counts if `spec` has one.
    pub fn new(backend: &'a B, spec: &'a ModelSpec, tensors: &dyn TensorSource) -> Self {
        let entries = tensors.entries().iter().chain(tensors.draft_head());
        let entries = entries.map(|entry| (entry.name.as_str(), entry)).collect();
        let weights = weights(spec, tensors, &entries, backend.shortlists());
        ModelFootprint { backend, spec, weights, windows: false, drafts: 0 }
    }

    /// The same with blocks that only sliding layers use, as [`crate::Transformer::load_with_windows`] loads a model.
    #[must_use]
    pub fn with_windows(self) -> Self {
        ModelFootprint { windows: true, ..self }
    }

    /// The same with logs of up to `drafts` drafts, as [`crate::Model::reserve_log`] makes them.
    #[must_use]
    pub fn with_logs(self, drafts: usize) -> Self {
        ModelFootprint { drafts, ..self }
    }

    /// Sizes of the weights.
    pub fn weights(&self) -> WeightBytes {
        let grouped = "2 bits a weight and 16 for the scale of every group, including the output head";
        let layout = if self.spec.grouped.head { grouped } else { B::LAYOUT };
        let mut sizes = WeightBytes { layout, total: 0, step: 0, trits: 0 };
        for Weight { held, read: [read, of], trits } in &self.weights {
            let bytes = self.backend.bytes(held);
            sizes.total += bytes as u64;
            sizes.step += (bytes / of * read) as u64;
            sizes.trits += *trits as u64;
        }
        sizes
    }

    /// Bytes of the model, loaded for steps and a cache of these sizes, and of the recordings of its steps.
    pub fn bytes(&self, limits: Limits) -> u64 {
        let spec = self.spec;
        let context = context(spec, limits);
        let mut held: Vec<Held> = self.weights.iter().map(|weight| weight.held).collect();
        cache(spec, limits, (context, self.windows), &mut held);
        buffers(spec, limits, &mut held);
        if let Some(shape) = spec.delta() {
            let log = Held::Log { shape, slots: limits.state_slots, drafts: self.drafts };
            held.extend((0..spec.recurrent_layers()).map(|_| log));
        }
        let size = step_size(spec, limits, context);
        let each: usize = held.iter().map(|held| self.backend.bytes(held)).sum();
        let recordings = self.backend.recordings_bytes(self.max_launches());
        (each + self.backend.step_bytes(&held, &size) + recordings) as u64
    }

    /// Maximum number of launches of a step on a GPU.
    pub fn max_launches(&self) -> usize {
        let ModelSpec { experts, linear_norms, post_norms, layers, .. } = self.spec;
        let more = [
            (experts.is_some(), EXPERT_LAUNCHES),
            (linear_norms.is_some(), NORMED_LAUNCHES),
            (*post_norms, POST_NORM_LAUNCHES),
        ];
        let more: usize = more.iter().map(|&(needed, launches)| if needed { launches } else { 0 }).sum();
        (LAYER_LAUNCHES + more) * layers + STEP_LAUNCHES
    }
}

/// Maximum number of tokens in a sequence, with a cache of this size.
pub(crate) fn context(spec: &ModelSpec, limits: Limits) -> usize {
    spec.context.min(limits.kv_blocks.saturating_mul(Batch::BLOCK_TOKENS))
}

/// The largest step.
pub(crate) fn step_size(spec: &ModelSpec, limits: Limits, context: usize) -> StepSize {
    StepSize {
        tokens: limits.max_tokens,
        logit_rows: limits.max_logit_rows,
        blocks: limits.max_tokens.saturating_mul(context.div_ceil(Batch::BLOCK_TOKENS)),
        group: spec.heads / spec.kv_heads,
        vocab: spec.vocab,
        windows: spec.sliding_window().is_some(),
    }
}

/// All weights, as they are stacked and rotated.
fn weights(
    spec: &ModelSpec,
    tensors: &dyn TensorSource,
    entries: &HashMap<&str, &TensorEntry>,
    shortlists: bool,
) -> Vec<Weight> {
    let head = names::head(spec);
    let copied = shortlists && !spec.grouped.head;
    let mut weights = Vec::new();
    let mut add = |held, read: [usize; 2], trits| weights.push(Weight { held, read, trits });
    let own = spec.draft_head.then(|| names::draft_head(spec)).into_iter().flatten();
    let drafts = names::expected(spec).map(|expected| (expected, false)).chain(own.map(|own| (own, true)));
    for (Expected { name, kind, shape }, drafts) in drafts {
        match (kind, &shape[..]) {
            (TensorKind::Dense, _) if drafts => {}
            (TensorKind::Dense, &[rows, cols]) => {
                let dtype = entries.get(name.as_str()).and_then(|entry| entry.dtype).unwrap_or(DType::F32);
                // Its values decide. One that cannot be read is refused when it is loaded.
                let router = dtype == DType::F32 && Part::of(&name) == Some(Part::Router);
                let router = router.then(|| read_router(tensors, &name).ok()).flatten();
                let dtype = router.map_or(dtype, |router| router.dtype());
                // With bounds, a step reads the copy of the head instead; it looks rows of the embedding up.
                let read =
                    usize::from(!(name == names::EMBEDDING && !spec.tied_head || name == head && copied));
                add(Held::DenseTable { rows, cols, dtype }, [read, 1], 0);
            }
            (TensorKind::Norm, &[width]) if !Part::of(&name).is_some_and(Part::is_of_delta) => {
                add(Held::Gain { width }, [usize::from(!drafts), 1], 0);
            }
            _ => {}
        }
    }
    // A step with a draft reads its head too, but a greedy step has none.
    let own = spec.draft_head.then(|| names::draft_matrices(spec)).into_iter().flatten();
    own.for_each(|[rows, cols]| add(Held::Int8Linear { rows, cols }, [0, 1], 0));
    if copied {
        let dtype = entries.get(head).and_then(|entry| entry.dtype).unwrap_or(DType::F32);
        add(Held::Shortlist { rows: spec.vocab, cols: spec.hidden, dtype }, [1, 1], 0);
    }
    if let Some(delta) = spec.delta() {
        (0..spec.recurrent_layers()).for_each(|_| add(Held::Delta(delta), [1, 1], 0));
    }
    for PanelMatrix { parts, rows, cols, .. } in names::panel_matrices(spec) {
        let first = parts[0].0.as_str();
        let groups = parts.iter().filter_map(|(name, _)| entries.get(name.as_str())?.group);
        let group = groups.min();
        if names::is_table(first) {
            let group = group.unwrap_or(TernaryTensor::WIDE);
            let read = usize::from(first == head);
            add(Held::TernaryTable { rows, cols, group }, [read, 1], read * rows * cols);
        } else if Part::of(first).is_some_and(Part::is_of_experts) {
            // The three matrices of the experts are one.
            let Some((experts, Part::ExpertGate)) = spec.experts.zip(Part::of(first)) else { continue };
            let (count, used, hidden, ffn) = (experts.count, experts.used, spec.hidden, spec.ffn);
            let shape = ExpertShape { count, used, hidden, ffn, gate: spec.activation };
            let group = group.unwrap_or(TernaryTensor::WIDE);
            add(Held::Experts { shape, group }, [used, count], 3 * used * hidden * ffn);
        } else if spec.linear_norms.is_some() {
            parts.iter().for_each(|&(_, rows)| add(Held::Linear { rows, cols, group }, [1, 1], rows * cols));
        } else {
            add(Held::Linear { rows, cols, group }, [1, 1], rows * cols);
        }
        let turned = spec.rotation.as_ref().is_some_and(|rotation| {
            if first == names::EMBEDDING { rotation.embedding } else { rotation.weights.contains(first) }
        });
        if turned {
            add(Held::Rotation { width: cols }, [1, 1], 0);
        }
    }
    weights
}

/// What sequences keep, and the rotary tables.
fn cache(spec: &ModelSpec, limits: Limits, (context, windows): (usize, bool), held: &mut Vec<Held>) {
    let slots = limits.state_slots;
    let kv = |blocks| Held::Kv(KvShape { blocks, kv_heads: spec.kv_heads, head_dim: spec.head_dim });
    let own = spec.sliding_window().filter(|_| windows).map(|window| kv(limits.window_blocks(window)));
    let sliding = own.map_or(0, |_| spec.sliding_layers());
    held.extend((sliding..spec.cached_layers()).map(|_| kv(limits.kv_blocks)));
    held.extend((0..sliding).filter_map(|_| own));
    if let Some(shape) = spec.delta() {
        held.extend((0..spec.recurrent_layers()).map(|_| Held::State { shape, slots }));
    }
    let rope = |width| Held::Rope { positions: context, width };
    held.push(rope(spec.rotary_width()));
    // Layers that do not slide may have no rope.
    let full = |windows: &Windows| rope(windows.full_theta.map_or(0, |_| spec.rotary_width()));
    held.extend(spec.windows.as_ref().map(full));
}

/// The activations of a step.
fn buffers(spec: &ModelSpec, limits: Limits, held: &mut Vec<Held>) {
    let (tokens, logit_rows, hidden) = (limits.max_tokens, limits.max_logit_rows, spec.hidden);
    let (q, kv) = (spec.q_width(), spec.kv_width());
    let grouping = if spec.grouped.projections { Grouping::Groups } else { Grouping::Row };
    let rows = |rows, width| Held::Rows { rows, width, kind: RowsKind::Intermediate };
    let int8 = |rows, width| Held::Int8Rows { rows, width, grouping };
    let gates = if spec.output_gate { q } else { 0 };
    let dense = if spec.experts.is_some() { 0 } else { tokens };
    held.push(Held::Rows { rows: tokens, width: hidden, kind: RowsKind::Residual });
    held.extend([int8(tokens, hidden), rows(tokens, q + 2 * kv + gates), rows(tokens, q), int8(tokens, q)]);
    held.extend([rows(dense, 2 * spec.ffn), int8(dense, spec.ffn), rows(logit_rows, hidden)]);
    held.extend(spec.post_norms.then(|| rows(tokens, hidden)));
    if let Some(delta) = spec.delta() {
        let values = delta.value_width();
        held.extend([rows(tokens, delta.columns()), rows(tokens, values), int8(tokens, values)]);
    }
    if spec.draft_head {
        held.extend([rows(tokens, hidden), rows(logit_rows, hidden), rows(tokens, hidden)]);
    }
}

impl<B> fmt::Debug for ModelFootprint<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelFootprint").field("spec", self.spec).finish_non_exhaustive()
    }
}
