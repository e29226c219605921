//! Writes answers: a JSON object, or several in a stream, one a line.

use std::time::Duration;

use axum::http::HeaderMap;
use bitnet::model::date;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    input::{read_chat, read_prompt},
    load,
};
use crate::{
    dialects::errors::ollama_error,
    generate::{
        answer::{About, now},
        dialect::Dialect,
        parsed::Parsed,
        prompt::Encoder,
        turn::{BETWEEN_THOUGHTS, Change, Item, Turn},
    },
    http::{error::ApiError, fields::Fields, reading::Reading},
    service::Service,
};

/// The format of times.
pub(super) const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";

/// The answer of `/api/chat`, or else of `/api/generate`.
pub(crate) struct Ollama<const CHAT: bool>;

#[derive(Serialize)]
struct Line<'t> {
    model: &'t str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'t>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<&'t str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'t str,
    done: bool,
    #[serde(flatten)]
    end: Option<End>,
}

#[derive(Serialize)]
struct Message<'t> {
    role: &'static str,
    content: &'t str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'t str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'t>>,
}

#[derive(Serialize)]
struct Call<'t> {
    function: Function<'t>,
}

#[derive(Serialize)]
struct Function<'t> {
    name: &'t str,
    arguments: &'t RawValue,
}

/// What a line adds to the answer.
#[derive(Default)]
struct Part<'t> {
    thinking: &'t str,
    text: &'t str,
    tool_calls: Vec<Call<'t>>,
}

/// Entries of the last line. Durations are in nanoseconds.
#[derive(Serialize)]
struct End {
    done_reason: &'static str,
    total_duration: u64,
    /// The model is loaded before the server answers.
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

/// A duration in nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl End {
    fn of(about: &About, turn: &Turn) -> End {
        let (prompt, answer) = about.times();
        End {
            done_reason: if turn.is_cut_off() { "length" } else { "stop" },
            total_duration: nanos(prompt + answer),
            load_duration: 0,
            prompt_eval_count: about.usage.prompt,
            prompt_eval_duration: nanos(prompt),
            eval_count: about.usage.generated,
            eval_duration: nanos(answer),
        }
    }
}

impl<'t> Call<'t> {
    /// A call, if its arguments are complete: clients expect an object, which a call that was cut off does not have.
    fn of(item: &'t Item) -> Option<Call<'t>> {
        let Item::Call { name, arguments } = item else { return None };
        let arguments = serde_json::from_str(arguments).ok()?;
        Some(Call { function: Function { name, arguments } })
    }
}

impl<const CHAT: bool> Ollama<CHAT> {
    fn line(about: &About, part: Part<'_>, end: Option<End>) -> String {
        let Part { thinking, text, tool_calls } = part;
        let line = Line {
            model: &about.model,
            created_at: date(now(), TIME),
            message: CHAT.then_some(Message { role: "assistant", content: text, thinking, tool_calls }),
            response: (!CHAT).then_some(text),
            thinking: if CHAT { "" } else { thinking },
            done: end.is_some(),
            end,
        };
        serde_json::to_string(&line).expect("text and numbers make JSON") + "\n"
    }
}

impl<const CHAT: bool> Dialect for Ollama<CHAT> {
    const ID: &'static str = "ollama-";
    const STREAM: &'static str = "application/x-ndjson";
    const KEEP_ALIVE: &'static str = "";

    fn at_once(
        service: &Service,
        headers: &HeaderMap,
        body: &[u8],
        reading: &Reading,
    ) -> Result<Option<Value>, ApiError> {
        let Some(reason) = load::asked(service, headers, body, reading, CHAT)? else { return Ok(None) };
        let (entry, nothing) = if CHAT {
            ("message", json!({"role": "assistant", "content": ""}))
        } else {
            ("response", json!(""))
        };
        let created = date(now(), TIME);
        Ok(Some(json!({
            "model": service.model.name, "created_at": created, entry: nothing, "done": true, "done_reason": reason,
        })))
    }

    fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<(Parsed, Self), ApiError> {
        let parsed = if CHAT { read_chat(fields, encoder)? } else { read_prompt(fields, encoder)? };
        Ok((parsed, Ollama))
    }

    fn begin(&mut self, _: &About, _: &[Turn], _: &mut String) {}

    fn change(&mut self, about: &About, turn: &Turn, change: Change<'_>, out: &mut String) {
        match (change, turn.last().1) {
            (Change::Opened, Item::Thought(_)) if turn.thinks_again() => {
                let thinking = BETWEEN_THOUGHTS;
                *out += &Self::line(about, Part { thinking, ..Part::default() }, None);
            }
            (Change::More(thinking), Item::Thought(_)) => {
                *out += &Self::line(about, Part { thinking, ..Part::default() }, None);
            }
            (Change::More(text), Item::Text(_)) => {
                *out += &Self::line(about, Part { text, ..Part::default() }, None);
            }
            (Change::Closed, item) => {
                if let Some(call) = Call::of(item) {
                    *out += &Self::line(about, Part { tool_calls: vec![call], ..Part::default() }, None);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, about: &About, turns: &[Turn], out: &mut String) {
        *out += &Self::line(about, Part::default(), Some(End::of(about, &turns[0])));
    }

    fn fail(&mut self, _: &About, _: &[Turn], error: &ApiError, out: &mut String) {
        *out += &format!("{}\n", ollama_error(error));
    }

    fn whole(&self, about: &About, turns: &[Turn]) -> String {
        let turn = &turns[0];
        let calls = turn.items.iter().filter_map(Call::of).collect();
        let part = Part { thinking: &turn.thought(), text: &turn.text(), tool_calls: calls };
        Self::line(about, part, Some(End::of(about, turn)))
    }
}
