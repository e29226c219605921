//! Writes a Hugging Face folder with packed uint8 weights, as transformers reads it ([`write`]).
//! All floats of a folder have one type.

use std::path::Path;

use bitnet_tensor::{DType, TernaryTensor};
use half::{bf16, f16};
use serde_json::{Map, Value, json};

use super::{Output, Target, refuse};
use crate::{
    ModelError,
    files::{Checkpoint, OutputFile, TensorEntry, TensorKind},
    packing,
    spec::{Activation, RopeScaling},
};

/// Data begins at a multiple of this many bytes, so that readers can map it as numbers.
const ALIGNMENT: usize = 8;

pub(super) fn write(
    checkpoint: &Checkpoint,
    destination: &Path,
    progress: &mut dyn FnMut(&str, usize),
) -> Result<OutputFile, ModelError> {
    if destination.exists() {
        let problem = "the destination already exists";
        let what = destination.display().to_string();
        return Err(refuse(Target::Packed, &what, problem, "name a folder that does not exist"));
    }
    if checkpoint.spec.grouped.projections {
        let problem = "it holds one scale a tensor, but this model has one for every group of weights";
        return Err(refuse(Target::Packed, "the model", problem, "convert to q2_0 or pq2_0"));
    }
    if checkpoint.spec.post_norms {
        let problem = "no folder in this form holds norms before the residual";
        return Err(refuse(Target::Packed, "the model", problem, "convert to i2_s"));
    }
    let float = common_type(checkpoint)?;
    let header = header(checkpoint, float)?;
    let folder = OutputFile::create_folder(destination).map_err(ModelError::io("create", destination))?;
    let small = |name: &str, text: &str| -> Result<(), ModelError> {
        let path = folder.path().join(name);
        std::fs::write(&path, text).map_err(ModelError::io("write", &path))
    };
    small("config.json", &pretty(config(checkpoint, float)))?;
    small("generation_config.json", &pretty(generation_config(checkpoint)))?;
    if let Some(tokenizer) = &checkpoint.tokenizer {
        small("tokenizer.json", &tokenizer.to_json())?;
        small("tokenizer_config.json", &pretty(tokenizer_config(checkpoint)))?;
    }
    let mut out = Output::create(&folder.path().join("model.safetensors"))?;
    out.write(&(header.len() as u64).to_le_bytes())?;
    out.write(header.as_bytes())?;
    let entries = checkpoint.tensors.entries();
    for entry in entries {
        progress(&entry.name, entries.len());
        match entry.kind {
            TensorKind::Ternary => {
                let trits = checkpoint.tensors.ternary(&entry.name)?;
                out.write(&packing::packed::pack(&trits))?;
                out.write(&float.bytes(one_scale(&entry.name, &trits)?))?;
            }
            TensorKind::Grouped | TensorKind::Dense | TensorKind::Norm => {
                let tensor = checkpoint.tensors.dense(&entry.name)?;
                if tensor.dtype() == float.dtype() {
                    out.write(tensor.bytes())?
                } else {
                    out.write(&tensor.to_f32().into_iter().flat_map(|v| float.bytes(v)).collect::<Vec<_>>())?
                }
            }
        }
    }
    out.finish()?;
    Ok(folder)
}

fn pretty(json: Value) -> String {
    format!("{json:#}\n")
}

/// The type of all floats of a folder. transformers 5 computes in the types that it finds, and fails where a weight
/// and a scale meet in two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    fn dtype(self) -> DType {
        match self {
            Float::F32 => DType::F32,
            Float::F16 => DType::F16,
            Float::Bf16 => DType::BF16,
        }
    }

    /// The names of the type in safetensors and in `config.json`.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Float::F32 => ("F32", "float32"),
            Float::F16 => ("F16", "float16"),
            Float::Bf16 => ("BF16", "bfloat16"),
        }
    }

    fn bytes(self, value: f32) -> Vec<u8> {
        match self {
            Float::F32 => value.to_le_bytes().into(),
            Float::F16 => f16::from_f32(value).to_le_bytes().into(),
            Float::Bf16 => bf16::from_f32(value).to_le_bytes().into(),
        }
    }

    fn holds(self, value: f32) -> bool {
        match self {
            Float::F32 => true,
            Float::F16 => f16::from_f32(value).to_f32() == value,
            Float::Bf16 => bf16::from_f32(value).to_f32() == value,
        }
    }
}

/// The narrowest type that holds every float of the model: the one in which all are stored, if it also holds the scales,
/// otherwise f32.
fn common_type(checkpoint: &Checkpoint) -> Result<Float, ModelError> {
    let (ternary, floats): (Vec<_>, Vec<_>) =
        checkpoint.tensors.entries().iter().partition(|entry| entry.kind == TensorKind::Ternary);
    let stored = floats.iter().map(|entry| Ok(checkpoint.tensors.dense(&entry.name)?.dtype()));
    let stored = stored.collect::<Result<Vec<_>, ModelError>>()?;
    let all = |dtype| stored.iter().all(|&other| other == dtype);
    let mut float = [Float::F16, Float::Bf16].into_iter().find(|float| all(float.dtype()));
    for entry in ternary {
        let scale = one_scale(&entry.name, &checkpoint.tensors.ternary(&entry.name)?)?;
        float = float.filter(|float| float.holds(scale));
    }
    Ok(float.unwrap_or(Float::F32))
}

fn one_scale(name: &str, trits: &TernaryTensor) -> Result<f32, ModelError> {
    packing::one_scale(trits).map_err(|e| refuse(Target::Packed, name, e, "keep the original"))
}

/// The JSON header, with the tensors in the order they are written.
fn header(checkpoint: &Checkpoint, float: Float) -> Result<String, ModelError> {
    let ((float, _), width) = (float.names(), float.bytes(0.0).len());
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut at = 0;
    let mut add = |name: String, dtype: &str, shape: &[usize], bytes: usize| {
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]});
        header.insert(name, entry);
        at += bytes;
    };
    for TensorEntry { name, shape, kind, .. } in checkpoint.tensors.entries() {
        match kind {
            TensorKind::Ternary => {
                let packed = [shape[0].div_ceil(4), shape[1]];
                add(name.clone(), "U8", &packed, packed[0] * packed[1]);
                add(format!("{name}_scale"), float, &[1], width);
            }
            TensorKind::Grouped | TensorKind::Dense | TensorKind::Norm => {
                let tensor = checkpoint.tensors.dense(name)?;
                add(name.clone(), float, shape, width * tensor.rows() * tensor.cols());
            }
        }
    }
    let mut text = Value::Object(header).to_string();
    let padded = text.len().next_multiple_of(ALIGNMENT);
    text.extend(std::iter::repeat_n(' ', padded - text.len()));
    Ok(text)
}

fn config(checkpoint: &Checkpoint, floats: Float) -> Value {
    let (spec, defaults) = (&checkpoint.spec, &checkpoint.defaults);
    let (model_type, class) = match spec.sub_norms {
        _ if spec.embeds.is_some() => ("qwen3", "Qwen3Model"),
        true => ("bitnet", "BitNetForCausalLM"),
        false => ("llama", "LlamaForCausalLM"),
    };
    let rope_scaling = match spec.rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => json!({
            "rope_type": "yarn",
            "factor": float(factor),
            "original_max_position_embeddings": original_context as u64,
            "beta_fast": float(beta_fast),
            "beta_slow": float(beta_slow),
            "attention_factor": float(attention_factor),
        }),
        RopeScaling::LongRope { ref factors, attention_factor } => {
            let factors: Vec<Value> = factors.iter().copied().map(float).collect();
            json!({
                "rope_type": "longrope",
                "short_factor": factors,
                "long_factor": factors,
                "attention_factor": float(attention_factor),
            })
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_context as u64,
        }),
    };
    let mut quantization =
        json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"});
    if let Some(eps) = spec.linear_norms {
        quantization["use_rms_norm"] = true.into();
        quantization["rms_norm_eps"] = float(eps);
    }
    json!({
        "model_type": model_type,
        "architectures": [class],
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": float(spec.rms_eps),
        "rope_theta": float(spec.rope.theta),
        "rope_scaling": rope_scaling,
        "hidden_act": match spec.activation {
            Activation::SquaredRelu => "relu2",
            Activation::Silu | Activation::ClampedSilu { .. } => "silu",
            Activation::Gelu => "gelu_pytorch_tanh",
        },
        "attention_bias": false,
        "tie_word_embeddings": spec.tied_head,
        "bos_token_id": defaults.bos,
        "eos_token_id": defaults.eos,
        "torch_dtype": floats.names().1,
        "quantization_config": quantization,
    })
}

/// An f32 in its shortest decimal form, not that of the f64 it widens to.
fn float(value: f32) -> Value {
    serde_json::from_str(&format!("{value:?}")).unwrap_or(Value::Null)
}

fn generation_config(checkpoint: &Checkpoint) -> Value {
    let defaults = &checkpoint.defaults;
    let mut json = json!({"bos_token_id": defaults.bos, "eos_token_id": defaults.eos});
    let values = [
        ("temperature", defaults.temperature.map(float)),
        ("top_p", defaults.top_p.map(float)),
        ("top_k", defaults.top_k.map(Value::from)),
        ("min_p", defaults.min_p.map(float)),
        ("repetition_penalty", defaults.repetition_penalty.map(float)),
        ("do_sample", defaults.do_sample.map(Value::from)),
    ];
    for (field, value) in values {
        if let Some(value) = value {
            json[field] = value;
        }
    }
    json
}

fn tokenizer_config(checkpoint: &Checkpoint) -> Value {
    let text = |id: Option<u32>| {
        // transformers makes a token that is named here special, even a piece of text that a file names by mistake.
        let tokenizer = checkpoint.tokenizer.as_ref()?;
        let bytes = tokenizer.token_bytes(id.filter(|&id| tokenizer.is_special(id))?)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let mut json = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": checkpoint.spec.context,
        "bos_token": text(checkpoint.defaults.bos),
        "eos_token": text(checkpoint.defaults.eos.first().copied()),
    });
    if let Some(chat) = &checkpoint.chat {
        json["chat_template"] = match chat.for_tools(true).source() {
            tools if tools == chat.source() => chat.source().into(),
            tools => json!([
                {"name": "default", "template": chat.source()},
                {"name": "tool_use", "template": tools},
            ]),
        };
    }
    json
}
