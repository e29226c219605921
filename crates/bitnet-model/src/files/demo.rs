use bitnet_tensor::SharedBytes;

use crate::{
    ModelError,
    files::{Checkpoint, ModelFiles},
};

impl Checkpoint {
    /// Opens the small trained model that is built into this crate; `tools/train-demo` produces it.
    ///
    /// # Errors
    /// Never in practice: a test checks the built-in files.
    pub fn demo() -> Result<Checkpoint, ModelError> {
        let part = |bytes: &'static [u8]| Some(SharedBytes::new(bytes));
        let files = ModelFiles {
            config: SharedBytes::new(include_bytes!("../../demo/config.json")),
            tokenizer: part(include_bytes!("../../demo/tokenizer.json")),
            tokenizer_config: part(include_bytes!("../../demo/tokenizer_config.json")),
            generation_config: part(include_bytes!("../../demo/generation_config.json")),
            chat_template: part(include_bytes!("../../demo/chat_template.jinja")),
            tools_template: None,
            pooling: None,
            hadamard: None,
        };
        let weights = SharedBytes::new(include_bytes!("../../demo/model.safetensors"));
        Checkpoint::from_files("demo", &files, weights)
    }
}
