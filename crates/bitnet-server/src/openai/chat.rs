//! What is specific to chats: messages, tools, and some fields.

use bitnet::model::{Message, TemplateInput};

use crate::{
    http::{error::ApiError, fields::Fields},
    openai::{
        harmless,
        messages::messages,
        prompt::{Encoder, tokenizer},
        tools::{
            self, Offer,
            form::{self, Form, Thoughts},
        },
    },
};

/// The prompt of a chat, up to the beginning of the assistant's turn.
pub(crate) struct Conversation {
    pub tokens: Vec<u32>,
    /// The tools that may be called, how calls are written, and what may precede them.
    pub offer: Option<(Offer, Form, Thoughts)>,
}

/// Takes the messages, the tools and the template's variables, and encodes the prompt of a chat.
pub(crate) fn conversation(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Conversation, ApiError> {
    let messages = messages(fields)?;
    let offer = tools::offer(fields, false)?;
    let mut variables = harmless::efforts(fields, encoder.model.chat.as_ref())?;
    variables.extend(tools::variables(fields)?);
    converse(messages, offer, variables, encoder, "messages")
}

/// Encodes the prompt of a chat. `field` has the messages, for errors.
pub(crate) fn converse(
    messages: Vec<Message>,
    offer: Option<Offer>,
    variables: Vec<(String, String)>,
    encoder: &Encoder<'_>,
    field: &str,
) -> Result<Conversation, ApiError> {
    tokenizer(encoder.model, field)?;
    let template = encoder.model.chat.as_ref();
    let (form, writes_tools) = Form::of(template);
    let described = offer.as_ref().map_or_else(Vec::new, |offer| offer.described.clone());
    let (messages, tools) = match writes_tools {
        true => (messages, described),
        false => (form::plain(messages, &described), Vec::new()),
    };
    let (text, special) = match template {
        Some(template) => {
            let rendered = template.render_with(&messages, true, &TemplateInput { tools, variables });
            (rendered.map_err(|e| ApiError::field(field, e))?, false)
        }
        None => (joined(&messages), true),
    };
    let thoughts = Thoughts::of(template, &text);
    let tokens = encoder.text(&text, special, field)?;
    Ok(Conversation { tokens, offer: offer.map(|offer| (offer, form, thoughts)) })
}

/// The prompt for a model without a template.
fn joined(messages: &[Message]) -> String {
    let contents: Vec<&str> = messages.iter().map(Message::text).collect();
    contents.join("\n\n")
}

/// The maximum number of new tokens: the rest of the context by default, as with OpenAI.
pub(super) fn max_tokens(fields: &mut Fields<'_>) -> Result<usize, ApiError> {
    match (fields.take("max_tokens")?, fields.take("max_completion_tokens")?) {
        (Some(a), Some(b)) if a != b => {
            Err(ApiError::field("max_completion_tokens", "it contradicts max_tokens"))
        }
        (a, b) => Ok(a.or(b).unwrap_or(usize::MAX)),
    }
}

/// How many of the most likely tokens are returned with each token; `None` for no log-probabilities.
pub(super) fn logprobs(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    match (wanted, fields.take::<usize>("top_logprobs")?) {
        (false, Some(1..)) => Err(ApiError::field("top_logprobs", "it needs logprobs to be true")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}
