//! Writes GGUF files with I2_S, TQ1_0, TQ2_0, Q2_0 or PQ2_0 weights, as bitnet.cpp, llama.cpp and its fork read them,
//! or with panels for this program's CPU kernels.

use std::{path::Path, thread};

use bitnet_kernels::{Cpu, Isa, Panels};
use bitnet_tensor::DType;
use gguf_rs_lib::format::{GGUFHeader, GGUFValueType, MetadataArray, MetadataValue};
use half::f16;

use super::{Output, Target, refuse};
use crate::{
    ModelError,
    files::{
        Checkpoint, GenerationDefaults, OutputFile, TensorEntry, TensorKind, ggml_type::GgmlType,
        gguf_spec::family, panels, rope_freqs,
    },
    names::{self, PanelMatrix, Part},
    net::weights::read_stacked,
    packing,
    spec::{
        Activation, Experts, Hybrid, ModelSpec, Multipliers, RopeScaling,
        experts::{CLAMP, PATTERN},
        hadamard,
        hybrid::attending,
        rope,
    },
};

/// Data begins at a multiple of this many bytes: as other tools expect, or whole cache lines for kernels that read the
/// file in place.
fn alignment(target: Target) -> u64 {
    if target == Target::Panels { 64 } else { 32 }
}

/// A tensor to be written.
struct Planned<'a> {
    name: String,
    /// Outermost dimension first.
    shape: Vec<usize>,
    kind: GgmlType,
    bytes: usize,
    content: Content<'a>,
}

/// The source of a tensor's bytes.
enum Content<'a> {
    Entry(&'a TensorEntry),
    /// Projections, stacked into one matrix of panels.
    Stack(Vec<String>),
    /// The copy of the output head.
    HeadCopy,
    /// Divisors of rotary frequencies.
    Divisors(Vec<f32>),
}

pub(super) fn write(
    checkpoint: &Checkpoint,
    target: Target,
    destination: &Path,
    progress: &mut dyn FnMut(&str, usize),
) -> Result<OutputFile, ModelError> {
    let spec = &checkpoint.spec;
    let architecture = architecture(spec, target)?;
    let mut planned = plan(checkpoint, target)?;
    for (name, divisors) in divisors(spec) {
        let (shape, bytes) = (vec![divisors.len()], 4 * divisors.len());
        let kind = GgmlType::Dense(DType::F32);
        let content = Content::Divisors(divisors);
        planned.push(Planned { name: name.into(), shape, kind, bytes, content });
    }
    let metadata = metadata(checkpoint, architecture, target)?;
    let interleaved = family(architecture).is_some_and(|(_, interleaved)| interleaved);
    let mut packer = match target {
        Target::Panels => {
            Some(Cpu::new(Isa::best(), thread::available_parallelism().map_or(1, usize::from))?)
        }
        _ => None,
    };

    let file = OutputFile::create(destination).map_err(ModelError::io("create", destination))?;
    let mut out = Output::create(file.path())?;
    out.write(&head(&planned, &metadata, alignment(target))?)?;
    for tensor in &planned {
        out.align(alignment(target))?;
        progress(&tensor.name, planned.len());
        put(&mut out, checkpoint, tensor, interleaved, target, packer.as_mut())?;
    }
    out.align(alignment(target))?;
    out.finish()?;
    Ok(file)
}

/// The divisors of rotary frequencies, by tensor name.
fn divisors(spec: &ModelSpec) -> Vec<(&'static str, Vec<f32>)> {
    if let RopeScaling::LongRope { factors, .. } = &spec.rope.scaling {
        // The long factors apply beyond the original context, where our texts end; llama.cpp requires the tensor.
        return ["rope_factors_long.weight", "rope_factors_short.weight"]
            .map(|name| (name, factors.to_vec()))
            .into();
    }
    let divisors = rope_freqs::divisors(spec);
    if divisors.is_empty() { Vec::new() } else { vec![("rope_freqs.weight", divisors)] }
}

/// The architecture of a model with a scale for every group of weights.
fn grouped_architecture(spec: &ModelSpec, target: Target) -> Result<&'static str, ModelError> {
    if !matches!(target, Target::Q2_0 | Target::Pq2_0 | Target::Panels) {
        let problem = "it holds one scale a tensor, but this model has one for every group of weights";
        return Err(refuse(target, "the model", problem, "convert to q2_0 or pq2_0"));
    }
    match (spec.head_norms, spec.multipliers == Multipliers::NONE) {
        (true, true) if spec.experts.is_some() => Ok("maple"),
        (true, true) if spec.hybrid.is_some() => Ok("qwen35"),
        (true, true) => Ok("qwen3"),
        (false, _) if spec.hybrid.is_none() => Ok("minicpm"),
        _ => {
            let problem = "no GGUF architecture has these layers together with multipliers";
            Err(refuse(target, "the model", problem, "keep the original"))
        }
    }
}

/// The GGUF architecture that computes the same as this model.
fn architecture(spec: &ModelSpec, target: Target) -> Result<&'static str, ModelError> {
    if spec.grouped.projections {
        return grouped_architecture(spec, target);
    }
    let cure = "convert to packed";
    if matches!(target, Target::Q2_0 | Target::Pq2_0) {
        let problem =
            "it is for models with a scale for every group of weights, but this model has one a tensor";
        return Err(refuse(
            target,
            "the model",
            problem,
            "convert to i2_s, tq1_0 or tq2_0, or convert to packed",
        ));
    }
    if spec.linear_norms.is_some() && (spec.embeds.is_none() || target == Target::Panels) {
        let problem = match target {
            Target::Panels => "panels hold no models with a norm before every projection",
            _ => "no GGUF architecture has a norm before every projection, except that of embedding models",
        };
        return Err(refuse(target, "the model", problem, cure));
    }
    let architecture = match (spec.activation, spec.sub_norms) {
        (Activation::SquaredRelu, true) => "bitnet-b1.58",
        (Activation::Silu, true) => "bitnet",
        (Activation::Silu, false) if spec.embeds.is_some() => "qwen3",
        (Activation::Gelu, false) if spec.post_norms => "gemma3",
        (Activation::Silu, false) => "llama",
        (Activation::ClampedSilu { .. } | Activation::Gelu, _) => {
            let problem = "no GGUF architecture has this gate without experts or norms before the residual";
            return Err(refuse(target, "the model", problem, cure));
        }
        (Activation::SquaredRelu, false) => {
            let problem = "no GGUF architecture has squared ReLU without inner norms";
            return Err(refuse(target, "the model", problem, cure));
        }
    };
    if architecture != "llama" && matches!(spec.rope.scaling, RopeScaling::Llama3 { .. }) {
        let problem = format!("architecture {architecture} has no Llama 3 rope scaling");
        return Err(refuse(target, "the model", problem, cure));
    }
    Ok(architecture)
}

fn plan(checkpoint: &Checkpoint, target: Target) -> Result<Vec<Planned<'_>>, ModelError> {
    let mut planned = Vec::new();
    for entry in checkpoint.tensors.entries() {
        let part = Part::of(&entry.name);
        if target != Target::Panels && part == Some(Part::OutputGate) {
            // Its rows are written with those of the queries.
            continue;
        }
        let name = names::gguf(&entry.name, &checkpoint.spec)
            .ok_or_else(|| refuse(target, &entry.name, "GGUF has no name for it", "convert to packed"))?;
        let mut shape = entry.shape.clone();
        if part.is_some_and(|part| part.shares_rows(&checkpoint.spec)) {
            shape[0] *= 2;
        }
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().rev().skip(1).product();
        let kind = match (entry.kind, target) {
            (TensorKind::Norm, _) => GgmlType::Dense(DType::F32),
            (TensorKind::Dense, _) => GgmlType::Dense(checkpoint.tensors.dense(&entry.name)?.dtype()),
            (TensorKind::Ternary | TensorKind::Grouped, Target::Panels) => continue,
            (TensorKind::Grouped, Target::Pq2_0) => GgmlType::Pq2_0,
            (TensorKind::Grouped, _) => GgmlType::Q2_0,
            (TensorKind::Ternary, _) => ternary_type(checkpoint, &entry.name, cols, target)?,
        };
        let bytes = kind.byte_len(rows, cols).map_err(|e| {
            let problem = format!("shape {shape:?}: {e}");
            let cure = match target {
                Target::Pq2_0 => "convert to q2_0, whose blocks hold 64 weights",
                _ => "convert to panels, which take any shape",
            };
            refuse(target, &entry.name, problem, cure)
        })?;
        planned.push(Planned { name, shape, kind, bytes, content: Content::Entry(entry) });
    }
    if target == Target::Panels {
        plan_panels(checkpoint, &mut planned)?;
    }
    Ok(planned)
}

/// The type of a projection: the target's own, or floats for rows that are not whole blocks of it. Floats are f16 where
/// that keeps the scale, which TQ1_0 and TQ2_0 store in f16 themselves, and f32 otherwise.
fn ternary_type(
    checkpoint: &Checkpoint,
    name: &str,
    cols: usize,
    target: Target,
) -> Result<GgmlType, ModelError> {
    let (kind, block) = match target {
        // bitnet.cpp's kernels read I2_S row by row, in blocks of 128.
        Target::I2S => (GgmlType::I2S, 128),
        Target::Tq1_0 => (GgmlType::Tq1_0, 256),
        _ => (GgmlType::Tq2_0, 256),
    };
    if cols.is_multiple_of(block) {
        return Ok(kind);
    }
    let trits = checkpoint.tensors.ternary(name)?;
    let scale = packing::one_scale(&trits).map_err(|e| refuse(target, name, e, "convert to packed"))?;
    let keeps = f16::from_f32(scale).to_f32() == scale;
    Ok(GgmlType::Dense(if keeps || target != Target::I2S { DType::F16 } else { DType::F32 }))
}

/// Plans the panels and the int8 head after everything else, in the order of a forward pass, so that they map as one
/// piece.
fn plan_panels(checkpoint: &Checkpoint, planned: &mut Vec<Planned<'_>>) -> Result<(), ModelError> {
    let spec = &checkpoint.spec;
    let mut push = |name: String, [lines, bytes]: [usize; 2], content| {
        let (shape, kind, bytes) = (vec![lines, bytes], GgmlType::I8, lines * bytes);
        planned.push(Planned { name, shape, kind, bytes, content });
    };
    for PanelMatrix { name, parts, rows, cols } in names::panel_matrices(spec) {
        let parts: Vec<String> = parts.into_iter().map(|(projection, _)| projection).collect();
        // The width of the groups is known only once the scales are read.
        let group =
            if spec.grouped.projections { read_stacked(&*checkpoint.tensors, &parts)?.group() } else { None };
        let shape = Panels::stored_shape(rows, cols, group);
        push(name, shape, Content::Stack(parts));
    }
    let head = checkpoint.tensors.entries().iter().find(|entry| entry.name == names::head(spec));
    let dtype = head.and_then(|entry| entry.dtype).unwrap_or(DType::F32);
    if let Some(shape) = panels::head_copy_shape(spec, dtype) {
        push(panels::HEAD_COPY.into(), shape, Content::HeadCopy);
    }
    Ok(())
}

/// The bytes of the file before the data.
fn head(
    planned: &[Planned<'_>],
    metadata: &[(String, MetadataValue)],
    alignment: u64,
) -> Result<Vec<u8>, ModelError> {
    // Writing into memory fails only for values that the format cannot hold.
    let fail = |e: gguf_rs_lib::GGUFError| refuse(Target::I2S, "the metadata", e, "convert to packed");
    let mut head = Vec::new();
    GGUFHeader::new(planned.len() as u64, metadata.len() as u64).write_to(&mut head).map_err(fail)?;
    for (key, value) in metadata {
        string(&mut head, key);
        head.extend((value.value_type() as u32).to_le_bytes());
        value.write_to(&mut head).map_err(fail)?;
    }
    let mut offset = 0u64;
    for tensor in planned {
        string(&mut head, &tensor.name);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|&d| head.extend((d as u64).to_le_bytes()));
        head.extend(tensor.kind.id().unwrap_or(u32::MAX).to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes as u64).next_multiple_of(alignment);
    }
    Ok(head)
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Writes the bytes of one tensor.
fn put(
    out: &mut Output,
    checkpoint: &Checkpoint,
    tensor: &Planned<'_>,
    interleaved: bool,
    target: Target,
    packer: Option<&mut Cpu>,
) -> Result<(), ModelError> {
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let tensors = &*checkpoint.tensors;
    match (&tensor.content, packer) {
        (Content::Divisors(divisors), _) => out.write(&floats(divisors)),
        (Content::Entry(entry), _) => match entry.kind {
            TensorKind::Norm => out.write(&floats(&tensors.dense(&entry.name)?.to_f32())),
            TensorKind::Dense => out.write(tensors.dense(&entry.name)?.bytes()),
            TensorKind::Ternary | TensorKind::Grouped => {
                out.write(&trits(checkpoint, &entry.name, tensor.kind, interleaved, target)?)
            }
        },
        (Content::Stack(parts), Some(cpu)) => {
            let panels = cpu.panels(&read_stacked(tensors, parts)?)?;
            panels.stored().try_for_each(|bytes| out.write(&bytes))
        }
        (Content::HeadCopy, Some(cpu)) => {
            let head = tensors.dense(names::head(&checkpoint.spec))?;
            let copy = cpu.copy_head(&head)?.expect("the int8 head is planned only for shapes that have one");
            copy.stored().try_for_each(|bytes| out.write(&bytes))
        }
        (Content::Stack(_) | Content::HeadCopy, None) => {
            unreachable!("planned only for panels, which have a packer")
        }
    }
}

/// Whether rope rotates the output of this projection.
fn is_rotated(name: &str, spec: &ModelSpec) -> bool {
    Part::of(name).is_some_and(|part| part.rotated_heads(spec).is_some())
}

/// The Hugging Face row that interleaved rope stores at `row`. This is the inverse of reading: row `2 i + h` of a
/// head is dimension `i` of half `h`.
fn stored_row(row: usize, head_dim: usize) -> usize {
    row / head_dim * head_dim + row % head_dim % 2 * (head_dim / 2) + row % head_dim / 2
}

/// A ternary matrix in one of the types of GGUF.
fn trits(
    checkpoint: &Checkpoint,
    name: &str,
    kind: GgmlType,
    interleaved: bool,
    target: Target,
) -> Result<Vec<u8>, ModelError> {
    let (spec, tensors) = (&checkpoint.spec, &*checkpoint.tensors);
    let mut trits = tensors.ternary(name)?;
    if Part::of(name).is_some_and(|part| part.shares_rows(spec)) {
        let gates = name.replace(Part::Query.name(), Part::OutputGate.name());
        let (queries, head_dim) = (trits.rows(), spec.head_dim);
        // The rows of every head of queries, then as many of its gate.
        trits = read_stacked(tensors, &[name.into(), gates])?.permute_rows(|row| {
            let (head, within) = (row / (2 * head_dim), row % (2 * head_dim));
            within / head_dim * queries + head * head_dim + within % head_dim
        });
    }
    if interleaved && is_rotated(name, spec) {
        trits = trits.permute_rows(|row| stored_row(row, spec.head_dim));
    }
    let packed = match kind {
        GgmlType::I2S => packing::i2_s::pack(&trits),
        GgmlType::Tq1_0 => packing::tq1_0::pack(&trits),
        GgmlType::Dense(dtype) => packing::floats(&trits, dtype),
        GgmlType::Pq2_0 => packing::grouped::pack_pq2_0(&trits),
        GgmlType::Q2_0 => packing::grouped::pack_q2_0(&trits),
        _ => packing::tq2_0::pack(&trits),
    };
    let cure = if spec.grouped.projections { "convert to q2_0" } else { "convert to packed" };
    packed.map_err(|e| refuse(target, name, e, cure))
}

fn metadata(
    checkpoint: &Checkpoint,
    architecture: &str,
    target: Target,
) -> Result<Vec<(String, MetadataValue)>, ModelError> {
    use MetadataValue::{String as Text, U32};
    // LLAMA_FTYPE_MOSTLY_* of bitnet.cpp and llama.cpp.
    let file_type = match target {
        Target::I2S => Some(40),
        Target::Tq1_0 => Some(36),
        Target::Tq2_0 => Some(37),
        Target::Q2_0 => Some(41),
        Target::Pq2_0 | Target::Panels | Target::Packed => None,
    };
    let mut all = vec![
        ("general.architecture".to_string(), Text(architecture.into())),
        ("general.name".into(), Text(checkpoint.name.clone())),
        ("general.quantization_version".into(), U32(2)),
    ];
    all.extend(file_type.map(|id| ("general.file_type".into(), U32(id))));
    if target == Target::Panels {
        all.push(("general.alignment".into(), U32(alignment(target) as u32)));
        all.push((panels::VERSION_KEY.into(), U32(panels::VERSION)));
    }
    all.extend(sampling_metadata(&checkpoint.defaults).map(|(key, value)| (key.into(), value)));
    all.extend(rotation_metadata(&checkpoint.spec)?);
    let sizes = model_metadata(&checkpoint.spec)?.into_iter();
    all.extend(sizes.map(|(key, value)| (format!("{architecture}.{key}"), value)));
    let texts = tokenizer_metadata(checkpoint, target)?.into_iter();
    all.extend(texts.map(|(key, value)| (format!("tokenizer.{key}"), value)));
    Ok(all)
}

/// The model's own defaults for sampling. Temperature 0 is how GGUF says that a model is not meant to be sampled.
fn sampling_metadata(
    defaults: &GenerationDefaults,
) -> impl Iterator<Item = (&'static str, MetadataValue)> + use<> {
    use MetadataValue::{F32, I32};
    let greedy = (defaults.do_sample == Some(false)).then_some(0.0);
    let top_k = defaults.top_k.map(|k| i32::try_from(k).unwrap_or(i32::MAX));
    let all = [
        ("general.sampling.temp", greedy.or(defaults.temperature).map(F32)),
        ("general.sampling.top_k", top_k.map(I32)),
        ("general.sampling.top_p", defaults.top_p.map(F32)),
        ("general.sampling.min_p", defaults.min_p.map(F32)),
        ("general.sampling.penalty_repeat", defaults.repetition_penalty.map(F32)),
        // Penalties look at the whole text; llama.cpp looks at 64 tokens unless told otherwise.
        ("general.sampling.penalty_last_n", defaults.repetition_penalty.map(|_| I32(-1))),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?)))
}

/// The sizes and switches of a model, by key within its architecture.
fn model_metadata(spec: &ModelSpec) -> Result<Vec<(&'static str, MetadataValue)>, ModelError> {
    use MetadataValue::{F32, U32};
    let mut all = vec![
        ("vocab_size", U32(spec.vocab as u32)),
        ("context_length", U32(spec.context as u32)),
        ("embedding_length", U32(spec.hidden as u32)),
        ("block_count", U32(spec.layers as u32)),
        ("feed_forward_length", U32(spec.ffn as u32)),
        ("attention.head_count", U32(spec.heads as u32)),
        ("attention.head_count_kv", U32(spec.kv_heads as u32)),
        ("attention.layer_norm_rms_epsilon", F32(spec.rms_eps)),
        ("attention.key_length", U32(spec.head_dim as u32)),
        ("attention.value_length", U32(spec.head_dim as u32)),
        ("rope.freq_base", F32(full_theta(spec).unwrap_or(spec.rope.theta))),
        ("rope.dimension_count", U32(spec.rotary_width() as u32)),
    ];
    if let Some(sections) = spec.rope.sections {
        // Required by llama.cpp.
        let pairs = sections.map(|pairs| MetadataValue::I32(i32::try_from(pairs).unwrap_or(i32::MAX)));
        all.push(("rope.dimension_sections", array(GGUFValueType::I32, pairs.into_iter())?));
    }
    all.extend(hybrid_metadata(spec)?);
    all.extend(expert_metadata(spec)?);
    // Gemma's follows from the width.
    if spec.multipliers != Multipliers::NONE && !spec.post_norms {
        all.push(("embedding_scale", F32(spec.multipliers.embedding)));
        all.push(("residual_scale", F32(spec.multipliers.residual)));
        all.push(("logit_scale", F32(spec.multipliers.logit_divisor)));
    }
    all.extend(spec.embeds.map(|pooling| ("pooling_type", U32(pooling.gguf_type()))));
    all.extend(rope_scaling(spec));
    Ok(all)
}

/// Base of the rotary frequencies of layers that do not slide, if others do and have another.
fn full_theta(spec: &ModelSpec) -> Option<f32> {
    spec.windows.as_ref()?.full_theta
}

/// The numbers of experts, and which layers slide.
fn expert_metadata(spec: &ModelSpec) -> Result<Vec<(&'static str, MetadataValue)>, ModelError> {
    use MetadataValue::{Bool, F32, U32};
    let mut all = Vec::new();
    if let Some(Experts { count, used }) = spec.experts {
        all.push(("expert_count", U32(count as u32)));
        all.push(("expert_used_count", U32(used as u32)));
        all.push(("expert_feed_forward_length", U32(spec.ffn as u32)));
    }
    if let Activation::ClampedSilu { limit } = spec.activation {
        let limits = (0..spec.layers).map(|_| F32(limit));
        all.push((CLAMP, array(GGUFValueType::F32, limits)?));
    }
    if let Some(windows) = &spec.windows {
        all.push(("attention.sliding_window", U32(u32::try_from(windows.width).unwrap_or(u32::MAX))));
        let slides = windows.slides.iter().map(|&slides| Bool(slides));
        all.push((PATTERN, array(GGUFValueType::Bool, slides)?));
        all.extend(windows.full_theta.map(|_| ("rope.freq_base_swa", F32(spec.rope.theta))));
    }
    Ok(all)
}

/// The sizes of gated-delta layers, and where they stand.
fn hybrid_metadata(spec: &ModelSpec) -> Result<Vec<(&'static str, MetadataValue)>, ModelError> {
    use MetadataValue::{Bool, U32};
    let Some(Hybrid { attends, delta, .. }) = &spec.hybrid else { return Ok(Vec::new()) };
    let mut all = vec![
        ("ssm.conv_kernel", U32(delta.taps as u32)),
        ("ssm.state_size", U32(delta.head_dim as u32)),
        ("ssm.group_count", U32(delta.key_heads as u32)),
        ("ssm.time_step_rank", U32(delta.value_heads as u32)),
        ("ssm.inner_size", U32(delta.value_width() as u32)),
    ];
    let interval = attends.iter().position(|&attends| attends).map_or(0, |first| first + 1);
    if attending(interval, attends.len()).is_some_and(|regular| regular[..] == attends[..]) {
        all.push(("full_attention_interval", U32(interval as u32)));
    }
    let recurrent = attends.iter().map(|&attends| Bool(!attends));
    all.push(("attention.recurrent_layers", array(GGUFValueType::Bool, recurrent)?));
    Ok(all)
}

/// The contract of rotated weights.
fn rotation_metadata(spec: &ModelSpec) -> Result<Vec<(String, MetadataValue)>, ModelError> {
    use MetadataValue::{Bool, I32, String as Text, U32};
    let Some(rotation) = &spec.rotation else { return Ok(Vec::new()) };
    // A tensor of queries also holds the output gates, which have the same name in the file.
    let gate = Part::OutputGate.name();
    let weights = rotation.weights.iter().filter(|name| !name.contains(gate));
    let weights = weights.filter_map(|name| names::gguf(name, spec)).map(Text);
    let mut all = vec![
        ("version", U32(if rotation.tied_output { 2 } else { 1 })),
        ("block_size", U32(rotation.block as u32)),
        ("transform", Text(hadamard::TRANSFORM.into())),
        ("axis", Text(hadamard::AXIS.into())),
        ("sign_mode", Text(if rotation.signs.is_empty() { "identity" } else { "explicit" }.into())),
        ("weight_names", array(GGUFValueType::String, weights)?),
        ("gdn_v_grouped", Bool(rotation.grouped_values)),
    ];
    if rotation.tied_output {
        all.push(("tied_output", Bool(true)));
    }
    if !rotation.signs.is_empty() {
        let widths = rotation.signs.keys().map(|&width| U32(width as u32));
        let values = rotation.signs.values().flat_map(|signs| signs.iter().map(|&sign| I32(sign.into())));
        all.push(("sign_widths", array(GGUFValueType::U32, widths)?));
        all.push(("sign_values", array(GGUFValueType::I32, values)?));
    }
    if rotation.embedding {
        let table = names::gguf(names::EMBEDDING, spec).map(Text);
        all.push(("inverse_weight_names", array(GGUFValueType::String, table.into_iter())?));
    }
    Ok(all.into_iter().map(|(key, value)| (hadamard::key(key), value)).collect())
}

/// The tokenizer, the tokens that begin and end a text, and the chat template.
fn tokenizer_metadata(
    checkpoint: &Checkpoint,
    target: Target,
) -> Result<Vec<(&'static str, MetadataValue)>, ModelError> {
    use MetadataValue::{Bool, F32, I32, String as Text, U32};
    let (defaults, mut all) = (&checkpoint.defaults, Vec::new());
    let mut add = |key: &'static str, value| all.push((key, value));
    let mut bos = defaults.bos;
    if let Some(tokenizer) = &checkpoint.tokenizer {
        let v = tokenizer.to_gguf(checkpoint.spec.vocab)?;
        add("ggml.model", Text(v.model.into()));
        if let Some(pre) = v.pre {
            add("ggml.pre", Text(pre.into()));
        }
        add("ggml.tokens", array(GGUFValueType::String, v.tokens.into_iter().map(Text))?);
        add("ggml.token_type", array(GGUFValueType::I32, v.types.into_iter().map(I32))?);
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
            let problem = format!("token {eos} is put after a text but does not end it");
            return Err(refuse(target, "the tokenizer", problem, "convert to packed"));
        }
    }
    for (key, id) in [
        ("ggml.bos_token_id", bos),
        ("ggml.eos_token_id", defaults.eos.first().copied()),
        ("ggml.eot_token_id", defaults.eos.get(1).copied()),
    ] {
        if let Some(id) = id {
            add(key, U32(id));
        }
    }
    // A list is the whole list: without it, readers look for further ends by their texts.
    if !defaults.eos.is_empty() {
        add("ggml.eos_token_ids", array(GGUFValueType::U32, defaults.eos.iter().map(|&id| U32(id)))?);
    }
    if let Some(chat) = &checkpoint.chat {
        add("chat_template", Text(chat.source().into()));
        let tools = chat.for_tools(true).source();
        if tools != chat.source() {
            add("chat_template.tool_use", Text(tools.into()));
        }
    }
    Ok(all)
}

/// The metadata of stretched rope; Llama 3's is stored only as divisors.
fn rope_scaling(spec: &ModelSpec) -> Vec<(&'static str, MetadataValue)> {
    use MetadataValue::{F32, String as Text, U32};
    match spec.rope.scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } => Vec::new(),
        RopeScaling::Linear { factor } => {
            vec![("rope.scaling.type", Text("linear".into())), ("rope.scaling.factor", F32(factor))]
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
            let mut all = vec![
                ("rope.scaling.type", Text("yarn".into())),
                ("rope.scaling.factor", F32(factor)),
                ("rope.scaling.original_context_length", U32(original_context as u32)),
                ("rope.scaling.yarn_beta_fast", F32(beta_fast)),
                ("rope.scaling.yarn_beta_slow", F32(beta_slow)),
            ];
            if attention_factor != rope::yarn_attention_factor(factor) {
                all.push(("rope.scaling.yarn_attn_factor", F32(attention_factor)));
            }
            all
        }
        RopeScaling::LongRope { attention_factor, .. } => vec![
            ("rope.scaling.type", Text("longrope".into())),
            ("rope.scaling.original_context_length", U32(spec.context as u32)),
            ("rope.scaling.attn_factor", F32(attention_factor)),
        ],
    }
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
