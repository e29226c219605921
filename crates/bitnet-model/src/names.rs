//! The names of a model's tensors: Hugging Face's, and those of other tools.

use crate::{ModelSpec, source::TensorKind};

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expected {
    /// Hugging Face name.
    pub name: String,
    pub kind: TensorKind,
    /// `[out][in]` for a matrix, `[width]` for a norm.
    pub shape: Vec<usize>,
}

/// Parts of a layer: Hugging Face's name, GGUF's, and 1bitLLM's where it differs.
const PARTS: [(&str, &str, Option<&str>); 13] = [
    ("input_layernorm", "attn_norm", None),
    ("self_attn.q_proj", "attn_q", None),
    ("self_attn.k_proj", "attn_k", None),
    ("self_attn.v_proj", "attn_v", None),
    ("self_attn.q_norm", "attn_q_norm", None),
    ("self_attn.k_norm", "attn_k_norm", None),
    ("self_attn.attn_sub_norm", "attn_sub_norm", Some("self_attn.inner_attn_ln")),
    ("self_attn.o_proj", "attn_output", None),
    ("post_attention_layernorm", "ffn_norm", None),
    ("mlp.gate_proj", "ffn_gate", None),
    ("mlp.up_proj", "ffn_up", None),
    ("mlp.ffn_sub_norm", "ffn_sub_norm", Some("mlp.ffn_layernorm")),
    ("mlp.down_proj", "ffn_down", None),
];

/// Projections of a layer that share an input and are stacked into one matrix.
pub(crate) struct Stack {
    /// Its name in a file of panels.
    name: &'static str,
    pub parts: &'static [&'static str],
}

pub(crate) const QKV: Stack =
    Stack { name: "attn_qkv", parts: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] };
pub(crate) const OUTPUT: Stack = Stack { name: "attn_output", parts: &["self_attn.o_proj"] };
pub(crate) const GATE_UP: Stack = Stack { name: "ffn_gate_up", parts: &["mlp.gate_proj", "mlp.up_proj"] };
pub(crate) const DOWN: Stack = Stack { name: "ffn_down", parts: &["mlp.down_proj"] };

/// Names of a ternary embedding and of a separate ternary head in a file of panels.
pub(crate) const EMBEDDING_PANELS: &str = "token_embd.panels";
pub(crate) const HEAD_PANELS: &str = "output.panels";

/// A matrix of a file of panels.
pub(crate) struct Stacked {
    pub name: String,
    /// The stacked projections, or a table, from top to bottom: Hugging Face's name and the number of rows.
    pub parts: Vec<(String, usize)>,
    pub rows: usize,
    pub cols: usize,
}

/// All matrices of a file of panels, in the order of a forward pass.
pub(crate) fn stacked(spec: &ModelSpec) -> impl Iterator<Item = Stacked> + '_ {
    let of = |layer: usize, stack: &Stack| {
        let name = format!("blk.{layer}.{}.panels", stack.name);
        let mut matrix = Stacked { name, parts: Vec::new(), rows: 0, cols: 0 };
        for part in stack.parts {
            let [out, inputs] = projection(spec, part).expect("stacks are of projections");
            matrix.parts.push((format!("model.layers.{layer}.{part}.weight"), out));
            (matrix.rows, matrix.cols) = (matrix.rows + out, inputs);
        }
        matrix
    };
    let table = |name: &str, tensor: &str| {
        let (name, parts) = (name.into(), vec![(tensor.into(), spec.vocab)]);
        Stacked { name, parts, rows: spec.vocab, cols: spec.hidden }
    };
    let embedding = spec.grouped.embedding.then(|| table(EMBEDDING_PANELS, EMBEDDING));
    let head = (spec.grouped.head && !spec.tied_head).then(|| table(HEAD_PANELS, OUTER[2].0));
    let layers =
        (0..spec.layers).flat_map(move |layer| [QKV, OUTPUT, GATE_UP, DOWN].map(|stack| of(layer, &stack)));
    embedding.into_iter().chain(layers).chain(head)
}

/// Tensors outside the layers: Hugging Face's name and GGUF's.
const OUTER: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// All tensors of a model in the order of a forward pass. Lazy, because the number of layers comes from a file.
pub(crate) fn expected(spec: &ModelSpec) -> impl Iterator<Item = Expected> + '_ {
    let matrix =
        |name: &str, kind| Expected { name: name.into(), kind, shape: vec![spec.vocab, spec.hidden] };
    let table = |grouped| if grouped { TensorKind::Grouped } else { TensorKind::Dense };
    let first = matrix(OUTER[0].0, table(spec.grouped.embedding));
    let norm =
        Expected { name: "model.norm.weight".into(), kind: TensorKind::Norm, shape: vec![spec.hidden] };
    let head = (!spec.tied_head).then(|| matrix(head(spec), table(spec.grouped.head)));
    let layers =
        (0..spec.layers).flat_map(move |layer| PARTS.iter().flat_map(move |p| part(spec, layer, p.0)));
    [first].into_iter().chain(layers).chain([norm]).chain(head)
}

/// `[out][in]` of a part, if it is a projection.
fn projection(spec: &ModelSpec, part: &str) -> Option<[usize; 2]> {
    let (hidden, q, kv) = (spec.hidden, spec.q_width(), spec.kv_width());
    Some(match part {
        "self_attn.q_proj" => [q, hidden],
        "self_attn.k_proj" | "self_attn.v_proj" => [kv, hidden],
        "self_attn.o_proj" => [hidden, q],
        "mlp.gate_proj" | "mlp.up_proj" => [spec.ffn, hidden],
        "mlp.down_proj" => [hidden, spec.ffn],
        _ => return None,
    })
}

/// Name of the embedding.
pub(crate) const EMBEDDING: &str = OUTER[0].0;

/// Whether this is the name of the embedding or of a separate output head.
pub(crate) fn is_table(name: &str) -> bool {
    [OUTER[0].0, OUTER[2].0].contains(&name)
}

/// Name of the output head.
pub(crate) fn head(spec: &ModelSpec) -> &'static str {
    if spec.tied_head { OUTER[0].0 } else { OUTER[2].0 }
}

/// The tensors of one part of a layer: none, a norm, or a projection with the norm before it.
fn part(spec: &ModelSpec, layer: usize, part: &str) -> impl Iterator<Item = Expected> + use<> {
    let (hidden, q) = (spec.hidden, spec.q_width());
    let ternary = if spec.grouped.projections { TensorKind::Grouped } else { TensorKind::Ternary };
    let prefix = format!("model.layers.{layer}.{part}");
    let norm = |name: String, width| Expected { name, kind: TensorKind::Norm, shape: vec![width] };
    let weight = format!("{prefix}.weight");
    let wanted = match (projection(spec, part), part) {
        (Some(shape), _) => vec![
            spec.linear_norms.map(|_| norm(format!("{prefix}.rms_norm.weight"), shape[1])),
            Some(Expected { name: weight, kind: ternary, shape: shape.into() }),
        ],
        (None, "self_attn.attn_sub_norm") => vec![spec.sub_norms.then(|| norm(weight, q))],
        (None, "mlp.ffn_sub_norm") => vec![spec.sub_norms.then(|| norm(weight, spec.ffn))],
        (None, "self_attn.q_norm" | "self_attn.k_norm") => {
            vec![spec.head_norms.then(|| norm(weight, spec.head_dim))]
        }
        (None, _) => vec![Some(norm(weight, hidden))],
    };
    wanted.into_iter().flatten()
}

/// GGUF's name for a Hugging Face name, or `None` if it has none.
pub(crate) fn gguf(name: &str) -> Option<String> {
    if let Some((_, gguf)) = OUTER.iter().find(|(hf, _)| *hf == name) {
        return Some((*gguf).into());
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let part = part.strip_suffix(".weight")?;
    let (_, gguf, _) = PARTS.iter().find(|(hf, ..)| *hf == part)?;
    Some(format!("blk.{layer}.{gguf}.weight"))
}

/// The name in 1bitLLM's modelling code for a Hugging Face name.
pub(crate) fn onebitllm(name: &str) -> String {
    PARTS
        .iter()
        .filter_map(|(hf, _, other)| Some((hf, (*other)?)))
        .find(|(hf, _)| name.contains(*hf))
        .map_or_else(|| name.into(), |(hf, other)| name.replace(hf, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_layer_has_its_names() {
        assert_eq!(gguf("model.layers.7.self_attn.o_proj.weight").unwrap(), "blk.7.attn_output.weight");
        assert_eq!(gguf("lm_head.weight").unwrap(), "output.weight");
        assert_eq!(gguf("model.layers.0.self_attn.q_proj.rms_norm.weight"), None);
        assert_eq!(
            onebitllm("model.layers.3.mlp.ffn_sub_norm.weight"),
            "model.layers.3.mlp.ffn_layernorm.weight"
        );
        assert_eq!(onebitllm("model.norm.weight"), "model.norm.weight");
    }
}
