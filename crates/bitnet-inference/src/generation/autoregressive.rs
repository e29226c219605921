use std::time::Instant;

use super::batch_processor::{BatchHandle, BatchRequest, one_token};
use crate::batch::{self, GenerationError};
use crate::{GenerationConfig, Request, RequestError, RequestHandle, SubmitError};

/// Continues texts. Generators that share a [`BatchHandle`] compute their tokens in the same steps.
pub struct AutoregressiveGenerator {
    batching: BatchHandle,
    config: GenerationConfig,
}

impl AutoregressiveGenerator {
    /// A generator. An open seed is drawn here, so that all its tokens come from one.
    pub fn new(batching: BatchHandle, config: GenerationConfig) -> Self {
        let seed = Some(config.seed.unwrap_or_else(crate::random::fresh_seed));
        AutoregressiveGenerator { batching, config: GenerationConfig { seed, ..config } }
    }

    /// The new tokens after `prompt`.
    pub fn generate(&self, prompt: &[u32]) -> Result<Vec<u32>, GenerationError> {
        self.new_tokens(Request::new(prompt, self.config.clone()))
    }

    /// The new tokens after `prompt`, as they come; dropping the stream cancels.
    pub fn generate_stream(&self, prompt: &[u32]) -> Result<RequestHandle, SubmitError> {
        self.batching.engine.submit(Request::new(prompt, self.config.clone()))
    }

    /// The token after `tokens`, of which the last `step` were generated, computed together with what other
    /// generators ask for at the same time. `None` if the text ends here.
    pub fn generate_token_batched(
        &self,
        tokens: &[u32],
        step: usize,
    ) -> Result<Option<u32>, GenerationError> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        let (tokens, config) = (tokens.to_vec(), self.config.clone());
        let request = BatchRequest { tokens, step, config, reply, submitted_at: Instant::now() };
        self.batching.queue.submit(request).map_err(|_| SubmitError::Stopped)?;
        answer.recv().map_err(|_| RequestError::Stopped)?
    }

    /// The same token, computed by a request of its own.
    pub fn generate_token_single(&self, tokens: &[u32], step: usize) -> Result<Option<u32>, GenerationError> {
        let request = one_token(tokens.to_vec(), step, self.config.clone());
        Ok(self.new_tokens(request)?.first().copied())
    }

    fn new_tokens(&self, request: Request) -> Result<Vec<u32>, GenerationError> {
        let engine = &self.batching.engine;
        batch::tokens(engine.submit(batch::new_tokens(engine, request)?)?)
    }
}
