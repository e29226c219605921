//! Reads a request: the conversation, the tools and the settings.

use bitnet::model::{Message, ToolCall};
use serde_json::{json, value::RawValue};

use crate::{
    dialects::openai::{format, harmless, tools},
    generate::{
        content::{MAX_MESSAGES, Parts, text},
        conversation::Conversation,
        job::Parsed,
        prompt::Encoder,
        read, sampling,
    },
    http::{
        error::{ApiError, Names},
        fields::{Fields, list, plainly},
    },
};

const PARTS: Parts = Parts {
    kinds: &["input_text", "output_text"],
    harmless: &["annotations", "logprobs", "prompt_cache_breakpoint"],
};

/// What a client may ask to include in an answer: parts of items that no answer here has.
const NOTHING_TO_INCLUDE: [&str; 7] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
];

pub(super) fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Parsed, ApiError> {
    let template = encoder.model.chat.as_ref();
    let mut messages = input(fields)?;
    if let Some(instructions) = fields.take::<String>("instructions")? {
        messages.insert(0, Message::new("system", instructions));
    }
    let offer = tools::offer(fields, true)?;
    let mut variables = tools::variables(fields)?;
    let mut format = None;
    if let Some(mut text) = fields.object("text")? {
        format = text.object("format")?.map(|format| format::read(format, true)).transpose()?.flatten();
        variables.extend(harmless::effort(&mut text, "verbosity", "verbosity", template)?);
        text.finish()?;
    }
    if let Some(mut reasoning) = fields.object("reasoning")? {
        variables.extend(harmless::effort(&mut reasoning, "effort", "reasoning_effort", template)?);
        reasoning.ignore(&["summary", "generate_summary"])?;
        reasoning.finish()?;
    }
    let mut config = sampling::config(fields, &encoder.model.defaults)?;
    config.max_new_tokens = sampling::limit(fields, "max_output_tokens")?.unwrap_or(usize::MAX);
    let stream = fields.take("stream")?.unwrap_or(false);
    let salt = read::salt(fields.take("user")?);
    rest(fields)?;
    let conversation = Conversation::new(messages, offer, variables, encoder, "input")?;
    let format = format.map(|format| ("text.format", format));
    let names = Names::new([("prompt", "input"), ("max_tokens", "max_output_tokens")]);
    Ok(Parsed { format, salt, stream, names, ..Parsed::turn(conversation, config) })
}

/// Takes the fields that change no token, and refuses those that could and are not supported.
fn rest(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let unstored = "answers are not stored: send the whole conversation as `input`";
    for field in ["previous_response_id", "conversation"] {
        fields.only(field, &[]).map_err(|e| e.advised(unstored))?;
    }
    fields.only("prompt", &[]).map_err(|e| e.advised("send its text as `instructions`"))?;
    fields.only("background", &[json!(false)])?;
    fields.only("truncation", &[json!("disabled")])?;
    fields.only("context_management", &[json!([])])?;
    fields.only("top_logprobs", &[json!(0)])?;
    let include: Vec<String> = fields.list("include", 64)?;
    if let Some(other) = include.iter().find(|name| !NOTHING_TO_INCLUDE.contains(&name.as_str())) {
        return Err(ApiError::unsupported("include", format!("{other:.60?}")));
    }
    if let Some(mut options) = fields.object("stream_options")? {
        options.harmless("include_obfuscation", &[json!(false)])?;
        options.finish()?;
    }
    // It limits calls of OpenAI's own tools.
    fields.harmless("max_tool_calls", &[])?;
    fields.harmless("client_metadata", &[json!({})])?;
    harmless::of_both(fields)
}

/// Takes the conversation: a text, or a list of items.
fn input(fields: &mut Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let input = fields.need_raw("input")?;
    if input.get().starts_with('"') {
        let text: String =
            serde_json::from_str(input.get()).map_err(|e| ApiError::field("input", plainly(&e)))?;
        return Ok(vec![Message::new("user", text)]);
    }
    let items: Vec<&RawValue> =
        list(input, MAX_MESSAGES).map_err(|problem| ApiError::field("input", problem))?;
    if items.is_empty() {
        return Err(ApiError::field("input", "there must be at least one item"));
    }
    let mut messages = Vec::with_capacity(items.len());
    for (i, value) in items.into_iter().enumerate() {
        item(fields.inside(&format!("input[{i}]"), value)?, &mut messages)?;
    }
    Ok(messages)
}

/// Reads an item. A call belongs to the message of the assistant before it.
fn item(mut fields: Fields<'_>, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let kind: Option<String> = fields.take("type")?;
    fields.ignore(&["id", "status"])?;
    match kind.as_deref().unwrap_or("message") {
        "message" => messages.push(message(&mut fields)?),
        "function_call" => {
            let call = ToolCall {
                id: fields.need("call_id")?,
                name: fields.need("name")?,
                arguments: fields.need("arguments")?,
            };
            match messages.last_mut() {
                Some(last) if last.role == "assistant" => last.tool_calls.push(call),
                _ => messages
                    .push(Message { tool_calls: vec![call], ..Message::new("assistant", String::new()) }),
            }
        }
        "function_call_output" => {
            let output = fields.need_raw("output")?;
            let mut answer = Message::new("tool", text(&fields, "output", output, &PARTS)?);
            answer.tool_call_id = Some(fields.need("call_id")?);
            messages.push(answer);
        }
        other => return Err(ApiError::unsupported(fields.name("type"), format!("{other:.40?}"))),
    }
    fields.finish()
}

fn message(fields: &mut Fields<'_>) -> Result<Message, ApiError> {
    let role: String = fields.need("role")?;
    let role = match role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        other => return Err(ApiError::unsupported(fields.name("role"), format!("{other:.20?}"))),
    };
    // It marks the messages between the calls of a turn.
    fields.harmless("phase", &[])?;
    let content = fields.need_raw("content")?;
    Ok(Message::new(role, text(fields, "content", content, &PARTS)?))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read_input(input: Value) -> Result<Vec<Message>, ApiError> {
        let body = json!({"input": input}).to_string();
        super::input(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn items_become_the_messages_of_a_chat() {
        let messages = read_input(json!([
            {"role": "developer", "content": "a"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content":
                [{"type": "output_text", "text": "d", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "x", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call", "call_id": "y", "name": "g", "arguments": "{\"a\":1}"},
            {"type": "function_call_output", "call_id": "x", "output": "1"},
            {"type": "function_call_output", "call_id": "y", "output": [{"type": "input_text", "text": "2"}]},
            {"type": "function_call", "call_id": "z", "name": "f", "arguments": "{}"},
        ]))
        .unwrap();
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        let answer =
            |id: &str, text: &str| Message { tool_call_id: Some(id.into()), ..Message::new("tool", text) };
        let want = [
            Message::new("system", "a"),
            Message::new("user", "bc"),
            Message {
                tool_calls: vec![call("x", "f", "{}"), call("y", "g", "{\"a\":1}")],
                ..Message::new("assistant", "d")
            },
            answer("x", "1"),
            answer("y", "2"),
            Message { tool_calls: vec![call("z", "f", "{}")], ..Message::new("assistant", "") },
        ];
        assert_eq!(messages, want);
        assert_eq!(read_input(json!("hello")).unwrap(), [Message::new("user", "hello")]);
    }

    #[test]
    fn every_error_in_an_item_names_its_field() {
        for (input, param) in [
            (json!([]), "input"),
            (json!(1), "input"),
            (json!([1]), "input[0]"),
            (json!([{"role": "robot", "content": "a"}]), "input[0].role"),
            (json!([{"role": "user"}]), "input[0].content"),
            (json!([{"role": "user", "content": "a", "name": "b"}]), "input[0].name"),
            (json!([{"role": "user", "content": [{"type": "input_image"}]}]), "input[0].content[0].type"),
            (json!([{"type": "reasoning", "summary": []}]), "input[0].type"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
            (json!([{"type": "function_call", "name": "f", "arguments": "{}"}]), "input[0].call_id"),
            (json!([{"type": "function_call_output", "call_id": "x"}]), "input[0].output"),
        ] {
            assert_eq!(read_input(input.clone()).unwrap_err().body.param.as_deref(), Some(param), "{input}");
        }
    }
}
