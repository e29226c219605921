use bitnet_inference::{ForwardError, Limits, Model};
use bitnet_model::{Batch, Logits, ModelSpec};

/// A model of `bitnet-model` as generation sees it.
pub struct Seam<'a>(pub &'a mut dyn bitnet_model::Model);

fn failed(error: bitnet_model::ForwardError) -> ForwardError {
    ForwardError::Device { message: error.to_string() }
}

impl Model for Seam<'_> {
    fn spec(&self) -> &ModelSpec {
        self.0.spec()
    }

    fn limits(&self) -> Limits {
        let bitnet_model::Limits { max_tokens, max_logit_rows, kv_blocks } = self.0.limits();
        Limits { max_tokens, max_logit_rows, kv_blocks }
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.0.forward(batch, logits).map_err(failed)
    }

    fn copy_block(&mut self, from: u32, to: u32) {
        // Generation of one sequence copies no blocks.
        self.0.copy_block(from, to).expect("a CPU copies within its own memory");
    }
}
