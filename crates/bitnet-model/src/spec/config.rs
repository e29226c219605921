//! `config.json` of a Hugging Face folder: the model's sizes, and how its linear layers are stored.
//! [`Config::parse`] refuses by name whatever would change the numbers and is not supported.

use std::{collections::BTreeSet, sync::Arc};

use bitnet_kernels::DeltaShape;
use serde_json::Value;

use crate::{
    ModelError,
    names::{self, Part},
    spec::{
        Activation, Experts, Hybrid, ModelSpec, Multipliers, Pooling, Rope, RopeScaling, Rotation, Windows,
        experts::SLIDING,
        family::{Family, head_dim},
        fields::{Fields, json},
        hadamard,
        hybrid::attending_by_interval,
        rope,
    },
};

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

/// What `model_type` and class say about a model.
struct Named {
    family: Family,
    architecture: &'static str,
    /// Whether it is BitNet b1.58 under 1bitLLM's names.
    onebitllm: bool,
    /// Whether it is a BitNet embedding model: without a head, with one scale a matrix and an RMSNorm before every
    /// projection.
    embeds: bool,
}

impl Named {
    fn read(c: &Fields<'_>) -> Result<Named, ModelError> {
        let class = c.get("architectures").and_then(|a| a.get(0)?.as_str()).unwrap_or_default();
        let model_type = match c.text("model_type")? {
            Some(kind) => kind,
            // The published file names only its class.
            None if class == "MapleForCausalLM" => "maple",
            None => return Err(c.missing("model_type")),
        };
        let of = |architecture, family| Named { family, architecture, onebitllm: false, embeds: false };
        Ok(match model_type {
            "bitnet" | "llama" | "bitnet_158" if class == "BitnetForCausalLM" => {
                Named { onebitllm: true, ..of("bitnet", Family::BITNET) }
            }
            "bitnet" => of("bitnet", Family::BITNET),
            "llama" => of("llama", Family::LLAMA),
            "qwen3" if class == "Qwen3Model" => {
                Named { embeds: true, ..of("qwen3", Family { grouped: false, ..Family::QWEN3 }) }
            }
            "qwen3" => of("qwen3", Family::QWEN3),
            "minicpm" => of("minicpm", Family::MINICPM),
            "qwen3_5" | "qwen3_5_text" | PRISM => of("qwen35", Family::QWEN35),
            "maple" => of("maple", Family::MAPLE),
            "gemma3_text" => Named { embeds: true, ..of("gemma3", Family::GEMMA) },
            other => {
                let cure = "use bitnet, llama with BitLinear, ternary qwen3, qwen3_5, minicpm or maple, or a BitNet embedding model";
                return Err(c.unsupported("model_type", other, cure));
            }
        })
    }
}

/// MLX's form of a hybrid model with rotated weights.
const PRISM: &str = "prism_hadamard_qwen35";

impl Config {
    /// Reads `config.json`, and `hadamard.json` if the folder has one.
    pub(crate) fn parse(bytes: &[u8], hadamard: Option<&[u8]>) -> Result<Config, ModelError> {
        let json = json(FILE, bytes)?;
        let whole = Fields { file: FILE, prefix: "", json: &json };
        let Named { family, architecture, onebitllm, embeds } = Named::read(&whole)?;
        let rotation = read_rotation(&whole, family, hadamard)?;
        // A model that also reads images wraps the configuration of its language model.
        let text = whole.get("text_config").filter(|_| family.hybrid);
        let c = match text {
            Some(json) => Fields { file: FILE, prefix: "text_config.", json },
            None => Fields { file: FILE, prefix: "", json: &json },
        };
        let bitnet = c.text("model_type")? == Some("bitnet");
        let rms_eps = c.float("rms_norm_eps")?.unwrap_or(if bitnet { 1e-5 } else { 1e-6 });
        let scale_multiplies = if family.grouped {
            no_other_quantization(&whole)?;
            false
        } else {
            // Both are ternary by definition.
            quantization(&c, family.sub_norms || embeds)?
        };
        let linear_norms = linear_norms(&c, family, embeds.then_some(rms_eps))?;
        refuse_unsupported(&c, family)?;
        let hidden = c.need_size("hidden_size")?;
        let layers = c.need_size("num_hidden_layers")?;
        let shared = |field| c.shared_size(field, layers, |_| false);
        let need = |field, size: Option<usize>| size.ok_or_else(|| c.missing(field));
        let heads = need("num_attention_heads", shared("num_attention_heads")?)?;
        let mut spec = ModelSpec {
            hidden,
            ffn: if family.experts {
                c.need_size("moe_intermediate_size")?
            } else {
                need("intermediate_size", shared("intermediate_size")?)?
            },
            layers,
            heads,
            kv_heads: shared("num_key_value_heads")?.unwrap_or(heads),
            head_dim: head_dim(&c, ["head_dim", "num_attention_heads"], hidden, heads)?,
            vocab: c.need_size("vocab_size")?,
            context: c.need_size("max_position_embeddings")?,
            rms_eps,
            rope: Rope { theta: 0.0, scaling: RopeScaling::None, width: None, sections: None },
            activation: activation(&c, family, bitnet)?,
            linear_norms,
            experts: if family.experts { Some(Experts::of_config(&c)?) } else { None },
            windows: windows(&c, family, layers)?,
            hybrid: if family.hybrid { Some(hybrid(&c, layers)?) } else { None },
            rotation,
            multipliers: match family {
                Family { multipliers: true, .. } => multipliers(&c, hidden, layers)?,
                Family { post_norms: true, .. } => {
                    Multipliers { embedding: (hidden as f32).sqrt(), ..Multipliers::NONE }
                }
                _ => Multipliers::NONE,
            },
            tied_head: tied_head(&c, &whole, family)? || embeds,
            draft_head: false,
            // A folder may say otherwise in a file of its own.
            embeds: embeds.then_some(Pooling::Last),
            // Group scales of embedding and head are set when the source sees how they are stored, and end tokens once
            // the tokenizer is read.
            ..family.spec(architecture)
        };
        let theta = match family {
            _ if bitnet => 500_000.0,
            Family { post_norms: true, .. } => GEMMA_THETA,
            _ => 10_000.0,
        };
        spec.rope = match (&spec.windows, family.post_norms) {
            (Some(_), true) => sliding_rope(&c)?,
            _ => read_rope(&c, theta, &mut spec.context)?,
        };
        if family.post_norms {
            check_gemma(&c, &spec)?;
        }
        spec.rope.width = rotary_width(&c, family, spec.head_dim)?;
        if family.hybrid {
            spec.rope.sections =
                Some(rope::sections(&rope_fields(&c), "mrope_section", spec.rotary_width())?);
        }
        spec.check(FILE)?;
        let bos = c.ids("bos_token_id")?.first().copied();
        Ok(Config { spec, scale_multiplies, onebitllm, bos, eos: c.ids("eos_token_id")? })
    }
}

/// Whether the embedding is the output head. Only MiniCPM's configuration defaults to that.
fn tied_head(c: &Fields<'_>, whole: &Fields<'_>, family: Family) -> Result<bool, ModelError> {
    let tied = match c.flag("tie_word_embeddings")? {
        Some(tied) => Some(tied),
        None => whole.flag("tie_word_embeddings")?,
    };
    Ok(tied.unwrap_or(family.multipliers))
}

/// Epsilon of the RMSNorm before every projection, if the model has them; `usual` is the family's.
fn linear_norms(c: &Fields<'_>, family: Family, usual: Option<f32>) -> Result<Option<f32>, ModelError> {
    let json = c.get("quantization_config").unwrap_or(&Value::Null);
    let q = Fields { file: FILE, prefix: "quantization_config.", json };
    let eps = match q.flag("use_rms_norm")? {
        Some(true) => Some(q.float("rms_norm_eps")?.unwrap_or(1e-6)),
        _ => usual,
    };
    Ok(eps.filter(|_| !family.grouped))
}

/// The rotation that `hadamard.json` describes. MLX's form of a rotated model must have that file, and repeats its
/// contents in `config.json`.
fn read_rotation(
    c: &Fields<'_>,
    family: Family,
    hadamard: Option<&[u8]>,
) -> Result<Option<Arc<Rotation>>, ModelError> {
    const NAME: &str = "hadamard.json";
    let prism = c.text("model_type")? == Some(PRISM);
    let json = hadamard.map(|bytes| json(NAME, bytes)).transpose()?;
    let rotation = match &json {
        Some(json) => hadamard::of_json(NAME, json, family.hybrid)?,
        None => None,
    };
    let Some(rotation) = rotation else {
        let missing = || ModelError::missing_field(NAME, "prism.hadamard.version");
        return if prism { Err(missing()) } else { Ok(None) };
    };
    if !rotation.grouped_values
        && rotation.weights.iter().any(|name| name.ends_with(".linear_attn.out_proj.weight"))
    {
        let cure =
            "value heads of safetensors files are grouped by key head; use the file that was published";
        return Err(ModelError::unsupported(NAME, "prism.hadamard.gdn_v_grouped", false, cure));
    }
    if prism {
        check_prism(c, &rotation)?;
    }
    Ok(Some(rotation))
}

/// Checks that the `config.json` of MLX's form of a rotated model has no values that this program does not know, and
/// lists the same modules as `hadamard.json`.
fn check_prism(c: &Fields<'_>, rotation: &Rotation) -> Result<(), ModelError> {
    const CURE: &str = "use the model's GGUF file";
    if let Some(other) = c.size("schema_version")?.filter(|&version| version != 2) {
        return Err(c.unsupported("schema_version", other, CURE));
    }
    for (field, only) in [
        ("hadamard_config", "hadamard.json"),
        ("gdn_activation_layout", "grouped"),
        ("tensor_namespace", "mlx-vlm-qwen3_5"),
        ("base_model_type", "qwen3_5"),
    ] {
        if let Some(other) = c.text(field)?.filter(|&value| value != only) {
            return Err(c.unsupported(field, other, CURE));
        }
    }
    let Some(modules) = c.get("modules") else { return Ok(()) };
    let modules = modules.as_array().ok_or_else(|| c.bad("modules", "is not a list"))?;
    let gate = Part::OutputGate.name();
    let mut unlisted: BTreeSet<&str> =
        rotation.weights.iter().map(String::as_str).filter(|name| !name.contains(gate)).collect();
    unlisted.extend(rotation.embedding.then_some(names::EMBEDDING));
    for json in modules {
        let m = Fields { file: FILE, prefix: "modules.", json };
        let path = m.text("path")?.ok_or_else(|| m.missing("path"))?;
        let name = format!("{}.weight", names::unwrapped(path));
        let embedding = m.flag("embedding")?.unwrap_or(false);
        if !unlisted.remove(name.as_str()) || embedding != (name == names::EMBEDDING) {
            return Err(
                m.bad("path", format!("is {path}, which hadamard.json does not name once in that role"))
            );
        }
        if m.size("block")?.is_some_and(|block| block != rotation.block) {
            return Err(m.bad("block", format!("of {path} is not the block_size of hadamard.json")));
        }
    }
    match unlisted.first() {
        Some(name) => Err(c.bad("modules", format!("does not list {name}, which hadamard.json names"))),
        None => Ok(()),
    }
}

/// The gated-delta layers of a hybrid model, and where they stand.
fn hybrid(c: &Fields<'_>, layers: usize) -> Result<Hybrid, ModelError> {
    if c.flag("attn_output_gate")? == Some(false) {
        return Err(c.unsupported("attn_output_gate", false, "use a model whose attention has output gates"));
    }
    let head_dim = c.need_size("linear_key_head_dim")?;
    let values = c.need_size("linear_value_head_dim")?;
    if values != head_dim {
        let cure = format!("use a model where it is the width of key heads, {head_dim}");
        return Err(c.unsupported("linear_value_head_dim", values, &cure));
    }
    let kinds = c.list("layer_types", "a list of strings", Value::as_str)?;
    let attends: Vec<bool> = match kinds {
        Some(kinds) => kinds.into_iter().map(|kind| kind == FULL_ATTENTION).collect(),
        None => attending_by_interval(c, layers)?,
    };
    Ok(Hybrid {
        attends: attends.into(),
        delta: DeltaShape {
            key_heads: c.need_size("linear_num_key_heads")?,
            value_heads: c.need_size("linear_num_value_heads")?,
            head_dim,
            taps: c.need_size("linear_conv_kernel_dim")?,
        },
        // Set when the source sees how they are stored.
        float_alpha_beta: false,
    })
}

/// The kinds of layers in `layer_types`.
const FULL_ATTENTION: &str = "full_attention";
const LINEAR_ATTENTION: &str = "linear_attention";

/// The parameters of rope: `rope_parameters` (transformers 5) or `rope_scaling`.
fn rope_fields<'a>(c: &Fields<'a>) -> Fields<'a> {
    let [field, prefix] = match c.get("rope_parameters") {
        Some(_) => ["rope_parameters", "rope_parameters."],
        None => ["rope_scaling", "rope_scaling."],
    };
    Fields { file: FILE, prefix, json: c.get(field).unwrap_or(&Value::Null) }
}

/// Number of dimensions of a head that rotate, where that may be a part of them.
fn rotary_width(c: &Fields<'_>, family: Family, head_dim: usize) -> Result<Option<usize>, ModelError> {
    const FIELD: &str = "partial_rotary_factor";
    let r = rope_fields(c);
    let part = match r.float(FIELD)? {
        Some(part) => Some(part),
        None => c.float(FIELD)?,
    };
    match part {
        _ if family.hybrid => {
            // The default of the family's configuration is a quarter.
            let width = (head_dim as f32 * part.unwrap_or(0.25)) as usize;
            Ok(Some(width).filter(|&width| width != head_dim))
        }
        Some(part) if family.experts => {
            Ok(Some((head_dim as f32 * part) as usize).filter(|&width| width != head_dim))
        }
        Some(part) if part != 1.0 => {
            Err(c.unsupported(FIELD, part, "use a model with rope over whole heads"))
        }
        _ => Ok(None),
    }
}

/// Refuses switches that would change what the model computes.
fn refuse_unsupported(c: &Fields<'_>, family: Family) -> Result<(), ModelError> {
    for field in ["attention_bias", "mlp_bias"] {
        if c.flag(field)? == Some(true) {
            return Err(c.unsupported(field, true, "use a model without biases"));
        }
    }
    let kinds = c.get("layer_types").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let slides = family.experts || family.post_norms;
    let known = |kind: &str| {
        kind == FULL_ATTENTION || family.hybrid && kind == LINEAR_ATTENTION || slides && kind == SLIDING
    };
    let other = kinds.iter().filter_map(Value::as_str).find(|kind| !known(kind));
    if let Some(kind) = other.or((!slides && c.flag("use_sliding_window")? == Some(true)).then_some(SLIDING))
    {
        return Err(c.unsupported("layer_types", kind, "use a model with full attention"));
    }
    Ok(())
}

fn activation(c: &Fields<'_>, family: Family, bitnet: bool) -> Result<Activation, ModelError> {
    if family.post_norms {
        const FIELD: &str = "hidden_activation";
        let cure = "use a model with gelu_pytorch_tanh";
        return match c.text(FIELD)? {
            None | Some("gelu_pytorch_tanh") => Ok(family.activation),
            Some(other) => Err(c.unsupported(FIELD, other, cure)),
        };
    }
    match c.text("hidden_act")? {
        None | Some("silu" | "swish") if family.experts => Ok(family.activation),
        Some("relu2") => Ok(Activation::SquaredRelu),
        Some("silu" | "swish") => Ok(Activation::Silu),
        None if bitnet => Ok(Activation::SquaredRelu),
        None => Ok(Activation::Silu),
        Some(other) => Err(c.unsupported("hidden_act", other, "use a model with relu2 or silu")),
    }
}

/// The windows of a family that has them, and the rope of the layers that do not slide.
fn windows(c: &Fields<'_>, family: Family, layers: usize) -> Result<Option<Windows>, ModelError> {
    if family.experts {
        let rotated = c.flag("nope_on_global_attention")? == Some(false);
        let theta = c.float("rope_theta")?.unwrap_or(10_000.0);
        return Windows::of_config(c, layers, rotated.then_some(theta));
    }
    if !family.post_norms {
        return Ok(None);
    }
    let full = rope_fields(c);
    let full =
        Fields { file: FILE, prefix: "rope_parameters.full_attention.", json: &full.json[FULL_ATTENTION] };
    let theta = match full.float("rope_theta")? {
        Some(theta) => theta,
        None => c.float("rope_theta")?.unwrap_or(GEMMA_THETA),
    };
    Windows::of_config(c, layers, Some(theta))
}

/// Base of the frequencies of Gemma's layers with full attention, if the file names none.
const GEMMA_THETA: f32 = 1e6;

/// The rope of the sliding layers of Gemma, which have a base of their own. Stretched rope of the others is not supported.
fn sliding_rope(c: &Fields<'_>) -> Result<Rope, ModelError> {
    let r = rope_fields(c);
    for (kind, prefix) in
        [(FULL_ATTENTION, "rope_parameters.full_attention."), (SLIDING, "rope_parameters.sliding_attention.")]
    {
        let of = Fields { file: FILE, prefix, json: &r.json[kind] };
        if let Some(other) = of.text("rope_type")?.filter(|&kind| kind != "default") {
            return Err(of.unsupported("rope_type", other, "use a model whose rope is not stretched"));
        }
    }
    if c.get("rope_scaling").is_some() {
        return Err(c.unsupported("rope_scaling", "set", "use a model whose rope is not stretched"));
    }
    let sliding = Fields { file: FILE, prefix: "rope_parameters.sliding_attention.", json: &r.json[SLIDING] };
    let theta = match sliding.float("rope_theta")? {
        Some(theta) => theta,
        None => c.float("rope_local_base_freq")?.unwrap_or(10_000.0),
    };
    Ok(Rope { theta, scaling: RopeScaling::None, width: None, sections: None })
}

/// Refuses what would change the numbers of a Gemma model.
fn check_gemma(c: &Fields<'_>, spec: &ModelSpec) -> Result<(), ModelError> {
    if let Some(scalar) = c.float("query_pre_attn_scalar")?.filter(|&s| s != spec.head_dim as f32) {
        let cure = format!("use a model where it is the width of a head, {}", spec.head_dim);
        return Err(c.unsupported("query_pre_attn_scalar", scalar, &cure));
    }
    if let Some(cap) = c.float("attn_logit_softcapping")? {
        return Err(c.unsupported("attn_logit_softcapping", cap, "use a model without it"));
    }
    if c.flag("use_bidirectional_attention")? == Some(true) {
        return Err(c.unsupported("use_bidirectional_attention", true, "use a causal model"));
    }
    Ok(())
}

/// MiniCPM's constants (`modeling_minicpm.py`): `scale_emb` multiplies embeddings, `scale_depth / sqrt(layers)`
/// multiplies branches, `hidden_size / dim_model_base` divides logits. The quotients are rounded to f32 once.
fn multipliers(c: &Fields<'_>, hidden: usize, layers: usize) -> Result<Multipliers, ModelError> {
    let depth = c.get("scale_depth").and_then(Value::as_f64).ok_or_else(|| c.missing("scale_depth"))?;
    let base = c.need_size("dim_model_base")?;
    Ok(Multipliers {
        embedding: c.need_float("scale_emb")?,
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
    let r = rope_fields(c);
    let theta = match r.float("rope_theta")? {
        Some(theta) => theta,
        None => c.float("rope_theta")?.unwrap_or(default_theta),
    };
    let kind = match r.text("rope_type")? {
        Some(kind) => kind,
        None => r.text("type")?.unwrap_or("default"),
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: r.need_float("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: r.need_float("factor")?,
            low_freq_factor: r.need_float("low_freq_factor")?,
            high_freq_factor: r.need_float("high_freq_factor")?,
            original_context: r.need_float("original_max_position_embeddings")?,
        },
        "yarn" => yarn(&r, *context)?,
        "longrope" | "su" => long_rope(&r, context)?,
        other => {
            return Err(r.unsupported("rope_type", other, "use default, linear, llama3, yarn or longrope"));
        }
    };
    Ok(Rope { theta, scaling, width: None, sections: None })
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
    let factor = r.need_float("factor")?;
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
    let factors = r.list("short_factor", "a list of numbers", |v| Some(v.as_f64()? as f32))?;
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
