//! The mix of requests. Every request follows from its number.

use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

/// Maximum length of a text of the demo in tokens, including the prompt; its context is longer.
const CONTEXT: usize = 512;
/// Token ids of text; those that follow are control tokens.
const IDS: std::ops::Range<u32> = 3..2000;

/// How a client behaves after sending a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Manner {
    /// It reads the answer to its end.
    Reads,
    /// It stops reading after this many events for some time, then reads the rest.
    Pauses { after: usize, pause: Duration },
    /// It leaves after this many events.
    Leaves { after: usize },
    /// It leaves after this many events, and resumes the stream.
    Resumes { after: usize },
    /// It hangs up after this fraction of the request's bytes, in thousandths.
    HangsUp { sent: usize },
    /// It sends an invalid request.
    Errs,
}

/// A request, and what must hold for its answer whatever the model generates.
#[derive(Debug)]
pub(super) struct Ask {
    /// Name under which the report counts it.
    pub kind: &'static str,
    pub path: &'static str,
    pub body: Value,
    pub deadline: Option<Duration>,
    pub manner: Manner,
    /// Number of prompts times number of choices.
    pub choices: usize,
    /// Tokens of all prompts, if known before the answer.
    pub prompt_tokens: Option<usize>,
    /// Whether it has the lowest priority, without a goal for its first token.
    pub background: bool,
}

impl Ask {
    /// The maximum number of tokens of each choice.
    pub fn max_tokens(&self) -> usize {
        self.body["max_tokens"].as_u64().unwrap_or(0) as usize
    }

    pub fn streams(&self) -> bool {
        self.body["stream"] == true
    }

    /// Whether the server's goal for the first token holds for it.
    pub fn has_goal(&self) -> bool {
        self.deadline.is_none() && !self.background
    }

    /// Whether its time may be over before its answer is whole: by its own deadline, or by the server's timeout where
    /// no goal limits how long it waits, or because the client pauses.
    pub fn may_be_cut(&self) -> bool {
        !self.has_goal() || matches!(self.manner, Manner::Pauses { .. })
    }

    /// Body of the same request without streaming or priority.
    pub fn alone(&self) -> Value {
        let mut body = self.body.clone();
        if let Some(fields) = body.as_object_mut() {
            ["stream", "stream_options", "priority"].iter().for_each(|field| drop(fields.remove(*field)));
        }
        body
    }
}

/// Kinds of requests, with their shares in thousandths.
const KINDS: &[(&str, u32)] = &[
    ("plain", 330),
    ("choices", 80),
    ("prompts", 60),
    ("chat", 100),
    ("schema", 70),
    ("stop", 90),
    ("rules", 90),
    ("logprobs", 50),
    ("deadline", 20),
    ("resumed", 30),
    ("left", 40),
    ("hung up", 20),
    ("paused", 3),
    ("invalid", 17),
];

/// Makes the request with this number.
pub(super) fn ask(number: u64) -> Ask {
    let mut rng = Rng::with_seed(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5EED);
    let r = &mut rng;
    let kind = kind(r);
    let mut ask = plain(r, number);
    ask.kind = kind;
    match kind {
        "choices" => choices(r, &mut ask),
        "prompts" => prompts(r, &mut ask),
        "chat" => chat(r, &mut ask),
        "schema" => schema(r, &mut ask),
        "stop" => stop(r, &mut ask),
        "rules" => rules(r, &mut ask),
        "logprobs" => ask.body["logprobs"] = json!(r.u32(0..4)),
        "deadline" => {
            long(r, &mut ask, 1);
            ask.deadline = Some(Duration::from_millis(r.u64(20..400)));
        }
        "resumed" => {
            ask.body["stream"] = json!(true);
            ask.body["max_tokens"] = json!(r.usize(20..80));
            ask.manner = Manner::Resumes { after: r.usize(1..15) };
        }
        "left" => {
            long(r, &mut ask, 1);
            ask.manner = Manner::Leaves { after: r.usize(1..12) };
        }
        "hung up" => {
            long(r, &mut ask, 1);
            ask.manner = Manner::HangsUp { sent: [50, 200, 500, 900, 1000, 1000][r.usize(0..6)] };
        }
        "paused" => {
            long(r, &mut ask, 4);
            let pause = Duration::from_millis(r.u64(1500..4000));
            ask.manner = Manner::Pauses { after: r.usize(1..10), pause };
            // More bytes than the system buffers for a reader that stops.
            ask.body["logprobs"] = json!(5);
        }
        "invalid" => {
            ask.body["no_such_field"] = json!(1);
            ask.manner = Manner::Errs;
        }
        _ => {}
    }
    finish(r, ask)
}

fn kind(r: &mut Rng) -> &'static str {
    let mut at = r.u32(0..KINDS.iter().map(|(_, weight)| weight).sum());
    for &(kind, weight) in KINDS {
        match at.checked_sub(weight) {
            Some(rest) => at = rest,
            None => return kind,
        }
    }
    "plain"
}

/// One text from one prompt, with random sampling settings.
fn plain(r: &mut Rng, number: u64) -> Ask {
    let mut body = json!({
        "prompt": ids(r), "max_tokens": r.usize(1..40), "seed": number, "stream": r.bool(),
        "temperature": f64::from(r.u8(0..4)) / 2.0,
    });
    if r.u8(0..4) != 0 {
        body["return_token_ids"] = json!(true);
    }
    if r.u8(0..3) == 0 {
        body["ignore_eos"] = json!(true);
    }
    if r.u8(0..5) == 0 {
        body["user"] = json!(format!("user {}", r.u8(0..3)));
    }
    match r.u8(0..20) {
        0 => body["priority"] = json!("batch"),
        1..6 => body["priority"] = json!("interactive"),
        _ => {}
    }
    Ask {
        kind: "plain",
        path: "/v1/completions",
        background: body["priority"] == "batch",
        body,
        deadline: None,
        manner: Manner::Reads,
        choices: 1,
        prompt_tokens: None,
    }
}

/// Prompts with common beginnings, as in real use.
fn ids(r: &mut Rng) -> Vec<u32> {
    let (shared, own) = (r.usize(0..5) * 16, r.usize(1..24));
    let of = r.u32(0..4);
    let begin = (0..shared as u32).map(|i| IDS.start + (of * 311 + i * 7) % IDS.len() as u32);
    begin.chain(std::iter::repeat_with(|| r.u32(IDS)).take(own)).collect()
}

fn text(r: &mut Rng) -> String {
    const WORDS: &[&str] = &[
        "O",
        "First Citizen:",
        "the king is",
        "and",
        "what say you",
        "my lord,\n",
        "love",
        "Ünder",
        "日本",
        "to be",
    ];
    let words: Vec<&str> = (0..r.usize(1..10)).map(|_| WORDS[r.usize(0..WORDS.len())]).collect();
    words.join(" ")
}

fn choices(r: &mut Rng, ask: &mut Ask) {
    ask.choices = r.usize(2..7);
    ask.body["n"] = json!(ask.choices);
    ask.body["max_tokens"] = json!(r.usize(1..20));
}

fn prompts(r: &mut Rng, ask: &mut Ask) {
    let (count, n) = (r.usize(2..5), r.usize(1..3));
    ask.body["prompt"] =
        if r.bool() { (0..count).map(|_| ids(r)).collect() } else { (0..count).map(|_| text(r)).collect() };
    ask.body["n"] = json!(n);
    ask.body["max_tokens"] = json!(r.usize(1..20));
    ask.choices = count * n;
}

fn chat(r: &mut Rng, ask: &mut Ask) {
    let turn = |role: &str, r: &mut Rng| json!({"role": role, "content": text(r)});
    let mut messages = vec![turn("user", r)];
    if r.bool() {
        messages = vec![turn("system", r), turn("user", r), turn("assistant", r), turn("user", r)];
    }
    ask.path = "/v1/chat/completions";
    if let Some(fields) = ask.body.as_object_mut() {
        fields.remove("prompt");
        fields.insert("messages".into(), messages.into());
    }
    if r.u8(0..4) == 0 {
        ask.body["logprobs"] = json!(true);
        ask.body["top_logprobs"] = json!(r.u8(0..3));
    }
}

/// Texts that must be JSON of a schema, if they are complete.
fn schema(r: &mut Rng, ask: &mut Ask) {
    let schema = match r.u8(0..3) {
        0 => json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
            "old": {"type": "boolean"}}, "required": ["name", "old"], "additionalProperties": false}),
        1 => json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 4}),
        _ => json!({"type": "integer", "minimum": 0, "maximum": 1000}),
    };
    ask.body["response_format"] =
        json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema}});
    ask.body["max_tokens"] = json!(60);
    ask.body["ignore_eos"] = Value::Null;
    if r.u8(0..4) == 0 {
        choices(r, ask);
    }
}

fn stop(r: &mut Rng, ask: &mut Ask) {
    match r.u8(0..3) {
        0 => ask.body["stop"] = json!(["\n", "the"]),
        1 => ask.body["stop"] = json!(["e ", "t", ".\n\n"]),
        _ => ask.body["stop_token_ids"] = (0..40).map(|_| json!(r.u32(IDS))).collect(),
    }
    ask.body["max_tokens"] = json!(r.usize(10..60));
}

fn rules(r: &mut Rng, ask: &mut Ask) {
    let rules = [
        ("top_k", json!(r.u32(1..50))),
        ("top_p", json!(0.9)),
        ("min_p", json!(0.05)),
        ("repetition_penalty", json!(1.3)),
        ("presence_penalty", json!(0.6)),
        ("frequency_penalty", json!(-0.4)),
        ("logit_bias", json!({"13": -100, "260": -100, r.u32(IDS).to_string(): 3.5})),
        ("min_tokens", json!(4)),
    ];
    for (name, value) in rules {
        if r.u8(0..3) == 0 {
            ask.body[name] = value;
        }
    }
    ask.body["max_tokens"] = json!(r.usize(6..40));
}

/// A stream so long that a client that leaves it does so before its end.
fn long(r: &mut Rng, ask: &mut Ask, choices: usize) {
    let prompt = ids(r);
    ask.body["max_tokens"] = json!(CONTEXT - prompt.len() - 8);
    ask.body["prompt"] = json!(prompt);
    ask.body["ignore_eos"] = json!(true);
    ask.body["stream"] = json!(true);
    ask.body["n"] = json!(choices);
    ask.choices = choices;
}

fn finish(r: &mut Rng, mut ask: Ask) -> Ask {
    // Prompts as text, where the number of tokens need not be known.
    if ask.kind == "plain" && !ask.background && r.bool() {
        ask.body["prompt"] = json!(text(r));
    }
    if ask.streams() {
        ask.body["stream_options"] = json!({"include_usage": true});
    }
    ask.prompt_tokens = tokens_of(&ask.body["prompt"]);
    if ask.background && ask.prompt_tokens.is_none() {
        ask.background = false;
        ask.body["priority"] = Value::Null;
    }
    ask
}

/// Number of token ids of a prompt; unknown for texts.
fn tokens_of(prompt: &Value) -> Option<usize> {
    let items = prompt.as_array()?;
    if items.iter().all(Value::is_number) { Some(items.len()) } else { items.iter().map(tokens_of).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_follows_from_its_number_and_every_kind_is_asked() {
        let asked: Vec<Ask> = (0..5000).map(ask).collect();
        for (kind, _) in KINDS {
            assert!(asked.iter().any(|ask| ask.kind == *kind), "{kind}");
        }
        assert!(asked.iter().zip(0..).all(|(first, number)| first.body == ask(number).body));
        assert!(asked.iter().any(|ask| ask.background));
        for ask in &asked {
            let unanswered = matches!(ask.manner, Manner::Leaves { .. } | Manner::HangsUp { .. });
            assert!(!(unanswered || ask.background) || ask.prompt_tokens.is_some(), "{ask:?}");
        }
    }
}
