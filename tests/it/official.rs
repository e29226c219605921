//! Files like those of `microsoft/bitnet-b1.58-2B-4T` and of Ternary Bonsai 1.7B, with the same shapes, names and
//! keys but random weights.

use std::path::Path;

use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{
    Batch, Checkpoint, Limits, Logits, Model, ModelSpec, Synthetic, Target, TensorSource, Transformer,
    convert,
};

/// Number of layers in the test. The real model has 30; `BITNET_OFFICIAL_LAYERS=30` runs them all.
fn layers() -> usize {
    std::env::var("BITNET_OFFICIAL_LAYERS").map_or(2, |n| n.parse().expect("a number of layers"))
}

fn logits(spec: &ModelSpec, tensors: &dyn TensorSource) -> Vec<u32> {
    let cpu = Cpu::new(Isa::best(), 2).unwrap();
    let limits = Limits { max_tokens: 8, max_logit_rows: 1, kv_blocks: 1, state_slots: 0 };
    let mut model = Transformer::load(spec, tensors, cpu, limits, &mut |_, _| {}).unwrap();
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    batch.push(&[128_000, 791, 4062, 14198, 39935], 0, &[0], 4..5);
    model.forward(&batch, &mut logits).unwrap();
    logits.row(0).iter().map(|x| x.to_bits()).collect()
}

/// A model with random weights that begins texts with this token.
fn synthetic(spec: &ModelSpec, bos: u32) -> Checkpoint {
    let mut checkpoint = Checkpoint::synthetic("official", Synthetic::of(spec.clone()));
    checkpoint.defaults.bos = Some(bos);
    checkpoint
}

fn written(from: &Checkpoint, target: Target, to: &Path) -> Checkpoint {
    convert(from, target, to, &mut |_, _| {}).unwrap();
    Checkpoint::open(to).unwrap()
}

#[test]
fn files_with_names_shapes_and_keys_of_the_official_2b_4t_model_run() {
    let shapes = Synthetic::named("2b4t").unwrap().spec().clone();
    let spec = ModelSpec { layers: layers(), eos: vec![128_001], ..shapes };
    let from = synthetic(&spec, 128_000);
    let expected = logits(&spec, &*from.tensors);
    let folder = tempfile::tempdir().unwrap();

    let gguf = written(&from, Target::I2S, &folder.path().join("ggml-model-i2_s.gguf"));
    assert_eq!(gguf.spec, ModelSpec { architecture: "bitnet-b1.58".into(), ..spec.clone() });
    let entry = |stored: &str| {
        let found = gguf.tensors.entries().iter().find(|e| e.stored_name == stored);
        found.map(|e| (e.shape.clone(), e.stored.to_lowercase())).unwrap_or_else(|| panic!("{stored}"))
    };
    for (stored, shape, kind) in [
        // f16 in the official file. The converter keeps the type, and fixtures cover f16.
        ("token_embd.weight", vec![128_256, 2560], "bf16"),
        ("blk.1.attn_norm.weight", vec![2560], "f32"),
        ("blk.1.attn_q.weight", vec![2560, 2560], "i2_s"),
        ("blk.1.attn_k.weight", vec![640, 2560], "i2_s"),
        ("blk.1.attn_v.weight", vec![640, 2560], "i2_s"),
        ("blk.1.attn_sub_norm.weight", vec![2560], "f32"),
        ("blk.1.attn_output.weight", vec![2560, 2560], "i2_s"),
        ("blk.1.ffn_norm.weight", vec![2560], "f32"),
        ("blk.1.ffn_gate.weight", vec![6912, 2560], "i2_s"),
        ("blk.1.ffn_up.weight", vec![6912, 2560], "i2_s"),
        ("blk.1.ffn_sub_norm.weight", vec![6912], "f32"),
        ("blk.1.ffn_down.weight", vec![2560, 6912], "i2_s"),
        ("output_norm.weight", vec![2560], "f32"),
    ] {
        assert_eq!(entry(stored), (shape, kind.to_owned()), "{stored}");
    }
    assert!(logits(&gguf.spec, &*gguf.tensors) == expected, "I2_S gives the logits of the weights in memory");
    drop(gguf);

    let packed = written(&from, Target::Packed, &folder.path().join("bitnet-b1.58-2B-4T"));
    let stored: Vec<&str> = packed.tensors.entries().iter().map(|e| e.stored_name.as_str()).collect();
    for name in ["model.embed_tokens.weight", "model.layers.1.mlp.ffn_sub_norm.weight", "model.norm.weight"] {
        assert!(stored.contains(&name), "{name}");
    }
    assert_eq!(packed.spec, spec);
    assert!(logits(&packed.spec, &*packed.tensors) == expected, "packed gives the same logits");
}

#[test]
fn files_with_names_shapes_and_keys_of_ternary_bonsai_run_and_give_the_bits_of_their_weights() {
    // One of 28 layers, because most of the file is the embedding.
    let shapes = Synthetic::named("bonsai-1.7b").unwrap().spec().clone();
    let spec = ModelSpec { layers: 1, eos: vec![151_645], ..shapes };
    let from = synthetic(&spec, 151_643);
    let expected = logits(&spec, &*from.tensors);
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (target, kind) in [(Target::Pq2_0, "pq2_0"), (Target::Q2_0, "q2_0"), (Target::Panels, "panels")] {
        let file = written(&from, target, &folder.path().join(format!("Ternary-Bonsai-1.7B-{kind}.gguf")));
        assert_eq!(file.spec, spec, "{kind}");
        assert!(logits(&file.spec, &*file.tensors) == expected, "{kind}");
        files.push(file);
    }
    let entry = |stored: &str| {
        let found = files[0].tensors.entries().iter().find(|e| e.stored_name == stored);
        found.map(|e| (e.shape.clone(), e.stored.clone())).unwrap_or_else(|| panic!("{stored}"))
    };
    for (stored, shape, kind) in [
        ("token_embd.weight", vec![151_936, 2048], "pq2_0"),
        ("blk.0.attn_norm.weight", vec![2048], "f32"),
        ("blk.0.attn_q.weight", vec![2048, 2048], "pq2_0"),
        ("blk.0.attn_k.weight", vec![1024, 2048], "pq2_0"),
        ("blk.0.attn_v.weight", vec![1024, 2048], "pq2_0"),
        ("blk.0.attn_q_norm.weight", vec![128], "f32"),
        ("blk.0.attn_k_norm.weight", vec![128], "f32"),
        ("blk.0.attn_output.weight", vec![2048, 2048], "pq2_0"),
        ("blk.0.ffn_norm.weight", vec![2048], "f32"),
        ("blk.0.ffn_gate.weight", vec![6144, 2048], "pq2_0"),
        ("blk.0.ffn_up.weight", vec![6144, 2048], "pq2_0"),
        ("blk.0.ffn_down.weight", vec![2048, 6144], "pq2_0"),
        ("output_norm.weight", vec![2048], "f32"),
    ] {
        assert_eq!(entry(stored), (shape, kind.to_owned()), "{stored}");
    }
}
