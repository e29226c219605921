//! Models whose layers keep a recurrent state: every form gives the same model, and what is unknown is refused by name.

use std::path::Path;

use bitnet_kernels::{Cpu, DeltaShape, Isa};
use bitnet_model::{
    Batch, CachePlace, Checkpoint, DraftLog, ForwardError, Limits, Logits, Model, ModelError, ModelFiles,
    Synthetic, Target, TensorKind, Transformer, convert, inspect,
};
use bitnet_tensor::SharedBytes;
use serde_json::{Value, json};

use crate::{
    gguf_edit::{GgufEdit, Tensor},
    support::{HYBRIDS, edited, fixture, open, refused, weights_hash},
};

/// The forms of the fixture with plain weights; `true` for the earlier layout of its GGUF file, under type 42.
const PLAIN: [(&str, bool); 3] = [
    ("qwen35-ternary", false),
    ("qwen35-ternary/model-PQ2_0.gguf", false),
    ("qwen35-ternary/model-PQ2_0.gguf", true),
];

fn plain((path, earlier): (&str, bool)) -> Checkpoint {
    if earlier {
        edited(path, |gguf| gguf.tensors.iter_mut().filter(|t| t.kind == 142).for_each(|t| t.kind = 42))
            .unwrap()
    } else {
        open(path)
    }
}

/// The values of all tensors that are floats.
fn floats(model: &Checkpoint) -> Vec<(String, Vec<f32>)> {
    let floats = |kind| matches!(kind, TensorKind::Dense | TensorKind::Norm);
    let entries = model.tensors.entries().iter().filter(|entry| floats(entry.kind));
    entries.map(|entry| (entry.name.clone(), model.tensors.dense(&entry.name).unwrap().to_f32())).collect()
}

/// Checks that two forms hold the same floats, apart from how their writers rounded.
fn assert_near(a: &Checkpoint, b: &Checkpoint, what: &str) {
    for ((name, a), (other, b)) in floats(a).into_iter().zip(floats(b)) {
        assert_eq!((&name, a.len()), (&other, b.len()), "{what}");
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * a.abs().max(1e-3);
        assert!(a.iter().zip(&b).all(near), "{what}: {name}");
    }
}

#[test]
fn every_form_of_a_hybrid_model_has_one_description_and_one_hash() {
    let first = plain(PLAIN[0]);
    for form in PLAIN {
        let model = plain(form);
        assert_eq!(model.spec, first.spec, "{form:?}");
        assert_eq!(weights_hash(&model), weights_hash(&first), "{form:?}");
        assert_near(&first, &model, form.0);
        assert_eq!(model.warnings, Vec::<String>::new(), "{form:?}");
    }
    let first = open(HYBRIDS[2]);
    for path in &HYBRIDS[2..] {
        let model = open(path);
        assert_eq!(model.spec, first.spec, "{path}");
        assert_eq!(weights_hash(&model), weights_hash(&first), "{path}");
        assert_near(&first, &model, path);
        assert_eq!(model.warnings, Vec::<String>::new(), "{path}");
    }
    assert_eq!(plain(PLAIN[2]).tensors.entries()[0].stored, "q2_0 (g128)");
}

#[test]
fn the_layers_of_a_hybrid_model_are_described() {
    let spec = open("qwen35-ternary").spec;
    let hybrid = spec.hybrid.as_ref().unwrap();
    assert_eq!(*hybrid.attends, [false, false, false, true]);
    assert_eq!(hybrid.delta, DeltaShape { key_heads: 2, value_heads: 8, head_dim: 16, taps: 4 });
    assert!(!hybrid.float_alpha_beta && spec.output_gate && spec.head_norms && spec.rotation.is_none());
    assert_eq!((spec.rotary_width(), spec.head_dim, spec.rope.theta), (8, 32, 1e7));
    assert_eq!((spec.attention_layers(), spec.state_bytes()), (1, 3 * 4 * hybrid.delta.state_len()));

    let spec = open("qwen35-hadamard/mlx").spec;
    let (hybrid, rotation) = (spec.hybrid.as_ref().unwrap(), spec.rotation.as_ref().unwrap());
    assert_eq!(*hybrid.attends, [false, true, false, true]);
    assert!(hybrid.float_alpha_beta && rotation.embedding && rotation.grouped_values);
    assert_eq!((rotation.block, rotation.signs.keys().copied().collect::<Vec<_>>()), (256, vec![256, 512]));
    assert_eq!(open("qwen3-ternary/mlx").spec.state_bytes(), 0);
}

#[test]
fn the_sizes_of_the_27b_are_those_of_the_published_files() {
    for (name, floats) in [("bonsai-27b", 0), ("bonsai-2-27b", 2 * 48 * 48 * 5120)] {
        let model = Checkpoint::synthetic(name, Synthetic::named(name).unwrap());
        let of = |kind| {
            let entries = model.tensors.entries().iter().filter(move |entry| entry.kind == kind);
            entries.map(|entry| entry.shape.iter().product::<usize>()).sum::<usize>()
        };
        assert_eq!(of(TensorKind::Grouped) + floats, 26_893_352_960, "{name}");
        assert_eq!(of(TensorKind::Dense), floats, "{name}");
        assert_eq!(4 * of(TensorKind::Norm), 10_582_016, "{name}");
        assert_eq!(model.spec.state_bytes(), 150_994_944 + 5_898_240, "{name}");
        assert_eq!(model.spec.attention_layers(), 16, "{name}");
    }
}

#[test]
fn tensors_for_images_and_for_further_heads_are_named_and_not_loaded() {
    let named = inspect(&open("qwen35-ternary"), false, &mut |_, _| {}).unwrap().not_loaded;
    assert!(matches!(&named[..], [name] if name.starts_with("model.visual.")), "{named:?}");

    // Two heads, of which each predicts from the other, are not supported.
    const EXTRA: [&str; 2] = ["blk.4.nextn.eh_proj.weight", "blk.5.ssm_dt.bias"];
    let model = edited("qwen35-ternary/model-PQ2_0.gguf", |gguf| {
        gguf.set("qwen35.block_count", 4, 6u32.to_le_bytes().into());
        gguf.set("qwen35.nextn_predict_layers", 4, 2u32.to_le_bytes().into());
        for name in EXTRA {
            gguf.tensors.push(Tensor { name: name.into(), dims: vec![2], kind: 0, data: vec![0; 8] });
        }
    });
    let model = model.unwrap();
    assert_eq!(model.not_loaded, EXTRA);
    assert_eq!(model.spec, open("qwen35-ternary/model-PQ2_0.gguf").spec);
    let told = refused("qwen35-ternary/model-PQ2_0.gguf", |gguf| {
        gguf.set("qwen35.nextn_predict_layers", 4, 5u32.to_le_bytes().into());
    });
    assert!(told.contains("qwen35.nextn_predict_layers is 5"), "{told}");
}

#[test]
fn a_list_of_recurrent_layers_wins_over_the_interval() {
    let bools = |values: [u8; 4]| {
        move |gguf: &mut GgufEdit| {
            gguf.set("qwen35.full_attention_interval", 4, 2u32.to_le_bytes().into());
            let head = [7u32.to_le_bytes().as_slice(), &4u64.to_le_bytes()].concat();
            gguf.set("qwen35.attention.recurrent_layers", 9, [head, values.to_vec()].concat());
        }
    };
    let model = edited("qwen35-ternary/model-PQ2_0.gguf", bools([1, 1, 1, 0])).unwrap();
    assert_eq!(model.spec, open("qwen35-ternary").spec);
    let told = refused("qwen35-ternary/model-PQ2_0.gguf", bools([1, 0, 1, 0]));
    assert!(told.contains("tensor blk.1.attn_q.weight is missing"), "{told}");
}

#[test]
fn sizes_that_do_not_fit_together_are_refused_by_their_keys() {
    let set = |key: &'static str, value: u32| {
        refused("qwen35-ternary/model-PQ2_0.gguf", move |gguf| {
            gguf.set(&format!("qwen35.{key}"), 4, value.to_le_bytes().into());
        })
    };
    for (key, value, told) in [
        ("ssm.inner_size", 100, "qwen35.ssm.inner_size is 100"),
        ("ssm.group_count", 3, "not a multiple of 3 key heads"),
        ("ssm.group_count", 0, "key heads of gated-delta layers is 0"),
        ("ssm.conv_kernel", 1, "width of the convolution is 1"),
        ("ssm.conv_kernel", 1 << 30, "width of the convolution"),
        ("full_attention_interval", 0, "qwen35.full_attention_interval is 0"),
        ("rope.dimension_count", 7, "rotary width is 7"),
        ("rope.dimension_count", 64, "rotary width is 64"),
        ("attention.value_length", 16, "qwen35.attention.value_length is 16"),
    ] {
        let error = set(key, value);
        assert!(error.contains(told), "{key} {value}: {error}");
    }
}

fn rotated(edit: impl FnOnce(&mut GgufEdit)) -> String {
    refused("qwen35-hadamard/model-PTQ1_0.gguf", edit)
}

fn names(gguf: &GgufEdit, key: &str) -> Vec<String> {
    let raw = &gguf.entries.iter().find(|entry| entry.0 == key).unwrap().2;
    let (mut at, mut all) = (12, Vec::new());
    while at < raw.len() {
        let n = u64::from_le_bytes(*raw[at..].first_chunk().unwrap()) as usize;
        all.push(String::from_utf8(raw[at + 8..at + 8 + n].to_vec()).unwrap());
        at += 8 + n;
    }
    all
}

const WEIGHTS: &str = "prism.hadamard.weight_names";

#[test]
fn an_unknown_value_of_the_hadamard_contract_is_refused_by_name() {
    for (key, value, told) in [
        ("transform", "fast", "prism.hadamard.transform is fast"),
        ("axis", "output", "prism.hadamard.axis is output"),
        ("sign_mode", "random", "prism.hadamard.sign_mode is random"),
        ("sign_mode", "identity", "prism.hadamard.sign_values is not empty"),
        ("seed", "7", "prism.hadamard.seed is unknown"),
    ] {
        let error = rotated(|gguf| gguf.set_text(&format!("prism.hadamard.{key}"), value));
        assert!(error.contains(told) && error.contains("edited.gguf"), "{error}");
    }
    for (key, value, told) in [
        ("version", 3, "prism.hadamard.version is 3"),
        ("version", 2, "prism.hadamard.tied_output is false, though version is 2"),
        ("block_size", 24, "block_size is 24, not a power of two"),
        ("block_size", 512, "block_size is 512, which does not divide rows of 256"),
        ("block_size", 0, "block_size is 0"),
    ] {
        let error =
            rotated(|gguf| gguf.set(&format!("prism.hadamard.{key}"), 4, u32::to_le_bytes(value).into()));
        assert!(error.contains(told), "{error}");
    }
    // A float is a value of none of the keys.
    let keys: Vec<String> = {
        let gguf = GgufEdit::read(&std::fs::read(fixture("qwen35-hadamard/model-PTQ1_0.gguf")).unwrap());
        gguf.entries
            .into_iter()
            .map(|entry| entry.0)
            .filter(|key| key.starts_with("prism.hadamard."))
            .collect()
    };
    assert_eq!(keys.len(), 10);
    for key in keys {
        let error = rotated(|gguf| gguf.set(&key, 6, 0.5f32.to_le_bytes().into()));
        assert!(error.contains(&format!("{key} is not")), "{key}: {error}");
    }
    let told = rotated(|gguf| {
        let signs = (0..512).map(|_| 1i32.to_le_bytes());
        gguf.set_words("prism.hadamard.sign_values", 5, signs);
        gguf.set_words("prism.hadamard.sign_widths", 4, [512u32.to_le_bytes()].into_iter());
    });
    assert!(told.contains("sign_widths has no signs for rows of 256"), "{told}");
}

#[test]
fn a_list_of_rotated_weights_that_cannot_be_honoured_is_refused_by_the_weight() {
    let edit = |change: fn(&mut Vec<String>)| {
        rotated(|gguf| {
            let mut listed = names(gguf, WEIGHTS);
            change(&mut listed);
            gguf.set_texts(WEIGHTS, &listed);
        })
    };
    for (change, told) in [
        (
            (|listed: &mut Vec<String>| listed.retain(|name| name != "blk.0.ffn_up.weight"))
                as fn(&mut Vec<String>),
            "without a tensor that has the same input as others: blk.0.ffn_up.weight",
        ),
        (|listed| listed.retain(|name| name != "blk.1.attn_q.weight"), "blk.1.attn_q.weight"),
        (|listed| listed.push("blk.0.ssm_alpha.weight".into()), "a list with blk.0.ssm_alpha.weight"),
        (|listed| listed.push("blk.0.attn_norm.weight".into()), "a list with blk.0.attn_norm.weight"),
        (|listed| listed.push("token_embd.weight".into()), "a list with token_embd.weight"),
        (|listed| listed.push("blk.9.ffn_up.weight".into()), "does not have: blk.9.ffn_up.weight"),
        (|listed| listed.push("blk.0.attn_k.weight".into()), "does not have: blk.0.attn_k.weight"),
        (|listed| listed.push("blk.0.ffn_up.weight".into()), "names blk.0.ffn_up.weight twice"),
    ] {
        let error = edit(change);
        assert!(error.contains(told) && error.contains(WEIGHTS), "{told}: {error}");
    }
    let told = rotated(|gguf| gguf.tensors.retain(|t| t.name != "output.weight"));
    assert!(told.contains("tied_output is false, but the model has no output head"), "{told}");
    let told =
        rotated(|gguf| gguf.set_texts("prism.hadamard.inverse_weight_names", &["output.weight".into()]));
    assert!(told.contains("inverse_weight_names is a list of output.weight"), "{told}");
}

#[test]
fn a_contract_with_fewer_weights_wider_integers_or_no_signs_is_honoured() {
    let path = "qwen35-hadamard/model-PTQ1_0.gguf";
    let rotation = |edit: &dyn Fn(&mut GgufEdit)| edited(path, edit).unwrap().spec.rotation;
    let fewer = rotation(&|gguf| {
        let mut listed = names(gguf, WEIGHTS);
        listed.retain(|name| !name.contains("blk.0.ssm_out") && name != "output.weight");
        gguf.set_texts(WEIGHTS, &listed);
    });
    assert_eq!(fewer.unwrap().weights.len() + 2, open(path).spec.rotation.unwrap().weights.len());
    // Signs as 32-bit integers; the file has them in 8 bits.
    let wide = rotation(&|gguf| {
        let entry = gguf.entries.iter().find(|entry| entry.0 == "prism.hadamard.sign_values").unwrap();
        assert_eq!(entry.2[..4], 1u32.to_le_bytes());
        let values: Vec<i32> = entry.2[12..].iter().map(|&byte| i32::from(byte as i8)).collect();
        gguf.set_words("prism.hadamard.sign_values", 5, values.into_iter().map(i32::to_le_bytes));
    });
    assert_eq!(wide, open(path).spec.rotation);
    let identity = rotation(&|gguf| {
        gguf.set_text("prism.hadamard.sign_mode", "identity");
        gguf.remove("prism.hadamard.sign_values");
        gguf.remove("prism.hadamard.sign_widths");
    });
    assert!(identity.unwrap().signs.is_empty());
    let none = rotation(&|gguf| gguf.entries.retain(|entry| !entry.0.starts_with("prism.hadamard.")));
    assert_eq!(none, None, "files of the first generation have no contract");
}

/// A file whose embedding is also its output head, in `GgufEdit`.
fn tied(gguf: &mut GgufEdit) {
    let listed: Vec<_> = names(gguf, WEIGHTS).into_iter().filter(|name| name != HEAD).collect();
    gguf.set_texts(WEIGHTS, &listed);
    gguf.tensors.retain(|tensor| tensor.name != HEAD);
    gguf.set("prism.hadamard.version", 4, 2u32.to_le_bytes().into());
    gguf.set("prism.hadamard.tied_output", 7, vec![1]);
}

const HEAD: &str = "output.weight";

#[test]
fn a_rotated_embedding_that_is_also_the_head_gives_the_logits_of_a_head_with_the_same_weights() {
    let path = "qwen35-hadamard/model-PQ2_0.gguf";
    let logits = |model: Checkpoint| {
        let cpu = Cpu::new(Isa::best(), 1).unwrap();
        let mut loaded =
            Transformer::load(&model.spec, &*model.tensors, cpu, LIMITS, &mut |_, _| {}).unwrap();
        step(&mut loaded, &[5, 3, 200, 17, 330], 0, 0, 0)
    };
    let copied = edited(path, |gguf| {
        let data = |name: &str| gguf.tensors.iter().position(|tensor| tensor.name == name).unwrap();
        let (embedding, head) = (data("token_embd.weight"), data(HEAD));
        gguf.tensors[head].data = gguf.tensors[embedding].data.clone();
        gguf.set("prism.hadamard.tied_output", 7, vec![0]);
    });
    let expected = logits(copied.unwrap());
    assert_ne!(logits(open(path)), expected, "the file's own head is another matrix");
    let shared = edited(path, tied).unwrap();
    assert!(shared.spec.tied_head && shared.spec.rotation.as_ref().unwrap().tied_output);
    // What `convert` writes is read as the same model.
    let folder = tempfile::tempdir().unwrap();
    for target in [Target::Pq2_0, Target::Panels] {
        let file = folder.path().join("tied.gguf");
        convert(&shared, target, &file, &mut |_, _| {}).unwrap();
        let written = Checkpoint::open(&file).unwrap();
        assert_eq!(written.spec, shared.spec, "{target:?}");
        assert_eq!(logits(written), expected, "{target:?}");
    }
    assert_eq!(logits(shared), expected);
}

#[test]
fn a_head_that_the_contract_and_the_tensors_disagree_about_is_refused() {
    let both = rotated(|gguf| {
        let head = gguf.tensors.iter().find(|tensor| tensor.name == HEAD).unwrap().clone();
        tied(gguf);
        gguf.tensors.push(head);
    });
    assert!(both.contains("tied_output is true, but the model has an output head"), "{both}");
    let listed = rotated(|gguf| {
        let listed = names(gguf, WEIGHTS);
        tied(gguf);
        gguf.set_texts(WEIGHTS, &listed);
    });
    assert!(listed.contains("weight_names names the output head, though tied_output is true"), "{listed}");
    let plain = rotated(|gguf| {
        tied(gguf);
        gguf.remove("prism.hadamard.inverse_weight_names");
    });
    assert!(plain.contains("inverse_weight_names does not name the embedding"), "{plain}");
    let early = rotated(|gguf| {
        tied(gguf);
        gguf.set("prism.hadamard.version", 4, 1u32.to_le_bytes().into());
    });
    assert!(early.contains("tied_output is true, though version is 1"), "{early}");
}

/// The MLX fixture with its files changed.
fn mlx(config: impl FnOnce(&mut Value), hadamard: impl FnOnce(&mut Value)) -> Result<Checkpoint, ModelError> {
    let read = |name: &str| std::fs::read(fixture("qwen35-hadamard/mlx").join(name)).unwrap();
    let changed = |name: &str, change: &mut dyn FnMut(&mut Value)| {
        let mut json: Value = serde_json::from_slice(&read(name)).unwrap();
        change(&mut json);
        SharedBytes::new(json.to_string().into_bytes())
    };
    let (mut config, mut hadamard) = (Some(config), Some(hadamard));
    let files = ModelFiles {
        config: changed("config.json", &mut |json| config.take().unwrap()(json)),
        hadamard: Some(changed("hadamard.json", &mut |json| hadamard.take().unwrap()(json))),
        ..Default::default()
    };
    Checkpoint::from_files("mlx", &files, SharedBytes::new(read("model.safetensors")))
}

#[test]
fn the_two_files_of_a_rotated_mlx_model_must_agree() {
    mlx(|_| {}, |_| {}).unwrap();
    let without_head = |list: &mut Value| {
        list.as_array_mut().unwrap().retain(|item| !item.to_string().contains("lm_head"));
    };
    let shared = mlx(
        |c| {
            c["text_config"]["tie_word_embeddings"] = json!(true);
            without_head(&mut c["modules"]);
        },
        |h| {
            h["prism.hadamard.version"] = json!(2);
            h["prism.hadamard.tied_output"] = json!(true);
            without_head(&mut h["prism.hadamard.weight_names"]);
        },
    );
    assert!(shared.unwrap().spec.tied_head);
    type Change = fn(&mut Value);
    let cases: [(Change, Change, &str); 9] = [
        (|c| c["schema_version"] = json!(3), |_| {}, "schema_version is 3"),
        (|c| c["gdn_activation_layout"] = json!("tiled"), |_| {}, "gdn_activation_layout is tiled"),
        (|c| c["modules"][3]["block"] = json!(128), |_| {}, "is not the block_size of hadamard.json"),
        (
            |c| drop(c["modules"].as_array_mut().unwrap().pop()),
            |_| {},
            "modules does not list lm_head.weight",
        ),
        (|c| c["modules"][1]["embedding"] = json!(true), |_| {}, "does not name once in that role"),
        (|_| {}, |h| h["prism.hadamard.gdn_v_grouped"] = json!(false), "gdn_v_grouped is false"),
        (|_| {}, |h| h["prism.hadamard.version"] = json!(7), "version is 7"),
        (
            |_| {},
            |h| h["prism.hadamard.sign_values"][0] = json!(-1),
            "the signs are not those of hadamard.json",
        ),
        (|_| {}, |h| *h = json!({}), "prism.hadamard.version is missing (hadamard.json)"),
    ];
    for (config, hadamard, told) in cases {
        let error = mlx(config, hadamard).expect_err(told).to_string();
        assert!(error.contains(told), "{told}: {error}");
    }
}

#[test]
fn a_configuration_that_is_not_computed_is_refused_by_its_field() {
    for (field, value, told) in [
        ("attn_output_gate", json!(false), "text_config.attn_output_gate is false"),
        ("linear_value_head_dim", json!(64), "text_config.linear_value_head_dim is 64"),
        ("layer_types", json!(["linear_attention", "sliding_attention"]), "layer_types is sliding_attention"),
        ("layer_types", json!(["linear_attention"]), "list of recurrent layers covers 1 of 4"),
        ("hidden_act", json!("gelu"), "text_config.hidden_act is gelu"),
        ("linear_num_key_heads", Value::Null, "text_config.linear_num_key_heads is missing"),
    ] {
        let error = mlx(|config| config["text_config"][field] = value, |_| {}).expect_err(told).to_string();
        assert!(error.contains(told), "{told}: {error}");
    }
}

fn converted(from: &Checkpoint, target: Target, folder: &Path) -> Result<Checkpoint, ModelError> {
    let path = folder.join(format!("{target}.gguf"));
    convert(from, target, &path, &mut |_, _| {})?;
    Checkpoint::open(&path)
}

#[test]
fn a_hybrid_model_converts_to_every_format_for_group_scales_and_stays_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for path in HYBRIDS {
        let from = open(path);
        for target in [Target::Q2_0, Target::Pq2_0, Target::Panels] {
            let to =
                converted(&from, target, folder.path()).unwrap_or_else(|e| panic!("{path} to {target}: {e}"));
            assert_eq!(to.spec, from.spec, "{path} to {target}");
            assert_eq!(weights_hash(&to), weights_hash(&from), "{path} to {target}");
            assert_eq!(floats(&to), floats(&from), "{path} to {target}");
            assert_eq!(to.warnings, Vec::<String>::new(), "{path} to {target}");
            let text = "Don't 12345 stop\n\n\tनमस्ते q\u{301}r 你好";
            let encode = |model: &Checkpoint| model.tokenizer.as_ref().unwrap().encode(text, true).unwrap();
            assert_eq!(encode(&to), encode(&from), "{path} to {target}");
        }
        for target in [Target::I2S, Target::Tq1_0, Target::Tq2_0, Target::Packed] {
            let error = converted(&from, target, folder.path()).expect_err("converted").to_string();
            assert!(error.contains("q2_0"), "{path} to {target}: {error}");
        }
    }
}

const SECTIONS: &str = "qwen35.rope.dimension_sections";

/// The type and the words of the key without which llama.cpp opens no file of this family.
fn sections(path: &Path) -> (u32, Vec<u8>) {
    let gguf = GgufEdit::read(&std::fs::read(path).unwrap());
    let found = gguf.entries.into_iter().find(|entry| entry.0 == SECTIONS);
    let (_, kind, raw) = found.unwrap_or_else(|| panic!("{} has no {SECTIONS}", path.display()));
    (kind, raw)
}

/// Four numbers as GGUF holds them in a list of `i32`.
fn list_of_words(values: [i32; 4]) -> Vec<u8> {
    let head = [5u32.to_le_bytes().as_slice(), &4u64.to_le_bytes()].concat();
    [head, values.iter().flat_map(|value| value.to_le_bytes()).collect()].concat()
}

fn set_sections(gguf: &mut GgufEdit, values: &[i32]) {
    gguf.set_words(SECTIONS, 5, values.iter().map(|value| value.to_le_bytes()));
}

#[test]
fn a_converted_hybrid_model_has_the_rope_sections_that_llama_cpp_requires() {
    let folder = tempfile::tempdir().unwrap();
    let written = |from: &Checkpoint, target: Target| {
        converted(from, target, folder.path()).unwrap();
        sections(&folder.path().join(format!("{target}.gguf")))
    };
    for path in HYBRIDS {
        let expected = if path.starts_with("qwen35-ternary") { [2, 1, 1, 0] } else { [3, 3, 2, 0] };
        for target in [Target::Q2_0, Target::Pq2_0, Target::Panels] {
            assert_eq!(written(&open(path), target), (9, list_of_words(expected)), "{path} to {target}");
        }
    }
    let path = "qwen35-ternary/model-PQ2_0.gguf";
    let other = edited(path, |gguf| set_sections(gguf, &[1, 1, 2, 0])).unwrap();
    assert_eq!(written(&other, Target::Pq2_0), (9, list_of_words([1, 1, 2, 0])), "as the file has them");
    let none = edited(path, |gguf| gguf.remove(SECTIONS)).unwrap();
    assert_eq!(written(&none, Target::Pq2_0), (9, list_of_words([2, 1, 1, 0])), "as the family has them");
    let big = Checkpoint::synthetic("bonsai-27b", Synthetic::named("bonsai-27b").unwrap());
    assert_eq!(big.spec.rope.sections, Some([11, 11, 10, 0]));
}

#[test]
fn rope_sections_that_are_no_counts_are_refused_by_their_key() {
    for wrong in [&[2, -1, 1, 0][..], &[2, 2], &[1, 1, 1, 1, 1], &[1 << 30, 1, 1, 0]] {
        let told = refused("qwen35-ternary/model-PQ2_0.gguf", |gguf| set_sections(gguf, wrong));
        assert!(told.contains(SECTIONS), "{wrong:?}: {told}");
    }
    let config = |sections: Value| {
        let set = |config: &mut Value| config["text_config"]["rope_parameters"]["mrope_section"] = sections;
        mlx(set, |_| {}).map(|model| model.spec.rope.sections).map_err(|e| e.to_string())
    };
    assert_eq!(config(json!([4, 2, 2])), Ok(Some([4, 2, 2, 0])));
    for wrong in [json!([4, -2, 2]), json!([4, 2.5, 2]), json!([4]), json!("4"), json!([4, 4, 1 << 30])] {
        let told = config(wrong.clone()).unwrap_err();
        assert!(told.contains("mrope_section"), "{wrong}: {told}");
    }
}

const LIMITS: Limits = Limits { max_tokens: 40, max_logit_rows: 40, kv_blocks: 4, state_slots: 3 };

fn load(path: &str, limits: Limits) -> Result<Transformer<Cpu>, ModelError> {
    let model = open(path);
    let cpu = Cpu::new(Isa::best(), 1).unwrap();
    Transformer::load(&model.spec, &*model.tensors, cpu, limits, &mut |_, _| {})
}

/// Bits of the last row of logits after `tokens` from `start` on, in this block and slot.
fn step(model: &mut dyn Model, tokens: &[u32], start: usize, block: u32, slot: u32) -> Vec<u32> {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    batch.push(tokens, start, &[block], tokens.len() - 1..tokens.len());
    batch.set_state(slot);
    model.forward(&batch, &mut logits).unwrap();
    logits.row(0).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_copied_state_continues_a_text_and_a_text_from_its_start_finds_no_trace_of_another() {
    let tokens: Vec<u32> = (0..30).map(|i| (i * i * 7 + 3) % 300).collect();
    for path in ["qwen35-ternary/model-PQ2_0.gguf", "qwen35-hadamard/model-PQ2_0.gguf"] {
        let mut model = load(path, LIMITS).unwrap();
        step(&mut model, &tokens[..20], 0, 0, 0);
        model.copy_state(0, 2).unwrap();
        model.copy_block(0, 2).unwrap();
        let expected = step(&mut model, &tokens[20..], 20, 0, 0);
        assert_eq!(step(&mut model, &tokens[20..], 20, 2, 2), expected, "{path}: after a copy");
        assert_ne!(step(&mut model, &tokens[20..], 20, 2, 1), expected, "{path}: another state shows");
        // The slot holds the state of another text.
        step(&mut model, &tokens[..20], 0, 3, 0);
        assert_eq!(step(&mut model, &tokens[20..], 20, 3, 0), expected, "{path}: a slot used again");
    }
}

#[test]
fn a_step_names_slots_that_exist_and_none_twice() {
    let mut model = load("qwen35-ternary/model-PQ2_0.gguf", LIMITS).unwrap();
    let mut run = |slots: &[u32]| {
        let mut batch = Batch::new();
        for (block, &slot) in slots.iter().enumerate() {
            batch.push(&[1, 2], 0, &[block as u32], 0..1);
            batch.set_state(slot);
        }
        model.forward(&batch, &mut Logits::default())
    };
    run(&[2, 0, 1]).unwrap();
    assert_eq!(run(&[0, 3]), Err(ForwardError::StateOutOfRange { slot: 3, slots: 3 }));
    assert_eq!(run(&[1, 2, 1]), Err(ForwardError::StateShared { slot: 1 }));
    run(&[1, 2]).expect("a refused step takes no slot");
    assert_eq!(run(&[0, 0]), Err(ForwardError::StateShared { slot: 0 }));
    assert_eq!(model.copy_state(0, 3), Err(ForwardError::StateOutOfRange { slot: 3, slots: 3 }));
    let none = load("qwen35-ternary", Limits { state_slots: 0, ..LIMITS }).err().unwrap().to_string();
    assert!(none.contains("the number of state slots is 0") && none.contains("for every sequence"), "{none}");
}

/// Bits of all rows of logits of a run in block and slot 0.
fn drafting(model: &mut dyn Model, tokens: &[u32], start: usize, log: DraftLog) -> Vec<Vec<u32>> {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    batch.push(tokens, start, &[0], 0..tokens.len());
    batch.set_log(log);
    model.forward(&batch, &mut logits).unwrap();
    (0..tokens.len()).map(|row| logits.row(row).iter().map(|x| x.to_bits()).collect()).collect()
}

fn state(model: &mut dyn Model) -> Vec<u8> {
    let mut bytes = vec![0; model.cache_bytes().unwrap().state];
    model.read_cache(CachePlace::State(0), &mut bytes).unwrap();
    bytes
}

#[test]
fn a_rejected_draft_leaves_no_trace_in_logits_and_states() {
    let text: Vec<u32> = (0..40).map(|i| (i * i * 7 + 3) % 300).collect();
    for path in ["qwen35-ternary/model-PQ2_0.gguf", "qwen35-hadamard/model-PTQ1_0.gguf"] {
        let mut model = load(path, LIMITS).unwrap();
        let expected = drafting(&mut model, &text, 0, DraftLog::default());
        let states = [30, 31, 40].map(|len| {
            step(&mut model, &text[..len], 0, 0, 0);
            state(&mut model)
        });
        assert_eq!(model.reserve_log(6).unwrap(), 6);
        let (mut at, mut accepted) = (20, 0);
        step(&mut model, &text[..at], 0, 0, 0);
        // Drafts that are right, and all drafts.
        for (right, drafts) in [(2, 6), (0, 3), (4, 4), (0, 0), (1, 6), (6, 6)] {
            let mut tokens = text[at..=at + right].to_vec();
            tokens.extend((right..drafts).map(|i| (text[at + 1 + i] + 1) % 300));
            let rows = drafting(&mut model, &tokens, at, DraftLog { accepted, drafts });
            assert_eq!(rows[..=right], expected[at..=at + right], "{path}: {right} of {drafts} at {at}");
            (at, accepted) = (at + 1 + right, right);
            if let Some(known) = [30, 31].iter().position(|&len| len == at - right) {
                assert!(state(&mut model) == states[known], "{path}: the state after {} tokens", at - right);
            }
        }
        drafting(&mut model, &text[at..], at, DraftLog { accepted, drafts: 0 });
        assert!(state(&mut model) == states[2], "{path}: the state at the end");
    }
}

#[test]
fn a_run_that_takes_up_more_drafts_than_its_log_has_is_refused_before_anything_is_written() {
    let mut model = load("qwen35-ternary/model-PQ2_0.gguf", LIMITS).unwrap();
    let run = |model: &mut Transformer<Cpu>, accepted, drafts| {
        let mut batch = Batch::new();
        batch.push(&[1, 2, 3], 3, &[0], 0..1);
        batch.set_log(DraftLog { accepted, drafts });
        model.forward(&batch, &mut Logits::default())
    };
    let refusal = |accepted, logged, drafts, room| {
        Err(ForwardError::LogExceeded { slot: 0, accepted, logged, drafts, room })
    };
    step(&mut model, &[4, 5, 6], 0, 0, 0);
    assert_eq!(run(&mut model, 0, 1), refusal(0, 0, 1, 0), "without room for a log");
    model.reserve_log(2).unwrap();
    let before = state(&mut model);
    assert_eq!(run(&mut model, 1, 1), refusal(1, 0, 1, 2), "an empty log");
    assert_eq!(run(&mut model, 0, 3), refusal(0, 0, 3, 2), "no token before the drafts");
    assert!(state(&mut model) == before);
    run(&mut model, 0, 2).unwrap();
    assert_eq!(run(&mut model, 3, 0), refusal(3, 2, 0, 2), "more than were drafted");
    // A copy has no log.
    model.copy_state(0, 1).unwrap();
    model.copy_state(1, 0).unwrap();
    assert_eq!(run(&mut model, 1, 0), refusal(1, 0, 0, 2));
}
