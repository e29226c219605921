use bitnet_tensor::SharedBytes;

use crate::{Checkpoint, ModelError, ModelFiles};

impl Checkpoint {
    /// The small trained model that every program with this crate carries; `tools/train-demo` makes it.
    ///
    /// # Errors
    /// If its files are damaged, which a test rules out.
    pub fn demo() -> Result<Checkpoint, ModelError> {
        let part = |bytes: &'static [u8]| Some(SharedBytes::new(bytes));
        let files = ModelFiles {
            config: SharedBytes::new(include_bytes!("../demo/config.json")),
            tokenizer: part(include_bytes!("../demo/tokenizer.json")),
            tokenizer_config: part(include_bytes!("../demo/tokenizer_config.json")),
            generation_config: part(include_bytes!("../demo/generation_config.json")),
            chat_template: None,
        };
        let weights = SharedBytes::new(include_bytes!("../demo/model.safetensors"));
        Checkpoint::from_files("demo", &files, weights)
    }
}
