//! How a model writes tool calls, and how earlier calls in a conversation are written for it.

use bitnet::model::{ChatTemplate, Message};
use bitnet::schema::{Opens, Within};
use serde_json::json;

use super::{Offer, Tool};
use crate::openai::grammar::Format;

/// The beginning of a call that may have text around it.
pub(super) const OPEN: &str = "<tool_call>";
/// The end of such a call.
pub(super) const CLOSE: &str = "</tool_call>";

/// How calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `<tool_call>`, an object with `name` and `arguments`, `</tool_call>`, anywhere and any number of times: Qwen,
    /// Hermes, and every model without a form of its own.
    Tagged,
    /// An object with `name` and `parameters` that is the whole answer: Llama 3.
    Bare,
}

impl Form {
    /// The form of a model, and whether its template writes tools and calls itself.
    pub fn of(template: Option<&ChatTemplate>) -> (Form, bool) {
        let Some(template) = template.filter(|template| template.asks_for("tools")) else {
            return (Form::Tagged, false);
        };
        let bare = template.source().contains("\"parameters\"") && template.asks_for("ipython");
        match template.source().contains(OPEN) {
            true => (Form::Tagged, true),
            false if bare => (Form::Bare, true),
            false => (Form::Tagged, false),
        }
    }

    /// The name of the field that holds a call's arguments.
    pub(super) fn arguments(self) -> &'static str {
        match self {
            Form::Tagged => "arguments",
            Form::Bare => "parameters",
        }
    }
}

/// The constraint on an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rule {
    /// A grammar in `llguidance`'s variant of Lark.
    pub lark: String,
    /// The part of the text to which the grammar applies, if the rest is free.
    pub within: Option<Within>,
}

impl Rule {
    /// The rule for an answer that may or must call tools. `thoughts` may precede the answer; `format` applies to an
    /// answer without calls.
    pub fn new(offer: &Offer, form: Form, thoughts: Thoughts, format: Option<&Format>) -> Rule {
        let calls = calls(offer, form);
        let free = !offer.required && format.is_none();
        let (start, within) = match (free, form) {
            (true, Form::Tagged) => {
                let within = Within { opens: Opens::After(OPEN.into()), again: offer.parallel };
                ("call_rest".to_owned(), Some(within))
            }
            (true, Form::Bare) => {
                ("call".to_owned(), Some(Within { opens: Opens::Object("name".into()), again: false }))
            }
            (false, form) => {
                let several = if form == Form::Tagged && offer.parallel { " (\"\\n\" call)*" } else { "" };
                let format = format.filter(|_| !offer.required);
                let format = format.map(|format| format!(" | {}", format.lark())).unwrap_or_default();
                (format!("{}(call{several}{format})", thoughts.lark()), None)
            }
        };
        let thoughts = if within.is_none() { thoughts.rule() } else { "" };
        Rule { lark: format!("start: {start}\n{thoughts}{calls}"), within }
    }
}

/// The thoughts that a model writes before an answer that must follow a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thoughts {
    None,
    /// `<think>`, anything, `</think>`, or nothing.
    Possible,
    /// Anything up to `</think>`, because the prompt ends with `<think>`.
    Open,
}

impl Thoughts {
    /// The thoughts that may follow a prompt.
    pub fn of(template: Option<&ChatTemplate>, prompt: &str) -> Thoughts {
        let prompt = prompt.trim_end();
        match template {
            Some(_) if prompt.ends_with("<think>") => Thoughts::Open,
            // A prompt that ends with `</think>` allows no further thoughts.
            Some(template) if template.asks_for_thinking() && !prompt.ends_with("</think>") => {
                Thoughts::Possible
            }
            _ => Thoughts::None,
        }
    }

    fn lark(self) -> &'static str {
        match self {
            Thoughts::None => "",
            Thoughts::Possible => "(thoughts gap)? ",
            Thoughts::Open => "thoughts gap ",
        }
    }

    fn rule(self) -> &'static str {
        match self {
            Thoughts::None => "",
            Thoughts::Possible => "thoughts[lazy]: /<think>(.|\\n)*<\\/think>/\ngap: (\"\\n\" \"\\n\"?)?\n",
            Thoughts::Open => "thoughts[lazy]: /(.|\\n)*<\\/think>/\ngap: (\"\\n\" \"\\n\"?)?\n",
        }
    }
}

/// The grammar's rules `call`, a call of any of the tools, and `call_rest`, the part of a call after [`OPEN`].
fn calls(offer: &Offer, form: Form) -> String {
    let (open, close) = match form {
        Form::Tagged => (format!("{:?} ", OPEN), format!(" {:?}", format!("\n{CLOSE}"))),
        Form::Bare => (String::new(), String::new()),
    };
    let space = if form == Form::Tagged { "\"\\n\"? " } else { "" };
    let each: Vec<String> = (0..offer.tools.len()).map(|i| format!("call_{i}")).collect();
    let mut lark = format!("call: {open}call_rest\ncall_rest: {space}({}){close}\n", each.join(" | "));
    for (i, Tool { name, arguments }) in offer.tools.iter().enumerate() {
        let head = format!("{{\"name\": {}, \"{}\": ", json!(name), form.arguments());
        lark += &format!("call_{i}: {} %json {arguments} \"}}\"\n", json!(head));
    }
    lark
}

/// Writes the tools, calls and results of a conversation as text, for a template that does not support tools.
pub(crate) fn plain(messages: Vec<Message>, tools: &[String]) -> Vec<Message> {
    let mut plain: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    if !tools.is_empty() {
        let explanation = explained(tools);
        match messages.first() {
            Some(first) if first.role == "system" => {}
            _ => plain.push(Message::new("system", explanation)),
        }
    }
    for (i, message) in messages.into_iter().enumerate() {
        match message.role.as_str() {
            "system" if i == 0 && !tools.is_empty() => {
                plain.push(Message::new("system", format!("{}\n\n{}", message.text(), explained(tools))));
            }
            "tool" => answer(&mut plain, message.text()),
            _ if !message.tool_calls.is_empty() => plain.push(called(&message)),
            _ => plain.push(message),
        }
    }
    plain
}

fn explained(tools: &[String]) -> String {
    format!(
        "You may call functions to help with what is asked. These are the functions, each as JSON:\n<tools>\n{}\n\
         </tools>\nTo call one, write its name and its arguments as JSON between tags:\n{OPEN}\n\
         {{\"name\": NAME, \"arguments\": ARGUMENTS}}\n{CLOSE}",
        tools.join("\n")
    )
}

/// Adds the result of a call. The results of several calls become one message, because templates expect the roles to
/// alternate.
fn answer(plain: &mut Vec<Message>, content: &str) {
    let text = format!("<tool_response>\n{content}\n</tool_response>");
    match plain.last_mut() {
        Some(last) if last.role == "user" && last.text().ends_with("</tool_response>") => {
            last.push_text("\n");
            last.push_text(&text);
        }
        _ => plain.push(Message::new("user", text)),
    }
}

fn called(message: &Message) -> Message {
    let call = |call: &bitnet::model::ToolCall| {
        format!("{OPEN}\n{{\"name\": {}, \"arguments\": {}}}\n{CLOSE}", json!(call.name), call.arguments)
    };
    let text = message.content.clone().filter(|text| !text.is_empty());
    let parts: Vec<String> = text.into_iter().chain(message.tool_calls.iter().map(call)).collect();
    Message { content: Some(parts.join("\n")), tool_calls: Vec::new(), ..message.clone() }
}
