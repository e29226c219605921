//! The model that is built into the binary.

use serde_json::Value;

use crate::bitnet::{bitnet, fixture};

const FIRST_CITIZEN: [&str; 7] = ["run", "demo", "First Citizen:", "-n", "80", "--seed", "1"];

#[test]
fn the_demo_writes_the_same_verse_for_the_same_seed() {
    let text = bitnet(&FIRST_CITIZEN).success();
    let words = text.split_whitespace().count();
    assert!(words >= 20 && text.lines().count() >= 2, "{text}");
    assert!(!text.contains("First Citizen:\n\nFirst Citizen:"), "the prompt is not repeated: {text}");
    assert_eq!(bitnet(&FIRST_CITIZEN).success(), text);
    assert_eq!(
        bitnet(&[&FIRST_CITIZEN[..], &["--threads", "1", "--isa", "scalar"]].concat()).success(),
        text
    );
}

#[test]
fn the_demo_needs_no_file_and_is_described_like_any_model() {
    let empty = tempfile::tempdir().unwrap();
    // Windows finds its libraries by these.
    let system: &[&str] = if cfg!(windows) { &["SystemRoot", "PATH"] } else { &[] };
    let output = crate::bitnet::command(&["inspect", "demo", "--json"])
        .current_dir(empty.path())
        .env_clear()
        .envs(system.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["name"], "demo");
    assert_eq!(report["architecture"], "bitnet");
    assert_eq!(report["warnings"], serde_json::json!([]));
    let ternary = report["ternary_weights"].as_u64().unwrap();
    assert!((4_000_000..8_000_000).contains(&ternary), "{ternary}");
}

#[test]
fn perplexity_on_unseen_plays_is_what_the_training_script_says() {
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("demo/perplexity.json")).unwrap()).unwrap();
    let context = expected["context"].to_string();
    let args = ["perplexity", "demo", &fixture("demo/heldout.txt"), "--context", &context, "--json"];
    let report = bitnet(&args).json();
    for field in ["file_tokens", "windows", "scored_tokens", "scored_characters"] {
        assert_eq!(report[field], expected[field], "{field}");
    }
    for field in ["nats_per_token", "perplexity", "bits_per_character"] {
        let (told, expected) = (report[field].as_f64().unwrap(), expected[field].as_f64().unwrap());
        assert!((told / expected - 1.0).abs() < 0.01, "{field}: {told}, expected {expected}");
    }
}
