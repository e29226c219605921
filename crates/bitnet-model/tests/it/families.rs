//! Every architecture, type and convention that can be read, by name; where no fixture has one, a modified fixture.

use bitnet_model::{Activation, Checkpoint, ModelError, ModelFiles, TensorKind, inspect};
use bitnet_tensor::{SharedBytes, TernaryTensor};
use half::{bf16, f16};

use crate::{
    gguf_edit::{GgufEdit, Tensor},
    support::{edited, fixture, open},
};

fn hashes(model: &Checkpoint) -> Vec<(String, Option<String>, Option<f32>)> {
    let tensors = inspect(model, true, &mut |_, _| {}).unwrap().tensors.into_iter();
    tensors.filter(|t| t.kind == TensorKind::Ternary).map(|t| (t.name, t.trits_sha256, t.scale)).collect()
}

/// A fixture folder with its config changed.
fn with_config(folder: &str, change: impl FnOnce(&mut serde_json::Value)) -> Result<Checkpoint, ModelError> {
    let read = |name: &str| std::fs::read(fixture(folder).join(name)).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&read("config.json")).unwrap();
    change(&mut config);
    let files =
        ModelFiles { config: SharedBytes::new(config.to_string().into_bytes()), ..Default::default() };
    Checkpoint::from_files(folder, &files, SharedBytes::new(read("model.safetensors")))
}

const Q: &str = "blk.0.attn_q.weight";

#[test]
fn gguf_architecture_bitnet_25_is_bitnet_b1_58() {
    let original = open("bitnet-packed/model-I2_S.gguf");
    let model = edited("bitnet-packed/model-I2_S.gguf", |g| g.set_architecture("bitnet-25")).unwrap();
    assert_eq!(model.spec.architecture, "bitnet-25");
    assert_eq!((model.spec.activation, model.spec.sub_norms), (Activation::SquaredRelu, true));
    assert_eq!(hashes(&model), hashes(&original));
}

#[test]
fn gguf_architecture_bitnet_has_silu_and_its_rows_in_place() {
    let model = edited("bitnet-packed/model-TQ1_0.gguf", |g| g.set_architecture("bitnet")).unwrap();
    assert_eq!((model.spec.activation, model.spec.sub_norms), (Activation::Silu, true));
    assert_eq!(hashes(&model), hashes(&open("bitnet-packed/model-TQ1_0.gguf")));
}

#[test]
fn gguf_of_plain_floats_gives_the_trits_that_they_are() {
    let original = open("llama-bitlinear/model-I2_S.gguf");
    let expected = hashes(&original);
    type Store = fn(f32) -> Vec<u8>;
    let stores: [(u32, Store); 3] = [
        (0, |v| v.to_le_bytes().into()),
        (1, |v| f16::from_f32(v).to_le_bytes().into()),
        (30, |v| bf16::from_f32(v).to_le_bytes().into()),
    ];
    for (kind, store) in stores {
        let model = edited("llama-bitlinear/model-I2_S.gguf", |g| {
            for t in g.tensors.iter_mut().filter(|t| t.kind == 36) {
                let n = t.data.len() - 32;
                let scale = f32::from_le_bytes(*t.data[n..].first_chunk().unwrap());
                // Element i of a block of 128 is in byte i % 32, at bits 6, 4, 2, 0.
                let code = |i: usize| t.data[i / 128 * 32 + i % 32] >> (6 - 2 * (i % 128 / 32)) & 3;
                t.data = (0..4 * n).flat_map(|i| store((f32::from(code(i)) - 1.0) * scale)).collect();
                t.kind = kind;
            }
        })
        .unwrap();
        for (e, a) in expected.iter().zip(hashes(&model)) {
            assert_eq!((&e.0, &e.1), (&a.0, &a.1), "type {kind}");
            let (e, a) = (e.2.unwrap(), a.2.unwrap());
            assert!((e - a).abs() <= e / 256.0, "type {kind}: {e} {a}");
        }
    }
}

#[test]
fn gguf_of_floats_that_are_not_ternary_is_refused() {
    let model = edited("llama-bitlinear/model-I2_S.gguf", |g| {
        let t = g.tensor(Q);
        (t.kind, t.data) = (0, (0..256 * 256).flat_map(|i| (i as f32).to_le_bytes()).collect());
    });
    let error = model.unwrap().tensors.ternary("model.layers.0.self_attn.q_proj.weight").unwrap_err();
    assert!(error.to_string().contains("not all -s, 0 or s"), "{error}");
}

#[test]
fn tq2_0_with_block_scales_that_differ_is_refused() {
    let model = edited("llama-bitlinear/model-TQ2_0.gguf", |g| {
        g.tensor(Q).data[66 + 64..66 + 66].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
    });
    let error = model.unwrap().tensors.ternary("model.layers.0.self_attn.q_proj.weight").unwrap_err();
    assert!(error.to_string().contains("its blocks have different scales"), "{error}");
}

#[test]
fn tq1_0_with_block_scales_that_differ_is_refused() {
    let model = edited("llama-bitlinear/model-TQ1_0.gguf", |g| {
        g.tensor(Q).data[54 + 52..54 + 54].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
    });
    let error = model.unwrap().tensors.ternary("model.layers.0.self_attn.q_proj.weight").unwrap_err();
    assert!(error.to_string().contains("its blocks have different scales"), "{error}");
}

#[test]
fn tq_blocks_of_zeros_may_have_any_scale_and_scale_zero_means_zeros() {
    let name = "model.layers.0.self_attn.v_proj.weight";
    let original = open("llama-bitlinear/model-TQ2_0.gguf").tensors.ternary(name).unwrap();
    let model = edited("llama-bitlinear/model-TQ2_0.gguf", |g| {
        let data = &mut g.tensor("blk.0.attn_v.weight").data;
        // Row 1: zeros with a different scale. Row 2: trits with scale zero.
        data[66..66 + 64].fill(0b01_01_01_01);
        data[66 + 64..66 + 66].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        data[132 + 64..132 + 66].fill(0);
    });
    let tensor = model.unwrap().tensors.ternary(name).unwrap();
    assert_eq!(tensor.scales(), original.scales());
    assert!(tensor.row_trits(1).chain(tensor.row_trits(2)).all(|t| t == 0));
    assert!((3..tensor.rows()).chain([0]).all(|r| tensor.row_codes(r) == original.row_codes(r)));
}

#[test]
fn a_separate_scale_multiplies_a_gguf_weight() {
    let model = edited("bitnet-packed/model-TQ2_0.gguf", |g| {
        let data = 4.0f32.to_le_bytes().to_vec();
        g.tensors.push(Tensor { name: "blk.0.attn_q.scale".into(), dims: vec![1], kind: 0, data });
    })
    .unwrap();
    let name = "model.layers.0.self_attn.q_proj.weight";
    let original = open("bitnet-packed/model-TQ2_0.gguf").tensors.ternary(name).unwrap();
    let scale = |tensor: &TernaryTensor| tensor.row_scale(0).unwrap();
    assert_eq!(scale(&model.tensors.ternary(name).unwrap()), 4.0 * scale(&original));
}

#[test]
fn linear_class_alone_decides_whether_the_scale_divides() {
    let name = "model.layers.1.mlp.down_proj.weight";
    let scale = |m: Checkpoint| m.tensors.ternary(name).unwrap().row_scale(0).unwrap();
    let divides = scale(with_config("llama-bitlinear", |_| ()).unwrap());
    let multiplies = scale(
        with_config("llama-bitlinear", |c| c["quantization_config"]["linear_class"] = "autobitlinear".into())
            .unwrap(),
    );
    assert_eq!(1.0 / multiplies, divides);
}

#[test]
fn scales_that_look_inverted_are_named_with_the_cure() {
    let model =
        with_config("llama-bitlinear", |c| c["quantization_config"]["linear_class"] = "autobitlinear".into());
    let [warning] = &model.unwrap().warnings[..] else { panic!("one warning") };
    assert!(warning.contains("look inverted") && warning.contains("linear_class to bitlinear"), "{warning}");
}

#[test]
fn rope_linear_scaling_is_read_from_both_styles_of_config() {
    use bitnet_model::RopeScaling;
    for (field, value) in [
        ("rope_scaling", serde_json::json!({"type": "linear", "factor": 4.0})),
        (
            "rope_parameters",
            serde_json::json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 1000042.0}),
        ),
    ] {
        let model = with_config("llama-bitlinear", |c| {
            if field == "rope_parameters" {
                c.as_object_mut().unwrap().remove("rope_theta");
            }
            c[field] = value;
        });
        let rope = model.unwrap().spec.rope;
        assert_eq!((rope.scaling, rope.theta), (RopeScaling::Linear { factor: 4.0 }, 1_000_042.0), "{field}");
    }
}

#[test]
fn rope_linear_scaling_is_read_from_gguf() {
    let model = edited("llama-bitlinear/model-I2_S.gguf", |g| {
        g.set_text("llama.rope.scaling.type", "linear");
        g.set("llama.rope.scaling.factor", 6, 4.0f32.to_le_bytes().into());
    });
    let scaling = model.unwrap().spec.rope.scaling;
    assert_eq!(scaling, bitnet_model::RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let json = |change: fn(&mut serde_json::Value)| with_config("llama-bitlinear", change).err().unwrap();
    let gguf = |change: fn(&mut GgufEdit)| edited("llama-bitlinear/model-I2_S.gguf", change).err().unwrap();
    let cases: [(ModelError, &[&str]); 14] = [
        (
            gguf(|g| g.set("split.count", 2, 3u16.to_le_bytes().into())),
            &["split.count is 3", "llama-gguf-split --merge"],
        ),
        (
            json(|c| c["model_type"] = "gemma".into()),
            &["model_type is gemma", "bitnet, llama with BitLinear"],
        ),
        (json(|c| c["hidden_act"] = "gelu".into()), &["hidden_act is gelu", "relu2 or silu"]),
        (
            json(|c| c["rope_scaling"] = serde_json::json!({"rope_type": "dynamic", "factor": 4.0})),
            &["rope_type is dynamic"],
        ),
        (json(|c| c["attention_bias"] = true.into()), &["attention_bias is true"]),
        (json(|c| c["quantization_config"]["quant_method"] = "gptq".into()), &["quant_method is gptq"]),
        (json(|c| c["quantization_config"]["linear_class"] = "other".into()), &["linear_class is other"]),
        (
            json(|c| drop(c.as_object_mut().unwrap().remove("quantization_config"))),
            &["quantization_config is missing"],
        ),
        (json(|c| c["num_key_value_heads"] = 3.into()), &["key-value heads is 3, which does not divide 4"]),
        (gguf(|g| g.set_architecture("gemma")), &["general.architecture is gemma"]),
        (gguf(|g| g.set_text("llama.rope.scaling.type", "dynamic")), &["rope.scaling.type is dynamic"]),
        (
            gguf(|g| g.set("llama.rope.dimension_count", 4, 32u32.to_le_bytes().into())),
            &["rope.dimension_count is 32"],
        ),
        (
            gguf(|g| g.set_text("tokenizer.ggml.pre", "kimi-k2")),
            &["tokenizer.ggml.pre is kimi-k2", "tokenizer.json"],
        ),
        (gguf(|g| g.set_text("tokenizer.ggml.model", "t5")), &["tokenizer.ggml.model is t5"]),
    ];
    for (error, parts) in cases {
        let text = error.to_string();
        assert!(parts.iter().all(|p| text.contains(p)), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}

#[test]
fn types_of_other_projects_are_named_with_the_cure() {
    for (id, parts) in [
        (38, ["TL1", "use the I2_S file"]),
        (10, ["Q2_K", "I2_S, TQ1_0 or TQ2_0"]),
        (43, ["STQ1_0 in Tencent's files", "another type"]),
        (9999, ["unknown", "I2_S, TQ1_0 or TQ2_0"]),
    ] {
        let error = edited("llama-bitlinear/model-I2_S.gguf", |g| g.tensor(Q).kind = id).err().unwrap();
        let text = error.to_string();
        assert!(text.contains(Q) && parts.iter().all(|p| text.contains(p)), "{text}");
    }
}

/// A tensor of the fixture stored as another type, with zeros for data.
fn stored_as(kind: u32, bytes_of: impl Fn(usize) -> usize) -> ModelError {
    let edited = edited("llama-bitlinear/model-I2_S.gguf", |g| {
        let tensor = g.tensor(Q);
        tensor.kind = kind;
        let elements = tensor.dims.iter().product::<u64>() as usize;
        tensor.data = vec![0; bytes_of(elements)];
    });
    edited.err().unwrap()
}

#[test]
fn q2_0_is_refused_with_its_group_of_64() {
    let error = stored_as(42, |n| n / 64 * 18);
    assert!(matches!(error, ModelError::GroupScales { id: 42, group: 64, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("is q2_0 (type 42), with a scale for every 64 weights"), "{text}");
    assert!(text.contains(Q) && text.contains("one scale a tensor"), "{text}");
}

#[test]
fn q2_0_of_a_fork_is_recognised_by_its_size_for_groups_of_128() {
    let error = stored_as(42, |n| n / 128 * 34);
    assert!(matches!(error, ModelError::GroupScales { id: 42, group: 128, .. }), "{error}");
    assert!(error.to_string().contains("q2_0 (g128)"), "{error}");
}

#[test]
fn pq2_0_is_refused_with_its_group_of_128() {
    let error = stored_as(142, |n| n / 128 * 34);
    assert!(matches!(error, ModelError::GroupScales { id: 142, group: 128, .. }), "{error}");
    assert!(error.to_string().contains("pq2_0 (type 142)"), "{error}");
}

#[test]
fn ptq1_0_is_refused_with_its_group_of_128() {
    let error = stored_as(143, |n| n / 128 * 28);
    assert!(matches!(error, ModelError::GroupScales { id: 143, group: 128, .. }), "{error}");
}

#[test]
fn a_missing_tensor_or_another_shape_is_named() {
    let gone =
        edited("llama-bitlinear/model-I2_S.gguf", |g| g.tensors.retain(|t| t.name != Q)).err().unwrap();
    assert!(gone.to_string().starts_with("tensor blk.0.attn_q.weight is missing"), "{gone}");
    let turned =
        edited("llama-bitlinear/model-I2_S.gguf", |g| g.tensor("blk.0.ffn_up.weight").dims.reverse());
    let text = turned.err().unwrap().to_string();
    assert!(text.contains("has shape [256, 512], expected [512, 256]"), "{text}");
    let bias = edited("llama-bitlinear/model-I2_S.gguf", |g| {
        g.tensors.push(Tensor { name: "blk.0.attn_q.bias".into(), dims: vec![1], kind: 0, data: vec![0; 4] });
    });
    assert!(bias.err().unwrap().to_string().contains("biases are not supported"));
}

#[test]
fn a_git_lfs_pointer_is_recognised_and_named() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1187801280\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, pointer).unwrap();
    let error = Checkpoint::open(&file).err().unwrap().to_string();
    assert!(error.contains("Git LFS pointer") && error.contains("git lfs pull"), "{error}");

    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let folder = tempfile::tempdir().unwrap();
        for copied in ["config.json", "tokenizer.json", "model.safetensors"] {
            std::fs::copy(fixture("bitnet-odd").join(copied), folder.path().join(copied)).unwrap();
        }
        std::fs::write(folder.path().join(name), pointer).unwrap();
        let error = Checkpoint::open(folder.path()).err().unwrap();
        assert!(matches!(error, ModelError::LfsPointer { .. }), "{name}: {error}");
    }
}

#[test]
fn a_path_that_is_not_a_model_gets_an_error_with_the_accepted_forms() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| Checkpoint::open(&folder.path().join(name)).err().unwrap().to_string();
    assert!(open("absent").starts_with("cannot open"));
    assert!(open("").contains("the folder has no config.json"));
    std::fs::write(folder.path().join("x.safetensors"), [0; 100]).unwrap();
    assert!(open("x.safetensors").contains("it is one file of a folder"));
    std::fs::write(
        folder.path().join("config.json"),
        std::fs::read(fixture("bitnet-odd/config.json")).unwrap(),
    )
    .unwrap();
    assert!(open("").contains("neither model.safetensors nor model.safetensors.index.json"));
    std::fs::write(
        folder.path().join("model.safetensors.index.json"),
        r#"{"weight_map": {"a": "../../etc/passwd"}}"#,
    )
    .unwrap();
    assert!(open("").contains("is not a plain file name"));
}

#[test]
fn a_vocabulary_larger_than_the_embedding_is_of_another_model() {
    let folder = tempfile::tempdir().unwrap();
    for copied in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("bitnet-odd").join(copied), folder.path().join(copied)).unwrap();
    }
    std::fs::copy(fixture("bitnet-packed/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("the vocabulary has 512 tokens, the embedding 509 rows"), "{error}");
}

#[test]
fn tensors_without_a_use_are_a_warning() {
    let model = edited("llama-bitlinear/model-I2_S.gguf", |g| {
        g.tensors.push(Tensor {
            name: "blk.0.extra.weight".into(),
            dims: vec![1],
            kind: 0,
            data: vec![0; 4],
        });
    });
    let warnings = model.unwrap().warnings;
    assert_eq!(warnings, ["the file holds tensors that this architecture does not use: blk.0.extra.weight"]);
}

#[test]
fn big_endian_and_old_gguf_are_refused_by_name() {
    let mut bytes = std::fs::read(fixture("bitnet-packed/model-TQ1_0.gguf")).unwrap();
    let mut open = |version: [u8; 4]| {
        bytes[4..8].copy_from_slice(&version);
        Checkpoint::from_gguf("x.gguf", SharedBytes::new(bytes.clone())).err().unwrap().to_string()
    };
    assert!(open([0, 0, 0, 3]).contains("byte order is big-endian"));
    assert!(open([1, 0, 0, 0]).contains("GGUF version is 1"));
}

#[test]
fn overlapping_misaligned_and_repeated_tensors_are_damage() {
    let bytes = std::fs::read(fixture("llama-bitlinear/model-I2_S.gguf")).unwrap();
    let name = b"blk.0.attn_k.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
    // After the name: the number of dimensions, two dimensions, the type, the offset.
    let offset = at + name.len() + 4 + 16 + 4;
    for (value, problem) in
        [(0u64, "overlap"), (7, "is not aligned to 32"), (1 << 62, "begins at"), (u64::MAX - 31, "begins at")]
    {
        let mut bytes = bytes.clone();
        bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        let error = Checkpoint::from_gguf("x.gguf", SharedBytes::new(bytes)).err().unwrap();
        assert!(
            matches!(error, ModelError::Damaged { .. }) && error.to_string().contains(problem),
            "{error}"
        );
    }
    let twice = edited("llama-bitlinear/model-I2_S.gguf", |g| {
        let copy = g.tensor(Q).clone();
        g.tensors.push(copy);
    });
    assert!(twice.err().unwrap().to_string().contains("appears twice"));
    let key = edited("llama-bitlinear/model-I2_S.gguf", |g| {
        let copy = g.entries[1].clone();
        g.entries.push(copy);
    });
    assert!(key.err().unwrap().to_string().contains("general.name appears twice"));
}

/// A fixture folder with its master weights stored as another type.
fn masters_as(folder: &str, store: fn(f32) -> Vec<u8>, dtype: safetensors::Dtype) -> Checkpoint {
    use safetensors::{SafeTensors, tensor::TensorView};
    let read = |name: &str| std::fs::read(fixture(folder).join(name)).unwrap();
    let weights = read("model.safetensors");
    let stored = SafeTensors::deserialize(&weights).unwrap();
    let restored: Vec<(String, Vec<usize>, Vec<u8>)> = stored
        .iter()
        .map(|(name, tensor)| {
            assert_eq!(tensor.dtype(), safetensors::Dtype::BF16, "{name}");
            let (values, _) = tensor.data().as_chunks::<2>();
            let bytes = values.iter().flat_map(|v| store(bf16::from_le_bytes(*v).to_f32())).collect();
            (name.to_owned(), tensor.shape().to_vec(), bytes)
        })
        .collect();
    let views = restored
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(dtype, shape.clone(), bytes).unwrap()));
    let written = safetensors::serialize(views, None).unwrap();
    let files = ModelFiles { config: SharedBytes::new(read("config.json")), ..Default::default() };
    Checkpoint::from_files(folder, &files, SharedBytes::new(written)).unwrap()
}

#[test]
fn masters_in_f32_f16_and_bf16_are_ternarised_to_the_same_trits() {
    let original = open("bitnet-master");
    let expected = hashes(&original);
    assert!(original.tensors.entries().iter().any(|e| e.stored == "bf16 masters"));
    let f32s = masters_as("bitnet-master", |v| v.to_le_bytes().into(), safetensors::Dtype::F32);
    assert!(f32s.tensors.entries().iter().any(|e| e.stored == "f32 masters"));
    assert_eq!(hashes(&f32s), expected);
    // Values below the range of f16 are rounded: the trits stay, the mean changes in its last bits.
    let f16s =
        masters_as("bitnet-master", |v| f16::from_f32(v).to_le_bytes().into(), safetensors::Dtype::F16);
    assert!(f16s.tensors.entries().iter().any(|e| e.stored == "f16 masters"));
    for (a, b) in hashes(&f16s).iter().zip(&expected) {
        assert_eq!((&a.0, &a.1), (&b.0, &b.1));
        assert!((a.2.unwrap() / b.2.unwrap() - 1.0).abs() < 1e-6, "{a:?} {b:?}");
    }
}

#[test]
fn quantization_mode_online_is_what_master_weights_have() {
    let online = with_config("bitnet-master", |c| {
        c["quantization_config"]["quantization_mode"] = "online".into();
    });
    assert_eq!(hashes(&online.unwrap()), hashes(&open("bitnet-master")));
}

#[test]
fn use_rms_norm_puts_a_norm_before_every_projection() {
    let model = open("llama-rmsnorm");
    let names: Vec<&str> = model.tensors.entries().iter().map(|e| e.name.as_str()).collect();
    let projections = names.iter().filter(|n| n.ends_with("_proj.weight")).count();
    let norms = names.iter().filter(|n| n.ends_with("_proj.rms_norm.weight")).count();
    assert!(projections > 0 && projections == norms, "{projections} {norms}");
    let without = with_config("llama-rmsnorm", |c| c["quantization_config"]["use_rms_norm"] = false.into());
    let warnings = without.unwrap().warnings;
    assert!(warnings.iter().any(|w| w.contains("rms_norm.weight")), "{warnings:?}");
}

#[test]
fn every_eos_token_of_a_gguf_ends_an_answer() {
    let model = edited("bitnet-packed/model-I2_S.gguf", |g| {
        let ids = [510u32, 7, 9];
        g.set_words("tokenizer.ggml.eos_token_ids", 4, ids.into_iter().map(u32::to_le_bytes));
    });
    let eos = model.unwrap().defaults.eos;
    assert!([510, 511, 7, 9].iter().all(|id| eos.contains(id)), "{eos:?}");
    let mut once = eos.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), eos.len(), "each once");
}
