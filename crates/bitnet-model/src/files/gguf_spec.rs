//! Reads the sizes and switches of a model from the metadata of a GGUF file ([`read`]).
//! Keys begin with the architecture's name.

use bitnet_kernels::DeltaShape;
use bitnet_tensor::{BitNetTensor, DType};
use serde_json::Value;

use crate::{
    ModelError,
    files::{ggml_type::GgmlType, gguf::Gguf, rope_freqs},
    names,
    spec::{
        Activation, Experts, Grouped, Hybrid, ModelSpec, Multipliers, Pooling, Rope, RopeScaling, Windows,
        experts::{CLAMP, PATTERN},
        family::{Family, head_dim},
        fields::Fields,
        hadamard,
        hybrid::attending_by_interval,
        rope,
    },
    ternarize,
};

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
        let cure = "use bitnet-b1.58, bitnet-25, bitnet or llama, ternary qwen3, qwen35, minicpm or maple, or a BitNet embedding model (qwen3, gemma3)";
        ModelError::unsupported(file, "general.architecture", architecture, cure)
    })?;
    let prefix = format!("{architecture}.");
    let json = gguf.json(&prefix, &LISTS);
    let c = Fields { file, prefix: &prefix, json: &json };
    let keys = Keys { gguf, architecture, c };
    let c = &keys.c;
    let (hidden, layers) = (c.need_size("embedding_length")?, keys.layers()?);
    let hybrid = if family.hybrid { Some(keys.hybrid(layers)?) } else { None };
    // The number of heads of a layer that does not attend says nothing.
    let recurrent = |layer: usize| hybrid.as_ref().is_some_and(|hybrid| !hybrid.attends[layer]);
    let heads = c.shared_size(HEADS, layers, recurrent)?.ok_or_else(|| c.missing(HEADS))?;
    let kv_heads = c.shared_size(KV_HEADS, layers, recurrent)?.unwrap_or(heads);
    let ffn = if family.experts {
        c.need_size("expert_feed_forward_length")?
    } else {
        c.shared_size(FFN, layers, |_| false)?.ok_or_else(|| c.missing(FFN))?
    };
    let (head_dim, rotary) = keys.head_dim(hidden, heads, family)?;
    keys.refuse_experts_and_windows(family)?;
    let experts = if family.experts { Some(Experts::of_gguf(c, layers)?) } else { None };
    let windows = keys.windows(family, layers)?;
    let full_theta = c.float("rope.freq_base")?.unwrap_or(if family.post_norms { 1e6 } else { 10_000.0 });
    let vocab = keys.vocab()?;
    let tied_head = ["output.weight", names::HEAD_PANELS].iter().all(|name| gguf.tensor(name).is_none());
    let embedding_groups = is_grouped(gguf, "token_embd.weight", names::EMBEDDING_PANELS);
    let head_groups =
        if tied_head { embedding_groups } else { is_grouped(gguf, "output.weight", names::HEAD_PANELS) };
    let (linear_norms, embeds) = keys.embedding(family)?;
    // A norm before every projection belongs to a model with one scale a matrix.
    let grouped = family.grouped && !linear_norms;
    let rms_eps = c.need_float("attention.layer_norm_rms_epsilon")?;
    let mut spec = ModelSpec {
        hidden,
        ffn,
        layers,
        heads,
        kv_heads,
        head_dim,
        vocab,
        context: c.need_size("context_length")?,
        rms_eps,
        rope: Rope {
            theta: match (&windows, c.float("rope.freq_base_swa")?) {
                (Some(_), Some(theta)) => theta,
                (Some(_), None) if family.post_norms => 10_000.0,
                _ => full_theta,
            },
            scaling: RopeScaling::None,
            width: rotary,
            sections: if family.hybrid {
                Some(rope::sections(c, SECTIONS, rotary.unwrap_or(head_dim))?)
            } else {
                None
            },
        },
        linear_norms: linear_norms.then_some(rms_eps),
        activation: match experts {
            Some((_, limit)) => Activation::ClampedSilu { limit },
            None => family.activation,
        },
        experts: experts.map(|(experts, _)| experts),
        windows,
        hybrid,
        rotation: hadamard::of_gguf(gguf, family.hybrid)?,
        grouped: Grouped {
            projections: grouped,
            embedding: grouped && embedding_groups,
            head: grouped && head_groups,
        },
        multipliers: match family {
            Family { multipliers: true, .. } => keys.multipliers()?,
            Family { post_norms: true, .. } => {
                Multipliers { embedding: (hidden as f32).sqrt(), ..Multipliers::NONE }
            }
            _ => Multipliers::NONE,
        },
        tied_head,
        draft_head: false,
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
        "maple" => (Family::MAPLE, false),
        "gemma3" => (Family::GEMMA, false),
        _ => return None,
    })
}

/// A file, and the metadata of its architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
    c: Fields<'a>,
}

/// Lists in the metadata of an architecture that are read.
const LISTS: [&str; 8] = [SECTIONS, RECURRENT, HEADS, KV_HEADS, FFN, WINDOW, PATTERN, CLAMP];
const SECTIONS: &str = "rope.dimension_sections";
const RECURRENT: &str = "attention.recurrent_layers";
/// Sizes that some tools write for each layer.
const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";
const FFN: &str = "feed_forward_length";
const WINDOW: &str = "attention.sliding_window";

impl Keys<'_> {
    /// The width of a head, which must be the same everywhere, and how much of it rotates, if that may be a part.
    fn head_dim(
        &self,
        hidden: usize,
        heads: usize,
        family: Family,
    ) -> Result<(usize, Option<usize>), ModelError> {
        let fields = ["attention.key_length", HEADS];
        let head_dim = head_dim(&self.c, fields, hidden, heads)?;
        // Where only sliding layers rotate, some tools write 0 for the others.
        let sliding = if family.experts { self.c.size("rope.dimension_count_swa")? } else { None };
        let rotary = match sliding {
            Some(width) => Some(width),
            None => self.c.size("rope.dimension_count")?,
        };
        let partial = family.hybrid || family.experts;
        let rotary = rotary.filter(|&width| partial && width != head_dim);
        for name in ["attention.value_length", "rope.dimension_count"] {
            if (rotary.is_some() || family.experts) && name == "rope.dimension_count" {
                continue;
            }
            if let Some(dim) = self.c.size(name)?.filter(|&d| d != head_dim) {
                let cure = format!("use a model where it is the head width of {head_dim}");
                return Err(self.c.unsupported(name, dim, &cure));
            }
        }
        Ok((head_dim, rotary))
    }

    /// Number of layers. The last blocks of some files predict further tokens and are not loaded.
    fn layers(&self) -> Result<usize, ModelError> {
        let blocks = self.c.need_size("block_count")?;
        let extra = self.c.size("nextn_predict_layers")?.unwrap_or(0);
        blocks.checked_sub(extra).ok_or_else(|| {
            let problem = format!("is {extra}, more than the {blocks} blocks of the file");
            self.c.bad("nextn_predict_layers", problem)
        })
    }

    /// The gated-delta layers of a hybrid model, and where they stand.
    fn hybrid(&self, layers: usize) -> Result<Hybrid, ModelError> {
        let value_heads = self.c.need_size("ssm.time_step_rank")?;
        let head_dim = self.c.need_size("ssm.state_size")?;
        let inner = self.c.need_size("ssm.inner_size")?;
        if value_heads.checked_mul(head_dim) != Some(inner) {
            let cure = format!("use a model where it is {value_heads} heads of {head_dim}");
            return Err(self.c.unsupported("ssm.inner_size", inner, &cure));
        }
        let attends = match self.c.list(RECURRENT, "a list of booleans", Value::as_bool)? {
            Some(listed) if listed.len() < layers => {
                return Err(self.c.bad(RECURRENT, "is shorter than the list of layers"));
            }
            Some(listed) => listed.into_iter().take(layers).map(|recurrent| !recurrent).collect(),
            None => attending_by_interval(&self.c, layers)?,
        };
        let float_alpha_beta = match attends.iter().position(|attends| !attends) {
            Some(layer) => !self.is_ternary(&format!("blk.{layer}.ssm_alpha.weight"))?,
            None => false,
        };
        let key_heads = self.c.need_size("ssm.group_count")?;
        let taps = self.c.need_size("ssm.conv_kernel")?;
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
    fn embedding(&self, family: Family) -> Result<(bool, Option<Pooling>), ModelError> {
        let stored = || self.gguf.tensor("blk.0.attn_q_norm_in.weight").is_some();
        let norms = family.post_norms || self.architecture == "qwen3" && stored();
        let pooling = Pooling::of_gguf(&self.c)?;
        Ok((norms, pooling.or(norms.then_some(Pooling::Last))))
    }

    /// The windows of a family that has them. Every sixth layer of Gemma has full attention, unless the file says
    /// otherwise.
    fn windows(&self, family: Family, layers: usize) -> Result<Option<Windows>, ModelError> {
        if family.post_norms {
            let theta = self.c.float("rope.freq_base")?.unwrap_or(1e6);
            return Windows::of_gguf(&self.c, layers, Some(6), Some(theta));
        }
        if !family.experts {
            return Ok(None);
        }
        let windows = Windows::of_gguf(&self.c, layers, None, None)?;
        windows.map(Some).ok_or_else(|| self.c.missing(WINDOW))
    }

    fn refuse_experts_and_windows(&self, family: Family) -> Result<(), ModelError> {
        let refused: &[&str] = match family {
            Family { experts: true, .. } => &[],
            Family { post_norms: true, .. } => &["expert_count"],
            _ => &["expert_count", WINDOW],
        };
        for &name in refused {
            if let Some(n) = self.c.shared_size(name, self.layers()?, |_| false)?.filter(|&n| n != 0) {
                let cure = "use a dense model with full attention";
                return Err(self.c.unsupported(name, n, cure));
            }
        }
        Ok(())
    }

    /// The size of the vocabulary, from the embedding: many files lack the key.
    fn vocab(&self) -> Result<usize, ModelError> {
        match self.gguf.tensor("token_embd.weight") {
            Some(t) => Ok(t.shape[0]),
            None if self.gguf.tensor(names::EMBEDDING_PANELS).is_some() => self.c.need_size("vocab_size"),
            None => {
                let file = self.gguf.file.clone();
                let tensor = "token_embd.weight".into();
                Err(ModelError::MissingTensor { file, tensor })
            }
        }
    }

    fn multipliers(&self) -> Result<Multipliers, ModelError> {
        Ok(Multipliers {
            embedding: self.c.need_float("embedding_scale")?,
            residual: self.c.need_float("residual_scale")?,
            logit_divisor: self.c.need_float("logit_scale")?,
        })
    }

    /// Reads how rope is stretched. Lowers `context` where longer texts would need other frequencies.
    fn scaling(&self, context: &mut usize) -> Result<RopeScaling, ModelError> {
        const FACTOR: &str = "rope.scaling.factor";
        let factor = match self.c.float(FACTOR)? {
            Some(factor) => Some(factor),
            None => self.c.float("rope.scale_linear")?,
        };
        let need = || factor.ok_or_else(|| self.c.missing(FACTOR));
        match self.c.text("rope.scaling.type")? {
            Some("none") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: need()? }),
            Some("yarn") => self.yarn(need()?, *context),
            Some("longrope") => self.long_rope(context),
            None => Ok(match factor {
                Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
                _ => RopeScaling::None,
            }),
            Some(other) => {
                Err(self.c.unsupported("rope.scaling.type", other, "use none, linear, yarn or longrope"))
            }
        }
    }

    fn yarn(&self, factor: f32, context: usize) -> Result<RopeScaling, ModelError> {
        let attention_factor = match self.c.float("rope.scaling.yarn_attn_factor")? {
            Some(factor) => factor,
            // llama.cpp multiplies the usual factor by this one.
            None => {
                let more = self.c.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
                more * rope::yarn_attention_factor(factor)
            }
        };
        let original = self.c.float("rope.scaling.original_context_length")?;
        Ok(RopeScaling::Yarn {
            factor,
            original_context: original.unwrap_or(context as f32),
            beta_fast: self.c.float("rope.scaling.yarn_beta_fast")?.unwrap_or(rope::YARN_BETA_FAST),
            beta_slow: self.c.float("rope.scaling.yarn_beta_slow")?.unwrap_or(rope::YARN_BETA_SLOW),
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
        let original = self.c.size("rope.scaling.original_context_length")?.unwrap_or(*context);
        let factor = *context as f64 / original as f64;
        *context = original.min(*context);
        let attention_factor = match self.c.float("rope.scaling.attn_factor")? {
            Some(factor) => factor,
            None => rope::long_rope_attention_factor(factor, original as f64),
        };
        Ok(RopeScaling::LongRope { factors: factors.into(), attention_factor })
    }
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
