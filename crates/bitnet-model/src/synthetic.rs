//! Random models of given shapes, made in memory from fixed seeds, for benchmarks and tests ([`Synthetic`]).
//! They have no tokenizer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bitnet_kernels::{DeltaShape, KernelError};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryTensor};
use half::f16;

use crate::{
    ModelError,
    files::{Checkpoint, GenerationDefaults, TensorEntry, TensorKind, TensorSource},
    names::{self, Expected},
    spec::{
        Activation, Experts, Grouped, Hybrid, ModelSpec, Multipliers, Pooling, Rope, RopeScaling, Rotation,
        Windows, rope,
    },
};

/// A name, and the model that has it.
type Named = (&'static str, fn() -> ModelSpec);

/// All models: small ones, and others in the shapes of published models.
const MODELS: [Named; 20] = [
    // Layers, hidden, ffn, heads, kv heads, vocabulary.
    ("tiny", || bitnet([2, 256, 768, 4, 2, 512])),
    ("125m", || bitnet([12, 768, 2048, 12, 4, 32768])),
    ("700m", || bitnet([24, 1536, 4096, 24, 8, 32768])),
    // microsoft/bitnet-b1.58-2B-4T
    ("2b4t", || bitnet([30, 2560, 6912, 20, 5, 128_256])),
    // Layers, hidden, ffn, heads, kv heads, head width, vocabulary, and whether the head is tied.
    ("bonsai-tiny", || qwen3([2, 256, 768, 4, 2, 96, 512], true)),
    ("bonsai-1.7b", || qwen3([28, 2048, 6144, 16, 8, 128, 151_936], true)),
    ("bonsai-4b", || qwen3([36, 2560, 9728, 32, 8, 128, 151_936], true)),
    ("bonsai-8b", || qwen3([36, 4096, 12288, 32, 8, 128, 151_936], false)),
    // BitNet embedding models: the same, with an embedding of floats, which is the head.
    ("embedding-tiny", || embedding([2, 256, 768, 4, 2, 96, 512])),
    ("embedding-0.6b", || embedding([28, 1024, 3072, 16, 8, 128, 151_936])),
    // Layers, hidden, ffn, heads, kv heads, head width, key and value heads of gated-delta layers, their width,
    // vocabulary, and the block of the rotation of the weights.
    ("hybrid-tiny", || qwen35([4, 256, 512, 4, 2, 64, 4, 8, 32, 512], None)),
    ("hybrid-tiny-rotated", || qwen35([4, 256, 512, 4, 2, 64, 4, 8, 32, 512], Some(256))),
    ("bonsai-27b", || qwen35([64, 5120, 17_408, 24, 4, 256, 16, 48, 128, 248_320], None)),
    ("bonsai-2-2b", || tied(qwen35([24, 2048, 6144, 8, 2, 256, 16, 16, 128, 248_320], Some(512)))),
    ("bonsai-2-4b", || tied(qwen35([32, 2560, 9216, 16, 4, 256, 16, 32, 128, 248_320], Some(512)))),
    ("bonsai-2-9b", || qwen35([32, 4096, 12_288, 16, 4, 256, 16, 32, 128, 248_320], Some(512))),
    // Layers, hidden, width of an expert, heads, kv heads, head width, experts, those that a token passes, window and
    // vocabulary.
    ("maple-tiny", || maple([4, 256, 128, 8, 2, 64, 8, 2, 12, 512])),
    // deepgrove/maple-preview
    ("maple-20b", || maple([24, 2048, 512, 16, 4, 128, 256, 8, 512, 151_936])),
    // BitNet embedding models with windows.
    ("embedding-gemma-tiny", || gemma([3, 128, 320, 4, 1, 64, 512], 24)),
    ("bonsai-2-27b", || qwen35([64, 5120, 17_408, 24, 4, 256, 16, 48, 128, 248_320], Some(1024))),
];

/// Random weights for a [`ModelSpec`].
#[derive(Debug, Clone)]
pub struct Synthetic {
    spec: ModelSpec,
    entries: Vec<TensorEntry>,
}

impl Synthetic {
    /// The model called `name`, without the prefix `synthetic:`.
    ///
    /// # Errors
    /// If there is no such name; the message lists them.
    pub fn named(name: &str) -> Result<Self, ModelError> {
        let model = MODELS.iter().find(|(known, _)| *known == name);
        model.map(|(_, spec)| Self::of(spec())).ok_or_else(|| {
            let known = MODELS.map(|(known, _)| known).join(", ");
            ModelError::UnknownSynthetic { name: name.chars().take(40).collect(), known }
        })
    }

    /// Random weights for any shape.
    pub fn of(spec: ModelSpec) -> Self {
        let entries = names::expected(&spec).map(|Expected { name, kind, shape }| {
            let stored = match kind {
                TensorKind::Ternary => "random trits",
                TensorKind::Grouped => "random trits in groups of 128",
                TensorKind::Dense => "random bf16",
                TensorKind::Norm => "random f32",
            };
            let dtype = (kind == TensorKind::Dense).then_some(DType::BF16);
            let group = (kind == TensorKind::Grouped).then_some(TernaryTensor::WIDE);
            TensorEntry { stored_name: name.clone(), name, shape, stored: stored.into(), kind, dtype, group }
        });
        let entries = entries.collect();
        Synthetic { spec, entries }
    }

    /// The model's sizes and switches.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn find(&self, name: &str, kinds: &[TensorKind]) -> Result<(&TensorEntry, Random), ModelError> {
        let entry = self.entries.iter().find(|e| e.name == name && kinds.contains(&e.kind));
        let entry = entry
            .ok_or_else(|| ModelError::MissingTensor { file: "synthetic".into(), tensor: name.to_owned() })?;
        // The name is the seed (FNV-1a), so a tensor does not depend on the order of reading.
        let seed = name
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
        Ok((entry, Random(seed)))
    }
}

impl Checkpoint {
    /// A checkpoint of random weights, without a tokenizer. Programs that make a model's weights themselves can take
    /// it as a base for the rest.
    pub fn synthetic(name: impl Into<String>, weights: Synthetic) -> Checkpoint {
        Checkpoint {
            name: name.into(),
            format: "synthetic",
            spec: weights.spec().clone(),
            defaults: GenerationDefaults { eos: weights.spec().eos.clone(), ..GenerationDefaults::default() },
            tensors: Box::new(weights),
            tokenizer: None,
            chat: None,
            warnings: Vec::new(),
            not_loaded: Vec::new(),
        }
    }
}

fn bitnet([layers, hidden, ffn, heads, kv_heads, vocab]: [usize; 6]) -> ModelSpec {
    ModelSpec {
        hidden,
        ffn,
        layers,
        heads,
        kv_heads,
        head_dim: hidden / heads,
        rms_eps: 1e-5,
        rope: Rope { theta: 500_000.0, scaling: RopeScaling::None, width: None, sections: None },
        activation: Activation::SquaredRelu,
        sub_norms: true,
        // Longer than the real models' context; random weights do not care.
        ..ModelSpec::without_layers("bitnet", vocab, 8192)
    }
}

fn qwen3([layers, hidden, ffn, heads, kv_heads, head_dim, vocab]: [usize; 7], tied_head: bool) -> ModelSpec {
    ModelSpec {
        architecture: "qwen3".into(),
        head_dim,
        context: 32_768,
        rms_eps: 1e-6,
        rope: Rope { theta: 1e6, scaling: RopeScaling::None, width: None, sections: None },
        activation: Activation::Silu,
        sub_norms: false,
        head_norms: true,
        grouped: Grouped { projections: true, embedding: true, head: true },
        tied_head,
        ..bitnet([layers, hidden, ffn, heads, kv_heads, vocab])
    }
}

fn embedding(shape: [usize; 7]) -> ModelSpec {
    ModelSpec {
        linear_norms: Some(1e-6),
        grouped: Grouped::default(),
        embeds: Some(Pooling::Last),
        ..qwen3(shape, true)
    }
}

fn maple(
    [layers, hidden, ffn, heads, kv_heads, head_dim, count, used, width, vocab]: [usize; 10],
) -> ModelSpec {
    let plain = qwen3([layers, hidden, ffn, heads, kv_heads, head_dim, vocab], false);
    ModelSpec {
        architecture: "maple".into(),
        context: 131_072,
        rope: Rope { theta: 10_000.0, width: Some(head_dim / 2), ..plain.rope },
        activation: Activation::ClampedSilu { limit: 7.0 },
        grouped: Grouped { projections: true, embedding: false, head: false },
        experts: Some(Experts { count, used }),
        windows: Some(Windows { width, slides: all_but_fourth(layers), full_theta: None }),
        ..plain
    }
}

/// Which layers slide, if every fourth does not.
fn all_but_fourth(layers: usize) -> Arc<[bool]> {
    (1..=layers).map(|number| number % 4 != 0).collect()
}

fn gemma(shape: [usize; 7], width: usize) -> ModelSpec {
    let (layers, hidden) = (shape[0], shape[1]);
    let full_theta = Some(10_000.0);
    ModelSpec {
        architecture: "gemma3".into(),
        rope: Rope { theta: 10_000.0, scaling: RopeScaling::None, width: None, sections: None },
        activation: Activation::Gelu,
        post_norms: true,
        multipliers: Multipliers { embedding: (hidden as f32).sqrt(), ..Multipliers::NONE },
        windows: Some(Windows { width, slides: (0..layers).map(|i| i % 2 == 0).collect(), full_theta }),
        embeds: Some(Pooling::Mean),
        ..embedding(shape)
    }
}

/// The same model with the embedding as its head.
fn tied(spec: ModelSpec) -> ModelSpec {
    let spec = ModelSpec { tied_head: true, ..spec };
    let block = spec.rotation.as_ref().map(|rotation| rotation.block);
    let rotation = block.map(|block| Arc::new(rotation(&spec, block)));
    ModelSpec { rotation, ..spec }
}

fn qwen35(
    [layers, hidden, ffn, heads, kv_heads, head_dim, key_heads, value_heads, delta_dim, vocab]: [usize; 10],
    block: Option<usize>,
) -> ModelSpec {
    let plain = qwen3([layers, hidden, ffn, heads, kv_heads, head_dim, vocab], false);
    let attends: Vec<bool> = (1..=layers).map(|number| number % 4 == 0).collect();
    let mut spec = ModelSpec {
        architecture: "qwen35".into(),
        rope: Rope {
            theta: 1e7,
            width: Some(head_dim / 4),
            sections: Some(rope::usual_sections(head_dim / 4)),
            ..plain.rope
        },
        output_gate: true,
        hybrid: Some(Hybrid {
            attends: attends.into(),
            delta: DeltaShape { key_heads, value_heads, head_dim: delta_dim, taps: 4 },
            // As in the published models.
            float_alpha_beta: block.is_some(),
        }),
        ..plain
    };
    spec.rotation = block.map(|block| Arc::new(rotation(&spec, block)));
    spec
}

/// A rotation of all weights of a hybrid model, with random signs.
fn rotation(spec: &ModelSpec, block: usize) -> Rotation {
    let grouped = names::expected(spec).filter(|tensor| tensor.kind == TensorKind::Grouped);
    let (mut signs, mut weights) = (BTreeMap::new(), BTreeSet::new());
    for Expected { name, shape, .. } in grouped {
        let width = shape[1];
        let random = || {
            let mut random = Random(width as u64);
            (0..width).map(|_| if random.next() & 1 == 0 { 1 } else { -1 }).collect::<Arc<[i8]>>()
        };
        signs.entry(width).or_insert_with(random);
        if name != names::EMBEDDING {
            weights.insert(name);
        }
    }
    Rotation { block, signs, weights, embedding: true, tied_output: spec.tied_head, grouped_values: true }
}

/// Random canonical codes, four trits to a byte.
fn random_codes(random: &mut Random, rows: usize, cols: usize) -> Result<Vec<u8>, KernelError> {
    // Each random byte selects four trits: 256 values map to 81 combinations.
    let four: [u8; 256] = std::array::from_fn(|i| {
        (0..4u32).fold(0, |byte, t| byte | ((i / 3usize.pow(t) % 3) as u8) << (2 * t))
    });
    random.bytes(rows * TernaryTensor::row_bytes(cols), |r| four[usize::from(r)])
}

/// The range of the values of a norm or a parameter. States then forget within tens to thousands of tokens.
fn usual_range(part: names::Part) -> (f32, f32) {
    match part {
        names::Part::Convolution => (-0.5, 0.5),
        names::Part::Decay => (-4.0, -0.25),
        names::Part::TimeBias => (-6.0, -1.0),
        _ => (0.75, 1.25),
    }
}

/// A scale that keeps outputs at about the size of the inputs.
fn usual_scale(cols: usize) -> f32 {
    (1.5 / cols as f32).sqrt()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn bytes(&mut self, len: usize, each: impl Fn(u8) -> u8) -> Result<Vec<u8>, KernelError> {
        let mut bytes = Vec::new();
        let refused = |_| KernelError::OutOfMemory { what: "random weights", bytes: len };
        bytes.try_reserve_exact(len).map_err(refused)?;
        bytes.resize(len, 0);
        let (words, rest) = bytes.as_chunks_mut();
        for word in words {
            *word = self.next().to_le_bytes().map(&each);
        }
        if !rest.is_empty() {
            rest.iter_mut().zip(self.next().to_le_bytes()).for_each(|(b, r)| *b = each(r));
        }
        Ok(bytes)
    }
}

impl TensorSource for Synthetic {
    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn is_generated(&self) -> bool {
        true
    }

    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        let (entry, mut random) = self.find(name, &[TensorKind::Ternary, TensorKind::Grouped])?;
        let cols = entry.shape.last().copied().unwrap_or(1);
        let rows = entry.shape.iter().product::<usize>() / cols.max(1);
        let codes = random_codes(&mut random, rows, cols)?;
        let damaged = ModelError::data("synthetic", name);
        if entry.kind == TensorKind::Ternary {
            return TernaryTensor::from_codes(rows, cols, codes, usual_scale(cols)).map_err(damaged);
        }
        let group = TernaryTensor::WIDE;
        // Embeddings of the usual size would be negligible compared with the outputs of the layers.
        let usual = if names::is_table(name) { 0.05 } else { usual_scale(cols) };
        let scale = |r: u8| f16::from_f32(usual * (0.75 + f32::from(r) / 512.0));
        let groups = TernaryTensor::groups(cols, group);
        let scales = if self.spec.experts.is_some() {
            // Rows have scales.
            let rows = random.bytes(rows, |r| r)?.into_iter();
            rows.flat_map(|r| std::iter::repeat_n(scale(r), groups)).collect()
        } else {
            random.bytes(rows * groups, |r| r)?.into_iter().map(scale).collect()
        };
        TernaryTensor::from_groups(rows, cols, group, codes, scales).map_err(damaged)
    }

    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError> {
        let (entry, mut random) = self.find(name, &[TensorKind::Dense, TensorKind::Norm])?;
        let made = if entry.kind == TensorKind::Norm {
            let (least, most) = names::Part::of(name).map_or((0.75, 1.25), usual_range);
            let mut one = || least + (most - least) * ((random.next() >> 40) as f32 / (1 << 24) as f32);
            let values: Vec<f32> = (0..entry.shape.iter().product()).map(|_| one()).collect();
            BitNetTensor::from_f32(entry.shape.clone(), &values)
        } else {
            // Sign and mantissa are random, the exponent is one of four up to 2^-5.
            let mut bytes = random.bytes(2 * entry.shape.iter().product::<usize>(), |r| r)?;
            for pair in bytes.as_chunks_mut().0 {
                let r = u16::from_le_bytes(*pair);
                let exponent = 127 - 5 - (r >> 8 & 3);
                *pair = (r & 0x807F | exponent << 7).to_le_bytes();
            }
            BitNetTensor::new(DType::BF16, entry.shape.clone(), SharedBytes::new(bytes))
        };
        made.map_err(ModelError::data("synthetic", name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trits_are_evenly_spread_and_repeatable() {
        let s = Synthetic::named("tiny").unwrap();
        let name = "model.layers.1.mlp.down_proj.weight";
        let t = s.ternary(name).unwrap();
        assert_eq!(t, s.ternary(name).unwrap());
        let mut counts = [0usize; 3];
        for r in 0..t.rows() {
            t.row_trits(r).for_each(|t| counts[(t + 1) as usize] += 1);
        }
        let third = t.rows() * t.cols() / 3;
        assert!(counts.iter().all(|c| c.abs_diff(third) < third / 20), "{counts:?}");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let err = Synthetic::named("9t").unwrap_err().to_string();
        assert!(err.contains("9t") && err.contains("2b4t"), "{err}");
    }
}
