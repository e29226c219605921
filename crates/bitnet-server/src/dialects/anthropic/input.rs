//! Reads a request: the conversation, the tools and the settings.

use bitnet::model::{Message, ToolCall};
use serde_json::{json, value::RawValue};

use super::thinking;
use crate::{
    generate::{
        content::{MAX_MESSAGES, Parts, listed, text},
        conversation::{Conversation, Talk},
        grammar::Format,
        parsed::Parsed,
        prompt::Encoder,
        read, sampling,
        thinking::effort,
        tools::{self, Offer},
    },
    http::{
        error::{ApiError, Names},
        fields::{Fields, list},
    },
};

const TEXT: Parts = Parts { kinds: &["text"], harmless: &["cache_control", "citations"] };

/// What makes the prompt, and what else the same fields say.
pub(super) struct Read {
    pub conversation: Conversation,
    format: Option<Format>,
    /// Whether the answer shows its thoughts.
    shown: bool,
}

/// Takes all fields; returns also whether the answer shows its thoughts.
pub(super) fn read_message(
    fields: &mut Fields<'_>,
    encoder: &Encoder<'_>,
) -> Result<(Parsed, bool), ApiError> {
    let max_tokens: usize = fields.need("max_tokens")?;
    let mut config = sampling::config(fields, &encoder.model.defaults)?;
    config.max_new_tokens = max_tokens;
    config.stop_strings.extend(fields.list::<String>("stop_sequences", 16)?);
    let mut user = None;
    if let Some(mut metadata) = fields.object("metadata")? {
        user = metadata.take("user_id")?;
        metadata.finish()?;
    }
    let salt = read::salt(fields, user)?;
    let stream = fields.take("stream")?.unwrap_or(false);
    let Read { conversation, format, shown } = conversation(fields, encoder)?;
    rest(fields)?;
    let format = format.map(|format| ("output_config.format", format));
    let names = Names::new([("prompt", "messages"), ("stop", "stop_sequences")]);
    Ok((Parsed { format, salt, stream, names, ..Parsed::turn(conversation, config) }, shown))
}

/// Takes the fields that change no token.
pub(super) fn rest(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.ignore(&["cache_control", "diagnostics", "inference_geo", "user_profile_id", "workspace_id"])?;
    fields.harmless("service_tier", &[json!("auto")])?;
    fields.harmless("speed", &[json!("standard")])?;
    fields.ignore(&["anthropic_version", "anthropic_beta"])?;
    fields.only("container", &[])?;
    fields.only("mcp_servers", &[json!([])])
}

/// Takes the fields that make the prompt, and the format of the answer.
pub(super) fn conversation(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Read, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.raw("system") {
        messages.push(Message::new("system", text(fields, "system", system, &TEXT)?));
    }
    turns(fields, &mut messages)?;
    let offer = offer(fields)?;
    let (mut thinking, shown) = thinking::take(fields, encoder.model)?;
    let mut format = None;
    if let Some(mut output) = fields.object("output_config")? {
        if encoder.model.thinks() {
            thinking.effort = effort(&mut output, "effort")?;
        } else {
            output.ignore(&["effort"])?;
        }
        format = output.object("format")?.map(read_format).transpose()?;
        output.finish()?;
    }
    // The name that structured outputs had before.
    if let Some(older) = fields.object("output_format")? {
        format = Some(read_format(older)?);
    }
    let conventions = encoder.model.chat.as_ref().map(|template| template.conventions());
    if conventions.is_some_and(|conventions| !conventions.roles.later_system) {
        // Claude Code puts system messages among the others.
        let later = messages.iter_mut().skip_while(|message| message.role == "system");
        later.filter(|message| message.role == "system").for_each(|message| message.role = "user".to_owned());
    }
    let talk = Talk { messages, offer, thinking, ..Talk::default() };
    Ok(Read { conversation: Conversation::new(talk, encoder, "messages")?, format, shown })
}

fn read_format(mut fields: Fields<'_>) -> Result<Format, ApiError> {
    let kind: String = fields.need("type")?;
    if kind != "json_schema" {
        return Err(ApiError::unsupported(fields.name("type"), format!("{kind:.20?}")));
    }
    let format = Format::schema(&fields.name("schema"), fields.need_raw("schema")?)?;
    fields.finish()?;
    Ok(format)
}

/// Takes the tools, and what may be called of them.
fn offer(fields: &mut Fields<'_>) -> Result<Option<Offer>, ApiError> {
    let offer = tools::listed(fields, "name", |mut fields, _| {
        fields.only("type", &[json!("custom")])?;
        // Examples would be part of the prompt.
        fields.only("input_examples", &[json!([])])?;
        fields.ignore(&["allowed_callers", "cache_control", "defer_loading", "eager_input_streaming"])?;
        tools::function(fields, "input_schema")
    })?;
    let offer = match fields.object("tool_choice")? {
        Some(choice) => chosen(offer, choice)?,
        None => Some(offer),
    };
    Ok(offer.filter(|offer| !offer.tools.is_empty()))
}

fn chosen(offer: Offer, mut choice: Fields<'_>) -> Result<Option<Offer>, ApiError> {
    let kind: String = choice.need("type")?;
    let alone = choice.take("disable_parallel_tool_use")?.unwrap_or(false);
    let field = choice.name("type");
    let chosen = match kind.as_str() {
        "none" => None,
        "auto" => Some(offer),
        "any" => Some(offer.required(&field)?),
        "tool" => Some(offer.named(choice.need("name")?, &choice.name("name"))?),
        other => return Err(ApiError::unsupported(field, format!("{other:.20?}"))),
    };
    choice.finish()?;
    Ok(chosen.map(|offer| Offer { parallel: offer.parallel && !alone, ..offer }))
}

fn turns(fields: &mut Fields<'_>, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let turns = listed(fields)?;
    fields.only("prefill", &[])?;
    for (i, raw) in turns.iter().enumerate() {
        let mut turn = fields.inside(&format!("messages[{i}]"), raw)?;
        let role: String = turn.need("role")?;
        match role.as_str() {
            "user" => user(&mut turn, messages)?,
            "assistant" if i + 1 == turns.len() => {
                let problem = "the answer cannot begin with given text: end with a message of the user";
                return Err(ApiError::field(turn.name("role"), problem));
            }
            "assistant" => messages.push(assistant(&mut turn)?),
            "system" => {
                let content = turn.need_raw("content")?;
                messages.push(Message::new("system", text(&turn, "content", content, &TEXT)?));
            }
            other => return Err(ApiError::unsupported(turn.name("role"), format!("{other:.20?}"))),
        }
        turn.finish()?;
    }
    Ok(())
}

/// Reads the content blocks of a turn, or one block for a plain text. `read` gets each block with its type.
fn blocks(
    turn: &mut Fields<'_>,
    mut read: impl FnMut(&str, Block<'_>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let (name, content) = (turn.name("content"), turn.need_raw("content")?);
    if !content.get().starts_with('[') {
        return read("text", Block::Text(text(turn, "content", content, &TEXT)?));
    }
    let blocks: Vec<&RawValue> =
        list(content, MAX_MESSAGES).map_err(|problem| ApiError::field(&name, problem))?;
    for (i, raw) in blocks.into_iter().enumerate() {
        let mut block = turn.inside(&format!("{name}[{i}]"), raw)?;
        let kind: String = block.need("type")?;
        match kind.as_str() {
            "text" => read("text", Block::Text(TEXT.rest(block)?))?,
            kind => read(kind, Block::Other(block))?,
        }
    }
    Ok(())
}

/// A content block, without its type.
enum Block<'b> {
    Text(String),
    Other(Fields<'b>),
}

/// Reads a turn of the user: results of calls, and text.
fn user(turn: &mut Fields<'_>, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let mut own: Option<String> = None;
    blocks(turn, |kind, block| match block {
        Block::Text(text) => {
            own.get_or_insert_default().push_str(&text);
            Ok(())
        }
        Block::Other(fields) if kind == "tool_result" => {
            messages.push(result(fields)?);
            Ok(())
        }
        Block::Other(fields) => Err(ApiError::unsupported(fields.name("type"), format!("{kind:.40?}"))),
    })?;
    messages.extend(own.map(|text| Message::new("user", text)));
    Ok(())
}

/// Reads the result of a call. An error is marked in its text, because templates have no place for it.
fn result(mut fields: Fields<'_>) -> Result<Message, ApiError> {
    let mut result = Message::new("tool", "");
    result.tool_call_id = Some(fields.need("tool_use_id")?);
    if fields.take("is_error")?.unwrap_or(false) {
        result.push_text("Error: ");
    }
    if let Some(content) = fields.raw("content") {
        result.push_text(&text(&fields, "content", content, &TEXT)?);
    }
    fields.harmless("cache_control", &[])?;
    fields.finish()?;
    Ok(result)
}

/// Reads a turn of the assistant: thoughts, text and calls. Any signature is accepted.
fn assistant(turn: &mut Fields<'_>) -> Result<Message, ApiError> {
    let mut message = Message::new("assistant", "");
    blocks(turn, |kind, block| match block {
        Block::Text(text) => {
            message.push_text(&text);
            Ok(())
        }
        Block::Other(mut fields) if kind == "thinking" => {
            let thought: String = fields.need("thinking")?;
            message.reasoning.get_or_insert_default().push_str(&thought);
            fields.take::<String>("signature")?;
            fields.ignore(&["cache_control"])?;
            fields.finish()
        }
        // Nobody but Anthropic can read it.
        Block::Other(mut fields) if kind == "redacted_thinking" => {
            fields.take::<String>("data")?;
            fields.finish()
        }
        Block::Other(fields) if kind == "tool_use" => {
            message.tool_calls.push(call(fields)?);
            Ok(())
        }
        Block::Other(fields) => Err(ApiError::unsupported(fields.name("type"), format!("{kind:.40?}"))),
    })?;
    Ok(message)
}

fn call(mut fields: Fields<'_>) -> Result<ToolCall, ApiError> {
    let (id, name) = (fields.need("id")?, fields.need("name")?);
    let input = fields.need_raw_object("input")?;
    fields.ignore(&["cache_control", "caller"])?;
    fields.finish()?;
    Ok(ToolCall { id, name, arguments: input.get().to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read_turns(messages: Value) -> Result<Vec<Message>, ApiError> {
        let body = json!({"messages": messages}).to_string();
        let mut messages = Vec::new();
        turns(&mut Fields::parse(body.as_bytes()).unwrap(), &mut messages).map(|()| messages)
    }

    #[test]
    fn content_blocks_become_the_messages_of_a_chat() {
        let messages = read_turns(json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
                {"type": "tool_use", "id": "x", "name": "f", "input": {"n": 1}},
                {"type": "tool_use", "id": "y", "name": "g", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "x", "content": "1"},
                {"type": "tool_result", "tool_use_id": "y", "content": [{"type": "text", "text": "no"}], "is_error": true},
                {"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        ]))
        .unwrap();
        let call = |id: &str, name: &str, input: &str| ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: input.into(),
        };
        let result =
            |id: &str, text: &str| Message { tool_call_id: Some(id.into()), ..Message::new("tool", text) };
        let want = [
            Message::new("user", "a"),
            Message {
                tool_calls: vec![call("x", "f", "{\"n\":1}"), call("y", "g", "{}")],
                ..Message::new("assistant", "b")
            },
            result("x", "1"),
            result("y", "Error: no"),
            Message::new("user", "cd"),
        ];
        assert_eq!(messages, want);
    }

    #[test]
    fn every_error_in_a_block_names_its_field() {
        let block = |role: &str, block: Value| json!([{"role": role, "content": [block]}, {"role": "user", "content": "x"}]);
        for (messages, param) in [
            (json!([]), "messages"),
            (json!([{"role": "robot", "content": "a"}]), "messages[0].role"),
            (json!([{"role": "system"}]), "messages[0].content"),
            (json!([{"role": "assistant", "content": "a"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (block("user", json!({"type": "image", "source": {}})), "messages[0].content[0].type"),
            (block("user", json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id"),
            (block("user", json!({"type": "text", "text": "a", "x": 1})), "messages[0].content[0].x"),
            (block("assistant", json!({"type": "thinking"})), "messages[0].content[0].thinking"),
            (
                block("assistant", json!({"type": "tool_use", "id": "x", "name": "f", "input": "{}"})),
                "messages[0].content[0].input",
            ),
        ] {
            let refused = read_turns(messages.clone()).unwrap_err();
            assert_eq!(refused.body.param.as_deref(), Some(param), "{messages}");
        }
    }
}
