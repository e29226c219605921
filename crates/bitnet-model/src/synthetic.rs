//! Random models of given shapes, made in memory from a fixed seed: for benchmarks and tests, no tokenizer.

use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryTensor};

use crate::{
    Activation, ModelError, ModelSpec, Rope, RopeScaling, TensorEntry, TensorKind, TensorSource,
    names::{self, Wanted},
};

/// Name, layers, hidden, ffn, heads, kv heads, vocabulary.
const SHAPES: [(&str, [usize; 6]); 4] = [
    ("tiny", [2, 256, 768, 4, 2, 512]),
    ("125m", [12, 768, 2048, 12, 4, 32768]),
    ("700m", [24, 1536, 4096, 24, 8, 32768]),
    // The shapes of microsoft/bitnet-b1.58-2B-4T.
    ("2b4t", [30, 2560, 6912, 20, 5, 128_256]),
];

/// Random weights for a [`ModelSpec`] of the `bitnet` family.
#[derive(Debug, Clone)]
pub struct Synthetic {
    spec: ModelSpec,
    entries: Vec<TensorEntry>,
}

impl Synthetic {
    /// The model called `name`, without the `synthetic:` in front.
    ///
    /// # Errors
    /// If there is no such name; the message lists them.
    pub fn named(name: &str) -> Result<Self, ModelError> {
        let Some((_, [layers, hidden, ffn, heads, kv_heads, vocab])) = SHAPES.iter().find(|s| s.0 == name)
        else {
            let known = SHAPES.map(|s| s.0).join(", ");
            return Err(ModelError::UnknownSynthetic { name: name.chars().take(40).collect(), known });
        };
        Ok(Self::of(ModelSpec {
            architecture: "bitnet".into(),
            hidden: *hidden,
            ffn: *ffn,
            layers: *layers,
            heads: *heads,
            kv_heads: *kv_heads,
            head_dim: hidden / heads,
            vocab: *vocab,
            // Longer than the models of these shapes have: random weights know no positions.
            context: 8192,
            rms_eps: 1e-5,
            rope: Rope { theta: 500_000.0, scaling: RopeScaling::None },
            activation: Activation::SquaredRelu,
            sub_norms: true,
            linear_norms: None,
            tied_head: true,
            eos: Vec::new(),
        }))
    }

    /// Random weights for any shape.
    pub fn of(spec: ModelSpec) -> Self {
        let entries = names::wanted(&spec).map(|Wanted { name, kind, shape }| {
            let stored = match kind {
                TensorKind::Ternary => "random trits",
                TensorKind::Dense => "random bf16",
                TensorKind::Norm => "random f32",
            };
            TensorEntry { stored_name: name.clone(), name, shape, stored: stored.into(), kind }
        });
        let entries = entries.collect();
        Synthetic { spec, entries }
    }

    /// Sizes and switches.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn find(&self, name: &str, ternary: bool) -> Result<(&TensorEntry, Random), ModelError> {
        let entry =
            self.entries.iter().find(|e| e.name == name && (e.kind == TensorKind::Ternary) == ternary);
        let entry = entry
            .ok_or_else(|| ModelError::MissingTensor { file: "synthetic".into(), tensor: name.to_owned() })?;
        // The name is the seed (FNV-1a), so a tensor does not depend on the order of reading.
        let seed = name
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
        Ok((entry, Random(seed)))
    }
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

    fn bytes(&mut self, len: usize, each: impl Fn(u8) -> u8) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_mut(8) {
            for (b, r) in chunk.iter_mut().zip(self.next().to_le_bytes()) {
                *b = each(r);
            }
        }
        bytes
    }
}

impl TensorSource for Synthetic {
    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        let (entry, mut random) = self.find(name, true)?;
        let (rows, cols) = (entry.shape[0], entry.shape[1]);
        // One random byte makes four trits: 256 values onto 81 combinations.
        let four: [u8; 256] = std::array::from_fn(|i| {
            (0..4u32).fold(0, |byte, t| byte | ((i / 3usize.pow(t) % 3) as u8) << (2 * t))
        });
        let codes = random.bytes(rows * TernaryTensor::row_bytes(cols), |r| four[usize::from(r)]);
        // Outputs keep about the size of the inputs.
        let scale = (1.5 / cols as f32).sqrt();
        TernaryTensor::from_codes(rows, cols, codes, scale).map_err(ModelError::data("synthetic", name))
    }

    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError> {
        let (entry, mut random) = self.find(name, false)?;
        let made = if entry.kind == TensorKind::Norm {
            let gains: Vec<f32> =
                (0..entry.shape[0]).map(|_| 0.75 + (random.next() >> 40) as f32 / (1 << 25) as f32).collect();
            BitNetTensor::from_f32(entry.shape.clone(), &gains)
        } else {
            // Sign and mantissa are random, the exponent is one of four up to 2^-5.
            let mut bytes = random.bytes(2 * entry.shape.iter().product::<usize>(), |r| r);
            for pair in bytes.chunks_exact_mut(2) {
                let r = u16::from_le_bytes([pair[0], pair[1]]);
                let exponent = 127 - 5 - (r >> 8 & 3);
                pair.copy_from_slice(&(r & 0x807F | exponent << 7).to_le_bytes());
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
