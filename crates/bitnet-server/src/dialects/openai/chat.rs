//! Reads a chat: its messages, tools and settings.

use super::{harmless, messages::messages, tools};
use crate::{
    generate::{conversation::Conversation, job::Parsed, prompt::Encoder, sampling},
    http::{error::ApiError, fields::Fields},
};

/// Takes all fields of a chat, except those that every request has.
pub(super) fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Parsed, ApiError> {
    let conversation = conversation(fields, encoder)?;
    let mut config = sampling::config(fields, &encoder.model.defaults)?;
    config.max_new_tokens = max_tokens(fields)?;
    config.logprobs = logprobs(fields)?;
    harmless::of_chat(fields)?;
    Ok(Parsed::turn(conversation, config))
}

/// Takes the messages, the tools and the template's variables, and encodes the prompt of a chat.
pub(super) fn conversation(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Conversation, ApiError> {
    let messages = messages(fields)?;
    let offer = tools::offer(fields, false)?;
    let mut variables = harmless::efforts(fields, encoder.model.chat.as_ref())?;
    variables.extend(tools::variables(fields)?);
    Conversation::new(messages, offer, variables, encoder, "messages")
}

/// The maximum number of new tokens: the rest of the context by default, as with OpenAI.
fn max_tokens(fields: &mut Fields<'_>) -> Result<usize, ApiError> {
    match (sampling::limit(fields, "max_tokens")?, sampling::limit(fields, "max_completion_tokens")?) {
        (Some(a), Some(b)) if a != b => {
            Err(ApiError::field("max_completion_tokens", "it contradicts max_tokens"))
        }
        (a, b) => Ok(a.or(b).unwrap_or(usize::MAX)),
    }
}

/// How many of the most likely tokens are returned with each token; `None` for no log-probabilities.
fn logprobs(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    match (wanted, fields.take::<usize>("top_logprobs")?) {
        (false, Some(1..)) => Err(ApiError::field("top_logprobs", "it needs logprobs to be true")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}
