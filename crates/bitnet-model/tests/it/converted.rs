//! `convert` changes only the form of a model.

use std::path::Path;

use bitnet_model::{
    Activation, Checkpoint, Message, ModelError, RopeScaling, Synthetic, Target, TensorKind, convert, inspect,
};

use crate::support::{FOLDERS, GGUFS, open};

const TARGETS: [Target; 5] = [Target::I2S, Target::Tq1_0, Target::Tq2_0, Target::Panels, Target::Packed];

fn converted(from: &Checkpoint, target: Target, to: &Path) -> Result<Checkpoint, ModelError> {
    let path = to.join(format!("model-{target}"));
    convert(from, target, &path, &mut |_, _| {})?;
    Checkpoint::open(&path)
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
                    let gguf_refuses = ["bitnet-odd", "llama-rmsnorm", "llama-explicit", "onebitllm"];
                    assert!(gguf_refuses.contains(&path), "{path} to {target}: {problem}");
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
    // All convert to packed; of the folders, three to every GGUF type, and all but one to panels, which take any shape.
    assert_eq!(done.iter().filter(|d| d.1 == Target::Panels).count(), FOLDERS.len() - 1 + GGUFS.len());
    assert_eq!(done.iter().filter(|d| d.1 == Target::Packed).count(), FOLDERS.len() + GGUFS.len());
    assert_eq!(done.iter().filter(|d| d.1 == Target::Tq2_0).count(), 3 + GGUFS.len());
}

#[test]
fn what_a_shape_does_not_allow_is_refused_with_tensor_shape_and_cure() {
    let folder = tempfile::tempdir().unwrap();
    let refused =
        |path: &str, target| converted(&open(path), target, folder.path()).err().unwrap().to_string();
    assert_eq!(
        refused("bitnet-odd", Target::I2S),
        "cannot convert to i2_s: shape [192, 192]: rows of 192 weights are \
         not whole blocks of 128 (model.layers.0.self_attn.q_proj.weight): convert to packed, which takes any shape"
    );
    assert!(refused("llama-explicit", Target::Tq1_0).contains("[256, 320]"));
    assert!(refused("llama-rmsnorm", Target::Tq2_0).contains("a norm before every projection"));
    let destination = folder.path().join("taken");
    std::fs::create_dir(&destination).unwrap();
    let error = convert(&open("bitnet-odd"), Target::Packed, &destination, &mut |_, _| {}).unwrap_err();
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
