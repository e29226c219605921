//! All forms of a model are the same model.

use bitnet_model::{Activation, RopeScaling, TensorKind, inspect};

use crate::support::{FOLDERS, GGUFS, open};

/// Hash and scale of every ternary tensor.
fn hashes(path: &str) -> Vec<(String, String, f32)> {
    let inspection = inspect(&open(path), true, &mut |_, _| {}).unwrap();
    let ternary = inspection.tensors.into_iter().filter(|t| t.kind == TensorKind::Ternary);
    ternary.map(|t| (t.name, t.trits_sha256.unwrap(), t.scale.unwrap())).collect()
}

#[test]
fn every_gguf_form_has_the_trits_of_the_safetensors() {
    for path in GGUFS {
        let folder = path.split_once('/').unwrap().0;
        let (expected, actual) = (hashes(folder), hashes(path));
        assert_eq!(expected.len(), actual.len(), "{path}");
        for ((name, trits, scale), (other_name, other_trits, other_scale)) in expected.into_iter().zip(actual)
        {
            assert_eq!((&name, &trits), (&other_name, &other_trits), "{path}");
            if path.contains("I2_S") {
                assert_eq!(scale, other_scale, "{path} {name}");
            } else {
                // TQ types store the scale in 16 bits.
                assert!(
                    (scale - other_scale).abs() <= scale / 2048.0,
                    "{path} {name}: {scale} {other_scale}"
                );
            }
        }
    }
}

#[test]
fn every_fixture_opens_without_a_warning() {
    for path in FOLDERS.into_iter().chain(GGUFS) {
        let checkpoint = open(path);
        assert_eq!(checkpoint.warnings, Vec::<String>::new(), "{path}");
        assert!(checkpoint.tokenizer.is_some() && checkpoint.chat.is_some(), "{path}");
        let (bos, eos) = (checkpoint.defaults.bos.unwrap(), &checkpoint.defaults.eos);
        assert_eq!((bos + 2, bos + 1), (eos[0], eos[1]), "{path}");
        assert_eq!(eos.len(), 2, "{path}");
    }
}

#[test]
fn gguf_and_config_json_describe_the_same_model() {
    for path in GGUFS {
        let folder = path.split_once('/').unwrap().0;
        let (mut json, gguf) = (open(folder).spec, open(path).spec);
        json.architecture.clone_from(&gguf.architecture);
        assert_eq!(json, gguf, "{path}");
    }
}

#[test]
fn every_family_is_described_by_its_own_metadata() {
    let bitnet = open("bitnet-packed").spec;
    assert_eq!(
        (bitnet.activation, bitnet.sub_norms, bitnet.tied_head),
        (Activation::SquaredRelu, true, true)
    );
    assert_eq!((bitnet.heads, bitnet.kv_heads, bitnet.head_dim, bitnet.layers), (4, 2, 64, 3));
    assert_eq!((bitnet.rms_eps, bitnet.rope.theta, bitnet.context), (1e-5, 500_000.0, 512));

    let llama = open("llama-bitlinear").spec;
    assert_eq!((llama.activation, llama.sub_norms, llama.tied_head), (Activation::Silu, false, false));
    assert_eq!((llama.linear_norms, llama.rope.scaling), (None, RopeScaling::None));

    let explicit = open("llama-explicit").spec;
    assert_eq!((explicit.hidden, explicit.heads, explicit.head_dim, explicit.q_width()), (256, 4, 80, 320));
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 64.0,
    };
    assert_eq!(explicit.rope.scaling, scaling);

    assert_eq!(open("llama-rmsnorm").spec.linear_norms, Some(1e-5));
    let onebitllm = open("onebitllm").spec;
    assert_eq!((onebitllm.activation, onebitllm.sub_norms), (Activation::Silu, true));
}

#[test]
fn tensors_are_listed_by_hugging_face_name_with_their_stored_one() {
    let onebitllm = open("onebitllm");
    let entries = onebitllm.tensors.entries();
    let norm = entries.iter().find(|e| e.name == "model.layers.1.mlp.ffn_sub_norm.weight").unwrap();
    assert_eq!(norm.stored_name, "model.layers.1.mlp.ffn_layernorm.weight");
    assert_eq!((norm.kind, norm.stored.as_str(), &norm.shape[..]), (TensorKind::Norm, "f32", &[432][..]));

    let gguf = open("llama-bitlinear/model-TQ2_0-K.gguf");
    let stored = |name: &str| {
        let entry = gguf.tensors.entries().iter().find(|e| e.name == name).unwrap();
        (entry.stored_name.clone(), entry.stored.clone())
    };
    assert_eq!(stored("lm_head.weight"), ("output.weight".into(), "q4_k".into()));
    assert_eq!(stored("model.embed_tokens.weight"), ("token_embd.weight".into(), "q6_k".into()));
    assert_eq!(
        stored("model.layers.0.self_attn.o_proj.weight"),
        ("blk.0.attn_output.weight".into(), "tq2_0".into())
    );
    assert!(gguf.tensors.ternary("model.layers.2.self_attn.o_proj.weight").is_err());
}

#[test]
fn dense_tensors_are_of_the_stored_type_and_shape() {
    for (path, name, expected) in [
        ("bitnet-packed", "model.embed_tokens.weight", "bf16 [512, 256]"),
        ("bitnet-packed/model-I2_S.gguf", "model.embed_tokens.weight", "f16 [512, 256]"),
        ("llama-bitlinear/model-I2_S.gguf", "lm_head.weight", "q8_0 [512, 256]"),
        ("bitnet-odd", "model.layers.1.mlp.ffn_sub_norm.weight", "bf16 [352]"),
        ("llama-rmsnorm", "model.layers.0.mlp.down_proj.rms_norm.weight", "bf16 [320]"),
    ] {
        let tensor = open(path).tensors.dense(name).unwrap();
        assert_eq!(format!("{} {}", tensor.dtype(), tensor.shape()), expected, "{path}");
    }
}

#[test]
fn a_tensor_is_refused_under_the_wrong_kind_or_name() {
    let model = open("bitnet-packed");
    for error in [
        model.tensors.dense("model.layers.0.mlp.up_proj.weight").map(|_| ()).unwrap_err(),
        model.tensors.ternary("model.norm.weight").map(|_| ()).unwrap_err(),
        model.tensors.ternary("lm_head.weight").map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.to_string().lines().count(), 1);
    }
}
