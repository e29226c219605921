//! Continues texts whole, as a stream, or a token at a time.
//! Generators on one engine share its steps.

use parking_lot::Mutex;

use super::super::batches;
use super::batch_processor::{BatchHandle, one_token};
use crate::engine::{GenerationError, RequestHandle, Update};
use crate::request::{GenerationConfig, Request, RequestError, SubmitError};
use crate::sample::fresh_seed;

/// Continues texts. Generators on the same engine share its steps.
pub struct AutoregressiveGenerator {
    /// The text that was last generated token by token. Dropped before the handle, which waits until all texts have ended.
    text: Mutex<Option<Text>>,
    batching: BatchHandle,
    config: GenerationConfig,
}

/// A text that is read a token at a time.
struct Text {
    request: RequestHandle,
    /// The prompt and the tokens read so far.
    tokens: Vec<u32>,
    /// How many of the last tokens were generated.
    generated: usize,
    ended: bool,
}

impl AutoregressiveGenerator {
    /// Creates a generator. If the seed is not set, one is chosen here, so that all tokens use the same seed.
    pub fn new(batching: BatchHandle, config: GenerationConfig) -> Self {
        let seed = Some(config.seed.unwrap_or_else(fresh_seed));
        let config = GenerationConfig { seed, ..config };
        AutoregressiveGenerator { batching, config, text: Mutex::default() }
    }

    /// Continues `prompt` and returns the new tokens.
    pub fn generate(&self, prompt: &[u32]) -> Result<Vec<u32>, GenerationError> {
        self.new_tokens(Request::new(prompt, self.config.clone()))
    }

    /// Continues `prompt` and returns the new tokens as they are generated; dropping the handle cancels the request.
    pub fn generate_stream(&self, prompt: &[u32]) -> Result<RequestHandle, SubmitError> {
        self.batching.engine.submit(Request::new(prompt, self.config.clone()))
    }

    /// Returns the token after `tokens`, of which the last `step` were generated, or `None` if the text ends here.
    ///
    /// The text is one request in the processor's queue. Whenever its last token has been read, the next one waits there
    /// for those of other generators, and is computed in one step with them. A call with any text other than the last
    /// one plus its answer starts a new request.
    pub fn generate_token_batched(
        &self,
        tokens: &[u32],
        step: usize,
    ) -> Result<Option<u32>, GenerationError> {
        let last = self.text.lock().take();
        let mut text = match last.filter(|text| text.generated == step && text.tokens == tokens) {
            Some(text) => text,
            None => self.begin(tokens, step)?,
        };
        let token = match text.next() {
            // It has not been read for so long that the engine has let it go.
            Err(GenerationError::Request(RequestError::SlowReader)) => {
                text = self.begin(tokens, step)?;
                text.next()
            }
            token => token,
        }?;
        *self.text.lock() = Some(text);
        Ok(token)
    }

    /// Returns the same token, computed by a separate request. It does not find stop strings that span several tokens.
    pub fn generate_token_single(&self, tokens: &[u32], step: usize) -> Result<Option<u32>, GenerationError> {
        let request = one_token(tokens.to_vec(), step, self.config.clone());
        Ok(self.new_tokens(request)?.first().copied())
    }

    fn begin(&self, tokens: &[u32], generated: usize) -> Result<Text, GenerationError> {
        let request = Request { generated, ..Request::new(tokens, self.config.clone()) };
        let request = batches::new_tokens(self.batching.engine.submitter(), request)?;
        let request = self.batching.queue.text(request)?;
        Ok(Text { request, tokens: tokens.to_vec(), generated, ended: false })
    }

    fn new_tokens(&self, request: Request) -> Result<Vec<u32>, GenerationError> {
        let engine = &self.batching.engine;
        Ok(batches::only_choice(engine.submit(batches::new_tokens(engine.submitter(), request)?)?.wait()?))
    }
}

impl Text {
    fn next(&mut self) -> Result<Option<u32>, GenerationError> {
        if self.ended {
            return Ok(None);
        }
        match self.request.recv() {
            Some(Update::Token { token, .. }) => {
                self.tokens.push(token);
                self.generated += 1;
                Ok(Some(token))
            }
            Some(Update::Ended { end, .. }) => {
                end?;
                self.ended = true;
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

bitnet_tensor::opaque_debug!(AutoregressiveGenerator { config });
