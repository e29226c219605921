//! `bitnet perplexity`: scores of texts, and texts that cannot be scored.

use std::path::PathBuf;

use crate::bitnet::{bitnet, fixture};

fn text(folder: &tempfile::TempDir, bytes: &[u8]) -> String {
    let path: PathBuf = folder.path().join("text.txt");
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn perplexity_follows_from_the_logits_of_each_window() {
    let folder = tempfile::tempdir().unwrap();
    let words = "It was the best of times, it was the worst of times. ".repeat(4);
    let (model, file) = (fixture("bitnet-odd"), text(&folder, words.as_bytes()));
    let window = 16;
    let report = bitnet(&["perplexity", &model, &file, "--context", &window.to_string(), "--json"]).json();

    let ids = bitnet(&["tokenize", &model, &words]).json();
    let ids: Vec<usize> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize).collect();
    let (mut losses, mut characters) = (Vec::new(), 0);
    for ids in ids.chunks_exact(window) {
        let list = ids.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let out = folder.path().join("logits.safetensors");
        bitnet(&["logits", &model, "--ids", &list, "--out", out.to_str().unwrap()]).success();
        let bytes = std::fs::read(out).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let data = tensors.tensor("logits").unwrap().data().to_vec();
        for (row, &next) in data.chunks_exact(4 * 509).zip(&ids[1..]) {
            let row: Vec<f64> =
                row.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect();
            losses.push(row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[next]);
        }
        let list = list.split_once(',').unwrap().1;
        characters += bitnet(&["detokenize", &model, list]).success().chars().count() - 1;
    }
    let nats: f64 = losses.iter().sum();
    assert_eq!(report["windows"], ids.len() / window);
    assert_eq!(report["scored_tokens"], losses.len());
    assert_eq!(report["scored_characters"], characters);
    let close = |field: &str, expected: f64| {
        let told = report[field].as_f64().unwrap();
        assert!((told / expected - 1.0).abs() < 1e-6, "{field}: {told}, expected {expected}");
    };
    close("nats_per_token", nats / losses.len() as f64);
    close("perplexity", (nats / losses.len() as f64).exp());
    close("bits_per_character", nats / 2f64.ln() / characters as f64);
}

#[test]
fn people_get_perplexity_with_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = text(&folder, "word ".repeat(300).as_bytes());
    let out = bitnet(&["perplexity", &fixture("bitnet-odd"), &file, "--context", "64"]).success();
    assert!(
        out.starts_with("perplexity ") && out.contains("+/-") && out.contains("bits per character"),
        "{out}"
    );
}

#[test]
fn one_scored_token_has_no_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = (fixture("bitnet-odd"), text(&folder, b"a"));
    let args = ["perplexity", &model, &file, "--context", "2"];
    let report = bitnet(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(report["scored_tokens"], 1);
    assert!(report["perplexity"].as_f64().unwrap() >= 1.0 && report["standard_error"].is_null(), "{report}");
    let out = bitnet(&args).success();
    assert!(out.contains("+/- unknown"), "{out}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_text_that_never_ends_is_refused() {
    let error = bitnet(&["perplexity", &fixture("bitnet-odd"), "/dev/zero"]).failure(1);
    assert!(error.contains("too long (/dev/zero)"), "{error}");
}

#[test]
fn texts_and_windows_that_cannot_be_scored_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("bitnet-odd");
    let file = text(&folder, b"too short");
    let error = bitnet(&["perplexity", &model, &file]).failure(1);
    assert!(error.contains("fewer than a window") && error.contains(&file), "{error}");
    let error = bitnet(&["perplexity", &model, &file, "--context", "1"]).failure(2);
    assert!(error.contains("--context"), "{error}");
    let error = bitnet(&["perplexity", &model, &file, "--context", "1000000"]).failure(1);
    assert!(error.contains("--context"), "{error}");
    let error = bitnet(&["perplexity", &model, "no-such-text"]).failure(1);
    assert!(error.contains("no-such-text"), "{error}");
    let file = text(&folder, &[0xFF; 2000]);
    let error = bitnet(&["perplexity", &model, &file]).failure(1);
    assert!(error.contains("UTF-8 from byte 0 on") && error.contains("convert it"), "{error}");
    bitnet(&["perplexity", "synthetic:tiny", &file]).failure(1);
}
