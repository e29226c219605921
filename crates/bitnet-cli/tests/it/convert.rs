//! `bitnet convert`.

use crate::bitnet::{bitnet, fixture};

const FORMATS: [&str; 5] = ["i2_s", "tq1_0", "tq2_0", "panels", "packed"];

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn the_demo_converts_and_writes_the_same_verse() {
    let folder = tempfile::tempdir().unwrap();
    // At the model's own settings for sampling, which travel with it.
    let verse = |model: &str| bitnet(&["run", model, "First Citizen:", "-n", "48", "--seed", "1"]).success();
    let expected = verse("demo");
    for format in FORMATS {
        let to = folder.path().join(format);
        let to = to.to_str().unwrap();
        let outcome = bitnet(&["convert", "demo", to, "--to", format]);
        assert!(outcome.err.contains("wrote"), "{outcome:?}");
        assert_eq!(outcome.success(), "");
        assert_eq!(verse(to), expected, "{format}");
    }
    assert_eq!(names(folder.path()).len(), FORMATS.len(), "nothing else is left");
}

#[test]
fn a_synthetic_model_converts_to_every_format() {
    let folder = tempfile::tempdir().unwrap();
    for format in FORMATS {
        let to = folder.path().join(format);
        bitnet(&["convert", "synthetic:tiny", to.to_str().unwrap(), "--to", format]).success();
        let report = bitnet(&["inspect", to.to_str().unwrap(), "--json"]).json();
        assert_eq!(report["sizes"]["layers"], 2);
        assert_eq!(report["tokenizer"], serde_json::Value::Null);
    }
}

#[test]
fn what_a_format_cannot_hold_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("out.gguf");
    let error =
        bitnet(&["convert", &fixture("llama-rmsnorm"), to.to_str().unwrap(), "--to", "tq2_0"]).failure(1);
    for part in ["tq2_0", "a norm before every projection", "convert to packed"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(names(folder.path()), Vec::<String>::new());
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    for format in FORMATS {
        let error =
            bitnet(&["convert", "synthetic:tiny", taken.to_str().unwrap(), "--to", format]).failure(1);
        assert!(error.contains("taken"), "{error}");
    }
    assert_eq!(names(folder.path()), ["taken"]);
}

#[test]
fn a_file_may_be_converted_onto_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::copy(fixture("bitnet-packed/model-I2_S.gguf"), &file).unwrap();
    let path = file.to_str().unwrap();
    bitnet(&["convert", path, path, "--to", "tq1_0"]).success();
    let report = bitnet(&["inspect", path, "--json"]).json();
    assert_eq!(report["quantization"], serde_json::json!(["tq1_0"]));
    // The panels are read from the file that is being replaced.
    bitnet(&["convert", path, path, "--to", "panels"]).success();
    bitnet(&["convert", path, path, "--to", "panels"]).success();
    let report = bitnet(&["inspect", path, "--json"]).json();
    assert_eq!(report["quantization"], serde_json::json!(["panels"]));
}
