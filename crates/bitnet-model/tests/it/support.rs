//! Fixtures and their goldens.

use std::path::PathBuf;

use bitnet_model::{Checkpoint, ModelError, inspect};
use bitnet_tensor::SharedBytes;

use crate::gguf_edit::GgufEdit;

/// A file or folder of `fixtures/`.
pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(path)
}

/// An opened fixture.
pub fn open(path: &str) -> Checkpoint {
    Checkpoint::open(&fixture(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// An opened GGUF fixture after an edit.
pub fn edited(path: &str, edit: impl FnOnce(&mut GgufEdit)) -> Result<Checkpoint, ModelError> {
    let mut gguf = GgufEdit::read(&std::fs::read(fixture(path)).unwrap());
    edit(&mut gguf);
    Checkpoint::from_gguf("edited.gguf", SharedBytes::new(gguf.write()))
}

/// The error, on one line, of a GGUF fixture that cannot be opened after an edit.
pub fn refused(path: &str, edit: impl FnOnce(&mut GgufEdit)) -> String {
    let error = edited(path, edit).expect_err("opened").to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

/// The hash of the trits and scales of all weights.
pub fn weights_hash(model: &Checkpoint) -> String {
    inspect(model, true, &mut |_, _| {}).unwrap().weights_sha256.unwrap()
}

/// A value of the metadata of a fixture's `golden.safetensors`.
pub fn golden_text(folder: &str, key: &str) -> String {
    let bytes = std::fs::read(fixture(folder).join("golden.safetensors")).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    metadata.metadata().as_ref().unwrap()[key].clone()
}

/// All fixture folders.
pub const FOLDERS: [&str; 7] = [
    "bitnet-packed",
    "bitnet-odd",
    "bitnet-master",
    "llama-bitlinear",
    "llama-explicit",
    "llama-rmsnorm",
    "onebitllm",
];

/// All GGUF fixtures.
pub const GGUFS: [&str; 7] = [
    "bitnet-packed/model-I2_S.gguf",
    "bitnet-packed/model-TQ1_0.gguf",
    "bitnet-packed/model-TQ2_0.gguf",
    "llama-bitlinear/model-I2_S.gguf",
    "llama-bitlinear/model-TQ1_0.gguf",
    "llama-bitlinear/model-TQ2_0.gguf",
    "llama-bitlinear/model-TQ2_0-K.gguf",
];

/// Fixture folders of models with a scale for every group of weights.
pub const GROUPED_FOLDERS: [&str; 3] = ["qwen3-ternary/mlx", "qwen3-unpacked", "minicpm-blocks"];

/// GGUF fixtures of models with a scale for every group of weights.
pub const GROUPED_GGUFS: [&str; 8] = [
    "qwen3-ternary/model-Q2_0.gguf",
    "qwen3-ternary/model-PQ2_0.gguf",
    "qwen3-ternary/model-PTQ1_0.gguf",
    "qwen3-unpacked/model-PQ2_0.gguf",
    "qwen3-yarn/model-PQ2_0.gguf",
    "qwen3-g64/model-Q2_0.gguf",
    "minicpm-mup/model-TQ2_0.gguf",
    "minicpm-blocks/model-TQ2_0.gguf",
];

/// Forms of models with recurrent layers.
pub const HYBRIDS: [&str; 5] = [
    "qwen35-ternary",
    "qwen35-ternary/model-PQ2_0.gguf",
    "qwen35-hadamard/mlx",
    "qwen35-hadamard/model-PQ2_0.gguf",
    "qwen35-hadamard/model-PTQ1_0.gguf",
];
