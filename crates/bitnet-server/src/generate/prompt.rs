//! Encodes the texts of a request as tokens, within bounds.

use axum::http::StatusCode;
use bitnet::model::Tokenizer;
use serde_json::value::RawValue;

use crate::{
    http::{error::ApiError, fields::plainly, reading::Reading},
    service::ServedModel,
};

/// Maximum number of bytes in JSON for one byte of a text: `\u0061`.
const ESCAPED: usize = 6;

/// Encodes the texts of a request.
pub(crate) struct Encoder<'s> {
    pub model: &'s ServedModel,
    /// Maximum number of tokens in a sequence.
    pub context: usize,
    pub reading: &'s Reading,
}

impl Encoder<'_> {
    /// Encodes a JSON string. A string that is too long is refused before it is unescaped.
    pub fn json(&self, value: &RawValue, special: bool, field: &str) -> Result<Vec<u32>, ApiError> {
        let limit = self.limit(tokenizer(self.model, field)?);
        // Without the quotes.
        let least = (value.get().len() - 2) / ESCAPED;
        if least > limit {
            return Err(self.too_long(format!("over {least}"), limit, field));
        }
        let text: String =
            serde_json::from_str(value.get()).map_err(|e| ApiError::field(field, plainly(&e)))?;
        self.text(&text, special, field)
    }

    /// Encodes a text. A text that could not fit into the context even with the longest tokens is refused before any
    /// work is spent on it.
    pub fn text(&self, text: &str, special: bool, field: &str) -> Result<Vec<u32>, ApiError> {
        self.reading.check()?;
        let tokenizer = tokenizer(self.model, field)?;
        let limit = self.limit(tokenizer);
        if text.len() > limit {
            return Err(self.too_long(text.len().to_string(), limit, field));
        }
        tokenizer.encode(text, special).map_err(|e| ApiError::field(field, e))
    }

    /// Maximum number of bytes of a text that can fit into the context.
    fn limit(&self, tokenizer: &Tokenizer) -> usize {
        self.context.saturating_mul(tokenizer.max_token_bytes())
    }

    fn too_long(&self, bytes: String, limit: usize, field: &str) -> ApiError {
        let context = self.context;
        let problem = format!(
            "the text has {bytes} bytes, and the context of {context} tokens holds at most {limit}: shorten it"
        );
        let message = format!("{field}: {problem}");
        ApiError::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message).about(field)
    }
}

/// The tokenizer, or an error that names the field that needs it.
pub(crate) fn tokenizer<'m>(model: &'m ServedModel, field: &str) -> Result<&'m Tokenizer, ApiError> {
    let without = || ApiError::field(field, "this model has no tokenizer: send token ids as `prompt`");
    model.tokenizer.as_ref().ok_or_else(without)
}
