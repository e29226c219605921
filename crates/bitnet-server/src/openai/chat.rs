//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::HeaderValue,
    response::Response,
};
use bitnet_model::{ChatTemplate, Message};
use serde_json::{json, value::RawValue};

use crate::{
    http::{
        error::ApiError,
        fields::{Fields, list, plainly},
    },
    openai::{
        generate::generate,
        job::Endpoint,
        prompt::{Encoder, tokenizer},
    },
    service::App,
};

/// Maximum number of messages of a conversation, and of parts of a message.
const MAX_MESSAGES: usize = 2048;

/// The handler.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let untemplated = app.service()?.model.chat.is_none();
    let mut response = generate(Endpoint::Chat, app, request).await?;
    if untemplated {
        let joined = HeaderValue::from_static("none; contents joined by blank lines");
        response.headers_mut().insert("x-chat-template", joined);
    }
    Ok(response)
}

/// The tokens of a conversation, with the assistant's turn opened.
pub(crate) fn conversation(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Vec<u32>, ApiError> {
    let messages: &RawValue = fields.need_raw("messages")?;
    let messages: Vec<&RawValue> =
        list(messages, MAX_MESSAGES).map_err(|problem| ApiError::field("messages", problem))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "there must be at least one"));
    }
    let message = |(i, value)| message(Fields::inside(&format!("messages[{i}]"), value)?);
    let messages = messages.into_iter().enumerate().map(message).collect::<Result<Vec<_>, _>>()?;
    tokenizer(encoder.model, "messages")?;
    match &encoder.model.chat {
        Some(template) => encoder.text(&render(template, &messages)?, false, "messages"),
        None => encoder.text(&joined(&messages), true, "messages"),
    }
}

fn render(template: &ChatTemplate, messages: &[Message]) -> Result<String, ApiError> {
    template.render(messages, true).map_err(|e| ApiError::field("messages", e))
}

/// What stands for a template where the model has none.
fn joined(messages: &[Message]) -> String {
    let contents: Vec<&str> = messages.iter().map(|m| m.content.as_str()).collect();
    contents.join("\n\n")
}

fn message(mut fields: Fields<'_>) -> Result<Message, ApiError> {
    let role: String = fields.need("role")?;
    // OpenAI's newer name for the same role; templates know the older one.
    let role = match role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        other => return Err(ApiError::unsupported(fields.name("role"), format!("{other:.20?}"))),
    };
    let name = fields.name("content");
    let content = fields.need_raw("content")?;
    let content = match content.get().as_bytes()[0] {
        b'"' => serde_json::from_str(content.get()).map_err(|e| ApiError::field(&name, plainly(&e)))?,
        b'[' => {
            let parts: Vec<&RawValue> =
                list(content, MAX_MESSAGES).map_err(|problem| ApiError::field(&name, problem))?;
            let part = |(i, value)| part(Fields::inside(&format!("{name}[{i}]"), value)?);
            parts.into_iter().enumerate().map(part).collect::<Result<String, _>>()?
        }
        _ => return Err(ApiError::field(name, "it must be a text or a list of parts")),
    };
    fields.finish()?;
    Ok(Message::new(role, content))
}

fn part(mut fields: Fields<'_>) -> Result<String, ApiError> {
    let kind: String = fields.need("type")?;
    if kind != "text" {
        return Err(ApiError::unsupported(fields.name("type"), format!("{kind:.20?}")));
    }
    let text = fields.need("text")?;
    fields.finish()?;
    Ok(text)
}

/// Fields that clients send with the value that changes nothing.
pub(super) fn ignore_neutral(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.only("tools", &[json!([])])?;
    fields.only("tool_choice", &[json!("none"), json!("auto")])?;
    fields.only("modalities", &[json!(["text"])])?;
    fields.only("store", &[json!(false)])?;
    fields.only("metadata", &[json!({})])?;
    fields.only("service_tier", &[json!("auto"), json!("default")])
}

/// The maximum number of new tokens: the rest of the context if nothing is said, as with OpenAI.
pub(super) fn max_tokens(fields: &mut Fields<'_>) -> Result<usize, ApiError> {
    match (fields.take("max_tokens")?, fields.take("max_completion_tokens")?) {
        (Some(a), Some(b)) if a != b => {
            Err(ApiError::field("max_completion_tokens", "it contradicts max_tokens"))
        }
        (a, b) => Ok(a.or(b).unwrap_or(usize::MAX)),
    }
}

/// How many likely tokens are told beside each token, if any are.
pub(super) fn logprobs(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    match (wanted, fields.take::<usize>("top_logprobs")?) {
        (false, Some(1..)) => Err(ApiError::field("top_logprobs", "it needs logprobs to be true")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_text_or_text_parts_and_nothing_else() {
        let read = |text: &str| message(Fields::inside("m", serde_json::from_str(text).unwrap()).unwrap());
        let user = |content: &str| Message::new("user", content);
        assert_eq!(read(r#"{"role": "user", "content": "a"}"#), Ok(user("a")));
        let parts =
            r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#;
        assert_eq!(read(parts), Ok(user("ab")));
        assert_eq!(read(r#"{"role": "developer", "content": "a"}"#), Ok(Message::new("system", "a")));
        for (bad, param) in [
            (r#"{"role": "tool", "content": "a"}"#, "m.role"),
            (r#"{"role": "user"}"#, "m.content"),
            (r#"{"role": "user", "content": 1}"#, "m.content"),
            (r#"{"role": "user", "content": "a", "name": "x"}"#, "m.name"),
            (r#"{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}"#, "m.content[0].type"),
        ] {
            assert_eq!(read(bad).unwrap_err().body.param.as_deref(), Some(param));
        }
    }
}
