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

/// A part of a layer that has a weight: a norm or a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    InputNorm,
    Query,
    Key,
    Value,
    QueryNorm,
    KeyNorm,
    AttentionSubNorm,
    Output,
    FfnNorm,
    Gate,
    Up,
    FfnSubNorm,
    Down,
}

/// The parts in the order of a forward pass: Hugging Face's name, GGUF's, and 1bitLLM's where it differs.
const PARTS: [(Part, &str, &str, Option<&str>); 13] = [
    (Part::InputNorm, "input_layernorm", "attn_norm", None),
    (Part::Query, "self_attn.q_proj", "attn_q", None),
    (Part::Key, "self_attn.k_proj", "attn_k", None),
    (Part::Value, "self_attn.v_proj", "attn_v", None),
    (Part::QueryNorm, "self_attn.q_norm", "attn_q_norm", None),
    (Part::KeyNorm, "self_attn.k_norm", "attn_k_norm", None),
    (Part::AttentionSubNorm, "self_attn.attn_sub_norm", "attn_sub_norm", Some("self_attn.inner_attn_ln")),
    (Part::Output, "self_attn.o_proj", "attn_output", None),
    (Part::FfnNorm, "post_attention_layernorm", "ffn_norm", None),
    (Part::Gate, "mlp.gate_proj", "ffn_gate", None),
    (Part::Up, "mlp.up_proj", "ffn_up", None),
    (Part::FfnSubNorm, "mlp.ffn_sub_norm", "ffn_sub_norm", Some("mlp.ffn_layernorm")),
    (Part::Down, "mlp.down_proj", "ffn_down", None),
];

impl Part {
    /// The part whose weight has this Hugging Face name.
    pub(crate) fn of(name: &str) -> Option<Part> {
        split(name).map(|(_, part)| part)
    }

    /// Hugging Face's name within a layer.
    pub(crate) fn name(self) -> &'static str {
        PARTS[self as usize].1
    }

    /// Hugging Face's name in a model, without the end of a tensor's name.
    pub(crate) fn path(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}", self.name())
    }

    /// Number of heads in its output, if rope rotates them.
    pub(crate) fn rotated_heads(self, spec: &ModelSpec) -> Option<usize> {
        match self {
            Part::Query => Some(spec.heads),
            Part::Key => Some(spec.kv_heads),
            _ => None,
        }
    }

    /// `[out][in]` of a projection; `None` for a norm.
    fn projection(self, spec: &ModelSpec) -> Option<[usize; 2]> {
        let (hidden, q, kv) = (spec.hidden, spec.q_width(), spec.kv_width());
        Some(match self {
            Part::Query => [q, hidden],
            Part::Key | Part::Value => [kv, hidden],
            Part::Output => [hidden, q],
            Part::Gate | Part::Up => [spec.ffn, hidden],
            Part::Down => [hidden, spec.ffn],
            _ => return None,
        })
    }

    /// Its tensors in a layer: none, a norm, or a projection with the norm before it.
    fn expected(self, spec: &ModelSpec, layer: usize) -> impl Iterator<Item = Expected> + use<> {
        let ternary = if spec.grouped.projections { TensorKind::Grouped } else { TensorKind::Ternary };
        let path = self.path(layer);
        let weight = format!("{path}.weight");
        let norm = |name: String, width| Expected { name, kind: TensorKind::Norm, shape: vec![width] };
        let tensors = if let Some(shape) = self.projection(spec) {
            let before = spec.linear_norms.map(|_| norm(format!("{path}.rms_norm.weight"), shape[1]));
            [before, Some(Expected { name: weight, kind: ternary, shape: shape.into() })]
        } else {
            let (present, width) = match self {
                Part::AttentionSubNorm => (spec.sub_norms, spec.q_width()),
                Part::FfnSubNorm => (spec.sub_norms, spec.ffn),
                Part::QueryNorm | Part::KeyNorm => (spec.head_norms, spec.head_dim),
                _ => (true, spec.hidden),
            };
            [present.then(|| norm(weight, width)), None]
        };
        tensors.into_iter().flatten()
    }
}

/// The layer and the part whose weight has this Hugging Face name.
fn split(name: &str) -> Option<(&str, Part)> {
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let part = part.strip_suffix(".weight")?;
    let &(part, ..) = PARTS.iter().find(|(_, hf, ..)| *hf == part)?;
    Some((layer, part))
}

/// Projections of a layer that share an input and are stacked into one matrix.
pub(crate) struct Stack {
    /// Its name in a file of panels.
    name: &'static str,
    pub parts: &'static [Part],
}

pub(crate) const QKV: Stack = Stack { name: "attn_qkv", parts: &[Part::Query, Part::Key, Part::Value] };
pub(crate) const OUTPUT: Stack = Stack { name: "attn_output", parts: &[Part::Output] };
pub(crate) const GATE_UP: Stack = Stack { name: "ffn_gate_up", parts: &[Part::Gate, Part::Up] };
pub(crate) const DOWN: Stack = Stack { name: "ffn_down", parts: &[Part::Down] };

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
            let [out, inputs] = part.projection(spec).expect("stacks are of projections");
            matrix.parts.push((format!("{}.weight", part.path(layer)), out));
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
    let layers = (0..spec.layers)
        .flat_map(move |layer| PARTS.iter().flat_map(move |(part, ..)| part.expected(spec, layer)));
    [first].into_iter().chain(layers).chain([norm]).chain(head)
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

/// GGUF's name for a Hugging Face name, or `None` if it has none.
pub(crate) fn gguf(name: &str) -> Option<String> {
    if let Some((_, gguf)) = OUTER.iter().find(|(hf, _)| *hf == name) {
        return Some((*gguf).into());
    }
    let (layer, part) = split(name)?;
    Some(format!("blk.{layer}.{}.weight", PARTS[part as usize].2))
}

/// The name in 1bitLLM's modelling code for a Hugging Face name.
pub(crate) fn onebitllm(name: &str) -> String {
    PARTS
        .iter()
        .filter_map(|(_, hf, _, other)| Some((hf, (*other)?)))
        .find(|(hf, _)| name.contains(*hf))
        .map_or_else(|| name.into(), |(hf, other)| name.replace(hf, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_layer_has_its_names() {
        assert!(PARTS.iter().enumerate().all(|(row, (part, ..))| *part as usize == row));
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
