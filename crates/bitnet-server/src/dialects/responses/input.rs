//! Reads a request: the conversation, the tools and the settings.

use bitnet::{
    Thinking,
    model::{Message, ToolCall},
};
use serde_json::{json, value::RawValue};

use super::reasoning::{self, Showing};
use crate::{
    dialects::openai::{format, harmless, tools},
    generate::{
        content::{MAX_MESSAGES, Parts, text},
        conversation::{Conversation, Talk},
        parsed::Parsed,
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

/// Thoughts in a form that clients without a store send back.
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// What a client may ask to include in an answer. Only the thoughts can be there: no answer here has the other items.
const INCLUDED: [&str; 7] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    ENCRYPTED,
    "web_search_call.action.sources",
    "web_search_call.results",
];

/// Takes all fields; returns also how the answer shows its thoughts.
pub(super) fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<(Parsed, Showing), ApiError> {
    let template = encoder.model.chat.as_ref();
    let (mut messages, mut names) = input(fields)?.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
    if let Some(instructions) = fields.take::<String>("instructions")? {
        messages.insert(0, Message::new("system", instructions));
        names.insert(0, "instructions".to_owned());
    }
    let offer = tools::offer(fields, true)?;
    let mut variables = tools::variables(fields)?;
    let mut format = None;
    if let Some(mut text) = fields.object("text")? {
        format = text.object("format")?.map(|format| format::read(format, true)).transpose()?.flatten();
        variables.extend(harmless::verbosity(&mut text, template)?);
        text.finish()?;
    }
    let mut thinking = Thinking::default();
    let summarised = reasoning::take(fields, &mut thinking, encoder.model)?;
    let mut config = sampling::config(fields, &encoder.model.defaults)?;
    config.max_new_tokens = sampling::limit(fields, "max_output_tokens")?.unwrap_or(usize::MAX);
    let stream = fields.take("stream")?.unwrap_or(false);
    let salt = read::user_salt(fields)?;
    let included = rest(fields)?;
    let showing = Showing { summarised, encrypted: included.iter().any(|name| name == ENCRYPTED) };
    let talk = Talk { messages, names, offer, thinking, variables, ..Talk::default() };
    let conversation = Conversation::new(talk, encoder, "input")?;
    let format = format.map(|format| ("text.format", format));
    let names = Names::new([("prompt", "input"), ("max_tokens", "max_output_tokens")]);
    Ok((Parsed { format, salt, stream, names, ..Parsed::turn(conversation, config) }, showing))
}

/// Takes the fields that change no token, and refuses those that could and are not supported. Returns what the answer
/// includes.
fn rest(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
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
    if let Some(other) = include.iter().find(|name| !INCLUDED.contains(&name.as_str())) {
        return Err(ApiError::unsupported("include", format!("{other:.60?}")));
    }
    if let Some(mut options) = fields.object("stream_options")? {
        options.harmless("include_obfuscation", &[json!(false)])?;
        options.finish()?;
    }
    // It limits calls of OpenAI's own tools.
    fields.harmless("max_tool_calls", &[])?;
    fields.harmless("client_metadata", &[json!({})])?;
    harmless::of_both(fields)?;
    Ok(include)
}

/// Takes the conversation: a text, or a list of items. Returns each message with the name of the item that began it.
fn input(fields: &mut Fields<'_>) -> Result<Vec<(Message, String)>, ApiError> {
    let input = fields.need_raw("input")?;
    if input.get().starts_with('"') {
        let text: String =
            serde_json::from_str(input.get()).map_err(|e| ApiError::field("input", plainly(&e)))?;
        return Ok(vec![(Message::new("user", text), "input".to_owned())]);
    }
    let items: Vec<&RawValue> =
        list(input, MAX_MESSAGES).map_err(|problem| ApiError::field("input", problem))?;
    if items.is_empty() {
        return Err(ApiError::field("input", "there must be at least one item"));
    }
    let mut messages = Vec::with_capacity(items.len());
    for (i, value) in items.into_iter().enumerate() {
        let name = format!("input[{i}]");
        if let Some(message) = item(fields.inside(&name, value)?, messages.last_mut().map(|(last, _)| last))?
        {
            messages.push((message, name));
        }
    }
    Ok(messages)
}

/// Reads an item, which is a message or belongs to the `last` one: thoughts come before the assistant's text or calls,
/// and calls after its text.
fn item(mut fields: Fields<'_>, last: Option<&mut Message>) -> Result<Option<Message>, ApiError> {
    let kind: Option<String> = fields.take("type")?;
    let id = fields.peek("id").and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
    fields.ignore(&["id", "status"])?;
    let last = last.filter(|last| last.role == "assistant");
    let begun = match kind.as_deref().unwrap_or("message") {
        "message" => {
            let message = message(&mut fields)?;
            match last {
                Some(last) if message.role == "assistant" && only_thought(last) => {
                    last.content = message.content;
                    None
                }
                _ => Some(message),
            }
        }
        "reasoning" => {
            let reasoning = reasoning::read(&mut fields, id.as_deref())?;
            match last {
                Some(last) if only_thought(last) => {
                    last.reasoning.get_or_insert_default().extend(reasoning);
                    None
                }
                _ => reasoning.map(|thought| {
                    let (role, reasoning) = ("assistant".to_owned(), Some(thought));
                    Message { role, reasoning, ..Message::default() }
                }),
            }
        }
        "function_call" => {
            let call = ToolCall {
                id: fields.need("call_id")?,
                name: fields.need("name")?,
                arguments: fields.need("arguments")?,
            };
            match last {
                Some(last) => {
                    last.tool_calls.push(call);
                    None
                }
                None => {
                    let (role, tool_calls) = ("assistant".to_owned(), vec![call]);
                    Some(Message { role, tool_calls, ..Message::default() })
                }
            }
        }
        "function_call_output" => {
            let output = fields.need_raw("output")?;
            let mut answer = Message::new("tool", text(&fields, "output", output, &PARTS)?);
            answer.tool_call_id = Some(fields.need("call_id")?);
            Some(answer)
        }
        other => return Err(ApiError::unsupported(fields.name("type"), format!("{other:.40?}"))),
    };
    fields.finish()?;
    Ok(begun)
}

/// Whether a message has a thought and nothing after it yet.
fn only_thought(message: &Message) -> bool {
    message.reasoning.is_some() && message.content.is_none() && message.tool_calls.is_empty()
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
        let messages = super::input(&mut Fields::parse(body.as_bytes()).unwrap())?;
        Ok(messages.into_iter().map(|(message, _)| message).collect())
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
            Message {
                tool_calls: vec![call("z", "f", "{}")],
                content: None,
                ..Message::new("assistant", "")
            },
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
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
            (json!([{"type": "function_call", "name": "f", "arguments": "{}"}]), "input[0].call_id"),
            (json!([{"type": "function_call_output", "call_id": "x"}]), "input[0].output"),
        ] {
            assert_eq!(read_input(input.clone()).unwrap_err().body.param.as_deref(), Some(param), "{input}");
        }
    }
}
