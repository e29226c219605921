//! Reads a chat: its messages, tools and settings.

use super::{harmless, messages::messages, thoughts, tools};
use crate::{
    generate::{
        content::{Parts, text},
        conversation::{Conversation, Talk},
        parsed::Parsed,
        prompt::Encoder,
        sampling,
    },
    http::{error::ApiError, fields::Fields},
};

/// Takes all fields of a chat, except those that every request has.
pub(super) fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Parsed, ApiError> {
    let conversation = Conversation::new(talk(fields, encoder)?, encoder, "messages")?;
    let mut config = sampling::config(fields, &encoder.model.defaults)?;
    config.max_new_tokens = max_tokens(fields)?;
    config.logprobs = logprobs(fields)?;
    let prediction = prediction(fields, encoder)?;
    harmless::of_chat(fields)?;
    Ok(Parsed { prediction, ..Parsed::turn(conversation, config) })
}

/// Takes the text that the answer will probably resemble. A prediction changes only the speed, so it may be any text.
fn prediction(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Vec<u32>, ApiError> {
    const PARTS: Parts = Parts { kinds: &["text"], harmless: &[] };
    let Some(mut prediction) = fields.object("prediction")? else { return Ok(Vec::new()) };
    let kind: String = prediction.need("type")?;
    if kind != "content" {
        return Err(ApiError::unsupported(prediction.name("type"), format!("{kind:.20?}")));
    }
    let content = prediction.need_raw("content")?;
    let predicted = text(&prediction, "content", content, &PARTS)?;
    prediction.finish()?;
    encoder.text(&predicted, false, "prediction.content")
}

/// Takes the fields that make the prompt.
pub(super) fn talk(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Talk, ApiError> {
    let messages = messages(fields)?;
    let mut variables = harmless::verbosity(fields, encoder.model.chat.as_ref())?;
    variables.extend(tools::variables(fields)?);
    Ok(Talk {
        names: (0..messages.len()).map(|i| format!("messages[{i}].role")).collect(),
        messages,
        offer: tools::offer(fields, false)?,
        thinking: thoughts::thinking(fields, encoder.model)?,
        variables,
        end: thoughts::end(fields)?,
        plain: false,
    })
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
