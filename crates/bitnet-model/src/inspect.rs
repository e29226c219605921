//! Describes a model for people and programs ([`inspect`]): sizes, tensors, vocabulary, defaults, and hashes of the
//! trits, which are equal in every format of one model.

use serde::Serialize;
use sha2::{Digest, Sha256};

use bitnet_tensor::TernaryTensor;

use crate::{
    Conventions, ModelError,
    files::{Checkpoint, GenerationDefaults, TensorKind},
    identity::hex,
    spec::{Activation, ModelSpec, Multipliers, RopeScaling},
};

/// Number of weights for each scale in the hash of scales: the narrowest groups of any file.
const HASHED_GROUP: usize = TernaryTensor::NARROW;

/// A description of a model that can be printed or written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// File or folder.
    pub name: String,
    /// `gguf`, `safetensors` or `synthetic`.
    pub format: &'static str,
    /// Architecture as named in the file.
    pub architecture: String,
    /// Total number of weights.
    pub parameters: u64,
    /// Number of weights that are -1, 0 or 1 times a scale.
    pub ternary_weights: u64,
    /// SHA-256 of the trits and scales of all ternary tensors; equal for all forms of a model that do not round scales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_sha256: Option<String>,
    /// Stored forms of the ternary tensors, without duplicates.
    pub quantization: Vec<String>,
    /// The model's sizes and switches.
    pub sizes: Sizes,
    /// The vocabulary, if the model has one.
    pub tokenizer: Option<TokenizerInfo>,
    /// The chat template's Jinja text, if the model has one.
    pub chat_template: Option<String>,
    /// What the chat template does, found by rendering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conventions: Option<Conventions>,
    /// The model's defaults for generation.
    pub generation: GenerationDefaults,
    /// Warnings for the user, one line each.
    pub warnings: Vec<String>,
    /// All tensors, in the order of a forward pass.
    pub tensors: Vec<TensorInfo>,
    /// Names of the tensors for images and for the prediction of several tokens, which are not loaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_loaded: Vec<String>,
}

/// Sizes and switches of a model: fields of [`ModelSpec`] by their names, and what follows from them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "as in `ModelSpec`")]
pub struct Sizes {
    pub hidden: usize,
    pub ffn: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub context: usize,
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// `linear`, `llama3` or `yarn` with the factor, or `longrope`.
    pub rope_scaling: Option<String>,
    /// `relu2`, `silu`, `silu, clamped` or `gelu`.
    pub activation: &'static str,
    pub sub_norms: bool,
    pub linear_norms: bool,
    pub head_norms: bool,
    /// Number of experts of a layer, and of those that a token passes, unless there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<[usize; 2]>,
    /// Number of keys that a token of a sliding layer attends to, and of such layers, unless there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<[usize; 2]>,
    /// Layers with a recurrent state instead of attention, unless there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recurrent_layers: Option<usize>,
    /// Bytes of recurrent state of a sequence, unless the model has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<usize>,
    /// Number of dimensions of a head that rope rotates, unless it is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotary_width: Option<usize>,
    /// Width of the blocks of the Walsh-Hadamard transform for which weights were rotated, unless they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hadamard_block: Option<usize>,
    /// Whether every group of weights has its own scale.
    pub group_scales: bool,
    /// Multiplier of embeddings, multiplier of each layer's branches, and divisor of logits, unless all are 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multipliers: Option<[f32; 3]>,
    pub tied_head: bool,
}

/// The vocabulary of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenizerInfo {
    /// One more than the largest id.
    pub tokens: usize,
    /// Ids that encoding puts before a text.
    pub prefix: Vec<u32>,
}

/// A tensor of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorInfo {
    /// Hugging Face name.
    pub name: String,
    /// Name in the file.
    pub stored_name: String,
    /// `[out][in]` for a matrix, `[width]` for a norm.
    pub shape: Vec<usize>,
    /// The stored form.
    pub r#type: String,
    /// Its role in the model.
    pub kind: TensorKind,
    /// SHA-256 of the trits as i8, row-major `[out][in]`, in the order of the forward pass: Hugging Face's, except for
    /// value heads of gated-delta layers, which are in GGUF's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trits_sha256: Option<String>,
    /// The scale of the trits, if the whole tensor has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// SHA-256 of the scales of a tensor with group scales: as f16, one for every 64 columns of a row, 0 where all
    /// those weights are zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scales_sha256: Option<String>,
}

/// Describes a model. `hash` reads all ternary weights, so that the same model in two formats can be compared.
/// `progress` receives the number of tensors done and the total.
///
/// # Errors
/// If a ternary tensor cannot be read.
pub fn inspect(
    checkpoint: &Checkpoint,
    hash: bool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Inspection, ModelError> {
    let entries = checkpoint.tensors.entries();
    let (mut parameters, mut ternary_weights) = (0, 0);
    let mut quantization = Vec::new();
    let mut tensors = Vec::with_capacity(entries.len());
    let mut weights_hash = Sha256::new();
    for entry in entries {
        let weights = entry.shape.iter().map(|&n| n as u64).product::<u64>();
        parameters += weights;
        let mut info = TensorInfo {
            name: entry.name.clone(),
            stored_name: entry.stored_name.clone(),
            shape: entry.shape.clone(),
            r#type: entry.stored.clone(),
            kind: entry.kind,
            trits_sha256: None,
            scale: None,
            scales_sha256: None,
        };
        if matches!(entry.kind, TensorKind::Ternary | TensorKind::Grouped) {
            ternary_weights += weights;
            quantization.push(entry.stored.clone());
            if hash {
                hash_tensor(checkpoint, &mut info, &mut weights_hash)?;
            }
        }
        tensors.push(info);
        progress(tensors.len(), entries.len());
    }
    quantization.sort_unstable();
    quantization.dedup();
    let tokenizer = checkpoint.tokenizer.as_ref();
    Ok(Inspection {
        name: checkpoint.name.clone(),
        format: checkpoint.format,
        architecture: checkpoint.spec.architecture.clone(),
        parameters,
        ternary_weights,
        weights_sha256: hash.then(|| hexadecimal(weights_hash)),
        quantization,
        sizes: Sizes::of(&checkpoint.spec),
        tokenizer: tokenizer.map(|t| TokenizerInfo { tokens: t.vocab_size(), prefix: t.prefix().into() }),
        chat_template: checkpoint.chat.as_ref().map(|c| c.source().into()),
        conventions: checkpoint.chat.as_ref().map(|c| c.conventions().clone()),
        generation: checkpoint.defaults.clone(),
        warnings: [checkpoint.warnings.clone(), checkpoint.tensors.warnings()].concat(),
        tensors,
        not_loaded: checkpoint.not_loaded.clone(),
    })
}

/// Fills in the hashes of a ternary tensor and adds them to the hash of the model.
fn hash_tensor(checkpoint: &Checkpoint, info: &mut TensorInfo, all: &mut Sha256) -> Result<(), ModelError> {
    let tensor = checkpoint.tensors.ternary(&info.name)?;
    let trits = trits_sha256(&tensor);
    // A tensor in a file has one scale; only stacked tensors have several.
    info.scale = tensor.row_scale(0);
    info.scales_sha256 = tensor.group().map(|group| scales_sha256(&tensor, group));
    let one = info.scale.map(|scale| scale.to_le_bytes().to_vec());
    let scales = one.or_else(|| info.scales_sha256.clone().map(String::into_bytes)).unwrap_or_default();
    for part in [info.name.as_bytes(), trits.as_bytes(), &scales] {
        all.update(part);
    }
    info.trits_sha256 = Some(trits);
    Ok(())
}

impl Sizes {
    fn of(spec: &ModelSpec) -> Self {
        Sizes {
            hidden: spec.hidden,
            ffn: spec.ffn,
            layers: spec.layers,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            vocab: spec.vocab,
            context: spec.context,
            rms_eps: spec.rms_eps,
            rope_theta: spec.rope.theta,
            rope_scaling: match spec.rope.scaling {
                RopeScaling::None => None,
                RopeScaling::Linear { factor } => Some(format!("linear, factor {factor}")),
                RopeScaling::Llama3 { factor, .. } => Some(format!("llama3, factor {factor}")),
                RopeScaling::Yarn { factor, .. } => Some(format!("yarn, factor {factor}")),
                RopeScaling::LongRope { .. } => Some("longrope".into()),
            },
            activation: match spec.activation {
                Activation::SquaredRelu => "relu2",
                Activation::Silu => "silu",
                Activation::ClampedSilu { .. } => "silu, clamped",
                Activation::Gelu => "gelu",
            },
            sub_norms: spec.sub_norms,
            linear_norms: spec.linear_norms.is_some(),
            head_norms: spec.head_norms,
            experts: spec.experts.map(|experts| [experts.count, experts.used]),
            window: spec
                .windows
                .as_ref()
                .map(|windows| [windows.width, windows.slides.iter().filter(|&&slides| slides).count()]),
            recurrent_layers: Some(spec.recurrent_layers()).filter(|&layers| layers > 0),
            state_bytes: Some(spec.state_bytes()).filter(|&bytes| bytes > 0),
            rotary_width: spec.rope.width,
            hadamard_block: spec.rotation.as_ref().map(|rotation| rotation.block),
            group_scales: spec.grouped.projections,
            multipliers: (spec.multipliers != Multipliers::NONE).then(|| {
                let Multipliers { embedding, residual, logit_divisor } = spec.multipliers;
                [embedding, residual, logit_divisor]
            }),
            tied_head: spec.tied_head,
        }
    }
}

/// SHA-256 of the trits of a tensor as i8, in hexadecimal.
pub fn trits_sha256(tensor: &TernaryTensor) -> String {
    let mut sha = Sha256::new();
    let mut row = Vec::with_capacity(tensor.cols() + 3);
    for r in 0..tensor.rows() {
        row.clear();
        // Codes are weights plus one: the bytes of -1, 0, 1, 2 as i8.
        let four = |&b: &u8| [b & 3, b >> 2 & 3, b >> 4 & 3, b >> 6].map(|code| code.wrapping_sub(1));
        row.extend(tensor.row_codes(r).iter().flat_map(four));
        sha.update(&row[..tensor.cols()]);
    }
    hexadecimal(sha)
}

/// SHA-256 of the scales of a tensor with groups of `group` columns. Groups of 128 and groups of 64 that are equal in
/// pairs give the same hash, and the scale of a group of zeros does not matter.
fn scales_sha256(tensor: &TernaryTensor, group: usize) -> String {
    let mut sha = Sha256::new();
    let mut trits = Vec::with_capacity(tensor.cols());
    for row in 0..tensor.rows() {
        trits.clear();
        trits.extend(tensor.row_trits(row));
        for (i, trits) in trits.chunks(HASHED_GROUP).enumerate() {
            let scale = tensor.group_scales(row)[i * HASHED_GROUP / group];
            let zero = trits.iter().all(|&trit| trit == 0);
            sha.update(if zero { [0; 2] } else { scale.to_le_bytes() });
        }
    }
    hexadecimal(sha)
}

fn hexadecimal(sha: Sha256) -> String {
    hex(&sha.finalize().into())
}
