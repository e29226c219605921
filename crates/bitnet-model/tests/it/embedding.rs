//! BitNet embedding models: Qwen3 without a head, with a norm before every projection.

use bitnet_model::{Checkpoint, ModelError, ModelFiles, Pooling, Synthetic, Target, TensorKind, convert};
use bitnet_tensor::SharedBytes;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;

use crate::{
    gguf_edit::GgufEdit,
    support::{fixture, open, weights_hash},
};

fn tiny() -> Checkpoint {
    Checkpoint::synthetic("tiny", Synthetic::named("embedding-tiny").unwrap())
}

#[test]
fn an_embedding_model_is_the_same_in_gguf_and_packed_safetensors() {
    let (dir, from) = (tempfile::tempdir().unwrap(), tiny());
    assert!(
        from.spec.embeds == Some(Pooling::Last) && from.spec.head_norms && from.spec.linear_norms.is_some()
    );
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

/// The model in a GGUF file with another `pooling_type`.
fn pooling(kind: u32) -> Result<Checkpoint, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    convert(tiny(), Target::I2S, &path, &mut |_, _| {}).unwrap();
    let mut gguf = GgufEdit::read(&std::fs::read(&path).unwrap());
    gguf.set("qwen3.pooling_type", 4, kind.to_le_bytes().into());
    Checkpoint::from_gguf("pooled.gguf", SharedBytes::new(gguf.write()))
}

#[test]
fn a_gguf_file_says_how_its_model_pools() {
    for (kind, expected) in [(0, Pooling::Last), (1, Pooling::Mean), (3, Pooling::Last)] {
        assert_eq!(pooling(kind).unwrap().spec.embeds, Some(expected), "{kind}");
    }
    let error = pooling(2).unwrap_err().to_string();
    assert!(error.contains("qwen3.pooling_type is 2") && error.contains("type 1"), "{error}");
}

#[test]
fn a_folder_pools_the_last_token_unless_a_file_says_otherwise() {
    let read = |json: serde_json::Value| {
        let config = std::fs::read(fixture("embedding-gemma-tiny/config.json")).unwrap();
        let weights = std::fs::read(fixture("embedding-gemma-tiny/model.safetensors")).unwrap();
        let pooling = Some(SharedBytes::new(json.to_string().into_bytes()));
        let files = ModelFiles { config: SharedBytes::new(config), pooling, ..ModelFiles::default() };
        Checkpoint::from_files("pooled", &files, SharedBytes::new(weights))
    };
    assert_eq!(open("embedding-gemma-tiny").spec.embeds, Some(Pooling::Last));
    let mean = json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false});
    assert_eq!(read(mean).unwrap().spec.embeds, Some(Pooling::Mean));
    for (json, parts) in [
        (json!({"pooling_mode_cls_token": true}), ["1_Pooling/config.json", "pooling_mode_cls_token"]),
        (json!({}), ["1_Pooling/config.json", "pooling_mode_mean_tokens"]),
        (
            json!({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true}),
            ["pooling_mode_mean_tokens", "2 modes"],
        ),
    ] {
        let error = read(json).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn gemma_is_read_from_both_of_its_forms_and_its_switches_are_checked() {
    let (folder, gguf) =
        (open("embedding-gemma-tiny").spec, open("embedding-gemma-tiny/model-I2_S.gguf").spec);
    assert_eq!(folder.windows.as_ref().map(|w| (w.width, w.full_theta)), Some((24, Some(10_000.0))));
    assert_eq!(folder.windows.as_ref().unwrap().slides[..], [true, false, true]);
    assert_eq!((gguf.windows.clone(), gguf.embeds), (None, Some(Pooling::Mean)));
    let alike = bitnet_model::ModelSpec { windows: None, embeds: gguf.embeds, ..folder };
    assert_eq!(bitnet_model::ModelSpec { eos: alike.eos.clone(), ..gguf }, alike);
    let config = std::fs::read_to_string(fixture("embedding-gemma-tiny/config.json")).unwrap();
    for (old, new, told) in [
        ("\"gelu_pytorch_tanh\"", "\"silu\"", "hidden_activation is silu"),
        ("\"query_pre_attn_scalar\": 64", "\"query_pre_attn_scalar\": 32", "query_pre_attn_scalar is 32"),
        (
            "\"attn_logit_softcapping\": null",
            "\"attn_logit_softcapping\": 50.0",
            "attn_logit_softcapping is 50",
        ),
        ("\"sliding_window\": 24", "\"sliding_window\": 0", "sliding window"),
        ("\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"linear\"}", "rope_scaling"),
    ] {
        assert!(config.contains(old), "{old}");
        let config = SharedBytes::new(config.replace(old, new).into_bytes());
        let weights =
            SharedBytes::new(std::fs::read(fixture("embedding-gemma-tiny/model.safetensors")).unwrap());
        let files = ModelFiles { config, ..ModelFiles::default() };
        let error = Checkpoint::from_files("edited", &files, weights).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn gemma_survives_a_conversion_to_gguf() {
    let (dir, from) = (tempfile::tempdir().unwrap(), open("embedding-gemma-tiny"));
    let path = dir.path().join("model.gguf");
    convert(&from, Target::I2S, &path, &mut |_, _| {}).unwrap();
    let to = Checkpoint::open(&path).unwrap();
    assert_eq!(to.spec, from.spec);
    assert_eq!(weights_hash(&to), weights_hash(&from));
    let told = convert(&from, Target::Packed, &dir.path().join("packed"), &mut |_, _| {}).unwrap_err();
    assert!(told.to_string().contains("convert to i2_s"), "{told}");
}
