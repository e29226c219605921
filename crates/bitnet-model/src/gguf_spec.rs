//! Reads a model's sizes from the metadata of a GGUF file. Keys begin with the architecture's name.

use bitnet_kernels::DeltaShape;
use bitnet_tensor::{BitNetTensor, DType};

use crate::{
    Activation, Grouped, Hybrid, ModelError, ModelSpec, Multipliers, Rope, RopeScaling,
    family::Family,
    files::{ggml_type::GgmlType, gguf::Gguf},
    hadamard,
    hybrid::attending,
    names, rope, rope_freqs, ternarize,
};

/// The family of a GGUF architecture, as llama.cpp and bitnet.cpp define it, and whether its rope rotates neighbouring
/// dimensions together, so that q and k rows are stored in another order.
pub(crate) fn family(architecture: &str) -> Option<(Family, bool)> {
    Some(match architecture {
        "bitnet-b1.58" | "bitnet-25" => (Family::BITNET, false),
        "bitnet" => (Family { activation: Activation::Silu, ..Family::BITNET }, false),
        "llama" => (Family::LLAMA, true),
        "qwen3" => (Family::QWEN3, false),
        "qwen35" => (Family::QWEN35, false),
        "minicpm" => (Family::MINICPM, true),
        _ => return None,
    })
}

/// The metadata of a file's architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let value = self.gguf.opt_u64(&self.key(name))?;
        Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    fn float(&self, name: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.gguf.opt_f64(&self.key(name))?.map(|value| value as f32))
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ModelError> {
        self.gguf.opt_str(&self.key(name))
    }

    fn need<T>(&self, name: &str, value: Option<T>) -> Result<T, ModelError> {
        value.ok_or_else(|| ModelError::missing_field(&self.gguf.file, self.key(name)))
    }

    fn bad(&self, name: &str, problem: impl ToString) -> ModelError {
        ModelError::field(&self.gguf.file, self.key(name), problem)
    }

    fn unsupported(&self, name: &str, value: impl ToString, cure: &str) -> ModelError {
        ModelError::unsupported(&self.gguf.file, self.key(name), value, cure)
    }

    fn need_size(&self, name: &str) -> Result<usize, ModelError> {
        self.need(name, self.size(name)?)
    }

    fn need_float(&self, name: &str) -> Result<f32, ModelError> {
        self.need(name, self.float(name)?)
    }

    /// The width of a head, which must be the same everywhere, and how much of it rotates, if that may be a part.
    fn head_dim(
        &self,
        hidden: usize,
        heads: usize,
        partial: bool,
    ) -> Result<(usize, Option<usize>), ModelError> {
        let head_dim = match self.size("attention.key_length")? {
            Some(dim) => dim,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let problem = format!("is {heads}, which does not divide {hidden}");
                return Err(self.bad("attention.head_count", problem));
            }
        };
        let rotary = self.size("rope.dimension_count")?.filter(|&width| partial && width != head_dim);
        for name in ["attention.value_length", "rope.dimension_count"] {
            if rotary.is_some() && name == "rope.dimension_count" {
                continue;
            }
            if let Some(dim) = self.size(name)?.filter(|&d| d != head_dim) {
                let cure = format!("use a model where it is the head width of {head_dim}");
                return Err(self.unsupported(name, dim, &cure));
            }
        }
        Ok((head_dim, rotary))
    }

    /// How the rotating pairs of a head of `rotary` dimensions are divided among the coordinates of a position.
    fn sections(&self, rotary: usize) -> Result<[u32; 4], ModelError> {
        const NAME: &str = "rope.dimension_sections";
        let wrong = || self.bad(NAME, rope::NOT_SECTIONS);
        let stored = self.gguf.opt_array(&self.key(NAME))?;
        let Some(array) = stored else { return Ok(rope::usual_sections(rotary)) };
        let stored = array.integers().filter(|_| array.len <= 4).ok_or_else(wrong)?;
        let stored: Option<Vec<u32>> = stored.map(|pairs| pairs.try_into().ok()).collect();
        rope::checked_sections(&stored.ok_or_else(wrong)?).ok_or_else(wrong)
    }

    /// Number of layers. The last blocks of some files predict further tokens and are not loaded.
    fn layers(&self) -> Result<usize, ModelError> {
        let (blocks, extra) =
            (self.need_size("block_count")?, self.size("nextn_predict_layers")?.unwrap_or(0));
        blocks.checked_sub(extra).ok_or_else(|| {
            let problem = format!("is {extra}, more than the {blocks} blocks of the file");
            self.bad("nextn_predict_layers", problem)
        })
    }

    /// The gated-delta layers of a hybrid model, and where they stand.
    fn hybrid(&self, layers: usize) -> Result<Hybrid, ModelError> {
        let (value_heads, head_dim) =
            (self.need_size("ssm.time_step_rank")?, self.need_size("ssm.state_size")?);
        let inner = self.need_size("ssm.inner_size")?;
        if value_heads.checked_mul(head_dim) != Some(inner) {
            let cure = format!("use a model where it is {value_heads} heads of {head_dim}");
            return Err(self.unsupported("ssm.inner_size", inner, &cure));
        }
        const LISTED: &str = "attention.recurrent_layers";
        let attends: Vec<bool> = match self.gguf.opt_array(&self.key(LISTED))? {
            Some(array) => {
                let wrong = |problem: &str| self.bad(LISTED, problem);
                let recurrent = array.bools().ok_or_else(|| wrong("is not a list of booleans"))?;
                if array.len < layers {
                    return Err(wrong("is shorter than the list of layers"));
                }
                recurrent.take(layers).map(|recurrent| !recurrent).collect()
            }
            None => {
                let interval = self.size("full_attention_interval")?.unwrap_or(4);
                let wrong = "is 0, or the model has too many layers";
                attending(interval, layers).ok_or_else(|| self.bad("full_attention_interval", wrong))?
            }
        };
        let float_alpha_beta = match attends.iter().position(|attends| !attends) {
            Some(layer) => !self.is_ternary(&format!("blk.{layer}.ssm_alpha.weight"))?,
            None => false,
        };
        let (key_heads, taps) = (self.need_size("ssm.group_count")?, self.need_size("ssm.conv_kernel")?);
        let delta = DeltaShape { key_heads, value_heads, head_dim, taps };
        Ok(Hybrid { attends: attends.into(), delta, float_alpha_beta })
    }

    /// Whether a projection that may be stored as floats is ternary, by its type or by a sample of its floats. One that
    /// panels hold is.
    fn is_ternary(&self, name: &str) -> Result<bool, ModelError> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(true) };
        let Some(GgmlType::Dense(dtype @ (DType::F32 | DType::F16 | DType::BF16))) = tensor.kind else {
            return Ok(!matches!(tensor.kind, Some(GgmlType::Dense(_))));
        };
        let floats = BitNetTensor::new(dtype, tensor.shape.clone(), tensor.bytes.clone())
            .map_err(ModelError::data(&self.gguf.file, name))?;
        Ok(ternarize::looks_ternary(&floats))
    }

    /// Whether every projection has a norm before it, as in BitNet embedding models, and whether the model embeds texts.
    fn embedding(&self) -> Result<(bool, bool), ModelError> {
        const LAST: usize = 3;
        let norms = self.architecture == "qwen3" && self.gguf.tensor("blk.0.attn_q_norm_in.weight").is_some();
        match self.size("pooling_type")? {
            None | Some(0) => Ok((norms, norms)),
            Some(LAST) => Ok((norms, true)),
            Some(other) => {
                let cure = "use a model that pools the last token, type 3";
                Err(self.unsupported("pooling_type", other, cure))
            }
        }
    }

    fn refuse_experts_and_windows(&self) -> Result<(), ModelError> {
        for name in ["expert_count", "attention.sliding_window"] {
            if let Some(n) = self.size(name)?.filter(|&n| n != 0) {
                let cure = "use a dense model with full attention";
                return Err(self.unsupported(name, n, cure));
            }
        }
        Ok(())
    }

    /// The size of the vocabulary, from the embedding: many files lack the key.
    fn vocab(&self) -> Result<usize, ModelError> {
        match self.gguf.tensor("token_embd.weight") {
            Some(t) => Ok(t.shape[0]),
            None if self.gguf.tensor(names::EMBEDDING_PANELS).is_some() => self.need_size("vocab_size"),
            None => {
                let (file, tensor) = (self.gguf.file.clone(), "token_embd.weight".into());
                Err(ModelError::MissingTensor { file, tensor })
            }
        }
    }

    fn multipliers(&self) -> Result<Multipliers, ModelError> {
        Ok(Multipliers {
            embedding: self.need_float("embedding_scale")?,
            residual: self.need_float("residual_scale")?,
            logit_divisor: self.need_float("logit_scale")?,
        })
    }

    /// Reads how rope is stretched. Lowers `context` where longer texts would need other frequencies.
    fn scaling(&self, context: &mut usize) -> Result<RopeScaling, ModelError> {
        const FACTOR: &str = "rope.scaling.factor";
        let factor = match self.float(FACTOR)? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        match self.text("rope.scaling.type")? {
            Some("none") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: self.need(FACTOR, factor)? }),
            Some("yarn") => self.yarn(self.need(FACTOR, factor)?, *context),
            Some("longrope") => self.long_rope(context),
            None => Ok(match factor {
                Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
                _ => RopeScaling::None,
            }),
            Some(other) => {
                Err(self.unsupported("rope.scaling.type", other, "use none, linear, yarn or longrope"))
            }
        }
    }

    fn yarn(&self, factor: f32, context: usize) -> Result<RopeScaling, ModelError> {
        let attention_factor = match self.float("rope.scaling.yarn_attn_factor")? {
            Some(factor) => factor,
            // llama.cpp multiplies the usual factor by this one.
            None => {
                let more = self.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
                more * rope::yarn_attention_factor(factor)
            }
        };
        let original = self.float("rope.scaling.original_context_length")?;
        Ok(RopeScaling::Yarn {
            factor,
            original_context: original.unwrap_or(context as f32),
            beta_fast: self.float("rope.scaling.yarn_beta_fast")?.unwrap_or(rope::YARN_BETA_FAST),
            beta_slow: self.float("rope.scaling.yarn_beta_slow")?.unwrap_or(rope::YARN_BETA_SLOW),
            attention_factor,
        })
    }

    /// Reads LongRoPE's short factors from their tensor. Limits texts to the original context, where they apply.
    fn long_rope(&self, context: &mut usize) -> Result<RopeScaling, ModelError> {
        const NAME: &str = "rope_factors_short.weight";
        let file = &self.gguf.file;
        let missing = || ModelError::MissingTensor { file: file.clone(), tensor: NAME.into() };
        let stored = self.gguf.tensor(NAME).ok_or_else(missing)?;
        if stored.type_id != 0 {
            let problem = format!("type {} is not f32", stored.type_id);
            return Err(ModelError::tensor(file, NAME, problem, "convert the model again"));
        }
        let (words, _) = stored.bytes.as_chunks::<4>();
        let factors: Vec<f32> = words.iter().map(|w| f32::from_le_bytes(*w)).collect();
        let original = self.size("rope.scaling.original_context_length")?.unwrap_or(*context);
        let factor = *context as f64 / original as f64;
        *context = original.min(*context);
        let attention_factor = match self.float("rope.scaling.attn_factor")? {
            Some(factor) => factor,
            None => rope::long_rope_attention_factor(factor, original as f64),
        };
        Ok(RopeScaling::LongRope { factors: factors.into(), attention_factor })
    }
}

/// The sizes of the model in `gguf`, and whether its q and k rows are stored for interleaved rope.
pub(crate) fn read(gguf: &Gguf) -> Result<(ModelSpec, bool), ModelError> {
    let file = gguf.file.as_str();
    let architecture = gguf
        .opt_str("general.architecture")?
        .ok_or_else(|| ModelError::missing_field(file, "general.architecture"))?;
    if let Some(n) = gguf.opt_u64("split.count")?.filter(|&n| n > 1) {
        let cure = "join the parts with llama.cpp's `llama-gguf-split --merge`";
        return Err(ModelError::unsupported(file, "split.count", n, cure));
    }
    let (family, interleaved) = family(architecture).ok_or_else(|| {
        let cure = "use bitnet-b1.58, bitnet-25, bitnet or llama, or ternary qwen3, qwen35 or minicpm";
        ModelError::unsupported(file, "general.architecture", architecture, cure)
    })?;
    let keys = Keys { gguf, architecture };
    let (hidden, heads) = (keys.need_size("embedding_length")?, keys.need_size("attention.head_count")?);
    let (head_dim, rotary) = keys.head_dim(hidden, heads, family.hybrid)?;
    let layers = keys.layers()?;
    keys.refuse_experts_and_windows()?;
    let vocab = keys.vocab()?;
    let tied_head = ["output.weight", names::HEAD_PANELS].iter().all(|name| gguf.tensor(name).is_none());
    let embedding_groups = is_grouped(gguf, "token_embd.weight", names::EMBEDDING_PANELS);
    let head_groups =
        if tied_head { embedding_groups } else { is_grouped(gguf, "output.weight", names::HEAD_PANELS) };
    let (linear_norms, embeds) = keys.embedding()?;
    // A norm before every projection belongs to a model with one scale a matrix.
    let grouped = family.grouped && !linear_norms;
    let rms_eps = keys.need_float("attention.layer_norm_rms_epsilon")?;
    let mut spec = ModelSpec {
        hidden,
        ffn: keys.need_size("feed_forward_length")?,
        layers,
        heads,
        kv_heads: keys.size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab,
        context: keys.need_size("context_length")?,
        rms_eps,
        rope: Rope {
            theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
            scaling: RopeScaling::None,
            width: rotary,
            sections: if family.hybrid { Some(keys.sections(rotary.unwrap_or(head_dim))?) } else { None },
        },
        linear_norms: linear_norms.then_some(rms_eps),
        hybrid: if family.hybrid { Some(keys.hybrid(layers)?) } else { None },
        rotation: hadamard::read(gguf, family.hybrid)?,
        grouped: Grouped {
            projections: grouped,
            embedding: grouped && embedding_groups,
            head: grouped && head_groups,
        },
        multipliers: if family.multipliers { keys.multipliers()? } else { Multipliers::NONE },
        tied_head,
        embeds,
        // End tokens are filled in once the tokenizer is read.
        ..family.spec(architecture)
    };
    spec.rope.scaling = keys.scaling(&mut spec.context)?;
    spec.check(file)?;
    names::check_rotation(&spec, file)?;
    let spec = with_stored_divisors(gguf, spec)?;
    Ok((spec, interleaved))
}

/// Reads Llama 3's scaling, which llama.cpp stores as a tensor of divisors.
fn with_stored_divisors(gguf: &Gguf, mut spec: ModelSpec) -> Result<ModelSpec, ModelError> {
    let Some(stored) = gguf.tensor("rope_freqs.weight") else { return Ok(spec) };
    let (words, _) = stored.bytes.as_chunks::<4>();
    let divisors: Vec<f32> = words.iter().map(|w| f32::from_le_bytes(*w)).collect();
    // Without scaling, all divisors are one.
    let readable = stored.type_id == 0;
    if readable && divisors.iter().all(|&d| d == 1.0) {
        return Ok(spec);
    }
    let scaling = rope_freqs::scaling(&divisors, &spec).filter(|_| readable);
    spec.rope.scaling = scaling.filter(|_| spec.rope.scaling == RopeScaling::None).ok_or_else(|| {
        let problem = "its divisors are not those of Llama 3's scaling";
        let cure = "use the safetensors form of the model, whose config.json names the scaling";
        ModelError::tensor(&gguf.file, "rope_freqs.weight", problem, cure)
    })?;
    Ok(spec)
}

/// Whether a table is stored as panels or in a type with a scale for every group of weights.
fn is_grouped(gguf: &Gguf, name: &str, panels: &str) -> bool {
    let kind = gguf.tensor(name).and_then(|tensor| tensor.kind);
    kind.map_or(gguf.tensor(panels).is_some(), |kind| {
        kind.group().is_some() || matches!(kind, GgmlType::Tq1_0 | GgmlType::Tq2_0)
    })
}
