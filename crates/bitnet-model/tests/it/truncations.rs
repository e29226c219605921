//! Truncated files.

use bitnet_model::{Checkpoint, ModelError, ModelFiles};
use bitnet_tensor::SharedBytes;

use crate::support::fixture;

fn shared(bytes: Vec<u8>) -> SharedBytes {
    SharedBytes::new(bytes)
}

#[test]
fn every_truncation_of_a_header_is_an_error() {
    for path in ["bitnet-packed/model-TQ2_0.gguf", "bitnet-odd/model.safetensors"] {
        let bytes = std::fs::read(fixture(path)).unwrap();
        for end in (0..4000).step_by(7).chain([bytes.len() / 2, bytes.len() - 1]) {
            let cut = shared(bytes[..end].to_vec());
            let result = if path.ends_with("gguf") {
                Checkpoint::from_gguf("cut.gguf", cut)
            } else {
                let read = |name: &str| shared(std::fs::read(fixture("bitnet-odd").join(name)).unwrap());
                let files = ModelFiles { config: read("config.json"), ..Default::default() };
                Checkpoint::from_files("cut", &files, cut)
            };
            let error = result.err().unwrap_or_else(|| panic!("{path} cut at {end} opened"));
            assert!(matches!(error, ModelError::Damaged { .. }), "{path} cut at {end}: {error}");
        }
    }
}
