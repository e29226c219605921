//! `config.json` of a Hugging Face folder: the model's sizes, and how its linear layers are stored.

use serde_json::Value;

use crate::{Activation, ModelError, ModelSpec, Rope, RopeScaling};

/// Bytes of the JSON files that describe a model.
pub(crate) const MAX_JSON: u64 = 4 << 20;
const FILE: &str = "config.json";

/// What `config.json` says.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub spec: ModelSpec,
    /// Whether the stored `weight_scale` multiplies a trit (`linear_class` autobitlinear) or divides it.
    pub scale_multiplies: bool,
    /// 1bitLLM's modelling code, which names its inner norms differently.
    pub onebitllm: bool,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
}

/// A JSON object whose fields are read with errors that name them.
pub(crate) struct Fields<'a> {
    pub file: &'a str,
    /// Path of the object within the file, with a dot at its end.
    pub prefix: &'a str,
    pub json: &'a Value,
}

impl<'a> Fields<'a> {
    /// The value of a field that is there and not null.
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

impl Config {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Config, ModelError> {
        let json = json(FILE, bytes)?;
        let c = Fields { file: FILE, prefix: "", json: &json };
        let need = |field| c.size(field)?.ok_or_else(|| c.missing(field));

        let model_type = c.text("model_type")?.ok_or_else(|| c.missing("model_type"))?;
        let class = c.get("architectures").and_then(|a| a.get(0)?.as_str()).unwrap_or_default();
        let onebitllm = class == "BitnetForCausalLM";
        let bitnet = model_type == "bitnet";
        if !(bitnet || model_type == "llama" || model_type == "bitnet_158" && onebitllm) {
            let cure = "bitnet and llama with BitLinear are";
            return Err(c.unsupported("model_type", model_type, cure));
        }
        let scale_multiplies = quantization(&c, bitnet || onebitllm)?;
        let quantization = c.get("quantization_config").unwrap_or(&Value::Null);
        let q = Fields { file: FILE, prefix: "quantization_config.", json: quantization };
        let linear_norms = match q.flag("use_rms_norm")? {
            Some(true) => Some(q.float("rms_norm_eps")?.unwrap_or(1e-6)),
            _ => None,
        };

        let activation = match c.text("hidden_act")? {
            Some("relu2") => Activation::SquaredRelu,
            Some("silu" | "swish") => Activation::Silu,
            None if bitnet => Activation::SquaredRelu,
            None => Activation::Silu,
            Some(other) => return Err(c.unsupported("hidden_act", other, "relu2 and silu are")),
        };
        for field in ["attention_bias", "mlp_bias"] {
            if c.flag(field)? == Some(true) {
                return Err(c.unsupported(field, true, "models without biases are"));
            }
        }
        let (hidden, heads) = (need("hidden_size")?, need("num_attention_heads")?);
        let head_dim = match c.size("head_dim")? {
            Some(dim) => dim,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return Err(
                    c.bad("num_attention_heads", format!("is {heads}, which does not divide {hidden}"))
                );
            }
        };
        let spec = ModelSpec {
            architecture: if onebitllm { "bitnet".into() } else { model_type.into() },
            hidden,
            ffn: need("intermediate_size")?,
            layers: need("num_hidden_layers")?,
            heads,
            kv_heads: c.size("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            vocab: need("vocab_size")?,
            context: need("max_position_embeddings")?,
            rms_eps: c.float("rms_norm_eps")?.unwrap_or(if bitnet { 1e-5 } else { 1e-6 }),
            rope: rope(&c, if bitnet { 500_000.0 } else { 10_000.0 })?,
            activation,
            sub_norms: bitnet || onebitllm,
            linear_norms,
            tied_head: c.flag("tie_word_embeddings")?.unwrap_or(false),
            // Known when the tokenizer is.
            eos: Vec::new(),
        };
        spec.check(FILE)?;
        let bos = c.ids("bos_token_id")?.first().copied();
        Ok(Config { spec, scale_multiplies, onebitllm, bos, eos: c.ids("eos_token_id")? })
    }
}

/// Checks `quantization_config` and answers whether the stored scale multiplies.
///
/// transformers has two classes of linear layer for the same packed bytes: `autobitlinear` multiplies by
/// `weight_scale`, the older `bitlinear` (the default when nothing is said) divides by it.
fn quantization(c: &Fields<'_>, native: bool) -> Result<bool, ModelError> {
    let Some(json) = c.get("quantization_config") else {
        // The `bitnet` family is ternary by definition; a llama without this block is a dense model.
        return if native { Ok(false) } else { Err(c.missing("quantization_config")) };
    };
    let q = Fields { file: FILE, prefix: "quantization_config.", json };
    match q.text("quant_method")? {
        Some("bitnet") => {}
        other => {
            let value = other.unwrap_or("missing");
            return Err(q.unsupported("quant_method", value, "bitnet is; use a BitNet b1.58 checkpoint"));
        }
    }
    if let Some(kept) = q.get("modules_to_not_convert").and_then(Value::as_array)
        && let Some(name) = kept.iter().filter_map(Value::as_str).find(|n| n.contains("_proj"))
    {
        return Err(q.unsupported(
            "modules_to_not_convert",
            name,
            "models whose projections are all ternary are",
        ));
    }
    match q.text("linear_class")? {
        None | Some("bitlinear") => Ok(false),
        Some("autobitlinear") => Ok(true),
        Some(other) => Err(q.unsupported("linear_class", other, "bitlinear and autobitlinear are")),
    }
}

/// Rope from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling`.
fn rope(c: &Fields<'_>, default_theta: f32) -> Result<Rope, ModelError> {
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
        return Err(c.unsupported("partial_rotary_factor", part, "rope over whole heads is"));
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
        other => return Err(r.unsupported("rope_type", other, "default, linear and llama3 are")),
    };
    Ok(Rope { theta, scaling })
}
