//! Reads a request: the conversation or the prompt, and the settings.

use bitnet::{
    Thinking,
    model::{Effort, Message, ToolCall},
};
use serde_json::{Value, json, value::RawValue};

use super::options;
use crate::{
    dialects::openai::tools,
    generate::{
        content::listed,
        conversation::{Conversation, Talk},
        grammar::Format,
        parsed::Parsed,
        prompt::Encoder,
        tools::MAX_TOOLS,
    },
    http::{error::ApiError, fields::Fields},
};

pub(super) fn read_chat(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Parsed, ApiError> {
    let messages = messages(fields)?;
    let talk = Talk {
        names: (0..messages.len()).map(|i| format!("messages[{i}].role")).collect(),
        messages,
        offer: tools::offer(fields, false)?,
        thinking: think(fields, encoder)?,
        ..Talk::default()
    };
    let conversation = Conversation::new(talk, encoder, "messages")?;
    finish("messages", fields, conversation, encoder)
}

/// Takes the fields of a single prompt, which is a message of the user unless it is `raw`.
pub(super) fn read_prompt(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Parsed, ApiError> {
    fields.only("suffix", &[json!("")])?;
    fields.only("template", &[json!("")])?;
    fields.only("context", &[json!([])]).map_err(|e| e.advised("send the conversation to /api/chat"))?;
    fields.only("images", &[json!([])])?;
    let system: Option<String> = fields.take("system")?.filter(|text: &String| !text.is_empty());
    let thinking = think(fields, encoder)?;
    if fields.take("raw")?.unwrap_or(false) {
        if system.is_some() {
            return Err(ApiError::field("system", "a raw prompt has no system message"));
        }
        let tokens = encoder.json(fields.need_raw("prompt")?, true, "prompt")?;
        return finish("prompt", fields, Conversation { tokens, offer: None, thought: None }, encoder);
    }
    let prompt = Message::new("user", fields.need::<String>("prompt")?);
    let messages = system.map(|text| Message::new("system", text)).into_iter().chain([prompt]).collect();
    let talk = Talk { messages, thinking, ..Talk::default() };
    let conversation = Conversation::new(talk, encoder, "prompt")?;
    finish("prompt", fields, conversation, encoder)
}

/// Takes the fields that both paths have. `field` has the prompt.
fn finish(
    field: &'static str,
    fields: &mut Fields<'_>,
    conversation: Conversation,
    encoder: &Encoder<'_>,
) -> Result<Parsed, ApiError> {
    let config = options::config(fields, &encoder.model.defaults, conversation.tokens.len())?;
    let format = match fields.raw("format") {
        None => None,
        Some(raw) if raw.get() == "\"\"" => None,
        Some(raw) if raw.get() == "\"json\"" => Some(Format::any_object()),
        Some(raw) if raw.get().starts_with('{') => Some(Format::schema("format", raw)?),
        Some(_) => return Err(ApiError::field("format", "it must be `json` or a JSON schema")),
    };
    // A prompt that is too long is refused, and an answer ends with the context, whatever these say.
    fields.harmless("truncate", &[json!(false)])?;
    fields.harmless("shift", &[json!(false)])?;
    fields.only("_debug_render_only", &[json!(false)])?;
    fields.only("logprobs", &[json!(false)])?;
    fields.only("top_logprobs", &[json!(0)])?;
    // The model always stays loaded.
    fields.harmless("keep_alive", &[])?;
    let stream = fields.take("stream")?.unwrap_or(true);
    let format = format.map(|format| ("format", format));
    Ok(Parsed { format, stream, names: options::names(field), ..Parsed::turn(conversation, config) })
}

/// Takes `think`: whether to think, or how much. A level that is not known stands for the model's default.
fn think(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Thinking, ApiError> {
    let asked = fields.peek("think").map(|value| serde_json::from_str(value.get()));
    let thinking = match asked {
        None => Thinking::default(),
        Some(Ok(Value::Bool(on))) => Thinking { on: Some(on), ..Thinking::default() },
        Some(Ok(Value::String(level))) => Thinking { effort: Effort::named(&level), ..Thinking::default() },
        Some(_) => return Err(ApiError::field("think", "it must be true, false, or a level such as low")),
    };
    if encoder.model.thinks() {
        fields.raw("think");
        return Ok(thinking);
    }
    fields.harmless("think", &[json!(false)]).map(|()| Thinking::default())
}

fn messages(fields: &mut Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let listed = listed(fields)?;
    let message = |(i, value)| message(fields.inside(&format!("messages[{i}]"), value)?);
    listed.into_iter().enumerate().map(message).collect()
}

fn message(mut fields: Fields<'_>) -> Result<Message, ApiError> {
    let role: String = fields.need("role")?;
    if !["system", "user", "assistant", "tool"].contains(&role.as_str()) {
        return Err(ApiError::unsupported(fields.name("role"), format!("{role:.20?}")));
    }
    let mut message = Message::new(role, fields.take::<String>("content")?.unwrap_or_default());
    fields.only("images", &[json!([])])?;
    if message.role == "assistant" {
        message.reasoning = fields.take::<String>("thinking")?.filter(|thought| !thought.is_empty());
    } else {
        fields.only("thinking", &[json!("")])?;
    }
    if message.role == "tool" {
        message.name = fields.take("tool_name")?;
        message.tool_call_id = fields.take("tool_call_id")?;
    }
    if message.role == "assistant" {
        let name = fields.name("tool_calls");
        let calls: Vec<&RawValue> = fields.list("tool_calls", MAX_TOOLS)?;
        let call = |(i, raw)| call(fields.inside(&format!("{name}[{i}]"), raw)?, i);
        message.tool_calls = calls.into_iter().enumerate().map(call).collect::<Result<_, _>>()?;
    }
    fields.finish()?;
    Ok(message)
}

/// Reads a call of an earlier message. Its arguments are an object.
fn call(mut fields: Fields<'_>, index: usize) -> Result<ToolCall, ApiError> {
    fields.only("type", &[json!("function")])?;
    let id = fields.take("id")?.unwrap_or_else(|| format!("call_{index}"));
    let mut function = fields.need_object("function")?;
    function.harmless("index", &[])?;
    let name = function.need("name")?;
    let arguments = function.need_raw_object("arguments")?;
    function.finish()?;
    fields.finish()?;
    Ok(ToolCall { id, name, arguments: arguments.get().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_messages(messages: Value) -> Result<Vec<Message>, ApiError> {
        let body = json!({"messages": messages}).to_string();
        super::messages(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn messages_are_those_of_a_chat_with_arguments_as_objects() {
        let messages = read_messages(json!([
            {"role": "system", "content": "a"},
            {"role": "assistant", "content": "", "thinking": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "2", "tool_name": "f"},
        ]))
        .unwrap();
        let call = ToolCall { id: "call_0".into(), name: "f".into(), arguments: "{\"a\":1}".into() };
        let want = [
            Message::new("system", "a"),
            Message { tool_calls: vec![call], ..Message::new("assistant", "") },
            Message { name: Some("f".into()), ..Message::new("tool", "2") },
        ];
        assert_eq!(messages, want);
        for (message, param) in [
            (json!({"content": "a"}), "messages[0].role"),
            (json!({"role": "robot", "content": "a"}), "messages[0].role"),
            (json!({"role": "user", "content": [1]}), "messages[0].content"),
            (json!({"role": "user", "content": "a", "images": ["x"]}), "messages[0].images"),
            (json!({"role": "user", "content": "a", "tool_calls": []}), "messages[0].tool_calls"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            let refused = read_messages(json!([message])).unwrap_err();
            assert_eq!(refused.body.param.as_deref(), Some(param), "{message}");
        }
    }
}
