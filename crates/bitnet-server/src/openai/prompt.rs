//! From what a client wrote to the tokens that the model continues.

use bitnet_model::{ChatTemplate, Message, Tokenizer};
use serde_json::Value;

use crate::{
    http::{error::ApiError, fields::Fields},
    service::ServedModel,
};

/// Most prompts in one request.
const MAX_PROMPTS: usize = 128;

/// A text, a list of texts, a list of token ids, or a list of such lists.
pub(crate) fn prompts(value: Value, model: &ServedModel) -> Result<Vec<Vec<u32>>, ApiError> {
    let items = match value {
        Value::Array(items) => items,
        text => return Ok(vec![prompt(text, model)?]),
    };
    if items.first().is_some_and(Value::is_number) {
        return Ok(vec![prompt(Value::Array(items), model)?]);
    }
    if !(1..=MAX_PROMPTS).contains(&items.len()) {
        return Err(ApiError::field("prompt", format!("a list of prompts holds 1 to {MAX_PROMPTS}")));
    }
    items.into_iter().map(|item| prompt(item, model)).collect()
}

fn prompt(value: Value, model: &ServedModel) -> Result<Vec<u32>, ApiError> {
    match value {
        Value::String(text) => encode(tokenizer(model, "prompt")?, &text, true, "prompt"),
        ids => serde_json::from_value(ids).map_err(|_| {
            let kinds = "a text, a list of texts, a list of token ids, or a list of such lists";
            ApiError::field("prompt", format!("it must be {kinds}"))
        }),
    }
}

/// The tokens of a text.
pub(crate) fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    special: bool,
    field: &str,
) -> Result<Vec<u32>, ApiError> {
    tokenizer.encode(text, special).map_err(|e| ApiError::field(field, e))
}

/// The tokenizer, which the named field needs.
pub(crate) fn tokenizer<'m>(model: &'m ServedModel, field: &str) -> Result<&'m Tokenizer, ApiError> {
    let without = || ApiError::field(field, "this model has no tokenizer: send token ids as `prompt`");
    model.tokenizer.as_ref().ok_or_else(without)
}

/// A conversation, with the assistant's turn opened.
pub(crate) fn conversation(fields: &mut Fields, model: &ServedModel) -> Result<Vec<u32>, ApiError> {
    let messages: Vec<Value> = fields.need("messages")?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "there must be at least one"));
    }
    let message = |(i, value)| message(Fields::inside(&format!("messages[{i}]"), value)?);
    let messages = messages.into_iter().enumerate().map(message).collect::<Result<Vec<_>, _>>()?;
    let tokenizer = tokenizer(model, "messages")?;
    match &model.chat {
        Some(template) => encode(tokenizer, &render(template, &messages)?, false, "messages"),
        None => encode(tokenizer, &joined(&messages), true, "messages"),
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

fn message(mut fields: Fields) -> Result<Message, ApiError> {
    let role: String = fields.need("role")?;
    // OpenAI's newer name for the same role; templates know the older one.
    let role = match role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        other => return Err(ApiError::unsupported(fields.name("role"), format!("{other:.20?}"))),
    };
    let name = fields.name("content");
    let content = match fields.value("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let part = |(i, value)| part(Fields::inside(&format!("{name}[{i}]"), value)?);
            parts.into_iter().enumerate().map(part).collect::<Result<String, _>>()?
        }
        Some(_) => return Err(ApiError::field(name, "it must be a text or a list of parts")),
        None => return Err(ApiError::field(name, "it is missing")),
    };
    fields.finish()?;
    Ok(Message::new(role, content))
}

fn part(mut fields: Fields) -> Result<String, ApiError> {
    let kind: String = fields.need("type")?;
    if kind != "text" {
        return Err(ApiError::unsupported(fields.name("type"), format!("{kind:.20?}")));
    }
    let text = fields.need("text")?;
    fields.finish()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ServedModel {
        ServedModel::new("ids only")
    }

    #[test]
    fn token_ids_come_as_one_list_or_as_several() {
        let read = |text: &str| prompts(serde_json::from_str(text).unwrap(), &model());
        assert_eq!(read("[1, 2]"), Ok(vec![vec![1, 2]]));
        assert_eq!(read("[[1, 2], [3]]"), Ok(vec![vec![1, 2], vec![3]]));
        for bad in ["[]", "[1, \"x\"]", "[[1], 2]", "{}", "true", "[-1]", "[1.5]", "[4294967296]", "[[[1]]]"]
        {
            let error = read(bad).unwrap_err();
            assert_eq!((error.status.as_u16(), error.body.param.as_deref()), (400, Some("prompt")), "{bad}");
        }
    }

    #[test]
    fn a_text_for_a_model_without_a_tokenizer_is_refused_with_a_cure() {
        let error = prompts(Value::from("x"), &model()).unwrap_err();
        assert!(error.body.message.contains("token ids"), "{error:?}");
    }

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
