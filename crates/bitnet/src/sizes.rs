//! Sizes of a model's weights, activations and cache in a device's memory.

use bitnet_kernels::{Cpu, Int8Matrix, KvShape, KvType, gpu};
use bitnet_model::{Batch, Checkpoint, Experts, ModelSpec, TensorKind};

use crate::Error;

/// Maximum number of launches of a layer in a step on a GPU.
const LAYER_LAUNCHES: usize = 12;
/// Maximum number of launches of a step outside its layers.
const STEP_LAUNCHES: usize = 16;

/// Which memory holds a model, which decides its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Home {
    /// The host's memory, with a cache of this type.
    Cpu(KvType),
    /// A GPU's memory.
    Gpu,
}

/// Sizes of weights in memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct WeightBytes {
    /// [`Home::layout`].
    pub layout: &'static str,
    /// Bytes of all weights.
    pub total: u64,
    /// Bytes that a greedy step reads in full: trits, norms, and the int8 copy of the output head.
    pub step: u64,
    /// Number of trits that each token is multiplied with.
    pub trits: u64,
}

impl Home {
    /// Describes the layout of the weights.
    pub fn layout(self) -> &'static str {
        match self {
            Home::Cpu(_) => {
                "trits in 2 bits, the output head as int8 for bounds and as stored for exact logits"
            }
            Home::Gpu => "trits in 2 bits, the output head as int8 for bounds and as bf16 for exact logits",
        }
    }

    /// Sizes of the weights in the layout of the kernels; with `all_logits`, without the int8 copy of the head.
    pub fn weights(self, checkpoint: &Checkpoint, all_logits: bool) -> Result<WeightBytes, Error> {
        let mut bytes = WeightBytes { layout: self.layout(), total: 0, step: 0, trits: 0 };
        if checkpoint.spec.grouped.head {
            bytes.layout = "2 bits a weight and 16 for the scale of every group, including the output head";
        }
        for entry in checkpoint.tensors.entries() {
            let elements: usize = entry.shape.iter().product();
            let (size, read) = match entry.kind {
                TensorKind::Ternary => {
                    bytes.trits += elements as u64;
                    let size = self.ternary(entry.shape[0], entry.shape[1]);
                    (size, size)
                }
                TensorKind::Grouped if entry.shape.len() == 3 => {
                    // A token passes only some of the experts.
                    let (count, size) = (entry.shape[0], self.grouped(entry.shape[1], entry.shape[2], 128));
                    let used = checkpoint.spec.experts.map_or(count, |experts| experts.used);
                    bytes.trits += (elements / count * used) as u64;
                    (count * size, used * size)
                }
                TensorKind::Grouped => {
                    // Only Q2_0 can have groups of 64; whether it does is known once it is read.
                    let group = if entry.stored == "q2_0" { 64 } else { 128 };
                    let size = self.grouped(entry.shape[0], entry.shape[1], group);
                    let looked_up = entry.name == "model.embed_tokens.weight" && !checkpoint.spec.tied_head;
                    bytes.trits += if looked_up { 0 } else { elements as u64 };
                    (size, if looked_up { 0 } else { size })
                }
                TensorKind::Norm => (4 * elements, 4 * elements),
                TensorKind::Dense => {
                    let size = match (self, checkpoint.format) {
                        // bf16, with rows padded to 64.
                        (Home::Gpu, _) => 2 * entry.shape[0] * entry.shape[1].next_multiple_of(64),
                        // Synthetic tables are bf16 and generated on each request.
                        (Home::Cpu(_), "synthetic") => 2 * elements,
                        (Home::Cpu(_), _) => checkpoint.tensors.dense(&entry.name)?.bytes().len(),
                    };
                    let table = entry.name == "model.embed_tokens.weight";
                    let head = entry.name == "lm_head.weight" || table && checkpoint.spec.tied_head;
                    match (self, head) {
                        (_, true) if !all_logits => {
                            let copy = self.copy(entry.shape[0], entry.shape[1]);
                            (size + copy, copy)
                        }
                        (_, false) if table => (size, 0),
                        _ => (size, size),
                    }
                }
            };
            bytes.total += size as u64;
            bytes.step += read as u64;
        }
        Ok(bytes)
    }

    /// Bytes of the weights of a model's draft head.
    pub(crate) fn draft_head(self, checkpoint: &Checkpoint) -> u64 {
        let bytes = |entry: &bitnet_model::TensorEntry| match entry.shape[..] {
            [rows, cols] => Int8Matrix::bytes(rows, cols),
            _ => 4 * entry.shape.iter().product::<usize>(),
        };
        checkpoint.tensors.draft_head().iter().map(bytes).sum::<usize>() as u64
    }

    /// Bytes of the int8 copy of a dense output head.
    fn copy(self, rows: usize, cols: usize) -> usize {
        match self {
            Home::Cpu(_) => Cpu::head_copy_bytes(rows, cols),
            Home::Gpu => gpu::head_copy_bytes(rows, cols),
        }
    }

    /// Bytes of a matrix of 2-bit trits with padded rows and columns, and a scale for each row.
    fn ternary(self, rows: usize, cols: usize) -> usize {
        let (row_padding, col_padding) = match self {
            Home::Cpu(_) => (64, 16),
            Home::Gpu => (128, 128),
        };
        let rows = rows.next_multiple_of(row_padding);
        rows * cols.next_multiple_of(col_padding) / 4 + 4 * rows
    }

    /// Codes of 2 bits, rows and columns padded, and an f16 scale for every group of a row.
    fn grouped(self, rows: usize, cols: usize, group: usize) -> usize {
        match self {
            Home::Cpu(_) => {
                rows.next_multiple_of(64) * (cols.next_multiple_of(16) / 4 + 2 * cols.div_ceil(group))
            }
            Home::Gpu => rows.next_multiple_of(128) * cols.div_ceil(128) * (32 + 2 * 128 / group),
        }
    }

    /// Bytes of activations and logits for a step of `tokens` tokens and `rows` rows of logits.
    pub fn step(self, spec: &ModelSpec, tokens: usize, rows: usize) -> u64 {
        let (q, kv) = (spec.q_width(), spec.kv_width());
        let gates = if spec.output_gate { q } else { 0 };
        let delta = spec.delta();
        let (columns, values) = delta.map_or((0, 0), |delta| (delta.columns(), delta.value_width()));
        let bytes = match self {
            Home::Cpu(_) => {
                // Dense projections of alpha and beta read normalised rows.
                let normed =
                    spec.hybrid.as_ref().filter(|hybrid| hybrid.float_alpha_beta).map_or(0, |_| spec.hidden);
                let between = delta.map_or(0, |delta| delta.between_len());
                let recurrent = 4 * (columns + between + normed) + 5 * values;
                let attention = 4 * (q + 2 * kv + gates) + 5 * q;
                // What passes the norm before the residual.
                let projected = if spec.post_norms { 4 * spec.hidden } else { 0 };
                let ffn = spec.experts.map_or(9 * spec.ffn, |experts| expert_bytes(spec, experts));
                let token = 5 * spec.hidden + attention + recurrent + projected + ffn;
                // A scale and a sum for every 128 columns of int8, and the int8 input of a ternary head or the bounds of
                // a dense one.
                let int8 = spec.hidden + q + values + spec.ffn;
                let groups = if spec.grouped.projections { int8 / 16 } else { 0 };
                let head = if spec.grouped.head {
                    spec.hidden + spec.hidden / 16
                } else {
                    Cpu::shortlist_bytes(spec.vocab, spec.hidden)
                };
                // Hidden states that a draft head reads, and its own.
                let draft = if spec.draft_head { 4 * spec.hidden } else { 0 };
                tokens * (token + groups + 2 * draft) + rows * (4 * (spec.hidden + spec.vocab) + head + draft)
            }
            Home::Gpu => {
                // Lists of blocks, positions, places and pieces; tokens are padded to 128.
                let lists = 4 * spec.context.div_ceil(Batch::BLOCK_TOKENS) + 128;
                // Two lists more, and f32 between the kernels of a recurrent layer.
                let between = delta.map_or(0, |delta| 32 + 4 * delta.gpu_between_len());
                let recurrent = 2 * columns + between + 3 * values;
                let attention = 2 * (q + 2 * kv + gates) + 3 * q;
                let token = 5 * spec.hidden + attention + recurrent + 5 * spec.ffn + lists;
                // A scale and sums for every 128 columns of int8, and the int8 input of a ternary head.
                let of = |width: usize| 16 * width.div_ceil(128);
                let all = of(spec.hidden) + of(q) + of(values) + of(spec.ffn);
                let groups = if spec.grouped.projections { all } else { 0 };
                let head = if spec.grouped.head { spec.hidden + of(spec.hidden) } else { 0 };
                let bounds =
                    if spec.grouped.head { 0 } else { gpu::shortlist_bytes(spec.vocab, spec.hidden) };
                tokens.next_multiple_of(128) * (token + groups)
                    + rows * (2 * spec.hidden + 4 * spec.vocab + bounds + 64)
                    + rows.next_multiple_of(128) * head
            }
        };
        bytes as u64
    }

    /// Bytes that recordings of steps need at most.
    pub fn recordings(self, spec: &ModelSpec) -> u64 {
        match self {
            Home::Cpu(_) => 0,
            Home::Gpu => gpu::recordings_bytes(LAYER_LAUNCHES * spec.layers + STEP_LAUNCHES) as u64,
        }
    }

    /// Bytes of a block of the cache, including the rotary tables of its positions.
    pub fn block(self, spec: &ModelSpec) -> u64 {
        let shape = KvShape { blocks: 1, kv_heads: spec.kv_heads, head_dim: spec.head_dim };
        let cache = match self {
            Home::Cpu(kv) => shape.cpu_bytes(kv),
            Home::Gpu => shape.gpu_bytes(),
        };
        (spec.cached_layers() * cache + 4 * Batch::BLOCK_TOKENS * spec.rotary_width()) as u64
    }
}

/// Bytes that experts keep of a token on the CPU: its logits and normed row, and for each expert that it passes its input
/// and gated values in int8, gate and up, and the output.
fn expert_bytes(spec: &ModelSpec, experts: Experts) -> usize {
    let (hidden, ffn) = (spec.hidden, spec.ffn);
    let slot = 5 * hidden + 9 * ffn + (hidden + ffn) / 8 + 16;
    4 * experts.count + 5 * hidden + hidden / 8 + experts.used * slot
}

#[cfg(test)]
mod tests {
    use bitnet_kernels::DeltaShape;
    use bitnet_model::Hybrid;

    use super::*;

    /// Numbers of the layers of Ternary Bonsai 27B that have a recurrent state.
    #[test]
    fn a_step_counts_what_recurrent_kernels_keep_for_a_token() {
        let delta = DeltaShape { key_heads: 16, value_heads: 48, head_dim: 128, taps: 4 };
        for (float_alpha_beta, normed) in [(false, 0), (true, 5120)] {
            let hybrid = Hybrid { attends: [false].into(), delta, float_alpha_beta };
            let spec = ModelSpec {
                hidden: 5120,
                layers: 1,
                hybrid: Some(hybrid),
                ..ModelSpec::without_layers("qwen35", 7, 64)
            };
            let step = |tokens| Home::Cpu(KvType::F32).step(&spec, tokens, 0);
            // Residual and its int8 form; the input of a layer, as f32; what three passes and the norm before dense
            // projections keep; the output, with its int8 form.
            let token = 5 * 5120 + 4 * (10_240 + 6144 + 96) + 4 * (10_240 + 96 + normed) + 5 * 6144;
            assert_eq!(step(10) - step(9), token);
            // On a GPU rows are bf16, norms need no memory, and two lists are 32 bytes a token.
            let lists = 32 + 128 + 4 * (spec.context as u64).div_ceil(Batch::BLOCK_TOKENS as u64);
            let token = 5 * 5120 + 2 * (10_240 + 6144 + 96) + 4 * (10_240 + 96) + 3 * 6144 + lists;
            let step = |tokens| Home::Gpu.step(&spec, tokens, 0);
            assert_eq!(step(256) - step(128), 128 * token);
        }
    }
}
