//! The names of a model's tensors, Hugging Face's and those of other tools, from one table of the parts of a layer.
//! [`expected`] lists the tensors that a model must have.

use bitnet_kernels::DeltaShape;

use crate::{ModelError, files::TensorKind, spec::ModelSpec};

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expected {
    /// Hugging Face name.
    pub name: String,
    pub kind: TensorKind,
    /// `[out][in]` for a matrix, `[width]` for a norm, `[channels][taps]` for a convolution.
    pub shape: Vec<usize>,
}

/// A part of a layer that has a weight: a norm, a projection, or a parameter of a gated-delta layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    InputNorm,
    Query,
    Key,
    Value,
    /// Gates the output of attention. Files store its rows with those of the queries, head by head.
    OutputGate,
    QueryNorm,
    KeyNorm,
    AttentionSubNorm,
    Output,
    /// The norm of the output of attention before it is added.
    AttentionPostNorm,
    /// Queries, keys and values of a gated-delta layer.
    DeltaInput,
    DeltaGate,
    Alpha,
    Beta,
    Convolution,
    /// The factor of the logarithm of the decay: `-exp(A_log)`.
    Decay,
    TimeBias,
    DeltaNorm,
    DeltaOutput,
    FfnNorm,
    Gate,
    Up,
    FfnSubNorm,
    Down,
    /// Chooses the experts of a token.
    Router,
    /// The matrices of all experts, one below the other.
    ExpertGate,
    ExpertUp,
    ExpertDown,
    /// The norm of the output of the feed-forward layer before it is added.
    FfnPostNorm,
}

/// The parts in the order of a forward pass: Hugging Face's name, GGUF's, and 1bitLLM's where it differs.
const PARTS: [(Part, &str, &str, Option<&str>); 29] = [
    (Part::InputNorm, "input_layernorm", "attn_norm", None),
    (Part::Query, "self_attn.q_proj", "attn_q", None),
    (Part::Key, "self_attn.k_proj", "attn_k", None),
    (Part::Value, "self_attn.v_proj", "attn_v", None),
    (Part::OutputGate, "self_attn.gate_proj", "attn_q", None),
    (Part::QueryNorm, "self_attn.q_norm", "attn_q_norm", None),
    (Part::KeyNorm, "self_attn.k_norm", "attn_k_norm", None),
    (Part::AttentionSubNorm, "self_attn.attn_sub_norm", "attn_sub_norm", Some("self_attn.inner_attn_ln")),
    (Part::Output, "self_attn.o_proj", "attn_output", None),
    (Part::AttentionPostNorm, "self_attn.post_norm", "post_attention_norm", None),
    (Part::DeltaInput, "linear_attn.in_proj_qkv", "attn_qkv", None),
    (Part::DeltaGate, "linear_attn.in_proj_z", "attn_gate", None),
    (Part::Alpha, "linear_attn.in_proj_a", "ssm_alpha", None),
    (Part::Beta, "linear_attn.in_proj_b", "ssm_beta", None),
    (Part::Convolution, "linear_attn.conv1d", "ssm_conv1d", None),
    (Part::Decay, "linear_attn.A_log", "ssm_a", None),
    (Part::TimeBias, "linear_attn.dt_bias", "ssm_dt.bias", None),
    (Part::DeltaNorm, "linear_attn.norm", "ssm_norm", None),
    (Part::DeltaOutput, "linear_attn.out_proj", "ssm_out", None),
    (Part::FfnNorm, "post_attention_layernorm", "ffn_norm", None),
    (Part::Gate, "mlp.gate_proj", "ffn_gate", None),
    (Part::Up, "mlp.up_proj", "ffn_up", None),
    (Part::FfnSubNorm, "mlp.ffn_sub_norm", "ffn_sub_norm", Some("mlp.ffn_layernorm")),
    (Part::Down, "mlp.down_proj", "ffn_down", None),
    (Part::Router, "mlp.gate", "ffn_gate_inp", None),
    (Part::ExpertGate, "mlp.experts.gate_proj", "ffn_gate_exps", None),
    (Part::ExpertUp, "mlp.experts.up_proj", "ffn_up_exps", None),
    (Part::ExpertDown, "mlp.experts.down_proj", "ffn_down_exps", None),
    (Part::FfnPostNorm, "mlp.post_norm", "post_ffw_norm", None),
];

/// GGUF's name of [`Part::FfnNorm`] in hybrid models.
const HYBRID_FFN_NORM: &str = "post_attention_norm";

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

    /// Hugging Face's name of its tensor.
    pub(crate) fn tensor(self, layer: usize) -> String {
        format!("{}{}", self.path(layer), self.end())
    }

    /// The end of a tensor's name, in Hugging Face's form and in GGUF's.
    fn end(self) -> &'static str {
        if matches!(self, Part::Decay | Part::TimeBias) { "" } else { ".weight" }
    }

    /// Number of heads in its output, if rope rotates them.
    pub(crate) fn rotated_heads(self, spec: &ModelSpec) -> Option<usize> {
        match self {
            Part::Query => Some(spec.heads),
            Part::Key => Some(spec.kv_heads),
            _ => None,
        }
    }

    /// Whether a file stores its rows in one tensor with those of another part.
    pub(crate) fn shares_rows(self, spec: &ModelSpec) -> bool {
        spec.output_gate && matches!(self, Part::Query | Part::OutputGate)
    }

    fn present(self, spec: &ModelSpec, layer: usize) -> bool {
        let attends = spec.attends(layer);
        match self {
            Part::InputNorm | Part::FfnNorm => true,
            Part::Gate | Part::Up | Part::Down => spec.experts.is_none(),
            Part::Router | Part::ExpertGate | Part::ExpertUp | Part::ExpertDown => spec.experts.is_some(),
            Part::AttentionPostNorm | Part::FfnPostNorm => spec.post_norms,
            Part::FfnSubNorm => spec.sub_norms,
            Part::Query | Part::Key | Part::Value | Part::Output => attends,
            Part::OutputGate => attends && spec.output_gate,
            Part::QueryNorm | Part::KeyNorm => attends && spec.head_norms,
            Part::AttentionSubNorm => attends && spec.sub_norms,
            _ => !attends,
        }
    }

    /// `[out][in]` of a projection; `None` for anything else.
    fn projection(self, spec: &ModelSpec) -> Option<[usize; 2]> {
        let hidden = spec.hidden;
        let q = spec.q_width();
        let kv = spec.kv_width();
        let delta = delta(spec);
        let experts = spec.experts.map_or(0, |experts| experts.count);
        Some(match self {
            Part::Query | Part::OutputGate => [q, hidden],
            Part::Key | Part::Value => [kv, hidden],
            Part::Output => [hidden, q],
            Part::DeltaInput => [delta.channels(), hidden],
            Part::DeltaGate => [delta.value_width(), hidden],
            Part::Alpha | Part::Beta => [delta.value_heads, hidden],
            Part::DeltaOutput => [hidden, delta.value_width()],
            Part::Gate | Part::Up => [spec.ffn, hidden],
            Part::Down => [hidden, spec.ffn],
            Part::Router => [experts, hidden],
            Part::ExpertGate | Part::ExpertUp => [experts * spec.ffn, hidden],
            Part::ExpertDown => [experts * hidden, spec.ffn],
            _ => return None,
        })
    }

    /// The shape of its tensor, if it is a projection: `[out][in]`, or `[experts][out][in]`.
    fn matrix(self, spec: &ModelSpec) -> Option<Vec<usize>> {
        let [rows, cols] = self.projection(spec)?;
        Some(match (spec.experts, self.is_of_experts()) {
            (Some(experts), true) => vec![experts.count, rows / experts.count, cols],
            _ => vec![rows, cols],
        })
    }

    /// Whether its tensor holds a matrix for each expert.
    pub(crate) fn is_of_experts(self) -> bool {
        matches!(self, Part::ExpertGate | Part::ExpertUp | Part::ExpertDown)
    }

    /// Whether its tensor is a parameter of a gated-delta layer: neither a projection nor a norm.
    pub(crate) fn is_of_delta(self) -> bool {
        matches!(self, Part::Convolution | Part::Decay | Part::TimeBias | Part::DeltaNorm)
    }

    pub(crate) fn input_width(self, spec: &ModelSpec) -> usize {
        self.projection(spec).map_or(0, |[_, inputs]| inputs)
    }

    /// The shape of a norm or a parameter.
    fn vector(self, spec: &ModelSpec) -> Vec<usize> {
        let delta = delta(spec);
        match self {
            Part::AttentionSubNorm => vec![spec.q_width()],
            Part::FfnSubNorm => vec![spec.ffn],
            Part::QueryNorm | Part::KeyNorm => vec![spec.head_dim],
            Part::Convolution => vec![delta.channels(), delta.taps],
            Part::Decay | Part::TimeBias => vec![delta.value_heads],
            Part::DeltaNorm => vec![delta.head_dim],
            _ => vec![spec.hidden],
        }
    }

    /// Whether it is a projection that is stored as floats.
    fn is_dense(self, spec: &ModelSpec) -> bool {
        let float = spec.hybrid.as_ref().is_some_and(|hybrid| hybrid.float_alpha_beta);
        self == Part::Router || float && matches!(self, Part::Alpha | Part::Beta)
    }

    /// Its tensors in a layer: none, a vector, or a projection with the norm before it.
    fn expected(self, spec: &ModelSpec, layer: usize) -> impl Iterator<Item = Expected> + use<> {
        let ternary = if spec.grouped.projections { TensorKind::Grouped } else { TensorKind::Ternary };
        let name = self.tensor(layer);
        let ternary = if layer < spec.layers { ternary } else { TensorKind::Dense };
        let norm = |name: String, shape| Expected { name, kind: TensorKind::Norm, shape };
        if !self.present(spec, layer) {
            return [None, None].into_iter().flatten();
        }
        let tensors = match self.matrix(spec) {
            Some(shape) => {
                let norm_name = || format!("{}.rms_norm.weight", self.path(layer));
                let before = spec.linear_norms.map(|_| norm(norm_name(), vec![shape[1]]));
                let kind = if self.is_dense(spec) { TensorKind::Dense } else { ternary };
                [before, Some(Expected { name, kind, shape })]
            }
            None => [Some(norm(name, self.vector(spec))), None],
        };
        tensors.into_iter().flatten()
    }
}

/// Sizes of the gated-delta layers; zeros in a model that has none.
fn delta(spec: &ModelSpec) -> DeltaShape {
    let none = DeltaShape { key_heads: 0, value_heads: 0, head_dim: 0, taps: 0 };
    spec.hybrid.as_ref().map_or(none, |hybrid| hybrid.delta)
}

/// The layer and the part whose weight has this Hugging Face name.
fn split(name: &str) -> Option<(&str, Part)> {
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let named = |&&(row, hf, ..): &&(Part, &str, &str, Option<&str>)| {
        part.strip_prefix(hf).is_some_and(|end| end == row.end())
    };
    PARTS.iter().find(named).map(|&(part, ..)| (layer, part))
}

/// Projections of a layer that share an input and are stacked into one matrix.
pub(crate) struct StackedProjections {
    /// Its name in a file of panels.
    name: &'static str,
    pub parts: &'static [Part],
}

impl StackedProjections {
    /// Number of rows of the stacked matrix.
    pub(crate) fn rows(&self, spec: &ModelSpec) -> usize {
        self.parts.iter().filter_map(|part| part.projection(spec)).map(|[out, _]| out).sum()
    }
}

pub(crate) const OUTPUT: StackedProjections =
    StackedProjections { name: "attn_output", parts: &[Part::Output] };
pub(crate) const DELTA_OUTPUT: StackedProjections =
    StackedProjections { name: "delta_output", parts: &[Part::DeltaOutput] };
pub(crate) const GATE_UP: StackedProjections =
    StackedProjections { name: "ffn_gate_up", parts: &[Part::Gate, Part::Up] };
pub(crate) const DOWN: StackedProjections = StackedProjections { name: "ffn_down", parts: &[Part::Down] };
/// The matrices of all experts of a layer: the rows of an expert follow those of the one before.
const EXPERTS: [StackedProjections; 3] = [
    StackedProjections { name: "ffn_gate_exps", parts: &[Part::ExpertGate] },
    StackedProjections { name: "ffn_up_exps", parts: &[Part::ExpertUp] },
    StackedProjections { name: "ffn_down_exps", parts: &[Part::ExpertDown] },
];

/// What a layer that attends computes of its input.
pub(crate) fn qkv(spec: &ModelSpec) -> StackedProjections {
    static PARTS: [Part; 4] = [Part::Query, Part::Key, Part::Value, Part::OutputGate];
    StackedProjections { name: "attn_qkv", parts: if spec.output_gate { &PARTS } else { &PARTS[..3] } }
}

/// What a gated-delta layer computes of its input in ternary products: one stack, or two if the first is rotated, which
/// alpha and beta never are.
pub(crate) fn delta_inputs(spec: &ModelSpec) -> impl Iterator<Item = StackedProjections> + use<> {
    static PARTS: [Part; 4] = [Part::DeltaInput, Part::DeltaGate, Part::Alpha, Part::Beta];
    let (float, rotated) = (Part::Alpha.is_dense(spec), spec.rotation.is_some());
    let first = if float || rotated { &PARTS[..2] } else { &PARTS };
    let second = StackedProjections { name: "delta_alpha_beta", parts: &PARTS[2..] };
    let all = [
        Some(StackedProjections { name: "delta_input", parts: first }),
        (rotated && !float).then_some(second),
    ];
    all.into_iter().flatten()
}

/// The stacks of a layer, in the order of a forward pass.
fn stacks(spec: &ModelSpec, layer: usize) -> impl Iterator<Item = StackedProjections> + use<> {
    let attends = spec.attends(layer);
    let input = attends.then(|| qkv(spec)).into_iter();
    let delta = (!attends).then(|| delta_inputs(spec)).into_iter().flatten();
    let output = if attends { OUTPUT } else { DELTA_OUTPUT };
    let ffn = if spec.experts.is_some() { Vec::from(EXPERTS) } else { vec![GATE_UP, DOWN] };
    input.chain(delta).chain([output]).chain(ffn)
}

/// Names of a ternary embedding and of a separate ternary head in a file of panels.
pub(crate) const EMBEDDING_PANELS: &str = "token_embd.panels";
pub(crate) const HEAD_PANELS: &str = "output.panels";

pub(crate) struct PanelMatrix {
    pub name: String,
    /// The stacked projections, or a table, from top to bottom: Hugging Face's name and the number of rows.
    pub parts: Vec<(String, usize)>,
    pub rows: usize,
    pub cols: usize,
}

/// All matrices of a file of panels, in the order of a forward pass.
pub(crate) fn panel_matrices(spec: &ModelSpec) -> impl Iterator<Item = PanelMatrix> + '_ {
    let of = |layer: usize, stack: &StackedProjections| {
        let name = format!("blk.{layer}.{}.panels", stack.name);
        let mut matrix = PanelMatrix { name, parts: Vec::new(), rows: 0, cols: 0 };
        for part in stack.parts {
            let [out, inputs] = part.projection(spec).expect("stacks are of projections");
            matrix.parts.push((part.tensor(layer), out));
            (matrix.rows, matrix.cols) = (matrix.rows + out, inputs);
        }
        matrix
    };
    let table = |name: &str, tensor: &str| {
        let (name, parts) = (name.into(), vec![(tensor.into(), spec.vocab)]);
        PanelMatrix { name, parts, rows: spec.vocab, cols: spec.hidden }
    };
    let embedding = spec.grouped.embedding.then(|| table(EMBEDDING_PANELS, EMBEDDING));
    let head = (spec.grouped.head && !spec.tied_head).then(|| table(HEAD_PANELS, HEAD));
    let layers =
        (0..spec.layers).flat_map(move |layer| stacks(spec, layer).map(move |stack| of(layer, &stack)));
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
    let norm = Expected { name: FINAL_NORM.into(), kind: TensorKind::Norm, shape: vec![spec.hidden] };
    let head = (!spec.tied_head).then(|| matrix(head(spec), table(spec.grouped.head)));
    let layers = (0..spec.layers)
        .flat_map(move |layer| PARTS.iter().flat_map(move |(part, ..)| part.expected(spec, layer)));
    [first].into_iter().chain(layers).chain([norm]).chain(head)
}

/// The tensors of a draft head besides its layer: Hugging Face's name, and GGUF's within the head's block.
const DRAFT_HEAD: [(&str, &str); 4] = [
    ("mtp.fc.weight", "nextn.eh_proj.weight"),
    ("mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight"),
    ("mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight"),
    ("mtp.norm.weight", "nextn.shared_head_norm.weight"),
];

/// The projection of an embedding and a hidden state to the input of a draft head's layer, the norms of both, and the
/// norm of its output.
pub(crate) const DRAFT_PROJECTION: &str = DRAFT_HEAD[0].0;
pub(crate) const DRAFT_EMBEDDING_NORM: &str = DRAFT_HEAD[1].0;
pub(crate) const DRAFT_HIDDEN_NORM: &str = DRAFT_HEAD[2].0;
pub(crate) const DRAFT_NORM: &str = DRAFT_HEAD[3].0;

/// The tensors of a draft head, in the order of a pass. Its layer has the number after the model's last, as in GGUF files.
pub(crate) fn draft_head(spec: &ModelSpec) -> impl Iterator<Item = Expected> + '_ {
    let own = |name: &str| {
        let (kind, shape) = match name {
            DRAFT_PROJECTION => (TensorKind::Dense, vec![spec.hidden, 2 * spec.hidden]),
            _ => (TensorKind::Norm, vec![spec.hidden]),
        };
        Expected { name: name.into(), kind, shape }
    };
    let layer = PARTS.iter().flat_map(|(part, ..)| part.expected(spec, spec.layers));
    DRAFT_HEAD[..3].iter().map(move |(name, _)| own(name)).chain(layer).chain([own(DRAFT_NORM)])
}

/// Rows and columns of the matrices of a draft head, as they are stacked and split.
pub(crate) fn draft_matrices(spec: &ModelSpec) -> impl Iterator<Item = [usize; 2]> + use<> {
    let halves = [[spec.hidden; 2]; 2];
    let stacks = stacks(spec, spec.layers).map(|stack| [stack.rows(spec), stack.parts[0].input_width(spec)]);
    halves.into_iter().chain(stacks.collect::<Vec<_>>())
}

/// The name of a draft head's tensor in a checkpoint of Hugging Face, where its layer is the first of its own.
pub(crate) fn stored_of_draft_head(name: &str, spec: &ModelSpec) -> String {
    let layer = format!("model.layers.{}.", spec.layers);
    let own = name.strip_prefix(&layer).map(|part| format!("mtp.layers.0.{part}"));
    stored(own.as_deref().unwrap_or(name), spec)
}

pub(crate) const FINAL_NORM: &str = OUTER[1].0;

pub(crate) const EMBEDDING: &str = OUTER[0].0;

/// Name of a separate output head.
pub(crate) const HEAD: &str = OUTER[2].0;

/// Whether this is the name of the embedding or of a separate output head.
pub(crate) fn is_table(name: &str) -> bool {
    [EMBEDDING, HEAD].contains(&name)
}

pub(crate) fn head(spec: &ModelSpec) -> &'static str {
    if spec.tied_head { EMBEDDING } else { HEAD }
}

/// The end of the name of a norm before a projection.
const LINEAR_NORM: &str = ".rms_norm.weight";

/// Whether this is the name of a norm before a projection.
pub(crate) fn is_linear_norm(name: &str) -> bool {
    name.ends_with(LINEAR_NORM)
}

/// The usual name of a tensor of a BitNet embedding model, which has no head and so no `model.` before its names.
pub(crate) fn of_embedding_model(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    match name.strip_suffix("_proj.norm.weight") {
        Some(path) => format!("model.{path}_proj{LINEAR_NORM}"),
        None => format!("model.{name}"),
    }
}

/// GGUF's name for a Hugging Face name, or `None` if it has none.
pub(crate) fn gguf(name: &str, spec: &ModelSpec) -> Option<String> {
    if let Some((_, gguf)) = OUTER.iter().find(|(hf, _)| *hf == name) {
        return Some((*gguf).into());
    }
    if let Some((_, gguf)) = DRAFT_HEAD.iter().find(|(hf, _)| *hf == name) {
        return Some(format!("blk.{}.{gguf}", spec.layers));
    }
    if let Some(path) = name.strip_suffix(LINEAR_NORM) {
        let weight = format!("{path}.weight");
        let (layer, part) = split(&weight)?;
        return Some(format!("blk.{layer}.{}_norm_in.weight", PARTS[part as usize].2));
    }
    let (layer, part) = split(name)?;
    let stored = match part {
        Part::FfnNorm if spec.hybrid.is_some() => HYBRID_FFN_NORM,
        part => PARTS[part as usize].2,
    };
    Some(format!("blk.{layer}.{stored}{}", part.end()))
}

/// The Hugging Face name of a projection or table with this GGUF name, or `None` if it is something else.
pub(crate) fn from_gguf(name: &str) -> Option<String> {
    if let Some((hf, _)) = OUTER.iter().find(|(_, gguf)| *gguf == name) {
        return Some((*hf).into());
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let part = part.strip_suffix(".weight")?;
    let (part, ..) = PARTS.iter().find(|(_, _, gguf, _)| *gguf == part)?;
    Some(part.tensor(layer.parse().ok().filter(|n: &usize| n.to_string() == layer)?))
}

/// The name under which a checkpoint stores a tensor, which may hold the rows of two parts.
pub(crate) fn stored(name: &str, spec: &ModelSpec) -> String {
    if spec.experts.is_some() && name == EMBEDDING {
        return "model.word_embeddings.weight".into();
    }
    if spec.post_norms {
        // Here the usual name of the norm before the feed-forward layer is that of a norm after attention.
        for (usual, stored) in [
            (Part::FfnNorm, "pre_feedforward_layernorm"),
            (Part::AttentionPostNorm, "post_attention_layernorm"),
            (Part::FfnPostNorm, "post_feedforward_layernorm"),
        ] {
            if Part::of(name) == Some(usual) {
                return name.replace(usual.name(), stored);
            }
        }
    }
    name.replace(Part::OutputGate.name(), Part::Query.name())
}

/// The name of one expert's matrix, and that of a matrix with all of them in MLX's form, for the usual name.
pub(crate) fn of_experts(name: &str) -> (impl Fn(usize) -> String + '_, String) {
    let one = |expert: usize| name.replace(".experts.", &format!(".experts.{expert}."));
    (one, name.replace(".experts.", ".switch_mlp."))
}

/// The usual name of a tensor that a wrapper of the language model stores under another.
pub(crate) fn unwrapped(name: &str) -> String {
    for (wrapped, usual) in [
        ("model.mtp.", "mtp."),
        ("language_model.mtp.", "mtp."),
        ("model.language_model.mtp.", "mtp."),
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ] {
        if let Some(rest) = name.strip_prefix(wrapped) {
            return format!("{usual}{rest}");
        }
    }
    name.into()
}

/// Whether a tensor of a hybrid model is for images or for the prediction of several tokens, which are not loaded.
pub(crate) fn is_for_images_or_drafts(name: &str, spec: &ModelSpec) -> bool {
    const PREFIXES: [&str; 8] = [
        "model.visual.",
        "visual.",
        "vision_tower.",
        "v.",
        "mm.",
        "mtp.",
        "model.mtp.",
        "language_model.mtp.",
    ];
    // In a GGUF file they are blocks after the last layer.
    let block = || name.strip_prefix("blk.")?.split_once('.')?.0.parse::<usize>().ok();
    spec.hybrid.is_some()
        && (PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || block().is_some_and(|n| n >= spec.layers))
}

/// Checks that the rotated weights of a model are projections or tables with group scales, that those that share an
/// input are rotated together, and that the transform fits their widths.
pub(crate) fn check_rotation(spec: &ModelSpec, file: &str) -> Result<(), ModelError> {
    let Some(rotation) = &spec.rotation else { return Ok(()) };
    let refuse = |name: &str, problem: &str| {
        let named = gguf(name, spec).unwrap_or_else(|| name.into());
        let cure = "use the file that the model's authors publish";
        let field = "prism.hadamard.weight_names";
        Err(ModelError::unsupported(file, field, format!("a list {problem} {named}"), cure))
    };
    if rotation.embedding {
        if !spec.grouped.embedding {
            return refuse(EMBEDDING, "for a model whose embedding is not ternary:");
        }
        if rotation.tied_output != spec.tied_head {
            let (is, has) = if spec.tied_head { (false, "no") } else { (true, "an") };
            let problem = format!("is {is}, but the model has {has} output head besides the embedding");
            return Err(ModelError::field(file, "prism.hadamard.tied_output", problem));
        }
        rotation.check(file, spec.hidden)?;
    }
    for name in &rotation.weights {
        if name == HEAD {
            if spec.tied_head || !spec.grouped.head {
                return refuse(HEAD, "for a model whose output head is not a separate ternary tensor:");
            }
            rotation.check(file, spec.hidden)?;
            continue;
        }
        let known = split(name).and_then(|(layer, part)| Some((layer.parse().ok()?, part)));
        let known = known.filter(|&(layer, part)| {
            layer < spec.layers && part.present(spec, layer) && part.tensor(layer) == *name
        });
        let Some((layer, part)) = known else {
            return refuse(name, "with a tensor that the model does not have:");
        };
        if !spec.grouped.projections {
            return refuse(name, "with a tensor that has no scale for every group of weights:");
        }
        rotation.check(file, part.input_width(spec))?;
        let absent = |mate: &&Part| !rotation.weights.contains(&mate.tensor(layer));
        let stack = stacks(spec, layer).find(|stack| stack.parts.contains(&part));
        if let Some(mate) = stack.and_then(|stack| stack.parts.iter().find(absent)) {
            return refuse(&mate.tensor(layer), "without a tensor that has the same input as others:");
        }
    }
    Ok(())
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
    use crate::synthetic::Synthetic;

    #[test]
    fn every_part_of_a_layer_has_its_names() {
        assert!(PARTS.iter().enumerate().all(|(row, (part, ..))| *part as usize == row));
        let plain = Synthetic::named("tiny").unwrap().spec().clone();
        let gguf = |name: &str| gguf(name, &plain);
        assert_eq!(gguf("model.layers.7.self_attn.o_proj.weight").unwrap(), "blk.7.attn_output.weight");
        assert_eq!(gguf("model.layers.7.post_attention_layernorm.weight").unwrap(), "blk.7.ffn_norm.weight");
        assert_eq!(gguf("model.layers.7.linear_attn.A_log").unwrap(), "blk.7.ssm_a");
        assert_eq!(gguf("model.layers.7.linear_attn.dt_bias").unwrap(), "blk.7.ssm_dt.bias");
        assert_eq!(gguf("lm_head.weight").unwrap(), "output.weight");
        let norm = "model.layers.0.self_attn.q_proj.rms_norm.weight";
        assert_eq!(gguf(norm).unwrap(), "blk.0.attn_q_norm_in.weight");
        assert_eq!(of_embedding_model("layers.0.self_attn.q_proj.norm.weight"), norm);
        assert_eq!(of_embedding_model("norm.weight"), "model.norm.weight");
        assert_eq!(
            onebitllm("model.layers.3.mlp.ffn_sub_norm.weight"),
            "model.layers.3.mlp.ffn_layernorm.weight"
        );
        assert_eq!(onebitllm("model.norm.weight"), "model.norm.weight");
    }

    #[test]
    fn names_of_gguf_files_lead_back_and_damaged_ones_lead_nowhere() {
        let back = |name: &str| from_gguf(name);
        assert_eq!(back("blk.7.attn_qkv.weight").unwrap(), "model.layers.7.linear_attn.in_proj_qkv.weight");
        assert_eq!(back("blk.7.attn_q.weight").unwrap(), "model.layers.7.self_attn.q_proj.weight");
        assert_eq!(back("output.weight").unwrap(), "lm_head.weight");
        for name in ["blk.07.attn_q.weight", "blk.x.attn_q.weight", "blk.7.attn_q", "blk.7.other.weight", ""]
        {
            assert_eq!(back(name), None, "{name}");
        }
    }
}
