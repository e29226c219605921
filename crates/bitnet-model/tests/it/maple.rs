//! Maple: the dialects of its files, and what is refused by name.

use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{
    Activation, Checkpoint, Experts, ModelError, ModelFiles, ModelFootprint, TensorKind, WeightBytes,
};
use bitnet_tensor::{DType, SharedBytes};
use serde_json::{Value, json};

use crate::{
    gguf_edit::GgufEdit,
    support::{edited, fixture, open, refused},
};

const GGUF: &str = "maple-tiny/model-TQ1_0-head-F16.gguf";

#[test]
fn the_dialects_of_gguf_metadata_say_the_same() {
    let first = open(GGUF).spec;
    assert_eq!(first.experts, Some(Experts { count: 8, used: 2 }));
    assert_eq!((first.ffn, first.activation), (256, Activation::ClampedSilu { limit: 7.0 }));
    let windows = first.windows.clone().unwrap();
    assert_eq!(
        (windows.width, &windows.slides[..], windows.full_theta),
        (12, &[true, true, true, false][..], None)
    );
    assert_eq!((first.rotary_width(), first.head_dim, first.tied_head), (32, 64, false));
    assert_eq!([0, 3].map(|layer| first.window(layer)), [Some(12), None]);

    // The official converter names the clamp of each layer; another one the rope of sliding layers alone.
    let limits = |gguf: &mut GgufEdit, limits: [f32; 4]| {
        gguf.set_words("maple.swiglu_clamp_exp", 6, limits.map(f32::to_le_bytes).into_iter());
    };
    assert_eq!(edited(GGUF, |gguf| limits(gguf, [7.0; 4])).unwrap().spec, first);
    let other = edited(GGUF, |gguf| {
        limits(gguf, [7.0; 4]);
        gguf.remove("maple.vocab_size");
        gguf.set("maple.rope.dimension_count", 4, 0u32.to_le_bytes().into());
        gguf.set("maple.rope.dimension_count_swa", 4, 32u32.to_le_bytes().into());
        gguf.set("maple.expert_gating_func", 4, 1u32.to_le_bytes().into());
        gguf.set("maple.expert_weights_norm", 7, vec![1]);
    });
    assert_eq!(other.unwrap().spec, first);
    let lower = edited(GGUF, |gguf| limits(gguf, [5.5; 4])).unwrap().spec;
    assert_eq!(lower.activation, Activation::ClampedSilu { limit: 5.5 });
    let told = refused(GGUF, |gguf| limits(gguf, [7.0, 7.0, 6.0, 7.0]));
    assert!(told.contains("maple.swiglu_clamp_exp") && told.contains("7, and 6"), "{told}");
}

#[test]
fn metadata_that_would_change_the_numbers_is_refused_by_its_key() {
    let word = |key: &'static str, value: u32| {
        refused(GGUF, |gguf| gguf.set(&format!("maple.{key}"), 4, value.to_le_bytes().into()))
    };
    for (key, value) in [
        ("expert_shared_count", 1),
        ("leading_dense_block_count", 1),
        ("expert_gating_func", 2),
        ("expert_group_count", 4),
    ] {
        let told = word(key, value);
        assert!(told.contains(&format!("maple.{key} is {value}")), "{told}");
    }
    for (key, value, parts) in [
        ("expert_used_count", 9, ["number of experts of a token", "is 9"]),
        ("expert_used_count", 0, ["number of experts of a token", "is 0"]),
        ("expert_count", u32::MAX, ["number of experts", "too many"]),
        ("attention.sliding_window", 0, ["maple.attention.sliding_window", ""]),
        ("rope.dimension_count", 0, ["rotary width", "is 0"]),
        ("expert_feed_forward_length", 0, ["feed-forward size", "is 0"]),
    ] {
        let told = word(key, value);
        assert!(parts.iter().all(|part| told.contains(part)), "{key}: {told}");
    }
    let told = refused(GGUF, |gguf| gguf.set("maple.expert_weights_norm", 7, vec![0]));
    assert!(told.contains("maple.expert_weights_norm"), "{told}");
    let told = refused(GGUF, |gguf| gguf.set("maple.expert_weights_scale", 6, 2.5f32.to_le_bytes().into()));
    assert!(told.contains("maple.expert_weights_scale is 2.5"), "{told}");
    let short = |gguf: &mut GgufEdit| {
        let mut raw = 7u32.to_le_bytes().to_vec();
        raw.extend(3u64.to_le_bytes());
        raw.extend([1, 1, 0]);
        gguf.set("maple.attention.sliding_window_pattern", 9, raw);
    };
    let told = refused(GGUF, short);
    assert!(told.contains("sliding_window_pattern") && told.contains("fewer than 4 layers"), "{told}");
    let told = refused(GGUF, |gguf| gguf.remove("maple.attention.sliding_window_pattern"));
    assert!(told.contains("sliding_window_pattern"), "{told}");
}

#[test]
fn damaged_experts_are_refused_by_their_tensor() {
    const EXPERTS: &str = "blk.1.ffn_up_exps.weight";
    let told = refused(GGUF, |gguf| gguf.tensors.retain(|tensor| tensor.name != EXPERTS));
    assert!(told.contains(EXPERTS), "{told}");
    let told = refused(GGUF, |gguf| gguf.tensor(EXPERTS).dims.swap(0, 2));
    assert!(told.contains(EXPERTS), "{told}");
    let told = refused(GGUF, |gguf| gguf.tensor(EXPERTS).dims = vec![256, 8 * 256]);
    assert!(told.contains(EXPERTS) && told.contains("shape"), "{told}");
    let told = refused(GGUF, |gguf| {
        let tensor = gguf.tensor(EXPERTS);
        (tensor.kind, tensor.data) = (8, vec![0; 8 * 256 * 256 / 32 * 34]);
    });
    assert!(told.contains(EXPERTS) && told.contains("q8_0") && told.contains("not ternary"), "{told}");
    // An infinite scale is found when the matrix is read.
    let model = edited(GGUF, |gguf| {
        let data = &mut gguf.tensor(EXPERTS).data;
        data[52..54].copy_from_slice(&[0, 0x7C]);
    });
    let told = model.unwrap().tensors.ternary("model.layers.1.mlp.experts.up_proj.weight").unwrap_err();
    assert!(told.to_string().contains(EXPERTS), "{told}");
}

#[test]
fn an_embedding_and_a_head_may_have_any_small_float_type() {
    for (id, dtype) in [
        (2, DType::Q4_0),
        (3, DType::Q4_1),
        (6, DType::Q5_0),
        (7, DType::Q5_1),
        (8, DType::Q8_0),
        (12, DType::Q4K),
        (13, DType::Q5K),
        (14, DType::Q6K),
    ] {
        let model = edited(GGUF, |gguf| {
            for name in ["token_embd.weight", "output.weight"] {
                let tensor = gguf.tensor(name);
                let elements = tensor.dims.iter().product::<u64>() as usize;
                (tensor.kind, tensor.data) =
                    (id, vec![0x11; elements / dtype.block_elements() * dtype.block_bytes()]);
            }
        });
        let model = model.unwrap();
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let table = model.tensors.dense(name).unwrap();
            assert_eq!((table.dtype(), table.rows(), table.cols()), (dtype, 320, 256));
            assert!(table.to_f32().iter().all(|x| x.is_finite()), "{dtype}");
        }
    }
}

/// The MLX folder after an edit of its configuration and of its weights.
fn mlx(
    config: impl FnOnce(&mut Value),
    weights: impl FnOnce(&mut Vec<u8>),
) -> Result<Checkpoint, ModelError> {
    let read = |name: &str| std::fs::read(fixture("maple-unpacked/mlx").join(name)).unwrap();
    let mut json = serde_json::from_slice(&read("config.json")).unwrap();
    config(&mut json);
    let mut bytes = read("model.safetensors");
    weights(&mut bytes);
    let files =
        ModelFiles { config: SharedBytes::new(json.to_string().into_bytes()), ..ModelFiles::default() };
    Checkpoint::from_files("mlx", &files, SharedBytes::new(bytes))
}

#[test]
fn a_folder_names_its_experts_tables_and_windows() {
    let model = open("maple-unpacked/mlx");
    let spec = &model.spec;
    assert_eq!((spec.experts, spec.ffn, spec.layers), (Some(Experts { count: 5, used: 2 }), 256, 3));
    assert_eq!([0, 1, 2].map(|layer| spec.window(layer)), [Some(8), Some(8), None]);
    let stored =
        |name: &str| model.tensors.entries().iter().find(|entry| entry.name == name).unwrap().clone();
    let experts = stored("model.layers.0.mlp.experts.down_proj.weight");
    assert_eq!((experts.shape, experts.kind), (vec![5, 128, 256], TensorKind::Grouped));
    assert_eq!(experts.stored_name, "model.layers.0.mlp.switch_mlp.down_proj.weight");
    assert_eq!(stored("model.embed_tokens.weight").stored, "mlx 4-bit");
    assert_eq!(stored("model.layers.0.mlp.gate.weight").kind, TensorKind::Dense);
    assert_eq!(mlx(|json| json["model_type"] = Value::Null, |_| {}).unwrap().spec.experts, spec.experts);
}

#[test]
fn a_configuration_that_would_change_the_numbers_is_refused_by_its_field() {
    for (field, value) in [
        ("num_shared_experts", json!(1)),
        ("first_k_dense_replace", json!(1)),
        ("norm_topk_prob", json!(false)),
        ("use_qk_norm", json!(false)),
        ("moe_router_enable_expert_bias", json!(true)),
        ("routed_scaling_factor", json!(2.5)),
        ("n_group", json!(4)),
        ("num_experts_per_tok", json!(6)),
        ("hidden_act", json!("gelu")),
        ("layer_types", json!(["sliding_attention", "chunked_attention", "full_attention"])),
        ("attention_bias", json!(true)),
    ] {
        let told = mlx(|json| json[field] = value, |_| {}).unwrap_err().to_string();
        let named = if field == "num_experts_per_tok" { "number of experts of a token" } else { field };
        assert!(told.contains("config.json") && told.contains(named), "{field}: {told}");
    }
    for field in ["num_experts", "num_experts_per_tok", "moe_intermediate_size", "sliding_window"] {
        let told = mlx(|json| json[field] = Value::Null, |_| {}).unwrap_err().to_string();
        assert!(told.contains(field), "{field}: {told}");
    }
    let told =
        mlx(|json| json["layer_types"] = json!(["sliding_attention"]), |_| {}).unwrap_err().to_string();
    assert!(told.contains("covers 1 of 3 layers"), "{told}");
}

#[test]
fn damaged_scales_of_rows_are_refused_by_their_tensor() {
    let renamed = |old: &'static str, new: &'static str| {
        mlx(
            |_| {},
            move |bytes| {
                let at = bytes.windows(old.len()).position(|some| some == old.as_bytes()).unwrap();
                assert_eq!(old.len(), new.len());
                bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
            },
        )
    };
    let scales = "model.layers.1.mlp.switch_mlp.up_proj.row_alpha";
    let told = renamed(scales, "model.layers.1.mlp.switch_mlp.up_proj.row_alphA").unwrap_err().to_string();
    assert!(told.contains("model.layers.1.mlp.switch_mlp.up_proj.scales"), "{told}");
    let tables = "model.word_embeddings.scales";
    let told = renamed(tables, "model.word_embeddings.scaleS").unwrap_err().to_string();
    assert!(told.contains(tables), "{told}");
}

#[test]
fn a_router_counts_as_the_floats_as_which_it_is_read() {
    let cpu = Cpu::new(Isa::named("scalar").unwrap(), 1).unwrap();
    let weights = |low: u8| -> WeightBytes {
        let open = edited(GGUF, |gguf| {
            for tensor in gguf.tensors.iter_mut().filter(|tensor| tensor.name.contains("ffn_gate_inp")) {
                assert_eq!(tensor.kind, 0, "f32");
                tensor.data.chunks_exact_mut(4).for_each(|word| word[..2].copy_from_slice(&[low, 0]));
            }
        });
        let open = open.unwrap();
        ModelFootprint::new(&cpu, &open.spec, &*open.tensors).weights()
    };
    let (half, whole) = (weights(0), weights(1));
    // 4 layers of 8 experts.
    let more = 4 * 8 * 2 * open(GGUF).spec.hidden as u64;
    assert_eq!((whole.step - half.step, whole.total - half.total), (more, more));
}
