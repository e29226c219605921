//! `convert` changes only the form of a model.

use std::path::Path;

use bitnet_model::{
    Activation, Checkpoint, GenerationDefaults, Message, ModelError, RopeScaling, Synthetic, Target,
    TensorKind, convert, inspect,
};

use crate::support::{FOLDERS, GGUFS, open};

const TARGETS: [Target; 5] = [Target::I2S, Target::Tq1_0, Target::Tq2_0, Target::Panels, Target::Packed];

fn converted(from: &Checkpoint, target: Target, to: &Path) -> Result<Checkpoint, ModelError> {
    let path = to.join(format!("model-{target}"));
    convert(from, target, &path, &mut |_, _| {})?;
    Checkpoint::open(&path)
}

/// What a model's own defaults make of a request that sets nothing: temperature, `top_k` and `top_p`.
/// What defaults say about sampling; temperature 0 is how GGUF says that a model is not meant to be sampled.
fn sampling(defaults: &GenerationDefaults) -> GenerationDefaults {
    let greedy = defaults.do_sample == Some(false);
    let temperature = if greedy { Some(0.0) } else { defaults.temperature };
    GenerationDefaults { temperature, do_sample: None, eos: Vec::new(), bos: None, ..defaults.clone() }
}

fn assert_same(a: &Checkpoint, b: &Checkpoint, target: Target, what: &str) {
    let (x, y) = (inspect(a, true, &mut |_, _| {}).unwrap(), inspect(b, true, &mut |_, _| {}).unwrap());
    assert_eq!(x.sizes, y.sizes, "{what}");
    assert_eq!(x.tensors.len(), y.tensors.len(), "{what}");
    for (x, y) in x.tensors.iter().zip(&y.tensors) {
        assert_eq!((&x.name, &x.shape, &x.trits_sha256), (&y.name, &y.shape, &y.trits_sha256), "{what}");
        assert_eq!(x.scales_sha256, y.scales_sha256, "{what}: {}", x.name);
        match (x.kind, target) {
            (TensorKind::Grouped, _) => assert!(x.scales_sha256.is_some(), "{what}"),
            (TensorKind::Ternary, Target::I2S | Target::Panels | Target::Packed) => {
                assert_eq!(x.scale, y.scale, "{what}");
            }
            (TensorKind::Ternary, _) => {
                let (x, y) = (x.scale.unwrap(), y.scale.unwrap());
                assert!((x - y).abs() <= x / 2048.0, "{what}: {x} {y}");
            }
            (TensorKind::Dense | TensorKind::Norm, _) => {
                let (a, b) = (a.tensors.dense(&x.name).unwrap(), b.tensors.dense(&x.name).unwrap());
                assert!(a.to_f32() == b.to_f32(), "{what}: {}", x.name);
            }
        }
    }
    assert_eq!(sampling(&x.generation), sampling(&y.generation), "{what}");
    assert_eq!((x.generation.eos, x.generation.bos), (y.generation.eos, y.generation.bos), "{what}");
    assert_eq!(y.warnings, Vec::<String>::new(), "{what}");
    if let (Some(a), Some(b)) = (&a.tokenizer, &b.tokenizer) {
        for text in ["Don't 12345 stop\n\n\tnow 你好 🙂  ", "<|eot_id|>x"] {
            assert_eq!(a.encode(text, true).unwrap(), b.encode(text, true).unwrap(), "{what}");
        }
    }
    let render =
        |c: &Checkpoint| c.chat.as_ref().map(|c| c.render(&[Message::new("user", "hi")], true).unwrap());
    assert_eq!((render(a), a.tokenizer.is_some()), (render(b), b.tokenizer.is_some()), "{what}");
}

#[test]
fn every_conversion_that_shapes_allow_keeps_trits_scales_and_vocabulary() {
    let mut done = Vec::new();
    for path in FOLDERS.into_iter().chain(GGUFS) {
        let from = open(path);
        for target in TARGETS {
            let folder = tempfile::tempdir().unwrap();
            match converted(&from, target, folder.path()) {
                Ok(to) => {
                    assert_same(&from, &to, target, &format!("{path} to {target}"));
                    done.push((path, target));
                    // And back, from GGUF to packed or from packed to I2_S.
                    let back = if target == Target::Packed { Target::I2S } else { Target::Packed };
                    if let Ok(back) = converted(&to, back, folder.path()) {
                        let back_target = if target == Target::I2S { Target::Packed } else { target };
                        assert_same(&from, &back, back_target, &format!("{path} to {target} and back"));
                    }
                }
                Err(ModelError::Convert { problem, .. }) => {
                    assert_eq!(path, "llama-rmsnorm", "{path} to {target}: {problem}");
                    assert_ne!(target, Target::Packed, "{path}: {problem}");
                    assert!(
                        std::fs::read_dir(folder.path()).unwrap().next().is_none(),
                        "nothing is left behind"
                    );
                }
                Err(other) => panic!("{path} to {target}: {other}"),
            }
        }
    }
    // All convert to packed; all but one, whose norms no GGUF architecture has, to every other target.
    for target in TARGETS {
        let all = FOLDERS.len() + GGUFS.len();
        let count = done.iter().filter(|d| d.1 == target).count();
        assert_eq!(count, if target == Target::Packed { all } else { all - 1 }, "{target}");
    }
}

#[test]
fn rows_that_are_not_whole_blocks_are_floats_and_keep_trits_and_scales() {
    let folder = tempfile::tempdir().unwrap();
    // The types of rows that are whole blocks, and of the others.
    let types = |path: &str, target, block: usize| {
        let to = converted(&open(path), target, folder.path()).unwrap();
        let report = inspect(&to, false, &mut |_, _| {}).unwrap();
        let mut types = [const { Vec::<String>::new() }; 2];
        for tensor in report.tensors.into_iter().filter(|t| t.kind == TensorKind::Ternary) {
            types[usize::from(tensor.shape[1] % block != 0)].push(tensor.r#type);
        }
        types.map(|mut types| {
            types.dedup();
            types.join(" ")
        })
    };
    assert_eq!(types("llama-explicit", Target::I2S, 128), ["i2_s", "f16"]);
    assert_eq!(types("llama-explicit", Target::Tq1_0, 256), ["tq1_0", "f16"]);
    assert_eq!(types("llama-explicit", Target::Tq2_0, 256), ["tq2_0", "f16"]);
    // Scales that are not exact in 16 bits need f32, except for the TQ types, whose own scales have 16.
    assert_eq!(types("onebitllm", Target::I2S, 128), ["", "f32"]);
    assert_eq!(types("onebitllm", Target::Tq1_0, 256), ["", "f16"]);
}

#[test]
fn the_demo_converts_to_every_format_with_its_rows_of_704_weights_as_f16() {
    let from = Checkpoint::demo().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for target in TARGETS {
        let to = converted(&from, target, folder.path()).unwrap();
        assert_same(&from, &to, target, &target.to_string());
        let floats =
            to.tensors.entries().iter().filter(|t| t.kind == TensorKind::Ternary && t.stored == "f16");
        let expected = if matches!(target, Target::Panels | Target::Packed) { 0 } else { from.spec.layers };
        assert_eq!(floats.count(), expected, "{target}: only the projection down has rows of 704 weights");
    }
}

/// transformers 5 computes in the types that it finds in the file, and fails where two of them meet.
#[test]
fn a_packed_folder_has_one_type_of_floats_and_names_it() {
    let mut seen = Vec::new();
    for path in FOLDERS.into_iter().chain(GGUFS) {
        let folder = tempfile::tempdir().unwrap();
        converted(&open(path), Target::Packed, folder.path()).unwrap();
        let read = |file: &str| std::fs::read(folder.path().join("model-packed").join(file)).unwrap();
        let bytes = read("model.safetensors");
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let mut types: Vec<_> = header.tensors().values().map(|t| format!("{:?}", t.dtype)).collect();
        types.sort_unstable();
        types.dedup();
        let float = match &types[..] {
            [float, packed] if packed == "U8" => float.clone(),
            _ => panic!("{path}: {types:?}"),
        };
        let config: serde_json::Value = serde_json::from_slice(&read("config.json")).unwrap();
        let named = match config["torch_dtype"].as_str().unwrap() {
            "float32" => "F32",
            "float16" => "F16",
            "bfloat16" => "BF16",
            other => panic!("{path}: {other}"),
        };
        assert_eq!(float, named, "{path}");
        seen.push((path, float));
    }
    // Scales that bf16 holds stay beside weights in bf16; means of master weights need f32.
    assert!(seen.contains(&("bitnet-packed", "BF16".into())), "{seen:?}");
    assert!(seen.contains(&("bitnet-master", "F32".into())), "{seen:?}");
}

#[test]
fn sampling_defaults_travel_through_every_format() {
    let greedy = GenerationDefaults { do_sample: Some(false), top_p: Some(0.9), ..Default::default() };
    let some = GenerationDefaults { temperature: Some(0.7), top_k: Some(20), ..Default::default() };
    let all = GenerationDefaults {
        top_p: Some(0.5),
        min_p: Some(0.1),
        repetition_penalty: Some(1.25),
        do_sample: Some(true),
        ..some.clone()
    };
    for defaults in [GenerationDefaults::default(), greedy, some, all] {
        let mut from = Checkpoint::synthetic("synthetic", Synthetic::named("tiny").unwrap());
        from.defaults = defaults.clone();
        for target in TARGETS {
            let folder = tempfile::tempdir().unwrap();
            let to = converted(&from, target, folder.path()).unwrap();
            assert_eq!(sampling(&to.defaults), sampling(&defaults), "{target}");
        }
    }
}

#[test]
fn what_a_format_does_not_hold_is_refused_with_its_name_and_cure() {
    let folder = tempfile::tempdir().unwrap();
    let refused =
        |path: &str, target| converted(&open(path), target, folder.path()).err().unwrap().to_string();
    assert!(refused("llama-rmsnorm", Target::Tq2_0).contains("a norm before every projection"));
    let destination = folder.path().join("taken");
    std::fs::create_dir(&destination).unwrap();
    let error = convert(open("bitnet-odd"), Target::Packed, &destination, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("already exists"), "{error}");
}

#[test]
fn rope_scaling_survives_every_format() {
    for scaling in [
        RopeScaling::Linear { factor: 4.0 },
        RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        },
    ] {
        let mut spec = Synthetic::named("tiny").unwrap().spec().clone();
        (spec.sub_norms, spec.activation, spec.rope.scaling) = (false, Activation::Silu, scaling);
        let from = Checkpoint::synthetic("synthetic", Synthetic::of(spec));
        for target in TARGETS {
            let folder = tempfile::tempdir().unwrap();
            let to = converted(&from, target, folder.path()).unwrap();
            assert_eq!(to.spec.rope, from.spec.rope);
            assert_eq!(to.warnings, Vec::<String>::new());
        }
    }
}

#[test]
fn synthetic_models_convert_to_every_format() {
    let from = Checkpoint::synthetic("synthetic", Synthetic::named("tiny").unwrap());
    for target in TARGETS {
        let folder = tempfile::tempdir().unwrap();
        let to = converted(&from, target, folder.path()).unwrap();
        assert_same(&from, &to, target, &target.to_string());
        assert!(to.tokenizer.is_none());
    }
}
