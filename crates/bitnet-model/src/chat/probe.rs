//! Finds out what a template does by rendering short conversations with texts that no template contains.

use serde_json::{Value, json};

use super::{
    conventions::{
        CallForm, CallSyntax, Conventions, Effort, Efforts, Literals, Memory, Roles, Switch, ThoughtForm,
    },
    markers::{Found, KEY, NAMES, call, tag_at_end, trimmed},
};

/// Texts that stand for what is looked for in a rendering.
const USER: &str = "zqUser";
const SYSTEM: &str = "zqSystem";
const TEXT: &str = "zqText";
const THOUGHT: &str = "zqThought";
pub(super) const VALUE: &str = "zqValue";
const NONSENSE: &str = "zqEffort";

/// Variables that turn thoughts on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
/// Variables that keep the thoughts of earlier turns, each with the value that keeps them.
const MEMORIES: [(&str, bool); 4] = [
    ("preserve_thinking", true),
    ("clear_thinking", false),
    ("truncate_history_thinking", false),
    ("drop_thinking", false),
];

/// A conversation to render.
#[derive(Default)]
pub(super) struct Probe {
    pub messages: Vec<Value>,
    /// Whether the assistant's turn is opened.
    pub prompt: bool,
    pub tools: Vec<Value>,
    pub variables: Vec<(&'static str, Value)>,
}

impl Probe {
    fn of(messages: impl IntoIterator<Item = Value>) -> Probe {
        Probe { messages: messages.into_iter().collect(), ..Probe::default() }
    }

    fn prompt(mut self) -> Probe {
        self.prompt = true;
        self
    }

    fn with(mut self, variable: &'static str, value: impl Into<Value>) -> Probe {
        self.variables.push((variable, value.into()));
        self
    }

    fn tools(mut self) -> Probe {
        let tool = |name: &&str| {
            let properties = json!({KEY: {"type": "string"}});
            let parameters = json!({"type": "object", "properties": properties, "required": [KEY]});
            json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}})
        };
        self.tools = NAMES.iter().map(tool).collect();
        self
    }
}

fn said(role: &str, content: impl Into<Value>) -> Value {
    json!({"role": role, "content": content.into()})
}

fn user() -> Value {
    said("user", USER)
}

fn thinking(content: &str) -> Value {
    json!({"role": "assistant", "content": content, "reasoning_content": THOUGHT, "thinking": THOUGHT})
}

fn calls(mut message: Value, calls: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let call = |(i, (name, arguments)): (usize, (&str, Value))| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"id": format!("zqCallId{i}"), "type": "function", "function": function})
    };
    message["tool_calls"] = calls.into_iter().enumerate().map(call).collect();
    message
}

fn result() -> Value {
    json!({"role": "tool", "content": "zqResult", "tool_call_id": "zqCallId0", "name": NAMES[0]})
}

/// Renders a conversation; `None` if the template refuses it.
pub(super) type Render<'a> = &'a dyn Fn(Probe) -> Option<String>;

/// Everything that the probes find. `source` is the template, for words that no rendering shows.
pub(super) fn conventions(render: Render<'_>, source: &str) -> Conventions {
    // A template that cannot render the simplest conversation cannot be asked.
    if render(Probe::of([user()]).prompt()).is_none() {
        return Conventions::default();
    }
    let thought = thought(render, source);
    let end = thought.as_ref().map(|thought| thought.close.clone());
    Conventions {
        efforts: efforts(render),
        tools: render(Probe::of([user()]).tools().prompt()).is_some_and(|text| text.contains(NAMES[0])),
        calls: call_form(render, end.as_deref()),
        roles: roles(render, source),
        thought,
    }
}

fn thought(render: Render<'_>, source: &str) -> Option<ThoughtForm> {
    let form = shown_thought(render).or_else(|| opened_thought(render, source))?;
    let halves = format!("{TEXT}{}{USER}", form.close);
    let whole = render(Probe::of([user(), said("assistant", halves.as_str())]));
    let splits_content = whole.is_some_and(|text| !text.contains(&halves));
    Some(ThoughtForm { switch: switch(render, &form), memory: memory(render), splits_content, ..form })
}

fn form(open: &str, lead: &str, tail: &str, close: &str, gap: &str) -> ThoughtForm {
    ThoughtForm {
        open: open.into(),
        lead: lead.into(),
        tail: tail.into(),
        close: close.into(),
        gap: gap.into(),
        switch: None,
        memory: Memory::default(),
        splits_content: false,
    }
}

/// The markers around a thought in the current turn.
fn shown_thought(render: Render<'_>) -> Option<ThoughtForm> {
    let called = calls(thinking(TEXT), [(NAMES[0], json!({KEY: VALUE}))]);
    let probes = [Probe::of([user(), thinking(TEXT)]), Probe::of([user(), called, result()]).tools()];
    probes.into_iter().find_map(|probe| {
        let text = render(probe)?;
        let (before, after) = text.split_once(THOUGHT)?;
        let open = tag_at_end(before.trim_end())?;
        let (between, _) = after.split_once(TEXT)?;
        let (tail, close, gap) = trimmed(between);
        let lead = &before[before.trim_end().len()..];
        (!close.is_empty()).then(|| form(open, lead, tail, close, gap))
    })
}

/// The marker with which a prompt ends, for templates that never show a thought.
fn opened_thought(render: Render<'_>, source: &str) -> Option<ThoughtForm> {
    let prompt = render(Probe::of([user()]).prompt())?;
    let open = tag_at_end(prompt.trim_end())?;
    let close = open.strip_prefix('<').map(|name| format!("</{name}"))?;
    let lead = &prompt[prompt.trim_end().len()..];
    source.contains(&close).then(|| form(open, lead, "\n", &close, "\n\n"))
}

fn switch(render: Render<'_>, form: &ThoughtForm) -> Option<Switch> {
    SWITCHES.into_iter().find_map(|variable| {
        let prompt = || Probe::of([user()]).prompt();
        let [on, off] = [true, false].map(|value| render(prompt().with(variable, value)));
        let (on, off, absent) = (on?, off?, render(prompt())?);
        let default = absent == on || (absent != off && form.state(&absent) == form.state(&on));
        (on != off).then(|| Switch { variable: variable.into(), default })
    })
}

fn memory(render: Render<'_>) -> Memory {
    let earlier = || Probe::of([user(), thinking(TEXT), user()]).prompt();
    let kept = |probe| render(probe).map(|text| text.contains(THOUGHT));
    let switch = MEMORIES.into_iter().find(|&(variable, keeps)| {
        let [keep, drop] = [keeps, !keeps].map(|value| kept(earlier().with(variable, value)));
        keep == Some(true) && drop == Some(false)
    });
    Memory {
        kept: kept(earlier()) == Some(true),
        switch: switch.map(|(variable, keeps)| (variable.to_owned(), keeps)),
    }
}

fn efforts(render: Render<'_>) -> Efforts {
    let prompt = || Probe::of([user()]).prompt();
    let of = |name: &str| render(prompt().with("reasoning_effort", name));
    let absent = render(prompt());
    let nonsense = of(NONSENSE);
    let texts = Effort::ALL.map(|effort| (effort, of(effort.name())));
    // A template either refuses unknown efforts, or writes any, or renders unknown ones in one way.
    let free = nonsense.as_ref().is_some_and(|text| text.contains(NONSENSE));
    let default = texts.iter().find(|(_, text)| text.is_some() && *text == absent);
    let default = default.map(|(effort, _)| *effort).filter(|_| nonsense.is_none() || free);
    let accepted = texts.iter().filter(|(_, text)| match (&nonsense, text) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(unknown), Some(text)) => free || text != unknown,
    });
    let accepted: Vec<Effort> = accepted.map(|(effort, _)| *effort).collect();
    let tells_apart = texts.iter().any(|(_, text)| text.is_some() && *text != absent);
    if tells_apart { Efforts { accepted, default } } else { Efforts::default() }
}

fn call_form(render: Render<'_>, close_of_thought: Option<&str>) -> Option<CallForm> {
    let one = || (NAMES[0], json!({KEY: VALUE}));
    let two = || [one(), (NAMES[1], json!({KEY: VALUE}))];
    let turn = |message: Value| render(Probe::of([user(), message]).tools());
    let plain = turn(said("assistant", TEXT))?;
    let end = plain.split_once(TEXT)?.1;

    let with_text = turn(calls(said("assistant", TEXT), [one()]));
    let silent = json!({"role": "assistant"});
    let without = turn(calls(silent.clone(), [one()]))
        .or_else(|| turn(calls(said("assistant", ""), [one()])))
        .or_else(|| with_text.clone())?;
    // Both begin with the conversation and the beginning of the turn.
    let body = &without[common(&without, &plain).len()..];
    let found = call(body)?;
    let (silent_lead, rest) = (&body[..found.begin], &body[found.end..]);
    let pair = turn(calls(silent, two())).or_else(|| turn(calls(said("assistant", ""), two())));
    let pair = pair.or_else(|| turn(calls(said("assistant", TEXT), two())));
    let between = pair.as_deref().and_then(|text| between(text, &found));
    let parallel = between.is_some();

    // What stands before every call: the part that the beginning of a turn and the space between two calls share.
    let before = match (&between, &found.syntax) {
        (Some(between), CallSyntax::Json { .. } | CallSyntax::Xml { .. }) => shared_end(silent_lead, between),
        _ => last_line(silent_lead),
    };
    let open = before.trim_start();
    let close = match (&between, &found.syntax) {
        (Some(between), CallSyntax::Json { .. } | CallSyntax::Xml { .. }) => common(rest, between),
        _ => rest.strip_suffix(end).unwrap_or(common(rest, rest.split(end).next()?)),
    };
    let close = close.trim_end();
    let gap_between = between.as_deref().map(|text| {
        text.strip_prefix(close).and_then(|text| text.strip_suffix(open)).unwrap_or("").to_owned()
    });
    let after = rest.strip_prefix(close)?;
    let until = |text: &str, marker: &str| {
        let start = text.rfind(marker)? + marker.len();
        let found = call(&text[start..])?;
        text[start..start + found.begin].strip_suffix(open).map(str::to_owned)
    };
    let after_text = with_text.as_deref().and_then(|text| until(text, TEXT));
    let thoughtful = turn(calls(thinking(""), [one()]));
    let after_thought = match (thoughtful, close_of_thought) {
        (Some(text), Some(marker)) if text.contains(THOUGHT) => until(&text, marker).unwrap_or_default(),
        _ => String::new(),
    };
    Some(CallForm {
        syntax: literals(render, found.syntax),
        open: open.into(),
        close: close.into(),
        after_text,
        after_thought,
        between: gap_between.unwrap_or_default(),
        after: after.strip_suffix(end).unwrap_or_default().into(),
        parallel,
    })
}

/// The text between two calls of a turn; for an array, that between its elements.
fn between(text: &str, first: &Found) -> Option<String> {
    let begin = text.rfind(NAMES[0])?;
    match first.syntax {
        CallSyntax::Array { .. } => text[begin..].find(NAMES[1]).map(|at| text[begin..][..at].to_owned()),
        _ => {
            let start = text[..begin].rfind(&text_start(first))?;
            let one = call(&text[start..])?;
            let rest = &text[start + one.end..];
            let two = call(rest)?;
            (two.name == NAMES[1]).then(|| rest[..two.begin].to_owned())
        }
    }
}

/// The bytes with which a call begins.
fn text_start(found: &Found) -> String {
    if matches!(found.syntax, CallSyntax::Xml { .. }) { "<function=".into() } else { "{".into() }
}

/// How the template writes `true` in a tagged call.
fn literals(render: Render<'_>, syntax: CallSyntax) -> CallSyntax {
    let CallSyntax::Xml { .. } = syntax else { return syntax };
    let message = calls(said("assistant", TEXT), [(NAMES[0], json!({KEY: true}))]);
    let text = render(Probe::of([user(), message]).tools()).unwrap_or_default();
    let python = text.contains(&format!("<parameter={KEY}>\nTrue\n"));
    CallSyntax::Xml { literals: if python { Literals::Python } else { Literals::Json } }
}

/// The beginning that two texts share.
fn common<'a>(a: &'a str, b: &str) -> &'a str {
    let end = a.char_indices().zip(b.chars()).find(|((_, x), y)| x != y).map(|((at, _), _)| at);
    &a[..end.unwrap_or(a.len().min(b.len()))]
}

/// The end that two texts share.
fn shared_end<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.chars().rev().zip(b.chars().rev()).take_while(|(x, y)| x == y);
    &a[a.len() - same.map(|(c, _)| c.len_utf8()).sum::<usize>()..]
}

/// The last marker of a text, with the white space after it.
fn last_line(text: &str) -> &str {
    let space = &text[text.trim_end().len()..];
    let tag = tag_at_end(text.trim_end()).unwrap_or_default();
    if tag.is_empty() { "" } else { &text[text.len() - space.len() - tag.len()..] }
}

fn roles(render: Render<'_>, source: &str) -> Roles {
    let has = |messages: Vec<Value>, texts: &[&str]| {
        let rendered = render(Probe::of(messages).prompt());
        rendered.is_some_and(|rendered| texts.iter().all(|text| rendered.contains(text)))
    };
    let system = || said("system", SYSTEM);
    let part = |text: &str| said("user", json!([{"type": "text", "text": text}]));
    let parts = render(Probe::of([part(USER)]).prompt());
    let called = |message: Value, tools: bool| {
        let call = calls(message, [(NAMES[0], json!({KEY: VALUE}))]);
        let probe = Probe::of([user(), call, result()]).prompt();
        render(if tools { probe.tools() } else { probe }).is_some()
    };
    // Templates may write a conversation without tools in another way.
    let needs_content = [true, false]
        .into_iter()
        .any(|tools| !called(json!({"role": "assistant"}), tools) && called(said("assistant", ""), tools));
    Roles {
        system: has(vec![system(), user()], &[SYSTEM]),
        several_systems: has(vec![system(), said("system", TEXT), user()], &[SYSTEM, TEXT]),
        later_system: has(vec![user(), said("assistant", TEXT), system(), user()], &[SYSTEM]),
        developer: source.contains("developer") && has(vec![said("developer", SYSTEM), user()], &[SYSTEM]),
        parts: parts.is_some_and(|text| text.contains(USER) && !text.contains(&format!("'{USER}'"))),
        no_content: !needs_content,
    }
}
