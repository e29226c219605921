//! How a model writes tool calls: the grammar of an answer that may call tools.

use std::sync::Arc;

use bitnet::{
    model::{CallForm, CallSyntax, ChatTemplate},
    prompt::writes_tools,
    schema::{Opens, Within},
};
use serde_json::json;

use super::{Offer, Tool, xml};
use crate::generate::grammar::Format;

/// The form of a model's calls: that of its template, or the one that prompts teach where a template has none.
pub(crate) fn form(template: Option<&ChatTemplate>) -> Arc<CallForm> {
    let own = template.filter(|template| writes_tools(template));
    Arc::new(own.and_then(|template| template.conventions().calls.clone()).unwrap_or_else(taught))
}

/// An object between tags, anywhere and any number of times.
pub(super) fn taught() -> CallForm {
    CallForm {
        syntax: CallSyntax::Json { name: "name".into(), arguments: "arguments".into() },
        open: "<tool_call>\n".into(),
        close: "\n</tool_call>".into(),
        after_text: Some("\n".into()),
        after_thought: String::new(),
        between: "\n".into(),
        after: String::new(),
        parallel: true,
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
    /// The rule for an answer that may or must call tools. `format` applies to an answer without calls.
    ///
    /// # Errors
    /// What in the schema of a tool the grammar cannot hold.
    pub fn new(offer: &Offer, form: &CallForm, format: Option<&Format>) -> Result<Rule, String> {
        let array = matches!(form.syntax, CallSyntax::Array { .. });
        let several = offer.parallel && form.parallel;
        let calls = calls(&offer.tools, form, several)?;
        let free = !offer.required && format.is_none();
        let (start, within) = match (free, form.open.trim()) {
            (true, "") => {
                let within = Within { opens: Opens::Object(name_of(form).into()), again: false };
                ("call".to_owned(), Some(within))
            }
            (true, open) => {
                let within = Within { opens: Opens::After(open.into()), again: several && !array };
                ("call_rest".to_owned(), Some(within))
            }
            (false, _) => {
                let next = if several && !array && !form.open.is_empty() {
                    format!(" ({} call)*", json!(form.between))
                } else {
                    String::new()
                };
                let format = format.filter(|_| !offer.required);
                let format = format.map(|format| format!(" | {}", format.lark())).unwrap_or_default();
                (format!("(call{next}{format})"), None)
            }
        };
        Ok(Rule { lark: format!("start: {start}\n{calls}"), within })
    }
}

/// The field with the name of a call that is written as an object.
fn name_of(form: &CallForm) -> &str {
    match &form.syntax {
        CallSyntax::Json { name, .. } | CallSyntax::Array { name, .. } => name,
        CallSyntax::Xml { .. } => "name",
    }
}

/// The grammar's rules `call`, a call of any of the tools (in an array, several), and `call_rest`, the part of it after
/// the opening tag.
fn calls(tools: &[Tool], form: &CallForm, several: bool) -> Result<String, String> {
    let CallForm { open, close, syntax, .. } = form;
    let tag = open.trim();
    let (before, after) = match syntax {
        CallSyntax::Array { .. } => (format!("{}[\n  ", &open[tag.len()..]), format!("\n]{close}")),
        _ => (open[tag.len()..].to_owned(), close.clone()),
    };
    let literal = |text: &str| if text.is_empty() { String::new() } else { format!("{} ", json!(text)) };
    let more = match syntax {
        CallSyntax::Array { .. } if several => "(\",\\n  \" any)* ",
        _ => "",
    };
    let each: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
    let (tag, before, after) = (literal(tag), literal(&before), literal(&after));
    let mut lark =
        format!("call: {tag}call_rest\ncall_rest: {before}any {more}{after}\nany: {}\n", each.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        lark += &match syntax {
            CallSyntax::Xml { literals } => xml::rules(i, tool, *literals)?,
            CallSyntax::Json { name, arguments } | CallSyntax::Array { name, arguments } => {
                let head = format!("{{{}: {}, {}: ", json!(name), json!(tool.name), json!(arguments));
                format!("call_{i}: {} %json {} \"}}\"\n", json!(head), tool.arguments)
            }
        };
    }
    Ok(lark)
}
