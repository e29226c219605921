//! `bitnet inspect`: what it says about a model and its tensors.

use serde_json::Value;

use crate::bitnet::{bitnet, fixture};

fn ternary(report: &Value) -> Vec<(&str, &str, f64)> {
    let tensors = report["tensors"].as_array().unwrap().iter().filter(|t| t["kind"] == "ternary");
    tensors
        .map(|t| {
            (t["name"].as_str().unwrap(), t["trits_sha256"].as_str().unwrap(), t["scale"].as_f64().unwrap())
        })
        .collect()
}

#[test]
fn a_model_is_described_with_every_tensor() {
    let report = bitnet(&["inspect", &fixture("bitnet-packed"), "--json"]).json();
    assert_eq!(report["architecture"], "bitnet");
    assert_eq!(report["format"], "safetensors");
    assert_eq!(report["sizes"]["layers"], 3);
    assert_eq!(report["sizes"]["kv_heads"], 2);
    assert_eq!(report["tokenizer"]["tokens"], 512);
    assert_eq!(report["generation"]["eos"].as_array().unwrap().len(), 2);
    assert!(report["chat_template"].as_str().unwrap().contains("messages"));
    let tensors = report["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 3 * 11 + 2);
    let gate = tensors.iter().find(|t| t["name"] == "model.layers.2.mlp.gate_proj.weight").unwrap();
    assert_eq!(gate["shape"], serde_json::json!([768, 256]));
    assert_eq!(gate["type"], "packed u8");
    assert!(gate.get("trits_sha256").is_none());
}

#[test]
fn one_model_in_two_formats_has_the_same_hashes_and_scales() {
    for (folder, file) in [("bitnet-packed", "model-I2_S.gguf"), ("llama-bitlinear", "model-I2_S.gguf")] {
        let packed = bitnet(&["inspect", &fixture(folder), "--json", "--hash"]).json();
        let gguf = bitnet(&["inspect", &fixture(&format!("{folder}/{file}")), "--json", "--hash"]).json();
        let (packed, gguf) = (ternary(&packed), ternary(&gguf));
        assert!(packed.len() >= 14, "{packed:?}");
        assert_eq!(packed.len(), gguf.len());
        for (p, g) in packed.iter().zip(&gguf) {
            assert_eq!((p.0, p.1), (g.0, g.1), "{folder}");
            assert!((p.2 / g.2 - 1.0).abs() < 1e-6, "{folder} {p:?} {g:?}");
        }
        let mut hashes: Vec<&str> = packed.iter().map(|t| t.1).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), packed.len(), "different tensors have different hashes");
    }
}

#[test]
fn the_hash_is_that_of_signed_bytes_in_row_major_order() {
    use bitnet::model::{Synthetic, TensorSource};
    use sha2::{Digest, Sha256};

    let name = "model.layers.0.self_attn.k_proj.weight";
    let report = bitnet(&["inspect", "synthetic:tiny", "--json", "--hash"]).json();
    let told = ternary(&report).into_iter().find(|t| t.0 == name).unwrap();
    let tensor = Synthetic::named("tiny").unwrap().ternary(name).unwrap();
    let bytes: Vec<u8> = (0..tensor.rows())
        .flat_map(|row| (0..tensor.cols()).map(move |col| (row, col)))
        .map(|(row, col)| tensor.trit(row, col) as u8)
        .collect();
    let expected: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(told.1, expected);
}

#[test]
fn people_get_a_line_for_every_tensor() {
    let text = bitnet(&["inspect", "synthetic:tiny"]).success();
    for part in [
        "synthetic:tiny",
        "tokenizer      none",
        "chat template  none",
        "model.layers.1.mlp.down_proj.weight",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
