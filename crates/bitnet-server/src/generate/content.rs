//! Reads the contents of messages, which several APIs write as a text or as a list of parts.

use serde_json::value::RawValue;

use crate::http::{
    error::ApiError,
    fields::{Fields, list, plainly},
};

/// Maximum number of messages of a conversation, and of parts of a message.
pub(crate) const MAX_MESSAGES: usize = 2048;

/// The parts that a content may have.
pub(crate) struct Parts {
    /// The values of `type` that have a text.
    pub kinds: &'static [&'static str],
    /// Fields that change no token.
    pub harmless: &'static [&'static str],
}

/// Reads a text, or a list of parts that are all texts.
pub(crate) fn text(
    fields: &Fields<'_>,
    field: &str,
    content: &RawValue,
    parts: &Parts,
) -> Result<String, ApiError> {
    let name = fields.name(field);
    match content.get().as_bytes()[0] {
        b'"' => serde_json::from_str(content.get()).map_err(|e| ApiError::field(&name, plainly(&e))),
        b'[' => {
            let listed: Vec<&RawValue> =
                list(content, MAX_MESSAGES).map_err(|problem| ApiError::field(&name, problem))?;
            let part = |(i, value)| parts.read(fields.inside(&format!("{name}[{i}]"), value)?);
            listed.into_iter().enumerate().map(part).collect()
        }
        _ => Err(ApiError::field(name, "it must be a text or a list of parts")),
    }
}

impl Parts {
    /// Reads the text of a part.
    pub fn read(&self, mut fields: Fields<'_>) -> Result<String, ApiError> {
        let kind: String = fields.need("type")?;
        if !self.kinds.contains(&kind.as_str()) {
            return Err(ApiError::unsupported(fields.name("type"), format!("{kind:.20?}")));
        }
        self.rest(fields)
    }

    /// Reads the text of a part whose type is known.
    pub fn rest(&self, mut fields: Fields<'_>) -> Result<String, ApiError> {
        let text = fields.need("text")?;
        fields.ignore(self.harmless)?;
        fields.finish()?;
        Ok(text)
    }
}

/// Takes the items of the field `messages`, of which there must be one.
pub(crate) fn listed<'b>(fields: &mut Fields<'b>) -> Result<Vec<&'b RawValue>, ApiError> {
    let listed: Vec<&RawValue> = list(fields.need_raw("messages")?, MAX_MESSAGES)
        .map_err(|problem| ApiError::field("messages", problem))?;
    if listed.is_empty() {
        Err(ApiError::field("messages", "there must be at least one"))
    } else {
        Ok(listed)
    }
}
