//! `config.json` of a Hugging Face folder: the model's sizes, and how its linear layers are stored.

use serde_json::Value;

use crate::{Activation, Grouped, ModelError, ModelSpec, Multipliers, Rope, RopeScaling, rope};

/// Maximum size in bytes of a JSON file that describes a model.
pub(crate) const MAX_JSON: u64 = 4 << 20;
const FILE: &str = "config.json";

/// The contents of `config.json`.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub spec: ModelSpec,
    /// Whether the stored `weight_scale` multiplies a trit (`linear_class` autobitlinear) or divides it.
    pub scale_multiplies: bool,
    /// Whether the checkpoint follows 1bitLLM's modelling code, which names its inner norms differently.
    pub onebitllm: bool,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
}

/// A JSON object; errors in its fields name the field.
pub(crate) struct Fields<'a> {
    pub file: &'a str,
    /// Path of the object within the file, with a dot at the end.
    pub prefix: &'a str,
    pub json: &'a Value,
}

impl<'a> Fields<'a> {
    /// The value of a field, if it is present and not null.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.json.get(field).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &self,
        field: &str,
        kind: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        self.get(field).map(|v| read(v).ok_or_else(|| self.bad(field, format!("is not {kind}")))).transpose()
    }

    pub(crate) fn size(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, "a whole number", |v| v.as_u64()?.try_into().ok())
    }

    pub(crate) fn float(&self, field: &str) -> Result<Option<f32>, ModelError> {
        self.typed(field, "a number", |v| Some(v.as_f64()? as f32))
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, ModelError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    /// A token id or a list of them.
    pub(crate) fn ids(&self, field: &str) -> Result<Vec<u32>, ModelError> {
        let id = |v: &Value| v.as_u64()?.try_into().ok();
        let ids = self.typed(field, "a token id or a list of them", |v| match v {
            Value::Array(list) => list.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    pub(crate) fn missing(&self, field: &str) -> ModelError {
        ModelError::missing_field(self.file, self.name(field))
    }

    pub(crate) fn bad(&self, field: &str, problem: impl ToString) -> ModelError {
        ModelError::field(self.file, self.name(field), problem)
    }

    pub(crate) fn unsupported(&self, field: &str, value: impl ToString, cure: &str) -> ModelError {
        ModelError::unsupported(self.file, self.name(field), value, cure)
    }
}

/// Parses a JSON file.
pub(crate) fn json(file: &str, bytes: &[u8]) -> Result<Value, ModelError> {
    if bytes.len() as u64 > MAX_JSON {
        return Err(ModelError::TooLarge { file: file.into(), size: bytes.len() as u64, limit: MAX_JSON });
    }
    serde_json::from_slice(bytes).map_err(|e| ModelError::damaged(file, e))
}

/// Model families, chosen by `model_type` and class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// BitNet b1.58, ternary by definition.
    Bitnet,
    /// BitNet b1.58 under 1bitLLM's names.
    OneBitLlm,
    /// Llama with BitLinear.
    Llama,
    /// Group-scaled ternary weights, with RMSNorms on query and key heads.
    Qwen3,
    /// Group-scaled ternary weights, with constants that multiply activations.
    MiniCpm,
}

impl Family {
    fn of(c: &Fields<'_>) -> Result<Family, ModelError> {
        let model_type = c.text("model_type")?.ok_or_else(|| c.missing("model_type"))?;
        let class = c.get("architectures").and_then(|a| a.get(0)?.as_str()).unwrap_or_default();
        match model_type {
            "bitnet" | "llama" | "bitnet_158" if class == "BitnetForCausalLM" => Ok(Family::OneBitLlm),
            "bitnet" => Ok(Family::Bitnet),
            "llama" => Ok(Family::Llama),
            "qwen3" => Ok(Family::Qwen3),
            "minicpm" => Ok(Family::MiniCpm),
            other => {
                let cure = "use bitnet, llama with BitLinear, ternary qwen3 or ternary minicpm";
                Err(c.unsupported("model_type", other, cure))
            }
        }
    }

    fn native_bitnet(self) -> bool {
        matches!(self, Family::Bitnet | Family::OneBitLlm)
    }

    /// Whether every group of weights has its own scale.
    fn grouped(self) -> bool {
        matches!(self, Family::Qwen3 | Family::MiniCpm)
    }
}

impl Config {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Config, ModelError> {
        let json = json(FILE, bytes)?;
        let c = Fields { file: FILE, prefix: "", json: &json };
        let need = |field| c.size(field)?.ok_or_else(|| c.missing(field));

        let family = Family::of(&c)?;
        let bitnet = c.text("model_type")? == Some("bitnet");
        let scale_multiplies = if family.grouped() {
            no_other_quantization(&c)?;
            false
        } else {
            quantization(&c, family.native_bitnet())?
        };
        let quantization = c.get("quantization_config").unwrap_or(&Value::Null);
        let q = Fields { file: FILE, prefix: "quantization_config.", json: quantization };
        let linear_norms = match q.flag("use_rms_norm")? {
            Some(true) => Some(q.float("rms_norm_eps")?.unwrap_or(1e-6)),
            _ => None,
        };
        refuse_unsupported(&c)?;
        let (hidden, heads, layers) =
            (need("hidden_size")?, need("num_attention_heads")?, need("num_hidden_layers")?);
        let mut spec = ModelSpec {
            architecture: match family {
                Family::OneBitLlm => "bitnet".into(),
                _ => c.text("model_type")?.unwrap_or_default().into(),
            },
            hidden,
            ffn: need("intermediate_size")?,
            layers,
            heads,
            kv_heads: c.size("num_key_value_heads")?.unwrap_or(heads),
            head_dim: head_dim(&c, hidden, heads)?,
            vocab: need("vocab_size")?,
            context: need("max_position_embeddings")?,
            rms_eps: c.float("rms_norm_eps")?.unwrap_or(if bitnet { 1e-5 } else { 1e-6 }),
            rope: Rope { theta: 0.0, scaling: RopeScaling::None, width: None },
            activation: activation(&c, bitnet)?,
            sub_norms: family.native_bitnet(),
            linear_norms: linear_norms.filter(|_| !family.grouped()),
            head_norms: family == Family::Qwen3,
            output_gate: false,
            hybrid: None,
            rotation: None,
            // Embedding and head are set when the source sees how they are stored.
            grouped: Grouped { projections: family.grouped(), ..Grouped::default() },
            multipliers: match family {
                Family::MiniCpm => multipliers(&c, hidden, layers)?,
                _ => Multipliers::NONE,
            },
            // Only MiniCPM's configuration defaults to a tied head.
            tied_head: c.flag("tie_word_embeddings")?.unwrap_or(family == Family::MiniCpm),
            // Filled in once the tokenizer is read.
            eos: Vec::new(),
        };
        spec.rope = read_rope(&c, if bitnet { 500_000.0 } else { 10_000.0 }, &mut spec.context)?;
        spec.check(FILE)?;
        let bos = c.ids("bos_token_id")?.first().copied();
        let onebitllm = family == Family::OneBitLlm;
        Ok(Config { spec, scale_multiplies, onebitllm, bos, eos: c.ids("eos_token_id")? })
    }
}

/// Refuses switches that would change what the model computes.
fn refuse_unsupported(c: &Fields<'_>) -> Result<(), ModelError> {
    for field in ["attention_bias", "mlp_bias"] {
        if c.flag(field)? == Some(true) {
            return Err(c.unsupported(field, true, "use a model without biases"));
        }
    }
    let kinds = c.get("layer_types").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let other = kinds.iter().filter_map(Value::as_str).find(|&kind| kind != "full_attention");
    if let Some(kind) = other.or((c.flag("use_sliding_window")? == Some(true)).then_some("sliding_attention"))
    {
        return Err(c.unsupported("layer_types", kind, "use a model with full attention"));
    }
    Ok(())
}

fn activation(c: &Fields<'_>, bitnet: bool) -> Result<Activation, ModelError> {
    match c.text("hidden_act")? {
        Some("relu2") => Ok(Activation::SquaredRelu),
        Some("silu" | "swish") => Ok(Activation::Silu),
        None if bitnet => Ok(Activation::SquaredRelu),
        None => Ok(Activation::Silu),
        Some(other) => Err(c.unsupported("hidden_act", other, "use a model with relu2 or silu")),
    }
}

fn head_dim(c: &Fields<'_>, hidden: usize, heads: usize) -> Result<usize, ModelError> {
    match c.size("head_dim")? {
        Some(dim) => Ok(dim),
        None if heads > 0 && hidden.is_multiple_of(heads) => Ok(hidden / heads),
        None => Err(c.bad("num_attention_heads", format!("is {heads}, which does not divide {hidden}"))),
    }
}

/// MiniCPM's constants (`modeling_minicpm.py`): `scale_emb` multiplies embeddings, `scale_depth / sqrt(layers)`
/// multiplies branches, `hidden_size / dim_model_base` divides logits. The quotients are rounded to f32 once.
fn multipliers(c: &Fields<'_>, hidden: usize, layers: usize) -> Result<Multipliers, ModelError> {
    let need = |field| c.float(field)?.ok_or_else(|| c.missing(field));
    let depth = c.get("scale_depth").and_then(Value::as_f64).ok_or_else(|| c.missing("scale_depth"))?;
    let base = c.size("dim_model_base")?.ok_or_else(|| c.missing("dim_model_base"))?;
    Ok(Multipliers {
        embedding: need("scale_emb")?,
        residual: (depth / (layers as f64).sqrt()) as f32,
        logit_divisor: (hidden as f64 / base as f64) as f32,
    })
}

/// Refuses other quantizations of a family with group-scaled weights: its weights must be stored as floats that are
/// already ternary, or as MLX's 2 bits.
fn no_other_quantization(c: &Fields<'_>) -> Result<(), ModelError> {
    const CURE: &str = "use the model's unpacked ternary weights, its MLX 2-bit form or its GGUF file";
    for field in ["quantization", "quantization_config"] {
        let Some(json) = c.get(field) else { continue };
        let prefix = format!("{field}.");
        let q = Fields { file: FILE, prefix: &prefix, json };
        if let Some(method) = q.text("quant_method")? {
            return Err(q.unsupported("quant_method", method, CURE));
        }
        if let Some(mode) = q.text("mode")?.filter(|&mode| mode != "affine") {
            return Err(q.unsupported("mode", mode, CURE));
        }
        if let Some(bits) = q.size("bits")?.filter(|&bits| bits != 2) {
            return Err(q.unsupported("bits", bits, CURE));
        }
    }
    Ok(())
}

/// Checks `quantization_config` and returns whether the stored scale multiplies.
///
/// transformers has two linear layers for the same packed bytes: `autobitlinear` multiplies by `weight_scale`; the
/// older `bitlinear`, which is the default, divides by it.
fn quantization(c: &Fields<'_>, native: bool) -> Result<bool, ModelError> {
    let Some(json) = c.get("quantization_config") else {
        // The `bitnet` family is ternary by definition; a llama without this block is dense.
        return if native { Ok(false) } else { Err(c.missing("quantization_config")) };
    };
    let q = Fields { file: FILE, prefix: "quantization_config.", json };
    match q.text("quant_method")? {
        Some("bitnet") => {}
        other => {
            let value = other.unwrap_or("missing");
            return Err(q.unsupported(
                "quant_method",
                value,
                "use a BitNet b1.58 checkpoint, whose method is bitnet",
            ));
        }
    }
    if let Some(kept) = q.get("modules_to_not_convert").and_then(Value::as_array)
        && let Some(name) = kept.iter().filter_map(Value::as_str).find(|n| n.contains("_proj"))
    {
        return Err(q.unsupported(
            "modules_to_not_convert",
            name,
            "use a model whose projections are all ternary",
        ));
    }
    match q.text("linear_class")? {
        None | Some("bitlinear") => Ok(false),
        Some("autobitlinear") => Ok(true),
        Some(other) => Err(q.unsupported("linear_class", other, "use bitlinear or autobitlinear")),
    }
}

/// Reads rope from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling`. Lowers `context` where
/// longer texts would need other frequencies.
fn read_rope(c: &Fields<'_>, default_theta: f32, context: &mut usize) -> Result<Rope, ModelError> {
    let field = if c.get("rope_parameters").is_some() { "rope_parameters" } else { "rope_scaling" };
    let prefix = format!("{field}.");
    let r = Fields { file: FILE, prefix: &prefix, json: c.get(field).unwrap_or(&Value::Null) };
    let theta = match r.float("rope_theta")? {
        Some(theta) => theta,
        None => c.float("rope_theta")?.unwrap_or(default_theta),
    };
    let partial = match r.float("partial_rotary_factor")? {
        Some(part) => Some(part),
        None => c.float("partial_rotary_factor")?,
    };
    if let Some(part) = partial.filter(|&p| p != 1.0) {
        return Err(c.unsupported("partial_rotary_factor", part, "use a model with rope over whole heads"));
    }
    let need = |field| r.float(field)?.ok_or_else(|| r.missing(field));
    let kind = match r.text("rope_type")? {
        Some(kind) => kind,
        None => r.text("type")?.unwrap_or("default"),
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            original_context: need("original_max_position_embeddings")?,
        },
        "yarn" => yarn(&r, *context)?,
        "longrope" | "su" => long_rope(&r, context)?,
        other => {
            return Err(r.unsupported("rope_type", other, "use default, linear, llama3, yarn or longrope"));
        }
    };
    Ok(Rope { theta, scaling, width: None })
}

fn yarn(r: &Fields<'_>, context: usize) -> Result<RopeScaling, ModelError> {
    for field in ["mscale", "mscale_all_dim"] {
        if let Some(value) = r.float(field)? {
            return Err(r.unsupported(field, value, "use YaRN with a single attention factor"));
        }
    }
    if r.flag("truncate")? == Some(false) {
        return Err(r.unsupported("truncate", false, "use YaRN with truncated dimensions"));
    }
    let factor = r.float("factor")?.ok_or_else(|| r.missing("factor"))?;
    Ok(RopeScaling::Yarn {
        factor,
        original_context: r.float("original_max_position_embeddings")?.unwrap_or(context as f32),
        beta_fast: r.float("beta_fast")?.unwrap_or(rope::YARN_BETA_FAST),
        beta_slow: r.float("beta_slow")?.unwrap_or(rope::YARN_BETA_SLOW),
        attention_factor: match r.float("attention_factor")? {
            Some(factor) => factor,
            None => rope::yarn_attention_factor(factor),
        },
    })
}

/// Limits texts to the original context, where the short factors apply. With longer texts a token's keys would depend
/// on how long the text becomes.
fn long_rope(r: &Fields<'_>, context: &mut usize) -> Result<RopeScaling, ModelError> {
    let factors = r.typed("short_factor", "a list of numbers", |v| {
        v.as_array()?.iter().map(|v| Some(v.as_f64()? as f32)).collect::<Option<Vec<f32>>>()
    })?;
    let factors = factors.ok_or_else(|| r.missing("short_factor"))?;
    let original = r.size("original_max_position_embeddings")?.unwrap_or(*context);
    let factor = *context as f64 / original as f64;
    *context = original.min(*context);
    let attention_factor = match r.float("attention_factor")? {
        Some(factor) => factor,
        None => rope::long_rope_attention_factor(factor, original as f64),
    };
    Ok(RopeScaling::LongRope { factors: factors.into(), attention_factor })
}
