//! Metadata of a GGUF file: the model's sizes. Keys begin with the architecture's name.

use crate::{Activation, ModelError, ModelSpec, Rope, RopeScaling, files::gguf::Gguf, rope_freqs};

/// What an architecture of GGUF means.
struct Family {
    activation: Activation,
    sub_norms: bool,
    /// Whether rope turns neighbouring dimensions together, so that q and k rows are stored in another order.
    interleaved: bool,
}

/// The architectures that hold ternary models, with llama.cpp's and bitnet.cpp's meaning of each.
fn family(architecture: &str) -> Option<Family> {
    Some(match architecture {
        "bitnet-b1.58" | "bitnet-25" => {
            Family { activation: Activation::SquaredRelu, sub_norms: true, interleaved: false }
        }
        "bitnet" => Family { activation: Activation::Silu, sub_norms: true, interleaved: false },
        "llama" => Family { activation: Activation::Silu, sub_norms: false, interleaved: true },
        _ => return None,
    })
}

/// The description of the model in `gguf`, and whether its q and k rows are stored for interleaved rope.
pub(crate) fn read(gguf: &Gguf) -> Result<(ModelSpec, bool), ModelError> {
    let file = gguf.file.as_str();
    let architecture = gguf
        .opt_str("general.architecture")?
        .ok_or_else(|| ModelError::missing_field(file, "general.architecture"))?;
    if let Some(n) = gguf.opt_u64("split.count")?.filter(|&n| n > 1) {
        let cure = "join the parts with llama.cpp's `llama-gguf-split --merge`";
        return Err(ModelError::unsupported(file, "split.count", n, cure));
    }
    let family = family(architecture).ok_or_else(|| {
        let cure = "bitnet-b1.58, bitnet-25, bitnet and llama are";
        ModelError::unsupported(file, "general.architecture", architecture, cure)
    })?;
    let key = |name: &str| format!("{architecture}.{name}");
    let size = |name: &str| -> Result<Option<usize>, ModelError> {
        Ok(gguf.opt_u64(&key(name))?.map(|v| usize::try_from(v).unwrap_or(usize::MAX)))
    };
    let need = |name: &str| size(name)?.ok_or_else(|| ModelError::missing_field(file, key(name)));
    let need_float = |name: &str| {
        let value = gguf.opt_f64(&key(name))?;
        value.map(|v| v as f32).ok_or_else(|| ModelError::missing_field(file, key(name)))
    };

    let (hidden, heads) = (need("embedding_length")?, need("attention.head_count")?);
    let head_dim = match size("attention.key_length")? {
        Some(dim) => dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem = format!("is {heads}, which does not divide {hidden}");
            return Err(ModelError::field(file, key("attention.head_count"), problem));
        }
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(dim) = size(name)?.filter(|&d| d != head_dim) {
            return Err(ModelError::unsupported(
                file,
                key(name),
                dim,
                format!("the head width of {head_dim} is"),
            ));
        }
    }
    for name in ["expert_count", "attention.sliding_window"] {
        if let Some(n) = size(name)?.filter(|&n| n != 0) {
            return Err(ModelError::unsupported(file, key(name), n, "dense models with full attention are"));
        }
    }
    // The embedding is the truth about the vocabulary; the key is absent in many files.
    let vocab = match gguf.tensor("token_embd.weight") {
        Some(t) => t.shape[0],
        None => {
            return Err(ModelError::MissingTensor { file: file.into(), tensor: "token_embd.weight".into() });
        }
    };
    let spec = ModelSpec {
        architecture: architecture.into(),
        hidden,
        ffn: need("feed_forward_length")?,
        layers: need("block_count")?,
        heads,
        kv_heads: size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab,
        context: need("context_length")?,
        rms_eps: need_float("attention.layer_norm_rms_epsilon")?,
        rope: Rope {
            theta: gguf.opt_f64(&key("rope.freq_base"))?.unwrap_or(10_000.0) as f32,
            scaling: scaling(gguf, architecture)?,
        },
        activation: family.activation,
        sub_norms: family.sub_norms,
        linear_norms: None,
        tied_head: gguf.tensor("output.weight").is_none(),
        // Known when the tokenizer is.
        eos: Vec::new(),
    };
    spec.check(file)?;
    let spec = with_stored_divisors(gguf, spec)?;
    Ok((spec, family.interleaved))
}

/// llama.cpp stores Llama 3's scaling as a tensor of divisors.
fn with_stored_divisors(gguf: &Gguf, mut spec: ModelSpec) -> Result<ModelSpec, ModelError> {
    let Some(stored) = gguf.tensor("rope_freqs.weight") else { return Ok(spec) };
    let (words, _) = stored.bytes.as_chunks::<4>();
    let divisors: Vec<f32> = words.iter().map(|w| f32::from_le_bytes(*w)).collect();
    // The divisors of a model without scaling are ones.
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

fn scaling(gguf: &Gguf, architecture: &str) -> Result<RopeScaling, ModelError> {
    let file = gguf.file.as_str();
    let factor_key = format!("{architecture}.rope.scaling.factor");
    let factor = match gguf.opt_f64(&factor_key)? {
        Some(factor) => Some(factor),
        None => gguf.opt_f64(&format!("{architecture}.rope.scale_linear"))?,
    };
    let kind_key = format!("{architecture}.rope.scaling.type");
    match gguf.opt_str(&kind_key)? {
        Some("none") => Ok(RopeScaling::None),
        Some("linear") => match factor {
            Some(factor) => Ok(RopeScaling::Linear { factor: factor as f32 }),
            None => Err(ModelError::missing_field(file, factor_key)),
        },
        None => Ok(match factor {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor: factor as f32 },
            _ => RopeScaling::None,
        }),
        Some(other) => Err(ModelError::unsupported(file, kind_key, other, "none and linear are")),
    }
}
