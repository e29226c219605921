//! What a model is, for people and programs.

use serde::Serialize;
use sha2::{Digest, Sha256};

use bitnet_tensor::TernaryTensor;

use crate::{Activation, Checkpoint, GenerationDefaults, ModelError, ModelSpec, RopeScaling, TensorKind};

/// A description of a model that can be printed or written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// File or folder.
    pub name: String,
    /// `gguf`, `safetensors` or `synthetic`.
    pub format: &'static str,
    /// Architecture as the file names it.
    pub architecture: String,
    /// Number of all weights.
    pub parameters: u64,
    /// Number of weights that are -1, 0 or 1.
    pub ternary_weights: u64,
    /// How the ternary tensors are stored, each way once.
    pub quantization: Vec<String>,
    /// Sizes and switches.
    pub sizes: Sizes,
    /// The vocabulary, if there is one.
    pub tokenizer: Option<TokenizerInfo>,
    /// The chat template's Jinja text, if there is one.
    pub chat_template: Option<String>,
    /// What the model asks of those who generate with it.
    pub generation: GenerationDefaults,
    /// What a user should know.
    pub warnings: Vec<String>,
    /// All tensors, by Hugging Face name.
    pub tensors: Vec<TensorInfo>,
}

/// Sizes and switches of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sizes {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Epsilon of the RMSNorms.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// `linear` or `llama3`, with the factor.
    pub rope_scaling: Option<String>,
    /// `relu2` or `silu`.
    pub activation: &'static str,
    /// Whether attention output and gated activation are normed before they are projected.
    pub sub_norms: bool,
    /// Whether every projection has a norm of its own.
    pub linear_norms: bool,
    /// Whether the embedding is the output head.
    pub tied_head: bool,
}

/// The vocabulary of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenizerInfo {
    /// One more than the largest id.
    pub tokens: usize,
    /// Ids that are put before a text.
    pub prefix: Vec<u32>,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorInfo {
    /// Hugging Face name.
    pub name: String,
    /// Name in the file.
    pub stored_name: String,
    /// `[out][in]`, or `[width]`.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub r#type: String,
    /// What it is to the model.
    pub kind: TensorKind,
    /// SHA-256 of the trits as i8, row-major `[out][in]`, rows in Hugging Face order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trits_sha256: Option<String>,
    /// What multiplies a trit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
}

/// Describes a model. `hash` reads all ternary weights, so that the same model in two formats can be compared;
/// `progress` is told how many of how many tensors are done.
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
        };
        if entry.kind == TensorKind::Ternary {
            ternary_weights += weights;
            quantization.push(entry.stored.clone());
            if hash {
                let tensor = checkpoint.tensors.ternary(&entry.name)?;
                info.trits_sha256 = Some(trits_sha256(&tensor));
                // A tensor of a file has one scale; ranges of scales are made when tensors are stacked.
                info.scale = Some(tensor.scales()[0].scale);
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
        quantization,
        sizes: Sizes::of(&checkpoint.spec),
        tokenizer: tokenizer.map(|t| TokenizerInfo { tokens: t.vocab_size(), prefix: t.prefix().into() }),
        chat_template: checkpoint.chat.as_ref().map(|c| c.source().into()),
        generation: checkpoint.defaults.clone(),
        warnings: checkpoint.warnings.clone(),
        tensors,
    })
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
            },
            activation: match spec.activation {
                Activation::SquaredRelu => "relu2",
                Activation::Silu => "silu",
            },
            sub_norms: spec.sub_norms,
            linear_norms: spec.linear_norms.is_some(),
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
        // Codes are trits plus one: the bytes of -1, 0, 1 as i8.
        row.extend(
            tensor
                .row_codes(r)
                .iter()
                .flat_map(|&b| [b & 3, b >> 2 & 3, b >> 4 & 3, b >> 6].map(|code| code.wrapping_sub(1))),
        );
        sha.update(&row[..tensor.cols()]);
    }
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
