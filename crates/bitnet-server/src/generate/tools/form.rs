//! How a model writes tool calls: the grammar of an answer that may call tools.

use bitnet::schema::{Opens, Within};
use bitnet::{model::ChatTemplate, prompt::writes_tools};
use serde_json::json;

use super::{Offer, Tool};
use crate::generate::grammar::Format;

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
    /// The form of a model.
    pub fn of(template: Option<&ChatTemplate>) -> Form {
        let bare = |template: &&ChatTemplate| writes_tools(template) && !template.source().contains(OPEN);
        match template.filter(bare) {
            Some(_) => Form::Bare,
            None => Form::Tagged,
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
