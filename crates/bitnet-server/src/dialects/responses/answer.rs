//! Writes a response, and its events.

use std::fmt::Write;

use bitnet::inference::GenerationConfig;
use serde_json::{Value, json};

use super::{
    input,
    reasoning::{self, Showing},
};
use crate::{
    generate::{
        answer::About,
        dialect::Dialect,
        parsed::Parsed,
        prompt::Encoder,
        turn::{Change, Item, Turn},
    },
    http::{
        error::{ApiError, ErrorBody},
        fields::Fields,
    },
};

/// Fields of a request that its response repeats, each with its value if the request lacks it.
const REPEATED: [(&str, &str); 13] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("prompt_cache_key", "null"),
    ("reasoning", "{\"effort\":null,\"summary\":null}"),
    ("safety_identifier", "null"),
    ("text", "{\"format\":{\"type\":\"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("truncation", "\"disabled\""),
    ("user", "null"),
];

/// The entries of the response that repeat fields of the request, as JSON with a comma after each.
fn repeated(fields: &Fields<'_>) -> String {
    let mut json = String::new();
    for (field, absent) in REPEATED {
        let value = fields.peek(field).map_or(absent, |value| value.get());
        let _ = write!(json, "\"{field}\":{value},");
    }
    json
}

pub(crate) struct Responses {
    /// Entries of the response that come from the request, as JSON with a comma after each.
    repeated: String,
    showing: Showing,
    /// Number of the next event.
    sequence: usize,
}

impl Responses {
    fn new(repeated: String, showing: Showing, config: &GenerationConfig) -> Self {
        let GenerationConfig { temperature, top_p, .. } = config;
        let sampling = format!("\"temperature\":{temperature},\"top_p\":{top_p},");
        Responses { repeated: repeated + &sampling, showing, sequence: 0 }
    }

    fn response(&self, about: &About, turn: &Turn, error: Option<&ErrorBody>) -> String {
        let status = match turn.finish {
            _ if error.is_some() => "failed",
            None => "in_progress",
            Some(_) if turn.is_cut_off() => "incomplete",
            Some(_) => "completed",
        };
        let usage = turn.finish.map(|_| {
            json!({
                "input_tokens": about.usage.prompt,
                "input_tokens_details": {"cached_tokens": about.usage.cached.unwrap_or(0)},
                "output_tokens": about.usage.generated,
                "output_tokens_details": {"reasoning_tokens": about.usage.thought},
                "total_tokens": about.usage.total(),
            })
        });
        let output: Vec<Value> = (0..turn.items.len()).map(|index| self.item(about, turn, index)).collect();
        let own = json!({
            "id": format!("{}{}", Self::ID, about.name),
            "object": "response",
            "created_at": about.created,
            "model": about.model,
            "status": status,
            "background": false,
            "error": error.map(|error| json!({"code": code(error), "message": error.message})),
            "incomplete_details": (status == "incomplete").then(|| json!({"reason": "max_output_tokens"})),
            "output": output,
            "previous_response_id": null,
            "store": false,
            "usage": usage,
        });
        format!("{{{}{}", self.repeated, &own.to_string()[1..])
    }

    /// Writes an event, whose other entries are the JSON in `rest`.
    fn event(&mut self, kind: &str, rest: &str, out: &mut String) {
        let sequence = self.sequence;
        self.sequence += 1;
        let _ = write!(
            out,
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{sequence},{rest}}}\n\n"
        );
    }

    /// Writes an event that has the whole last item.
    fn whole_item(&mut self, kind: &str, about: &About, turn: &Turn, out: &mut String) {
        let index = turn.last().0;
        let rest = format!("\"item\":{},\"output_index\":{index}", self.item(about, turn, index));
        self.event(kind, &rest, out);
    }

    /// Writes an event about a part of the last item.
    fn about_item(&mut self, kind: &str, about: &About, turn: &Turn, mut entries: Value, out: &mut String) {
        let (index, last) = turn.last();
        entries["output_index"] = index.into();
        entries["item_id"] = id(about, turn, index).into();
        match last {
            Item::Thought(_) if self.showing.summarised => entries["summary_index"] = 0.into(),
            Item::Thought(_) | Item::Text(_) => entries["content_index"] = 0.into(),
            Item::Call { .. } => {}
        }
        let json = entries.to_string();
        self.event(kind, &json[1..json.len() - 1], out);
    }

    fn item(&self, about: &About, turn: &Turn, index: usize) -> Value {
        let last = index + 1 == turn.items.len();
        let status = match turn.is_open() {
            true if last => "in_progress",
            false if last && turn.is_cut_off() => "incomplete",
            _ => "completed",
        };
        let id = id(about, turn, index);
        match &turn.items[index] {
            Item::Thought(thought) => {
                let shown = if status == "in_progress" { "" } else { thought };
                self.showing.item(&id, status, shown)
            }
            Item::Text(text) => {
                // The part has an event of its own.
                let content =
                    if text.is_empty() && status == "in_progress" { vec![] } else { vec![part(text)] };
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            Item::Call { name, arguments } => json!({
                "type": "function_call", "id": id, "call_id": format!("call_{}_{index}", about.name), "name": name,
                "arguments": arguments, "status": status,
            }),
        }
    }

    /// Writes a change of a thought, as the content of its item or as the summary.
    fn think(&mut self, about: &About, turn: &Turn, change: Change<'_>, thought: &str, out: &mut String) {
        let (part, text) = if self.showing.summarised {
            ("response.reasoning_summary_part", "response.reasoning_summary_text")
        } else {
            ("response.content_part", "response.reasoning_text")
        };
        match change {
            Change::Opened => {
                self.whole_item("response.output_item.added", about, turn, out);
                let empty = json!({"part": self.showing.part("")});
                self.about_item(&format!("{part}.added"), about, turn, empty, out);
            }
            Change::More(more) => {
                self.about_item(&format!("{text}.delta"), about, turn, json!({"delta": more}), out);
            }
            Change::Closed => {
                self.about_item(&format!("{text}.done"), about, turn, json!({"text": thought}), out);
                let whole = json!({"part": self.showing.part(thought)});
                self.about_item(&format!("{part}.done"), about, turn, whole, out);
                self.whole_item("response.output_item.done", about, turn, out);
            }
        }
    }

    /// Writes an event about the whole response.
    fn about_all(
        &mut self,
        kind: &str,
        about: &About,
        turn: &Turn,
        error: Option<&ErrorBody>,
        out: &mut String,
    ) {
        let rest = format!("\"response\":{}", self.response(about, turn, error));
        self.event(kind, &rest, out);
    }
}

/// The code of an error, one of those that OpenAI's clients know.
fn code(error: &ErrorBody) -> &'static str {
    match error.kind {
        "rate_limit_error" => "rate_limit_exceeded",
        "invalid_request_error" if error.param.is_some() => "invalid_prompt",
        _ => "server_error",
    }
}

fn id(about: &About, turn: &Turn, index: usize) -> String {
    match turn.items[index] {
        Item::Thought(_) => reasoning::id(&about.name, index),
        Item::Text(_) => format!("msg_{}_{index}", about.name),
        Item::Call { .. } => format!("fc_{}_{index}", about.name),
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

impl Dialect for Responses {
    const ID: &'static str = "resp_";
    const STREAM: &'static str = "text/event-stream";
    const KEEP_ALIVE: &'static str = ":\n\n";

    fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<(Parsed, Self), ApiError> {
        let repeated = repeated(fields);
        let (parsed, showing) = input::read(fields, encoder)?;
        let answer = Responses::new(repeated, showing, &parsed.config);
        Ok((parsed, answer))
    }

    fn begin(&mut self, about: &About, turns: &[Turn], out: &mut String) {
        let rest = format!("\"response\":{}", self.response(about, &turns[0], None));
        for kind in ["response.created", "response.in_progress"] {
            self.event(kind, &rest, out);
        }
    }

    fn change(&mut self, about: &About, turn: &Turn, change: Change<'_>, out: &mut String) {
        match (change, turn.last().1) {
            (change, Item::Thought(thought)) => self.think(about, turn, change, thought, out),
            (Change::Opened, item) => {
                self.whole_item("response.output_item.added", about, turn, out);
                if matches!(item, Item::Text(_)) {
                    self.about_item(
                        "response.content_part.added",
                        about,
                        turn,
                        json!({"part": part("")}),
                        out,
                    );
                }
            }
            (Change::More(text), Item::Text(_)) => {
                let entries = json!({"delta": text, "logprobs": []});
                self.about_item("response.output_text.delta", about, turn, entries, out);
            }
            (Change::More(text), Item::Call { .. }) => {
                self.about_item(
                    "response.function_call_arguments.delta",
                    about,
                    turn,
                    json!({"delta": text}),
                    out,
                );
            }
            (Change::Closed, Item::Text(text)) => {
                let done = json!({"text": text, "logprobs": []});
                self.about_item("response.output_text.done", about, turn, done, out);
                self.about_item("response.content_part.done", about, turn, json!({"part": part(text)}), out);
                self.whole_item("response.output_item.done", about, turn, out);
            }
            (Change::Closed, Item::Call { name, arguments }) => {
                let done = json!({"name": name, "arguments": arguments});
                self.about_item("response.function_call_arguments.done", about, turn, done, out);
                self.whole_item("response.output_item.done", about, turn, out);
            }
        }
    }

    fn end(&mut self, about: &About, turns: &[Turn], out: &mut String) {
        let turn = &turns[0];
        let kind = if turn.is_cut_off() { "response.incomplete" } else { "response.completed" };
        self.about_all(kind, about, turn, None, out);
    }

    fn fail(&mut self, about: &About, turns: &[Turn], error: &ApiError, out: &mut String) {
        self.about_all("response.failed", about, &turns[0], Some(&error.body), out);
    }

    fn whole(&self, about: &About, turns: &[Turn]) -> String {
        self.response(about, &turns[0], None)
    }
}
