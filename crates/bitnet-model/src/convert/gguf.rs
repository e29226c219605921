//! GGUF files with I2_S, TQ1_0 or TQ2_0 weights, as bitnet.cpp and llama.cpp read them.

use std::path::Path;

use bitnet_tensor::DType;
use gguf_rs_lib::format::{GGUFHeader, GGUFValueType, MetadataArray, MetadataValue};

use super::{Output, Target, Unfinished, refuse};
use crate::{
    Activation, Checkpoint, ModelError, ModelSpec, RopeScaling, TensorEntry, TensorKind,
    files::ggml_type::GgmlType, names, packing, rope_freqs,
};

const ALIGNMENT: u64 = 32;

/// A tensor that will be written.
struct Planned<'a> {
    entry: &'a TensorEntry,
    name: String,
    kind: GgmlType,
    bytes: usize,
}

pub(super) fn write(
    checkpoint: &Checkpoint,
    target: Target,
    destination: &Path,
    progress: &mut dyn FnMut(&str, usize),
) -> Result<(), ModelError> {
    let spec = &checkpoint.spec;
    let architecture = architecture(spec, target)?;
    let planned = plan(checkpoint, target)?;
    let factors = rope_freqs::divisors(spec);
    let metadata = metadata(checkpoint, architecture, target)?;

    let unfinished = Unfinished::beside(destination, false)?;
    let mut out = Output::create(&unfinished.path)?;
    out.write(&head(&planned, &factors, &metadata)?)?;
    for tensor in &planned {
        out.align(ALIGNMENT)?;
        progress(&tensor.entry.name, planned.len());
        out.write(&data(checkpoint, tensor, architecture == "llama", target)?)?;
    }
    if !factors.is_empty() {
        out.align(ALIGNMENT)?;
        out.write(&factors.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<_>>())?;
    }
    out.align(ALIGNMENT)?;
    out.finish()?;
    unfinished.finish()
}

/// The architecture that computes what this model does.
fn architecture(spec: &ModelSpec, target: Target) -> Result<&'static str, ModelError> {
    let cure = "convert to packed";
    if spec.linear_norms.is_some() {
        let problem = "no architecture of GGUF has a norm before every projection";
        return Err(refuse(target, "the model", problem, cure));
    }
    let architecture = match (spec.activation, spec.sub_norms) {
        (Activation::SquaredRelu, true) => "bitnet-b1.58",
        (Activation::Silu, true) => "bitnet",
        (Activation::Silu, false) => "llama",
        (Activation::SquaredRelu, false) => {
            let problem = "no architecture of GGUF has squared ReLU without inner norms";
            return Err(refuse(target, "the model", problem, cure));
        }
    };
    let linear = matches!(spec.rope.scaling, RopeScaling::None | RopeScaling::Linear { .. });
    if architecture != "llama" && !linear {
        return Err(refuse(
            target,
            "the model",
            format!("architecture {architecture} has no Llama 3 rope scaling"),
            cure,
        ));
    }
    Ok(architecture)
}

fn plan(checkpoint: &Checkpoint, target: Target) -> Result<Vec<Planned<'_>>, ModelError> {
    let mut planned = Vec::new();
    for entry in checkpoint.tensors.entries() {
        let name = names::gguf(&entry.name)
            .ok_or_else(|| refuse(target, &entry.name, "GGUF has no name for it", "convert to packed"))?;
        let kind = match (entry.kind, target) {
            (TensorKind::Norm, _) => GgmlType::Dense(DType::F32),
            (TensorKind::Dense, _) => GgmlType::Dense(checkpoint.tensors.dense(&entry.name)?.dtype()),
            (TensorKind::Ternary, Target::I2S) => GgmlType::I2S,
            (TensorKind::Ternary, Target::Tq1_0) => GgmlType::Tq1_0,
            (TensorKind::Ternary, _) => GgmlType::Tq2_0,
        };
        let cols = entry.shape.last().copied().unwrap_or(1);
        let rows = entry.shape.iter().rev().skip(1).product();
        // bitnet.cpp's kernels read I2_S row by row, in blocks of 128.
        let block = if kind == GgmlType::I2S { 128 } else { 1 };
        let bytes = match cols.is_multiple_of(block) {
            true => kind.byte_len(rows, cols),
            false => Err(format!("rows of {cols} weights are not whole blocks of {block}")),
        };
        let bytes = bytes.map_err(|e| {
            let problem = format!("shape {:?}: {e}", entry.shape);
            refuse(target, &entry.name, problem, "convert to packed, which takes any shape")
        })?;
        planned.push(Planned { entry, name, kind, bytes });
    }
    Ok(planned)
}

/// Everything before the data.
fn head(
    planned: &[Planned<'_>],
    factors: &[f32],
    metadata: &[(String, MetadataValue)],
) -> Result<Vec<u8>, ModelError> {
    // Writing into memory fails only for values that the format cannot hold.
    let fail = |e: gguf_rs_lib::GGUFError| refuse(Target::I2S, "the metadata", e, "convert to packed");
    let mut head = Vec::new();
    let tensors = planned.len() + usize::from(!factors.is_empty());
    GGUFHeader::new(tensors as u64, metadata.len() as u64).write_to(&mut head).map_err(fail)?;
    for (key, value) in metadata {
        string(&mut head, key);
        head.extend((value.value_type() as u32).to_le_bytes());
        value.write_to(&mut head).map_err(fail)?;
    }
    let mut offset = 0u64;
    let mut descriptor = |name: &str, shape: &[usize], kind: GgmlType, bytes: usize| {
        string(&mut head, name);
        head.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&d| head.extend((d as u64).to_le_bytes()));
        head.extend(kind.id().unwrap_or(u32::MAX).to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset = (offset + bytes as u64).next_multiple_of(ALIGNMENT);
    };
    for tensor in planned {
        descriptor(&tensor.name, &tensor.entry.shape, tensor.kind, tensor.bytes);
    }
    if !factors.is_empty() {
        descriptor("rope_freqs.weight", &[factors.len()], GgmlType::Dense(DType::F32), 4 * factors.len());
    }
    Ok(head)
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The bytes of one tensor.
fn data(
    checkpoint: &Checkpoint,
    tensor: &Planned<'_>,
    interleaved: bool,
    target: Target,
) -> Result<Vec<u8>, ModelError> {
    let name = tensor.entry.name.as_str();
    match tensor.kind {
        GgmlType::Dense(_) if tensor.entry.kind == TensorKind::Norm => {
            let gains = checkpoint.tensors.dense(name)?.to_f32();
            Ok(gains.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        GgmlType::Dense(_) => Ok(checkpoint.tensors.dense(name)?.bytes().to_vec()),
        ternary => {
            let mut trits = checkpoint.tensors.ternary(name)?;
            if interleaved && (name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight")) {
                let (d, half) = (checkpoint.spec.head_dim, checkpoint.spec.head_dim / 2);
                // The inverse of reading: row 2 i + h of a head is dimension i of half h.
                trits = trits.permute_rows(|row| row / d * d + row % d % 2 * half + row % d / 2);
            }
            let packed = match ternary {
                GgmlType::I2S => packing::i2_s::pack(&trits),
                GgmlType::Tq1_0 => packing::tq1_0::pack(&trits),
                _ => packing::tq2_0::pack(&trits),
            };
            packed.map_err(|e| refuse(target, name, e, "convert to packed"))
        }
    }
}

fn metadata(
    checkpoint: &Checkpoint,
    architecture: &str,
    target: Target,
) -> Result<Vec<(String, MetadataValue)>, ModelError> {
    use MetadataValue::{Bool, F32, String as Text, U32};
    let (spec, defaults) = (&checkpoint.spec, &checkpoint.defaults);
    // LLAMA_FTYPE_MOSTLY_* of bitnet.cpp and llama.cpp.
    let file_type = match target {
        Target::I2S => 40,
        Target::Tq1_0 => 36,
        Target::Tq2_0 | Target::Packed => 37,
    };
    let mut all = vec![
        ("general.architecture".to_string(), Text(architecture.into())),
        ("general.name".into(), Text(checkpoint.name.clone())),
        ("general.file_type".into(), U32(file_type)),
        ("general.quantization_version".into(), U32(2)),
    ];
    let mut add = |key: &str, value| all.push((format!("{architecture}.{key}"), value));
    add("vocab_size", U32(spec.vocab as u32));
    add("context_length", U32(spec.context as u32));
    add("embedding_length", U32(spec.hidden as u32));
    add("block_count", U32(spec.layers as u32));
    add("feed_forward_length", U32(spec.ffn as u32));
    add("attention.head_count", U32(spec.heads as u32));
    add("attention.head_count_kv", U32(spec.kv_heads as u32));
    add("attention.layer_norm_rms_epsilon", F32(spec.rms_eps));
    add("attention.key_length", U32(spec.head_dim as u32));
    add("attention.value_length", U32(spec.head_dim as u32));
    add("rope.freq_base", F32(spec.rope.theta));
    add("rope.dimension_count", U32(spec.head_dim as u32));
    if let RopeScaling::Linear { factor } = spec.rope.scaling {
        add("rope.scaling.type", Text("linear".into()));
        add("rope.scaling.factor", F32(factor));
    }
    let mut add = |key: &str, value| all.push((format!("tokenizer.{key}"), value));
    let id = |id: Option<u32>| id.map(U32);
    let mut bos = defaults.bos;
    if let Some(tokenizer) = &checkpoint.tokenizer {
        let v = tokenizer.to_gguf(spec.vocab)?;
        add("ggml.model", Text(v.model.into()));
        if let Some(pre) = v.pre {
            add("ggml.pre", Text(pre.into()));
        }
        add("ggml.tokens", array(GGUFValueType::String, v.tokens.into_iter().map(Text))?);
        add("ggml.token_type", array(GGUFValueType::I32, v.types.into_iter().map(MetadataValue::I32))?);
        if let Some(scores) = v.scores {
            add("ggml.scores", array(GGUFValueType::F32, scores.into_iter().map(F32))?);
        }
        if let Some(merges) = v.merges {
            add("ggml.merges", array(GGUFValueType::String, merges.into_iter().map(Text))?);
        }
        if let Some(space) = v.space_prefix {
            add("ggml.add_space_prefix", Bool(space));
        }
        add("ggml.add_bos_token", Bool(v.bos.is_some()));
        add("ggml.add_eos_token", Bool(v.eos.is_some()));
        bos = v.bos.or(bos);
        if let Some(eos) = v.eos.filter(|id| defaults.eos.first() != Some(id)) {
            let problem = format!("token {eos} is put after a text, but is not its end");
            return Err(refuse(target, "the tokenizer", problem, "convert to packed"));
        }
    }
    let ids = [("ggml.bos_token_id", bos), ("ggml.eos_token_id", defaults.eos.first().copied())];
    for (key, value) in ids.into_iter().chain([("ggml.eot_token_id", defaults.eos.get(1).copied())]) {
        if let Some(value) = id(value) {
            add(key, value);
        }
    }
    if defaults.eos.len() > 2 {
        add("ggml.eos_token_ids", array(GGUFValueType::U32, defaults.eos.iter().map(|&id| U32(id)))?);
    }
    if let Some(chat) = &checkpoint.chat {
        add("chat_template", Text(chat.source().into()));
    }
    Ok(all)
}

fn array(
    kind: GGUFValueType,
    values: impl Iterator<Item = MetadataValue>,
) -> Result<MetadataValue, ModelError> {
    MetadataArray::new(kind, values.collect())
        .map(|a| MetadataValue::Array(Box::new(a)))
        .map_err(|e| refuse(Target::I2S, "the vocabulary", e, "convert to packed"))
}

#[cfg(test)]
mod tests {
    use bitnet_tensor::SharedBytes;

    use super::*;
    use crate::{convert, files::gguf::Gguf};

    fn read(path: &Path) -> Gguf {
        Gguf::read("test", SharedBytes::new(std::fs::read(path).unwrap())).unwrap()
    }

    #[test]
    fn converted_tensors_are_byte_for_byte_those_of_the_tools_that_own_the_format() {
        let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"));
        let folder = tempfile::tempdir().unwrap();
        for model in ["bitnet-packed", "llama-bitlinear"] {
            let checkpoint = Checkpoint::open(&fixtures.join(model)).unwrap();
            for (target, name) in [(Target::I2S, "I2_S"), (Target::Tq1_0, "TQ1_0"), (Target::Tq2_0, "TQ2_0")]
            {
                let path = folder.path().join("model.gguf");
                convert(&checkpoint, target, &path, &mut |_, _| {}).unwrap();
                let ours = read(&path);
                let theirs = read(&fixtures.join(model).join(format!("model-{name}.gguf")));
                assert_eq!(ours.tensors.len(), theirs.tensors.len(), "{model} {name}");
                let mut compared = 0;
                for their in theirs.tensors.iter().filter(|t| t.type_id >= 34) {
                    let our = ours.tensor(&their.name).unwrap();
                    assert_eq!((&our.shape, our.type_id), (&their.shape, their.type_id));
                    assert!(*our.bytes == *their.bytes, "{model} {name} {}", their.name);
                    compared += 1;
                }
                assert_eq!(compared, 7 * checkpoint.spec.layers);
            }
        }
    }
}
