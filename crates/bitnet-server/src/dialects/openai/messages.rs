//! Reads the messages of a chat.

use bitnet::Message;
use serde_json::{Value, json};

use super::tools;
use crate::{
    generate::content::{MAX_MESSAGES, Parts, listed, text},
    http::{error::ApiError, fields::Fields},
};

const PARTS: Parts = Parts { kinds: &["text"], harmless: &["prompt_cache_breakpoint", "cache_control"] };

/// Takes the messages of a chat.
pub(super) fn messages(fields: &mut Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let listed = listed(fields)?;
    let message = |(i, value)| message(fields.inside(&format!("messages[{i}]"), value)?);
    listed.into_iter().enumerate().map(message).collect()
}

fn message(mut fields: Fields<'_>) -> Result<Message, ApiError> {
    let role: String = fields.need("role")?;
    // OpenAI's newer name for the same role; templates know the older one.
    let role = match role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" => "tool",
        other => return Err(ApiError::unsupported(fields.name("role"), format!("{other:.20?}"))),
    };
    let mut message = Message::new(role, "");
    if fields.is_strict() {
        fields.only("name", &[])?
    } else {
        message.name = fields.take("name")?
    }
    match role {
        "tool" => message.tool_call_id = Some(fields.need("tool_call_id")?),
        "assistant" => {
            message.reasoning = past_thought(&mut fields)?;
            message.tool_calls = tools::past_calls(&mut fields)?;
            fields.only("refusal", &[json!("")])?;
            for field in ["audio", "function_call"] {
                fields.only(field, &[])?;
            }
            fields.harmless("annotations", &[json!([])])?;
        }
        _ => {}
    }
    message.content = match fields.raw("content") {
        Some(content) => Some(text(&fields, "content", content, &PARTS)?),
        None if !message.tool_calls.is_empty() || message.reasoning.is_some() => None,
        None => return Err(ApiError::field(fields.name("content"), "it is missing")),
    };
    fields.harmless("cache_control", &[])?;
    fields.finish()?;
    Ok(message)
}

/// Takes the thought of an earlier answer, in whichever spelling the client knows; the first that is not empty.
fn past_thought(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let mut thought = None;
    for field in ["reasoning_content", "reasoning", "thinking"] {
        thought = thought.or(fields.take::<String>(field)?.filter(|text| !text.is_empty()));
    }
    // Of OpenRouter and of LiteLLM: typed parts, of which some have a text.
    for field in ["reasoning_details", "thinking_blocks"] {
        let parts: Vec<Value> = fields.list(field, MAX_MESSAGES)?;
        let text = |part: &Value| {
            let texts = ["text", "thinking", "summary"].into_iter().find_map(|name| part[name].as_str());
            texts.map(str::to_owned)
        };
        let texts: Vec<String> = parts.iter().filter_map(text).collect();
        thought = thought.or(Some(texts.concat()).filter(|text| !text.is_empty()));
    }
    Ok(thought)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Message, ApiError> {
        let body = Fields::parse(b"{}").unwrap();
        message(body.inside("m", serde_json::from_str(text).unwrap()).unwrap())
    }

    #[test]
    fn a_message_is_a_text_or_text_parts_and_nothing_else() {
        let user = |content: &str| Message::new("user", content);
        assert_eq!(read(r#"{"role": "user", "content": "a"}"#), Ok(user("a")));
        let parts =
            r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#;
        assert_eq!(read(parts), Ok(user("ab")));
        assert_eq!(read(r#"{"role": "developer", "content": "a"}"#), Ok(Message::new("system", "a")));
        for (bad, param) in [
            (r#"{"role": "robot", "content": "a"}"#, "m.role"),
            (r#"{"role": "user"}"#, "m.content"),
            (r#"{"role": "user", "content": 1}"#, "m.content"),
            (r#"{"role": "user", "content": "a", "tool_calls": []}"#, "m.tool_calls"),
            (r#"{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}"#, "m.content[0].type"),
            (r#"{"role": "assistant", "content": null}"#, "m.content"),
            (r#"{"role": "assistant", "content": "a", "audio": {"id": "x"}}"#, "m.audio"),
            (r#"{"role": "tool", "content": "a"}"#, "m.tool_call_id"),
        ] {
            assert_eq!(read(bad).unwrap_err().body.param.as_deref(), Some(param), "{bad}");
        }
    }

    #[test]
    fn an_assistant_may_have_called_tools_and_said_nothing() {
        let sent = r#"{"role": "assistant", "content": null, "refusal": null, "annotations": [], "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}"#;
        let message = read(sent).unwrap();
        assert_eq!(message.content, None);
        let [call] = &message.tool_calls[..] else { panic!("{message:?}") };
        assert_eq!((&*call.id, &*call.name, &*call.arguments), ("call_1", "f", "{\"a\": 1}"));
        let answer =
            read(r#"{"role": "tool", "tool_call_id": "call_1", "content": "2", "name": "f"}"#).unwrap();
        assert_eq!((answer.tool_call_id.as_deref(), answer.name.as_deref()), (Some("call_1"), Some("f")));
        for (bad, param) in [
            (
                r#"[{"id": "x", "type": "custom", "function": {"name": "f", "arguments": ""}}]"#,
                "m.tool_calls[0].type",
            ),
            (r#"[{"id": "x", "function": {"name": "f"}}]"#, "m.tool_calls[0].function.arguments"),
            (r#"[{"id": "x"}]"#, "m.tool_calls[0].function"),
            (r#"[1]"#, "m.tool_calls[0]"),
        ] {
            let sent = format!(r#"{{"role": "assistant", "content": null, "tool_calls": {bad}}}"#);
            assert_eq!(read(&sent).unwrap_err().body.param.as_deref(), Some(param), "{bad}");
        }
    }
}
