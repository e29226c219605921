use bitnet_model::{Activation, Checkpoint, ModelSpec, RopeScaling, TensorEntry, TensorKind};
use bitnet_tensor::TernaryTensor;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{args::InspectArgs, error::CliError, model_arg, output, progress::Progress};

#[derive(Serialize)]
struct Report<'a> {
    name: &'a str,
    format: &'static str,
    architecture: &'a str,
    parameters: u64,
    ternary_weights: u64,
    /// How the ternary tensors are stored.
    quantization: Vec<String>,
    sizes: Sizes,
    tokenizer: Option<Vocabulary<'a>>,
    chat_template: Option<&'a str>,
    generation: Generation<'a>,
    warnings: &'a [String],
    tensors: Vec<Tensor<'a>>,
}

#[derive(Serialize)]
struct Sizes {
    layers: usize,
    hidden: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    context: usize,
    rms_eps: f32,
    rope_theta: f32,
    rope_scaling: Option<String>,
    activation: &'static str,
    sub_norms: bool,
    linear_norms: bool,
    tied_head: bool,
}

#[derive(Serialize)]
struct Vocabulary<'a> {
    tokens: usize,
    /// Ids put before a text.
    prefix: &'a [u32],
}

#[derive(Serialize)]
struct Generation<'a> {
    bos: Option<u32>,
    eos: &'a [u32],
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    do_sample: Option<bool>,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    stored_name: &'a str,
    kind: TensorKind,
    shape: &'a [usize],
    #[serde(rename = "type")]
    stored: &'a str,
    #[serde(flatten)]
    fingerprint: Option<Fingerprint>,
}

#[derive(Serialize)]
struct Fingerprint {
    /// Of -1, 0, 1 as signed bytes, `[out][in]` in the order of rows that Hugging Face has.
    trits_sha256: String,
    scale: f32,
}

/// `bitnet inspect`.
pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    let report = report(&checkpoint, args.hash)?;
    if args.json { output::json(&report) } else { print(&report) }
}

fn report(checkpoint: &Checkpoint, hash: bool) -> Result<Report<'_>, CliError> {
    let entries = checkpoint.tensors.entries();
    let count = |ternary_only: bool| -> u64 {
        let counted = entries.iter().filter(|e| !ternary_only || e.kind == TensorKind::Ternary);
        counted.map(|e| e.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
    };
    let ternary = entries.iter().filter(|e| e.kind == TensorKind::Ternary);
    let mut quantization: Vec<String> = ternary.map(|e| e.stored.clone()).collect();
    quantization.sort_unstable();
    quantization.dedup();
    let bar = Progress::new("hashing", if hash { entries.len() } else { 0 });
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        let TensorEntry { name, stored_name, kind, shape, stored } = entry;
        let fingerprint = match kind {
            TensorKind::Ternary if hash => Some(fingerprint(&checkpoint.tensors.ternary(name)?)),
            _ => None,
        };
        tensors.push(Tensor { name, stored_name, kind: *kind, shape, stored, fingerprint });
        bar.step();
    }
    let tokenizer = checkpoint.tokenizer.as_ref();
    let d = &checkpoint.defaults;
    Ok(Report {
        name: &checkpoint.name,
        format: checkpoint.format,
        architecture: &checkpoint.spec.architecture,
        parameters: count(false),
        ternary_weights: count(true),
        quantization,
        sizes: sizes(&checkpoint.spec),
        tokenizer: tokenizer.map(|t| Vocabulary { tokens: t.vocab_size(), prefix: t.prefix() }),
        chat_template: checkpoint.chat.as_ref().map(|c| c.source()),
        generation: Generation {
            bos: d.bos,
            eos: &d.eos,
            temperature: d.temperature,
            top_p: d.top_p,
            top_k: d.top_k,
            do_sample: d.do_sample,
        },
        warnings: &checkpoint.warnings,
        tensors,
    })
}

fn sizes(spec: &ModelSpec) -> Sizes {
    Sizes {
        layers: spec.layers,
        hidden: spec.hidden,
        ffn: spec.ffn,
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

fn fingerprint(tensor: &TernaryTensor) -> Fingerprint {
    let mut hash = Sha256::new();
    let mut row = Vec::with_capacity(tensor.cols());
    for r in 0..tensor.rows() {
        row.clear();
        row.extend(tensor.row_trits(r).map(|t| t as u8));
        hash.update(&row);
    }
    let digest = hash.finalize();
    Fingerprint {
        trits_sha256: digest.iter().map(|b| format!("{b:02x}")).collect(),
        // A tensor of a file has one scale; ranges of scales are made when tensors are stacked.
        scale: tensor.scales()[0].scale,
    }
}

fn print(r: &Report<'_>) -> Result<(), CliError> {
    let s = &r.sizes;
    let yes = |b: bool| if b { "yes" } else { "no" };
    let mut lines = vec![
        format!("{} ({}, architecture {})", r.name, r.format, r.architecture),
        format!("parameters     {} of them ternary, {} in all", r.ternary_weights, r.parameters),
        format!("quantisation   {}", r.quantization.join(", ")),
        format!(
            "layers         {} of width {}, feed-forward {} ({})",
            s.layers, s.hidden, s.ffn, s.activation
        ),
        format!(
            "attention      {} heads of width {}, {} of keys and values",
            s.heads, s.head_dim, s.kv_heads
        ),
        format!(
            "norms          eps {}, sub-norms {}, norms of projections {}",
            s.rms_eps,
            yes(s.sub_norms),
            yes(s.linear_norms)
        ),
        format!(
            "rope           theta {}, scaling {}",
            s.rope_theta,
            s.rope_scaling.as_deref().unwrap_or("none")
        ),
        format!("vocabulary     {}, head tied to the embedding: {}", s.vocab, yes(s.tied_head)),
        format!("context        {} tokens", s.context),
        match &r.tokenizer {
            Some(t) => format!("tokenizer      {} tokens, puts {:?} before a text", t.tokens, t.prefix),
            None => "tokenizer      none".into(),
        },
        format!(
            "chat template  {}",
            r.chat_template.map_or("none".into(), |t| format!("{} characters", t.chars().count()))
        ),
        format!("end of text    {:?}", r.generation.eos),
        String::new(),
    ];
    let width = r.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
    for t in &r.tensors {
        let mut line = format!("{:width$}  {:14}  {}", t.name, format!("{:?}", t.shape), t.stored);
        if let Some(f) = &t.fingerprint {
            line += &format!("  {}  scale {}", f.trits_sha256, f.scale);
        }
        lines.push(line);
    }
    output::line(lines.join("\n"))
}
