//! Reads calls that are written as tags with a parameter each, and turns their values into JSON as they come.

use serde_json::{Value, json};

use super::{
    values::{Kinds, parameter},
    xml::END,
};

/// The end tag of a value, without the line end before it.
const CLOSE: &str = "</parameter>";
const PARAMETER: &str = "<parameter=";
const FUNCTION_END: &str = "</function>";

/// The beginning of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum XmlHead {
    /// The text may still become the beginning of a call.
    Incomplete,
    /// The text begins a call of this tool, with parameters after this many bytes.
    Named { name: String, bytes: usize },
    /// The text does not begin a call.
    Other,
}

/// The parameters of one call.
#[derive(Debug, Clone)]
pub(super) struct XmlCall {
    /// The schema of the arguments.
    schema: Value,
    /// Number of parameters that have begun.
    count: usize,
    value: Option<Parameter>,
}

/// A parameter whose value is being read.
#[derive(Debug, Clone)]
struct Parameter {
    kinds: Kinds,
    /// Whether the line end before the value, if there is one, and the opening quote have been passed.
    begun: bool,
}

impl XmlHead {
    /// Reads `<function=NAME>`, after white space.
    pub fn read(text: &str, max_name: usize) -> XmlHead {
        const OPEN: &str = "<function=";
        let rest = text.trim_start();
        let Some(named) = rest.strip_prefix(OPEN) else {
            return if OPEN.starts_with(rest) { XmlHead::Incomplete } else { XmlHead::Other };
        };
        match named.split_once('>') {
            Some((name, after)) => XmlHead::Named { name: name.to_owned(), bytes: text.len() - after.len() },
            None if named.len() <= max_name => XmlHead::Incomplete,
            None => XmlHead::Other,
        }
    }
}

impl XmlCall {
    /// A call whose arguments follow this schema.
    pub fn new(schema: Value) -> Self {
        XmlCall { schema, count: 0, value: None }
    }

    /// Reads what is certain of the held text, and adds it to the arguments; returns whether the call has ended.
    pub fn read(&mut self, held: &mut String, arguments: &mut String) -> bool {
        loop {
            let more = match self.value.take() {
                Some(parameter) => self.value(parameter, held, arguments),
                None => match self.tag(held, arguments) {
                    Some(true) => return true,
                    Some(false) => true,
                    None => false,
                },
            };
            if !more {
                return false;
            }
        }
    }

    /// Ends a call whose end is missing.
    pub fn finish(&mut self, held: &mut String, arguments: &mut String) {
        if let Some(parameter) = self.value.take() {
            let rest = std::mem::take(held);
            let end = rest.find("\n</").unwrap_or(rest.len());
            parameter.end(&rest[..end], arguments);
        }
        held.clear();
        arguments.push('}');
    }

    /// Reads a tag between values: `Some(true)` at the end of the call, `None` if the text is incomplete.
    fn tag(&mut self, held: &mut String, arguments: &mut String) -> Option<bool> {
        let rest = held.trim_start();
        if let Some((key, _)) = rest.strip_prefix(PARAMETER).and_then(|rest| rest.split_once('>')) {
            let separator = if self.count == 0 { "" } else { ", " };
            *arguments += &format!("{separator}{}: ", json!(key));
            self.count += 1;
            let kinds = Kinds::of(&self.schema, parameter(&self.schema, key));
            self.value = Some(Parameter { kinds, begun: false });
            let bytes = held.len() - rest.len() + PARAMETER.len() + key.len() + 1;
            held.drain(..bytes);
            return Some(false);
        }
        if rest.starts_with(PARAMETER)
            || PARAMETER.starts_with(rest)
            || FUNCTION_END.starts_with(rest) && rest != FUNCTION_END
        {
            return None;
        }
        // Whatever else comes here ends the call.
        *held = rest.strip_prefix(FUNCTION_END).unwrap_or(rest).to_owned();
        arguments.push('}');
        Some(true)
    }

    /// Reads a value; returns whether it has ended.
    fn value(&mut self, mut parameter: Parameter, held: &mut String, arguments: &mut String) -> bool {
        let end = held.find(END).map(|at| (at, at + END.len()));
        // A value without a line end before it and after it.
        let end = end.or_else(|| {
            held.find(CLOSE).filter(|_| !held.starts_with('\n')).map(|at| (at, at + CLOSE.len()))
        });
        if let Some((at, after)) = end {
            parameter.end(&held[..at], arguments);
            held.drain(..after);
            return true;
        }
        if parameter.kinds.is_text() {
            let whole = held.len() - (1..END.len()).rev().find(|&n| held.ends_with(&END[..n])).unwrap_or(0);
            parameter.pass(&held[..whole], arguments);
            held.drain(..whole);
        }
        self.value = Some(parameter);
        false
    }
}

impl Parameter {
    /// Passes on a part of a text.
    fn pass(&mut self, text: &str, arguments: &mut String) {
        if text.is_empty() {
            return;
        }
        let text = if self.begun { text } else { text.strip_prefix('\n').unwrap_or(text) };
        if !std::mem::replace(&mut self.begun, true) {
            arguments.push('"');
        }
        let quoted = json!(text).to_string();
        *arguments += &quoted[1..quoted.len() - 1];
    }

    /// Passes on the rest of the value.
    fn end(mut self, rest: &str, arguments: &mut String) {
        if self.kinds.is_text() {
            self.pass(rest, arguments);
            *arguments += if self.begun { "\"" } else { "\"\"" };
        } else {
            *arguments += &self.kinds.json(rest.strip_prefix('\n').unwrap_or(rest));
        }
    }
}
