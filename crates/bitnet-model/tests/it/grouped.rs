//! Models with a scale for every group of weights: every form holds the same weights, and any other form is refused by
//! name.

use std::path::Path;

use bitnet_model::{
    Activation, Checkpoint, Grouped, ModelError, ModelFiles, Multipliers, RopeScaling, TensorKind, inspect,
};
use bitnet_tensor::{SharedBytes, TernaryTensor};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use crate::{
    gguf_edit::Tensor,
    support::{GROUPED_FOLDERS, GROUPED_GGUFS, edited, fixture, open, refused, weights_hash},
};

const Q: &str = "blk.0.attn_q.weight";
const Q_PROJ: &str = "model.layers.0.self_attn.q_proj.weight";

/// Tensors of a safetensors file: name, type, shape and bytes.
type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let all = file.iter().map(|(name, t)| (name.into(), t.dtype(), t.shape().into(), t.data().into()));
    all.collect()
}

/// The tensors of a model in the form of a folder with plain floats.
fn unpacked(model: &Checkpoint, store: fn(f32) -> [u8; 2], dtype: Dtype) -> Tensors {
    let entries = model.tensors.entries().iter();
    let all = entries.map(|entry| {
        let floats = match entry.kind {
            TensorKind::Grouped => {
                let matrix = model.tensors.ternary(&entry.name).unwrap();
                let mut values = vec![0.0; matrix.rows() * matrix.cols()];
                values.chunks_mut(matrix.cols()).enumerate().for_each(|(r, row)| matrix.decode_row(r, row));
                values
            }
            _ => model.tensors.dense(&entry.name).unwrap().to_f32(),
        };
        (entry.name.clone(), dtype, entry.shape.clone(), floats.into_iter().flat_map(store).collect())
    });
    all.collect()
}

fn f16s(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

fn config(folder: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(folder).join("config.json")).unwrap()).unwrap()
}

/// A model from a configuration and tensors.
fn folder(config: &Value, tensors: &Tensors) -> Result<Checkpoint, ModelError> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let weights = safetensors::serialize(views, None).unwrap();
    let files =
        ModelFiles { config: SharedBytes::new(config.to_string().into_bytes()), ..Default::default() };
    Checkpoint::from_files("folder", &files, SharedBytes::new(weights))
}

#[test]
fn every_form_of_a_model_has_one_hash_of_trits_and_scales() {
    let hash = |path: &str| weights_hash(&open(path));
    let expected = hash("qwen3-ternary/model-PQ2_0.gguf");
    for path in ["qwen3-ternary/model-Q2_0.gguf", "qwen3-ternary/model-PTQ1_0.gguf", "qwen3-ternary/mlx"] {
        assert_eq!(hash(path), expected, "{path}");
    }
    // The fork's earlier files have PQ2_0's bytes under type 42.
    let earlier = edited("qwen3-ternary/model-PQ2_0.gguf", |gguf| {
        gguf.tensors.iter_mut().filter(|t| t.kind == 142).for_each(|t| t.kind = 42);
    });
    let earlier = earlier.unwrap();
    assert!(earlier.tensors.entries().iter().any(|e| e.stored == "q2_0 (g128)"));
    assert_eq!(weights_hash(&earlier), expected);

    assert_eq!(hash("qwen3-unpacked"), hash("qwen3-unpacked/model-PQ2_0.gguf"));
    assert_eq!(hash("minicpm-blocks"), hash("minicpm-blocks/model-TQ2_0.gguf"));
    assert_ne!(hash("qwen3-yarn/model-PQ2_0.gguf"), expected);
}

#[test]
fn one_scale_a_tensor_is_recovered_as_its_blocks_have_it() {
    let gguf = open("minicpm-mup/model-TQ2_0.gguf");
    let bf16s = |value: f32| bf16::from_f32(value).to_le_bytes();
    let model = folder(&config("minicpm-mup"), &unpacked(&gguf, bf16s, Dtype::BF16)).unwrap();
    assert_eq!(weights_hash(&model), weights_hash(&gguf));
    let q = model.tensors.ternary(Q_PROJ).unwrap();
    let scales =
        |t: &TernaryTensor| (0..t.rows()).flat_map(|row| t.group_scales(row).to_vec()).collect::<Vec<_>>();
    assert!(scales(&q).windows(2).all(|pair| pair[0] == pair[1]), "one scale");
    let blocks = open("minicpm-blocks").tensors.ternary(Q_PROJ).unwrap();
    assert!(scales(&blocks).windows(2).any(|pair| pair[0] != pair[1]), "one for every block");
}

#[test]
fn groups_of_64_stay_and_those_that_are_pairs_become_groups_of_128() {
    let group = |path: &str| open(path).tensors.ternary(Q_PROJ).unwrap().group();
    assert_eq!(group("qwen3-ternary/model-Q2_0.gguf"), Some(128));
    assert_eq!(group("qwen3-g64/model-Q2_0.gguf"), Some(64));
}

#[test]
fn code_3_is_a_weight_of_twice_the_scale() {
    let model = edited("qwen3-ternary/model-PQ2_0.gguf", |gguf| gguf.tensor(Q).data[2] |= 3).unwrap();
    assert_eq!(model.tensors.ternary(Q_PROJ).unwrap().row_trits(0).next(), Some(2));
}

#[test]
fn q1_0_is_a_model_without_zeros() {
    let original = open("qwen3-ternary/model-PQ2_0.gguf").tensors.ternary(Q_PROJ).unwrap();
    let model = edited("qwen3-ternary/model-PQ2_0.gguf", |gguf| {
        let q = gguf.tensor(Q);
        q.kind = 41;
        q.data = (0..original.rows())
            .flat_map(|row| {
                let values: Vec<i8> = original.row_trits(row).collect();
                let blocks = values.chunks(128).zip(original.group_scales(row)).map(|(values, scale)| {
                    let signs = values
                        .chunks(8)
                        .map(|eight| eight.iter().rev().fold(0u8, |byte, &v| byte << 1 | u8::from(v >= 0)));
                    scale.to_le_bytes().into_iter().chain(signs).collect::<Vec<_>>()
                });
                blocks.flatten().collect::<Vec<_>>()
            })
            .collect();
    });
    let model = model.unwrap();
    let q = model.tensors.ternary(Q_PROJ).unwrap();
    assert_eq!(q.scales(), original.scales());
    for row in 0..q.rows() {
        assert!(q.row_trits(row).zip(original.row_trits(row)).all(|(a, b)| a == if b < 0 { -1 } else { 1 }));
    }
    assert!(model.tensors.entries().iter().any(|e| e.stored == "q1_0"));
}

#[test]
fn every_grouped_fixture_opens_without_a_warning_and_describes_itself() {
    for path in GROUPED_FOLDERS.into_iter().chain(GROUPED_GGUFS) {
        let model = open(path);
        assert_eq!(model.warnings, Vec::<String>::new(), "{path}");
        assert!(model.tokenizer.is_some() && model.chat.is_some(), "{path}");
        assert_eq!(model.defaults.eos.len(), 2, "{path}");
        let qwen3 = path.starts_with("qwen3");
        let spec = &model.spec;
        assert_eq!((spec.head_norms, spec.sub_norms, spec.activation), (qwen3, false, Activation::Silu));
        assert_eq!(spec.grouped, Grouped { projections: true, embedding: qwen3, head: qwen3 }, "{path}");
        assert_eq!(spec.multipliers == Multipliers::NONE, qwen3, "{path}");
        weights_hash(&model);
        assert_eq!(model.tensors.warnings(), Vec::<String>::new(), "{path}");
    }
    let qwen3 = open("qwen3-ternary/mlx").spec;
    assert_eq!((qwen3.head_dim, qwen3.q_width(), qwen3.hidden, qwen3.tied_head), (96, 384, 256, true));
    assert_eq!((qwen3.rms_eps, qwen3.rope.theta), (1e-6, 1e6));
    assert!(!open("minicpm-blocks").spec.tied_head);
}

#[test]
fn gguf_and_config_json_describe_the_same_model() {
    for path in GROUPED_GGUFS {
        let gguf = open(path);
        let name = path.split_once('/').unwrap().0;
        let (store, dtype): (fn(f32) -> [u8; 2], _) = if name.starts_with("minicpm") {
            (|value| bf16::from_f32(value).to_le_bytes(), Dtype::BF16)
        } else {
            (f16s, Dtype::F16)
        };
        let mut model = folder(&config(name), &unpacked(&gguf, store, dtype)).unwrap();
        // The others are in generation_config.json, which is missing here.
        assert_eq!(model.spec.eos[..], gguf.spec.eos[..1], "{path}");
        model.spec.eos.clone_from(&gguf.spec.eos);
        assert_eq!(model.spec, gguf.spec, "{path}");
        assert_eq!(weights_hash(&model), weights_hash(&gguf), "{path}");
    }
}

#[test]
fn yarn_is_read_from_both_forms_of_config_json() {
    let gguf = open("qwen3-yarn/model-PQ2_0.gguf");
    let stored = unpacked(&gguf, f16s, Dtype::F16);
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 64.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.138_629_4,
    };
    assert_eq!(gguf.spec.rope.scaling, expected);
    let older = config("qwen3-yarn");
    assert_eq!(folder(&older, &stored).unwrap().spec.rope, gguf.spec.rope);

    let mut newer = older.clone();
    newer["rope_parameters"] = newer["rope_scaling"].clone();
    newer["rope_parameters"]["rope_theta"] = newer["rope_theta"].clone();
    let fields = newer.as_object_mut().unwrap();
    fields.retain(|field, _| !["rope_scaling", "rope_theta"].contains(&field.as_str()));
    assert_eq!(folder(&newer, &stored).unwrap().spec.rope, gguf.spec.rope);

    newer["rope_parameters"]["attention_factor"] = json!(1.5);
    newer["rope_parameters"]["beta_fast"] = json!(16.0);
    let RopeScaling::Yarn { attention_factor, beta_fast, .. } =
        folder(&newer, &stored).unwrap().spec.rope.scaling
    else {
        panic!("YaRN");
    };
    assert_eq!((attention_factor, beta_fast), (1.5, 16.0), "what is said wins");
    newer["rope_parameters"]["mscale"] = json!(1.0);
    let told = folder(&newer, &stored).err().unwrap().to_string();
    assert!(told.contains("rope_parameters.mscale is 1"), "{told}");
}

#[test]
fn texts_of_a_model_with_longrope_end_where_the_long_factors_would_begin() {
    let gguf = open("minicpm-blocks/model-TQ2_0.gguf");
    let RopeScaling::LongRope { factors, attention_factor } = &gguf.spec.rope.scaling else {
        panic!("LongRoPE");
    };
    assert_eq!((factors.len(), factors[1], *attention_factor), (64, 1.0492, 1.0));
    let stored = tensors(&fixture("minicpm-blocks/model.safetensors"));
    let mut config = config("minicpm-blocks");
    config["max_position_embeddings"] = json!(2048);
    let long = folder(&config, &stored).unwrap().spec;
    assert_eq!(long.context, 512);
    let RopeScaling::LongRope { attention_factor, .. } = long.rope.scaling else { panic!("LongRoPE") };
    // sqrt(1 + ln 4 / ln 512)
    assert!((attention_factor - 1.105_541_6).abs() < 1e-6, "{attention_factor}");
    config["rope_scaling"]["short_factor"] = json!([1.0, 2.0]);
    let told = folder(&config, &stored).err().unwrap().to_string();
    assert!(told.contains("list of rope factors has 2 values for heads of 128"), "{told}");
}

#[test]
fn multipliers_are_those_of_the_configuration() {
    let spec = open("minicpm-blocks").spec;
    assert_eq!(spec.multipliers.embedding, 12.0);
    assert_eq!(spec.multipliers.residual, 1.4);
    assert_eq!(spec.multipliers.logit_divisor, 256.0 / 96.0);
    let told = refused("minicpm-mup/model-TQ2_0.gguf", |gguf| gguf.remove("minicpm.residual_scale"));
    assert!(told.contains("minicpm.residual_scale is missing"), "{told}");
    let mut config = config("minicpm-blocks");
    config.as_object_mut().unwrap().remove("dim_model_base");
    let told = folder(&config, &tensors(&fixture("minicpm-blocks/model.safetensors"))).err().unwrap();
    assert!(told.to_string().contains("dim_model_base is missing"), "{told}");
}

/// The unpacked fixture, with some weights of the first projection moved off their grid.
fn off_grid(count: usize) -> Checkpoint {
    let mut stored = tensors(&fixture("qwen3-unpacked/model.safetensors"));
    let q = stored.iter_mut().find(|t| t.0 == Q_PROJ).unwrap();
    let (values, _) = q.3.as_chunks_mut::<2>();
    // Larger than the scale, so that the largest magnitude of a group would be the wrong scale.
    values.iter_mut().step_by(700).take(count).for_each(|v| *v = f16s(7.5));
    folder(&config("qwen3-unpacked"), &stored).unwrap()
}

#[test]
fn a_few_weights_off_the_grid_are_counted_and_many_are_refused() {
    // The projection has 384 x 256 weights; one in ten thousand of them is 9.8.
    let model = off_grid(9);
    let matrix = model.tensors.ternary(Q_PROJ).unwrap();
    assert_eq!(matrix.scales(), open("qwen3-unpacked").tensors.ternary(Q_PROJ).unwrap().scales());
    let warnings = inspect(&model, true, &mut |_, _| {}).unwrap().warnings;
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("9 weights in 1 tensors") && warning.contains("GGUF"), "{warning}");
    assert_eq!(model.tensors.warnings(), warnings, "each tensor counts once, however often it is read");

    let told = off_grid(10).tensors.ternary(Q_PROJ).unwrap_err().to_string();
    assert!(told.contains(Q_PROJ) && told.contains("10 of its 98304 weights (0.010 %)"), "{told}");
    assert!(told.contains("GGUF file in PQ2_0"), "{told}");
}

#[test]
fn type_42_of_another_layout_is_called_by_its_name() {
    // Sherry's type: 42 bytes for 256 weights.
    let told = refused("qwen3-ternary/model-Q2_0.gguf", |gguf| {
        for t in gguf.tensors.iter_mut().filter(|t| t.kind == 42) {
            let elements = t.dims.iter().product::<u64>() as usize;
            t.data = vec![0; elements.div_ceil(256) * 42];
            t.dims = vec![256, t.dims.iter().product::<u64>() / 256];
        }
    });
    assert!(told.contains("STQ1_0 (Sherry)") && told.contains("another type"), "{told}");
    let told = refused("qwen3-ternary/model-Q2_0.gguf", |gguf| gguf.tensor(Q).data.truncate(26_000));
    assert!(told.contains(Q) || told.contains("type 42 are neither"), "{told}");
}

#[test]
fn weights_that_are_not_ternary_are_refused_by_tensor_and_type() {
    for (kind, bytes, name) in [(8, 34 * 256 / 32, "q8_0"), (14, 210, "q6_k"), (12, 144, "q4_k")] {
        let told = refused("qwen3-ternary/model-PQ2_0.gguf", |gguf| {
            let q = gguf.tensor(Q);
            (q.kind, q.data) = (kind, vec![0; bytes * q.dims[1] as usize]);
        });
        assert!(told.contains(Q) && told.contains(&format!("type {kind} ({name}) is not ternary")), "{told}");
    }
    let floats = edited("qwen3-ternary/model-PQ2_0.gguf", |gguf| {
        let q = gguf.tensor(Q);
        let values = 0..q.dims.iter().product::<u64>();
        (q.kind, q.data) = (0, values.flat_map(|v| (v as f32).to_le_bytes()).collect());
    });
    let told = floats.unwrap().tensors.ternary(Q_PROJ).unwrap_err().to_string();
    assert!(told.contains("it is not ternary") && told.contains("blk.0.attn_q.weight"), "{told}");
    // A separate scale tensor belongs to models with one scale.
    let told = refused("qwen3-ternary/model-PQ2_0.gguf", |gguf| {
        let data = 4.0f32.to_le_bytes().to_vec();
        gguf.tensors.push(Tensor { name: "blk.0.attn_q.scale".into(), dims: vec![1], kind: 0, data });
    });
    assert!(told.contains("a separate scale for a matrix"), "{told}");
}

#[test]
fn a_float_embedding_with_ternary_projections_stays_float() {
    let gguf = edited("qwen3-ternary/model-PQ2_0.gguf", |gguf| {
        let table = gguf.tensor("token_embd.weight");
        let values = 0..table.dims.iter().product::<u64>();
        (table.kind, table.data) = (1, values.flat_map(|v| f16s(v as f32 / 1e3)).collect());
    });
    let gguf = gguf.unwrap();
    assert_eq!(gguf.spec.grouped, Grouped { projections: true, embedding: false, head: false });
    assert_eq!(
        gguf.tensors.dense("model.embed_tokens.weight").unwrap().to_f32()[1],
        f16::from_f32(1e-3).to_f32()
    );
}

#[test]
fn mlx_that_is_not_ternary_is_refused() {
    let stored = tensors(&fixture("qwen3-ternary/mlx/model.safetensors"));
    let opened = |change: fn(&mut Tensors)| {
        let mut stored = stored.clone();
        change(&mut stored);
        folder(&config("qwen3-ternary/mlx"), &stored)
    };
    let biased = opened(|all| {
        let at = all.iter().position(|t| t.0.ends_with("0.self_attn.q_proj.biases")).unwrap();
        all[at].3[..2].copy_from_slice(&f16s(-3.0));
    });
    let told = biased.unwrap().tensors.ternary(Q_PROJ).unwrap_err().to_string();
    assert!(told.contains("bias -3") && told.contains("are not -s, 0, s or 2 s"), "{told}");
    let missing = opened(|all| all.retain(|t| !t.0.ends_with("0.self_attn.q_proj.scales")));
    let told = missing.err().unwrap().to_string();
    assert!(told.contains("q_proj.scales is missing"), "{told}");

    let mut four = config("qwen3-ternary/mlx");
    four["quantization"]["bits"] = json!(4);
    let told = folder(&four, &stored).err().unwrap().to_string();
    assert!(told.contains("quantization.bits is 4") && told.contains("GGUF"), "{told}");
    let mut other = config("qwen3-unpacked");
    other["quantization_config"] = json!({"quant_method": "gptq"});
    let told = folder(&other, &stored).err().unwrap().to_string();
    assert!(told.contains("quant_method is gptq"), "{told}");
    let mut sliding = config("qwen3-unpacked");
    sliding["use_sliding_window"] = json!(true);
    assert!(folder(&sliding, &stored).err().unwrap().to_string().contains("sliding_attention"));
}
