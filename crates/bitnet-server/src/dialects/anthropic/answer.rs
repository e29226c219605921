//! Writes a message, and its events.

use std::fmt::{Display, Write};

use serde_json::{Value, json, value::RawValue};
use sha2::{Digest, Sha256};

use super::{input::read_message, thinking};
use crate::{
    dialects::errors::anthropic_error,
    generate::{
        answer::About,
        dialect::Dialect,
        parsed::Parsed,
        pieces::Finish,
        prompt::Encoder,
        turn::{Change, Item, Turn},
        usage::Usage,
    },
    http::{error::ApiError, fields::Fields},
};

/// The answer to a request.
pub(crate) struct Messages {
    /// Whether thoughts are shown; otherwise, their blocks are empty.
    shows: bool,
}

fn event(kind: &str, data: impl Display, out: &mut String) {
    let _ = write!(out, "event: {kind}\ndata: {data}\n\n");
}

fn call_id(about: &About, index: usize) -> String {
    format!("toolu_{}_{index}", about.name)
}

/// The message with these content blocks, as JSON.
fn message(about: &About, turn: &Turn, blocks: &[String]) -> String {
    let (reason, sequence) = stopped(about, turn);
    let own = json!({
        "context_management": thinking::applied(),
        "id": format!("{}{}", Messages::ID, about.name),
        "type": "message",
        "role": "assistant",
        "model": about.model,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage(about),
    });
    format!("{{\"content\":[{}],{}", blocks.join(","), &own.to_string()[1..])
}

fn usage(about: &About) -> Value {
    let Usage { prompt, cached, generated, thought, .. } = about.usage;
    let cached = cached.unwrap_or(0);
    json!({
        // Here, the tokens of the prompt that were not in the cache.
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
        "output_tokens_details": {"thinking_tokens": thought},
    })
}

/// Why the turn ended, and the stop sequence at which it did.
fn stopped<'a>(about: &'a About, turn: &Turn) -> (Option<&'static str>, Option<&'a str>) {
    match turn.finish {
        None => (None, None),
        Some(Finish::Length | Finish::Deadline) => (Some("max_tokens"), None),
        Some(Finish::StopString(index)) => {
            (Some("stop_sequence"), about.stop_strings.get(index).map(String::as_str))
        }
        Some(Finish::Stop) if turn.has_called() => (Some("tool_use"), None),
        Some(Finish::Stop) => (Some("end_turn"), None),
    }
}

/// The signature of a thought. It has the form that clients expect, and proves nothing: no thought is secret here.
fn signature(about: &About, thought: &str) -> String {
    let hash = Sha256::digest(thought);
    hash[..16].iter().fold(format!("{}.", about.name), |text, byte| format!("{text}{byte:02x}"))
}

/// A content block as JSON; `None` for a call that was cut off, because its input is no object.
fn block(about: &About, turn: &Turn, index: usize, shows: bool) -> Option<String> {
    match &turn.items[index] {
        Item::Thought(thought) => {
            let shown = if shows { thought } else { "" };
            let signature = signature(about, thought);
            Some(json!({"type": "thinking", "thinking": shown, "signature": signature}).to_string())
        }
        Item::Text(text) => Some(json!({"type": "text", "text": text}).to_string()),
        Item::Call { name, arguments } => {
            let input: &RawValue = serde_json::from_str(arguments).ok()?;
            let (id, name) = (json!(call_id(about, index)), json!(name));
            Some(format!("{{\"type\":\"tool_use\",\"id\":{id},\"name\":{name},\"input\":{input}}}"))
        }
    }
}

impl Dialect for Messages {
    const ID: &'static str = "msg_";
    const STREAM: &'static str = "text/event-stream";
    const KEEP_ALIVE: &'static str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

    fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<(Parsed, Self), ApiError> {
        let (parsed, shows) = read_message(fields, encoder)?;
        Ok((parsed, Messages { shows }))
    }

    fn begin(&mut self, about: &About, turns: &[Turn], out: &mut String) {
        let message = message(about, &turns[0], &[]);
        event("message_start", format_args!("{{\"type\":\"message_start\",\"message\":{message}}}"), out);
        out.push_str(Self::KEEP_ALIVE);
    }

    fn change(&mut self, about: &About, turn: &Turn, change: Change<'_>, out: &mut String) {
        let (index, last) = turn.last();
        let delta = |delta: Value| ("content_block_delta", Some(("delta", delta)));
        if let (Change::Closed, Item::Thought(thought)) = (change, last) {
            let delta = json!({"type": "signature_delta", "signature": signature(about, thought)});
            event(
                "content_block_delta",
                json!({"type": "content_block_delta", "index": index, "delta": delta}),
                out,
            );
        }
        let (kind, entry) = match (change, last) {
            (Change::Opened, Item::Thought(_)) => {
                let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                ("content_block_start", Some(("content_block", block)))
            }
            (Change::More(_), Item::Thought(_)) if !self.shows => return,
            (Change::More(text), Item::Thought(_)) => {
                delta(json!({"type": "thinking_delta", "thinking": text}))
            }
            (Change::Opened, Item::Text(_)) => {
                ("content_block_start", Some(("content_block", json!({"type": "text", "text": ""}))))
            }
            (Change::Opened, Item::Call { name, .. }) => {
                let block =
                    json!({"type": "tool_use", "id": call_id(about, index), "name": name, "input": {}});
                ("content_block_start", Some(("content_block", block)))
            }
            (Change::More(text), Item::Text(_)) => delta(json!({"type": "text_delta", "text": text})),
            (Change::More(json), Item::Call { .. }) => {
                delta(json!({"type": "input_json_delta", "partial_json": json}))
            }
            (Change::Closed, _) => ("content_block_stop", None),
        };
        let mut all = json!({"type": kind, "index": index});
        if let Some((name, value)) = entry {
            all[name] = value;
        }
        event(kind, all, out);
    }

    fn end(&mut self, about: &About, turns: &[Turn], out: &mut String) {
        let (reason, sequence) = stopped(about, &turns[0]);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        event("message_delta", json!({"type": "message_delta", "delta": delta, "usage": usage(about)}), out);
        event("message_stop", json!({"type": "message_stop"}), out);
    }

    fn fail(&mut self, _: &About, _: &[Turn], error: &ApiError, out: &mut String) {
        event("error", anthropic_error(error), out);
    }

    fn whole(&self, about: &About, turns: &[Turn]) -> String {
        let turn = &turns[0];
        let blocks: Vec<String> =
            (0..turn.items.len()).filter_map(|index| block(about, turn, index, self.shows)).collect();
        message(about, turn, &blocks)
    }
}
