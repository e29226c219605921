//! Thoughts as items of a response: what a request says about them, and the items that clients send back.

use base64::{Engine, engine::general_purpose::STANDARD};
use bitnet::Thinking;
use serde_json::{Value, json};

use crate::{
    generate::{content::MAX_MESSAGES, thinking::effort},
    http::{error::ApiError, fields::Fields},
    service::ServedModel,
};

/// The beginning of every `encrypted_content` that this server makes: its version.
const PREFIX: &str = "bn1.";

/// How a response shows thoughts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Showing {
    /// Whether a thought is the summary of its item, instead of the item's content.
    pub summarised: bool,
    /// Whether items have `encrypted_content`.
    pub encrypted: bool,
}

/// Takes the field `reasoning`; returns whether the client wants summaries.
pub(super) fn take(
    fields: &mut Fields<'_>,
    thinking: &mut Thinking,
    model: &ServedModel,
) -> Result<bool, ApiError> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(false) };
    if !model.thinks() {
        reasoning.ignore(&["effort", "summary", "generate_summary", "context", "mode"])?;
        return reasoning.finish().map(|()| false);
    }
    thinking.effort = effort(&mut reasoning, "effort")?;
    let mut summarised = false;
    for field in ["summary", "generate_summary"] {
        let wanted: Option<String> = reasoning.take(field)?;
        match wanted.as_deref() {
            None | Some("none") => {}
            Some("auto" | "concise" | "detailed") => summarised = true,
            Some(other) => return Err(ApiError::unsupported(reasoning.name(field), format!("{other:.20?}"))),
        }
    }
    let context: Option<String> = reasoning.take("context")?;
    thinking.keep = match context.as_deref() {
        None | Some("auto") => None,
        Some("all_turns") => Some(true),
        Some("current_turn") => Some(false),
        Some(other) => return Err(ApiError::unsupported(reasoning.name("context"), format!("{other:.20?}"))),
    };
    reasoning.only("mode", &[json!("standard"), json!("pro")])?;
    reasoning.finish()?;
    Ok(summarised)
}

/// Reads the thought of an item that a client sends back; `None` if nothing of it can be read. `id` is the item's.
pub(super) fn read(fields: &mut Fields<'_>, id: Option<&str>) -> Result<Option<String>, ApiError> {
    let content = texts(fields, "content")?;
    let summary = texts(fields, "summary")?;
    let encrypted: Option<String> = fields.take("encrypted_content")?;
    let decoded = encrypted.and_then(|text| {
        let bytes = STANDARD.decode(text.strip_prefix(PREFIX)?).ok()?;
        String::from_utf8(bytes).ok()
    });
    // The summary of another server's item is not what its model thought.
    let own = summary.filter(|_| id.is_some_and(is_own));
    Ok([content, decoded, own].into_iter().flatten().find(|text| !text.is_empty()))
}

/// The texts of a list of parts, together.
fn texts(fields: &mut Fields<'_>, field: &'static str) -> Result<Option<String>, ApiError> {
    let parts: Vec<Value> = fields.list(field, MAX_MESSAGES)?;
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    Ok((!texts.is_empty()).then(|| texts.concat()))
}

/// The id of the item at this index of the answer of this name.
pub(super) fn id(name: &str, index: usize) -> String {
    format!("rs_{name}_{index}")
}

/// Whether an id is one that this server makes.
fn is_own(id: &str) -> bool {
    let name = id.strip_prefix("rs_").and_then(|rest| rest.split_once('_'));
    name.is_some_and(|(name, _)| name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl Showing {
    /// The item of a thought, whose text is complete unless it is empty.
    pub fn item(self, id: &str, status: &str, thought: &str) -> Value {
        let part = self.part(thought);
        let parts = if thought.is_empty() { vec![] } else { vec![part] };
        let none = Vec::new();
        let (summary, content) = if self.summarised { (&parts, &none) } else { (&none, &parts) };
        let encrypted =
            (self.encrypted && !thought.is_empty()).then(|| format!("{PREFIX}{}", STANDARD.encode(thought)));
        json!({
            "type": "reasoning", "id": id, "summary": summary, "content": content,
            "encrypted_content": encrypted, "status": status,
        })
    }

    /// A part of an item.
    pub fn part(self, text: &str) -> Value {
        json!({"type": if self.summarised { "summary_text" } else { "reasoning_text" }, "text": text})
    }
}
