//! BitNet embedding models: Qwen3 without a head, with a norm before every projection.

use bitnet_model::{Checkpoint, ModelError, ModelFiles, Synthetic, Target, TensorKind, convert};
use bitnet_tensor::SharedBytes;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;

use crate::{gguf_edit::GgufEdit, support::weights_hash};

fn tiny() -> Checkpoint {
    Checkpoint::synthetic("tiny", Synthetic::named("embedding-tiny").unwrap())
}

#[test]
fn an_embedding_model_is_the_same_in_gguf_and_packed_safetensors() {
    let (dir, from) = (tempfile::tempdir().unwrap(), tiny());
    assert!(from.spec.embeds && from.spec.head_norms && from.spec.linear_norms.is_some());
    for target in [Target::I2S, Target::Packed] {
        let path = dir.path().join(target.to_string());
        convert(&from, target, &path, &mut |_, _| {}).unwrap();
        let to = Checkpoint::open(&path).unwrap();
        assert_eq!(to.spec, from.spec, "{target}");
        assert_eq!(weights_hash(&to), weights_hash(&from), "{target}");
        for entry in from.tensors.entries().iter().filter(|entry| entry.kind == TensorKind::Norm) {
            let floats = |model: &Checkpoint| model.tensors.dense(&entry.name).unwrap().to_f32();
            assert_eq!(floats(&to), floats(&from), "{target} {}", entry.name);
        }
    }
}

/// The model as its authors publish it: float masters, and names without `model.`.
fn published() -> Result<Checkpoint, ModelError> {
    let from = tiny();
    let floats = |name: &str, kind| match kind {
        TensorKind::Ternary => {
            let trits = from.tensors.ternary(name).unwrap();
            (0..trits.rows())
                .flat_map(|row| trits.row_trits(row).map(f32::from).collect::<Vec<_>>())
                .collect()
        }
        _ => from.tensors.dense(name).unwrap().to_f32(),
    };
    let stored: Vec<(String, Vec<usize>, Vec<u8>)> = (from.tensors.entries().iter())
        .map(|entry| {
            let name = entry.name.trim_start_matches("model.").replace(".rms_norm.", ".norm.");
            let bytes = floats(&entry.name, entry.kind).iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
            (name, entry.shape.clone(), bytes)
        })
        .collect();
    let views = (stored.iter())
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    let written = safetensors::serialize(views, None).unwrap();
    assert!(SafeTensors::deserialize(&written).unwrap().tensor("layers.1.mlp.down_proj.norm.weight").is_ok());
    let config = json!({
        "model_type": "qwen3", "architectures": ["Qwen3Model"], "hidden_size": 256, "intermediate_size": 768,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 96,
        "vocab_size": 512, "max_position_embeddings": 32_768, "rope_theta": 1_000_000, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "tie_word_embeddings": true,
    });
    let config = SharedBytes::new(config.to_string().into_bytes());
    let files = ModelFiles { config, ..ModelFiles::default() };
    Checkpoint::from_files("published", &files, SharedBytes::new(written))
}

#[test]
fn the_published_names_and_masters_are_read() {
    let (published, from) = (published().unwrap(), tiny());
    assert_eq!(published.spec, from.spec);
    assert_eq!(published.warnings, Vec::<String>::new());
    for entry in from.tensors.entries() {
        if entry.kind == TensorKind::Ternary {
            let trits = |model: &Checkpoint| model.tensors.ternary(&entry.name).unwrap().codes().to_vec();
            assert_eq!(trits(&published), trits(&from), "{}", entry.name);
        } else {
            let floats = |model: &Checkpoint| model.tensors.dense(&entry.name).unwrap().to_f32();
            assert_eq!(floats(&published), floats(&from), "{}", entry.name);
        }
    }
}

#[test]
fn a_model_that_pools_otherwise_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    convert(tiny(), Target::I2S, &path, &mut |_, _| {}).unwrap();
    let mut gguf = GgufEdit::read(&std::fs::read(&path).unwrap());
    gguf.set("qwen3.pooling_type", 4, 1u32.to_le_bytes().into());
    let error = Checkpoint::from_gguf("mean.gguf", SharedBytes::new(gguf.write())).unwrap_err().to_string();
    assert!(error.contains("mean.gguf") && error.contains("qwen3.pooling_type"), "{error}");
}
