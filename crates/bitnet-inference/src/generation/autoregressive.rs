use std::fmt;

use parking_lot::Mutex;

use super::batch_processor::{BatchHandle, one_token};
use crate::batch::{self, GenerationError};
use crate::{GenerationConfig, Request, RequestHandle, SubmitError, Update};

/// Continues texts. Generators on the same engine compute their tokens in the same steps.
pub struct AutoregressiveGenerator {
    batching: BatchHandle,
    config: GenerationConfig,
    /// The text that was last asked for token by token.
    text: Mutex<Option<Text>>,
}

/// A text that is read on, a token at a time.
struct Text {
    request: RequestHandle,
    /// The prompt and the tokens read so far.
    tokens: Vec<u32>,
    /// How many of the last tokens were generated.
    generated: usize,
    ended: bool,
}

impl AutoregressiveGenerator {
    /// A generator. A seed that is not set is drawn here, so that all tokens come from the same one.
    pub fn new(batching: BatchHandle, config: GenerationConfig) -> Self {
        let seed = Some(config.seed.unwrap_or_else(crate::random::fresh_seed));
        let config = GenerationConfig { seed, ..config };
        AutoregressiveGenerator { batching, config, text: Mutex::default() }
    }

    /// The new tokens after `prompt`.
    pub fn generate(&self, prompt: &[u32]) -> Result<Vec<u32>, GenerationError> {
        self.new_tokens(Request::new(prompt, self.config.clone()))
    }

    /// The new tokens after `prompt`, as they come; dropping the stream cancels.
    pub fn generate_stream(&self, prompt: &[u32]) -> Result<RequestHandle, SubmitError> {
        self.batching.engine.submit(Request::new(prompt, self.config.clone()))
    }

    /// The token after `tokens`, of which the last `step` were generated. `None` if the text ends here.
    ///
    /// One request computes the whole text, in the same steps as the texts of other generators, and each call reads its
    /// next token. A call with any other text than the last one and its answer starts a new request.
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
        let token = text.next()?;
        *self.text.lock() = Some(text);
        Ok(token)
    }

    /// The same token, computed by a request of its own. Stop strings of more than one token are not found in it.
    pub fn generate_token_single(&self, tokens: &[u32], step: usize) -> Result<Option<u32>, GenerationError> {
        let request = one_token(tokens.to_vec(), step, self.config.clone());
        Ok(self.new_tokens(request)?.first().copied())
    }

    fn begin(&self, tokens: &[u32], generated: usize) -> Result<Text, GenerationError> {
        let request = Request { generated, ..Request::new(tokens, self.config.clone()) };
        let request = batch::new_tokens(&self.batching.engine, request)?;
        let mut handles = self.batching.engine.submit_all(vec![request])?;
        let request = handles.pop().expect("one request gives one handle");
        Ok(Text { request, tokens: tokens.to_vec(), generated, ended: false })
    }

    fn new_tokens(&self, request: Request) -> Result<Vec<u32>, GenerationError> {
        let engine = &self.batching.engine;
        batch::tokens(engine.submit(batch::new_tokens(engine, request)?)?)
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

impl fmt::Debug for AutoregressiveGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoregressiveGenerator").field("config", &self.config).finish_non_exhaustive()
    }
}
