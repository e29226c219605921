//! `bitnet inspect`: describes a model, its tensors and its chat template.

use bitnet::kernels::{KvShape, KvType};
use bitnet::model::{Batch, CallSyntax, Conventions, Inspection, ModelSpec, inspect};

use crate::{args::InspectArgs, error::CliError, model_arg, output, progress::Progress};

pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    let bar = Progress::new("reading", 0);
    let inspection = inspect(&checkpoint, args.hash, &mut |done, all| bar.at(done, all))?;
    drop(bar);
    if args.json { output::json(&inspection) } else { print(&inspection, &checkpoint.spec) }
}

/// What a sequence holds on the CPU, with the default cache type.
fn sequence(spec: &ModelSpec) -> String {
    let kv = KvType::default();
    let layer = KvShape { blocks: 1, kv_heads: spec.kv_heads, head_dim: spec.head_dim }.cpu_bytes(kv);
    let (tokens, sliding) = (Batch::BLOCK_TOKENS, spec.sliding_layers());
    let block = (spec.cached_layers() - sliding) * layer;
    let mut blocks = format!("blocks of {tokens} tokens with {block} bytes each ({kv})");
    if let Some(window) = spec.sliding_window() {
        let (most, own) = (Batch::blocks_of_window(window, 1), sliding * layer);
        blocks += &format!(", and for sliding layers up to {most} blocks with {own} bytes each");
    }
    match spec.state_bytes() {
        0 => blocks,
        state => format!("{blocks}, and a recurrent state of {state} bytes"),
    }
}

/// What models with recurrent layers or rotated weights have in addition to others.
fn hybrid(spec: &ModelSpec) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(delta) = spec.delta() {
        let (layers, attend) = (spec.recurrent_layers(), spec.attention_layers());
        lines.push(format!(
            "recurrent      {layers} gated-delta layers, {attend} that attend; {} key heads and {} value heads of width {}, \
             convolution over {} tokens",
            delta.key_heads, delta.value_heads, delta.head_dim, delta.taps
        ));
    }
    if spec.draft_head {
        lines.push("draft head     predicts further tokens, for --draft head".into());
    }
    if let Some(rotation) = &spec.rotation {
        let widths: Vec<String> = rotation.signs.keys().map(usize::to_string).collect();
        let signs =
            if widths.is_empty() { "no signs".into() } else { format!("signs for {}", widths.join(", ")) };
        lines.push(format!(
            "rotated        Walsh-Hadamard transform in blocks of {}, {signs}",
            rotation.block
        ));
    }
    lines
}

fn print(r: &Inspection, spec: &ModelSpec) -> Result<(), CliError> {
    let s = &r.sizes;
    let yes = |b: bool| if b { "yes" } else { "no" };
    let mut lines = vec![
        format!("{} ({}, architecture {})", r.name, r.format, r.architecture),
        format!("parameters     {} ternary, {} in total", r.ternary_weights, r.parameters),
        format!("quantisation   {}", r.quantization.join(", ")),
        format!(
            "layers         {} of width {}, feed-forward {} ({})",
            s.layers, s.hidden, s.ffn, s.activation
        ),
        format!("attention      {} heads of width {}, {} key-value heads", s.heads, s.head_dim, s.kv_heads),
    ];
    lines.extend(s.experts.map(|[count, used]| format!("experts        {used} of {count} for a token")));
    lines.extend(s.window.map(|[width, layers]| {
        format!("windows        the last {width} keys in {layers} of {} layers", s.layers)
    }));
    lines.extend(hybrid(spec));
    lines.extend([
        format!(
            "norms          eps {}, sub-norms {}, projection norms {}, head norms {}",
            s.rms_eps,
            yes(s.sub_norms),
            yes(s.linear_norms),
            yes(s.head_norms)
        ),
        format!(
            "scales         {}",
            if s.group_scales { "one per group of weights" } else { "one per tensor" }
        ),
        format!(
            "rope           theta {}, scaling {}, over {} of the {} dimensions of a head",
            s.rope_theta,
            s.rope_scaling.as_deref().unwrap_or("none"),
            spec.rotary_width(),
            s.head_dim
        ),
        format!("vocabulary     {}, head tied to the embedding: {}", s.vocab, yes(s.tied_head)),
        format!("context        {} tokens", s.context),
        format!("sequence       {}", sequence(spec)),
        match &r.tokenizer {
            Some(t) => format!("tokenizer      {} tokens, adds {:?} before a text", t.tokens, t.prefix),
            None => "tokenizer      none".into(),
        },
        format!(
            "chat template  {}",
            r.chat_template.as_ref().map_or("none".into(), |t| format!("{} characters", t.chars().count()))
        ),
    ]);
    lines.extend(r.conventions.iter().flat_map(conventions));
    lines.extend([format!("end of text    {:?}", r.generation.eos), String::new()]);
    let width = r.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
    for t in &r.tensors {
        let mut line = format!("{:width$}  {:14}  {}", t.name, format!("{:?}", t.shape), t.r#type);
        match (&t.trits_sha256, t.scale, &t.scales_sha256) {
            (Some(hash), Some(scale), _) => line += &format!("  {hash}  scale {scale}"),
            (Some(hash), None, Some(scales)) => line += &format!("  {hash}  scales {scales}"),
            _ => {}
        }
        lines.push(line);
    }
    lines.extend(r.not_loaded.iter().map(|name| format!("{name:width$}  not loaded")));
    lines.extend(r.weights_sha256.as_ref().map(|hash| format!("\ntrits and scales of all tensors  {hash}")));
    output::line(lines.join("\n"))
}

/// What the chat template does, one line for thoughts, efforts and calls each.
fn conventions(of: &Conventions) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(thought) = &of.thought {
        let mut line = format!("thoughts       {} ... {}", thought.open, thought.close);
        if let Some(switch) = &thought.switch {
            line += &format!(", {} (default {})", switch.variable, switch.default);
        }
        line += if thought.memory.kept { ", earlier ones kept" } else { ", earlier ones dropped" };
        if let Some((variable, keeps)) = &thought.memory.switch {
            line += &format!(" ({variable}={keeps} keeps them)");
        }
        lines.push(line);
    }
    let efforts: Vec<&str> = of.efforts.accepted.iter().map(|effort| effort.name()).collect();
    if !efforts.is_empty() {
        let default = of.efforts.default.map(|e| format!(", default {}", e.name())).unwrap_or_default();
        lines.push(format!("efforts        {}{default}", efforts.join(" ")));
    }
    if let Some(calls) = &of.calls {
        let form = match &calls.syntax {
            CallSyntax::Json { arguments, .. } => format!("a JSON object with {arguments}"),
            CallSyntax::Array { arguments, .. } => format!("a JSON array of objects with {arguments}"),
            CallSyntax::Xml { .. } => "<function=...> and <parameter=...>".into(),
        };
        let marker = if calls.open.is_empty() { String::new() } else { format!("{} ", calls.open.trim()) };
        let several = if calls.parallel { "several a turn" } else { "one a turn" };
        lines.push(format!("calls          {marker}{form}, {several}"));
    }
    lines
}
