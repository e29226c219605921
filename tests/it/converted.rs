//! `bitnet convert` on every form of every fixture: the result is the same model, according to the binary and to the
//! oracle.

use std::path::{Path, PathBuf};

use bitnet_kernels::Isa;
use bitnet_model::Model;
use bitnet_tests::{FORMS, Form, GROUPED_FORMS, Tensors, assert_close, bitnet, distances, fixture};
use serde_json::Value;

use crate::goldens::{PROMPTS, load, prefill};

const TARGETS: [(&str, &str); 5] =
    [("i2_s", "I2_S"), ("tq1_0", "TQ1_0"), ("tq2_0", "TQ2_0"), ("panels", ""), ("packed", "")];

/// Name, hash and scale of every ternary tensor, from `bitnet inspect`.
fn ternary(model: &Path) -> Vec<(String, String, f64)> {
    let run = bitnet(&["inspect", model.to_str().unwrap(), "--json", "--hash"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["warnings"], serde_json::json!([]), "{}", model.display());
    let tensors = report["tensors"].as_array().unwrap().iter().filter(|t| t["kind"] == "ternary");
    let text = |t: &Value, field: &str| t[field].as_str().unwrap().to_string();
    tensors.map(|t| (text(t, "name"), text(t, "trits_sha256"), t["scale"].as_f64().unwrap())).collect()
}

fn convert(from: &Path, to: &Path, format: &str) -> Result<(), String> {
    let run = bitnet(&["convert", from.to_str().unwrap(), to.to_str().unwrap(), "--to", format]);
    let told = String::from_utf8(run.stderr).unwrap();
    if run.status.success() { Ok(()) } else { Err(told) }
}

/// The oracle's values for a form whose projections are in another format. The TQ types store the scale in 16 bits,
/// so for them the values of the fixture's own TQ file are used, if it has the same embedding (Llama's are Q8_0 in
/// GGUF).
fn golden(form: Form, name: &str) -> Option<PathBuf> {
    let own = fixture(form.folder).join(form.golden);
    match name {
        "TQ1_0" | "TQ2_0" if !form.file.contains("TQ") => {
            let same_embedding = form.folder == "bitnet-packed" || !form.file.is_empty();
            same_embedding.then(|| fixture(form.folder).join(format!("golden-{name}.safetensors")))
        }
        _ => Some(own),
    }
}

#[test]
fn every_form_converts_to_every_type_that_it_allows_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let (mut converted, mut refused, mut judged) = (0, 0, 0);
    for (number, &form) in FORMS.iter().enumerate() {
        let original = ternary(&form.path());
        for (format, name) in TARGETS {
            let what = format!("{form:?} to {format}");
            let to = folder.path().join(format!("{number}-{format}"));
            if let Err(told) = convert(&form.path(), &to, format) {
                assert!(told.starts_with("error: cannot convert to ") && told.lines().count() == 1, "{told}");
                assert!(told.contains("convert to packed") && !to.exists(), "{told}");
                refused += 1;
                continue;
            }
            converted += 1;
            let there = ternary(&to);
            let exact = !name.starts_with("TQ");
            assert_eq!(original.len(), there.len(), "{what}");
            for (a, b) in original.iter().zip(&there) {
                assert_eq!((&a.0, &a.1), (&b.0, &b.1), "{what}");
                assert!(a.2 == b.2 || !exact && (a.2 - b.2).abs() <= a.2 / 2048.0, "{what}: {a:?} {b:?}");
            }
            // Converting back keeps everything, including scales.
            let back = folder.path().join(format!("{number}-{format}-back"));
            let back_to = if format == "packed" { "i2_s" } else { "packed" };
            match convert(&to, &back, back_to) {
                Ok(()) => assert_eq!(ternary(&back), there, "{what} and back"),
                Err(told) => assert!(back_to == "i2_s" && told.contains("cannot convert"), "{what}: {told}"),
            }
            let Some(golden) = golden(form, name) else { continue };
            let golden = Tensors::read(&golden);
            let mut model = load(&to, Isa::best(), 2);
            let expected: Vec<f32> =
                (0..PROMPTS).flat_map(|p| golden.floats(&format!("logits_{p}"))).collect();
            let vocab = model.spec().vocab;
            assert_close(distances(&prefill(&mut model, &golden), &expected, vocab), &what);
            judged += 1;
        }
    }
    // All 14 convert to packed; 13, which have an architecture in GGUF, to the other four.
    assert_eq!((converted, refused), (14 + 4 * 13, 4));
    assert_eq!(judged, 56, "converted files that agree with the oracle");
}

/// The hash of all trits and scales, from `bitnet inspect`.
fn weights_hash(model: &Path) -> String {
    let run = bitnet(&["inspect", model.to_str().unwrap(), "--json", "--hash"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["warnings"], serde_json::json!([]), "{}", model.display());
    report["weights_sha256"].as_str().unwrap().into()
}

#[test]
fn every_grouped_form_converts_to_the_types_with_group_scales_and_to_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (mut converted, mut refused) = (0, 0);
    for (number, form) in GROUPED_FORMS.iter().enumerate() {
        let (hash, golden) = (weights_hash(&form.path()), form.golden());
        let expected: Vec<f32> = (0..PROMPTS).flat_map(|p| golden.floats(&format!("logits_{p}"))).collect();
        for format in ["q2_0", "pq2_0", "panels", "i2_s", "tq2_0", "packed"] {
            let what = format!("{form:?} to {format}");
            let to = folder.path().join(format!("{number}-{format}"));
            if let Err(told) = convert(&form.path(), &to, format) {
                assert!(told.starts_with("error: cannot convert to ") && told.lines().count() == 1, "{told}");
                assert!(told.contains("convert to q2_0") && !to.exists(), "{told}");
                refused += 1;
                continue;
            }
            assert_eq!(weights_hash(&to), hash, "{what}");
            let mut model = load(&to, Isa::best(), 2);
            let vocab = model.spec().vocab;
            form.assert_close(distances(&prefill(&mut model, &golden), &expected, vocab), &what);
            converted += 1;
        }
    }
    // Groups of 64 do not convert to PQ2_0, and no groups convert to types with one scale.
    assert_eq!((converted, refused), (3 * GROUPED_FORMS.len() - 1, 3 * GROUPED_FORMS.len() + 1));
}
