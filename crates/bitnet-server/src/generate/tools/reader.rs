//! Separates the text of an answer from the tool calls in it, as the answer is generated.

use std::sync::Arc;

use bitnet::model::{CallForm, CallSyntax};
use bitnet::schema::StringTracker;

use super::{
    MAX_NAME, Tool,
    xml_reader::{XmlCall, XmlHead},
};

/// How calls are written in an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Calls {
    pub form: Arc<CallForm>,
    /// The tools that may be called.
    pub tools: Arc<[Tool]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    Text(String),
    /// A call begins: its index, counted from 0, and the tool's name.
    Call(usize, String),
    /// More of the arguments of the call with this index.
    Arguments(usize, String),
}

/// Reads one answer. The result does not depend on how the text is split into pieces. Whatever is not a call is text.
#[derive(Debug)]
pub(crate) struct Reader {
    calls: Option<Calls>,
    state: State,
    /// Text that was read but may still become part of a call.
    held: String,
    /// Number of calls that have begun.
    count: usize,
}

#[derive(Debug, Clone)]
enum State {
    /// Only text can follow.
    Plain,
    /// In text, until a call opens.
    Text,
    /// A call has opened, with this text before its name.
    Head(String),
    Arguments(Depth),
    Parameters(Box<XmlCall>),
    /// The arguments have ended, but the call has not.
    Tail,
}

/// The depth of braces and brackets in a JSON text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Depth {
    depth: usize,
    strings: StringTracker,
}

/// The first tag of a call in a text.
const FUNCTION: &str = "<function=";

impl Calls {
    fn open(&self) -> &str {
        self.form.open.trim()
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    fn is_xml(&self) -> bool {
        matches!(self.form.syntax, CallSyntax::Xml { .. })
    }

    /// The texts that may open a call.
    fn openings(&self) -> impl Iterator<Item = &str> {
        [self.open()].into_iter().chain(self.is_xml().then_some(FUNCTION)).filter(|open| !open.is_empty())
    }
}

impl Reader {
    /// Makes a reader of calls, or of text only.
    pub fn new(calls: Option<Calls>) -> Self {
        let mut reader = Reader { calls, state: State::Plain, held: String::new(), count: 0 };
        reader.state = match &reader.calls {
            None => State::Plain,
            Some(calls) if calls.openings().next().is_some() => State::Text,
            Some(_) => State::Head(String::new()),
        };
        reader
    }

    /// Whether there was a call.
    pub fn has_called(&self) -> bool {
        self.count > 0
    }

    /// Reads the next piece of the text.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Something other than text follows: what was held is no beginning of a call.
    pub fn pause(&mut self) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        if matches!(self.state, State::Text) {
            self.release(self.held.len(), &mut parts);
        }
        parts
    }

    /// Ends the text: what was held is text after all. If the text was `cut` off at its maximum length, the beginning
    /// of a call is dropped instead.
    pub fn finish(&mut self, cut: bool) -> Vec<AnswerPart> {
        let mut held = std::mem::take(&mut self.held);
        let text = match std::mem::replace(&mut self.state, State::Plain) {
            State::Head(before) if cut && self.is_call(&before, &held) => String::new(),
            State::Head(before) => before + &held,
            State::Parameters(mut call) if !cut => {
                let mut arguments = String::new();
                call.finish(&mut held, &mut arguments);
                return vec![AnswerPart::Arguments(self.count - 1, arguments)];
            }
            State::Arguments(_) | State::Parameters(_) | State::Tail => String::new(),
            _ if cut => held[..held.len() - self.begun(&held)].trim_end().to_owned(),
            _ if self.has_called() && held.trim().is_empty() => String::new(),
            _ => held,
        };
        if text.is_empty() { Vec::new() } else { vec![AnswerPart::Text(text)] }
    }

    /// Whether a text that may become a call is more likely one than text.
    fn is_call(&self, before: &str, held: &str) -> bool {
        !before.is_empty() || self.has_called() || held.trim_start().starts_with("{\"")
    }

    /// Reads some of the held text; returns whether there may be more to do.
    fn step(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match std::mem::replace(&mut self.state, State::Plain) {
            State::Plain => {
                self.release(self.held.len(), parts);
                false
            }
            State::Text => self.text(parts),
            State::Head(before) => self.head(before, parts),
            State::Arguments(depth) => self.arguments(depth, parts),
            State::Parameters(call) => self.parameters(call, parts),
            State::Tail => self.tail(),
        }
    }

    /// Releases the first `bytes` held bytes as text.
    fn release(&mut self, bytes: usize, parts: &mut Vec<AnswerPart>) {
        if bytes > 0 {
            parts.push(AnswerPart::Text(self.held.drain(..bytes).collect()));
        }
    }

    /// Number of bytes at the end of a text that may open a call.
    fn begun(&self, text: &str) -> usize {
        let openings = self.calls.iter().flat_map(Calls::openings);
        let begun = |open: &str| (1..open.len()).rev().find(|&n| text.ends_with(&open[..n])).unwrap_or(0);
        openings.map(begun).max().unwrap_or(0)
    }

    /// Reads text up to the opening of a call. White space before the opening belongs to the call.
    fn text(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let openings = self.calls.iter().flat_map(Calls::openings);
        let found = openings.filter_map(|open| Some((self.held.find(open)?, open))).min_by_key(|(at, _)| *at);
        if let Some((at, open)) = found {
            let end = self.held[..at].trim_end().len();
            let taken = if open == FUNCTION { 0 } else { open.len() };
            self.release(end, parts);
            let before = self.held.drain(..at - end + taken).collect();
            self.state = State::Head(before);
            return true;
        }
        let end = self.held[..self.held.len() - self.begun(&self.held)].trim_end().len();
        self.release(end, parts);
        self.state = State::Text;
        false
    }

    /// Reads the name of a call, up to its arguments.
    fn head(&mut self, before: String, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(calls) = &self.calls else { return true };
        let head = match &calls.form.syntax {
            CallSyntax::Json { name, arguments } => Head::read(&self.held, "", name, arguments),
            CallSyntax::Array { name, arguments } => {
                let array = if before.is_empty() { "" } else { "[" };
                Head::read(&self.held, array, name, arguments)
            }
            CallSyntax::Xml { .. } => match XmlHead::read(&self.held, MAX_NAME) {
                XmlHead::Incomplete => Head::Incomplete,
                XmlHead::Named { name, bytes } => Head::Named { name, bytes },
                XmlHead::Other => Head::Other,
            },
        };
        let tool = match &head {
            Head::Named { name, .. } => calls.tool(name),
            Head::Incomplete | Head::Other => None,
        };
        match (head, tool) {
            (Head::Incomplete, _) => {
                self.state = State::Head(before);
                false
            }
            (Head::Named { name, bytes }, Some(tool)) => {
                let xml = calls.is_xml().then(|| Box::new(XmlCall::new(tool.arguments.clone())));
                self.held.drain(..bytes);
                parts.push(AnswerPart::Call(self.count, name));
                if xml.is_some() {
                    parts.push(AnswerPart::Arguments(self.count, "{".into()));
                }
                self.count += 1;
                self.state = xml.map_or(State::Arguments(Depth::default()), State::Parameters);
                true
            }
            _ => self.no_call(before, parts),
        }
    }

    /// Goes on after something that only looked like the opening of a call.
    fn no_call(&mut self, mut before: String, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(calls) = &self.calls else { return true };
        let tagged = calls.openings().next().is_some();
        if self.held.starts_with(FUNCTION) {
            // It is not read again as an opening.
            before.extend(self.held.drain(..FUNCTION.len()));
        }
        if !before.is_empty() {
            parts.push(AnswerPart::Text(before));
        }
        self.state = if tagged { State::Text } else { State::Plain };
        true
    }

    fn arguments(&mut self, mut depth: Depth, parts: &mut Vec<AnswerPart>) -> bool {
        let end = self.held.bytes().position(|byte| depth.closes(byte));
        let text: String = self.held.drain(..end.map_or(self.held.len(), |end| end + 1)).collect();
        if !text.is_empty() {
            parts.push(AnswerPart::Arguments(self.count - 1, text));
        }
        self.state = if end.is_some() { State::Tail } else { State::Arguments(depth) };
        end.is_some()
    }

    fn parameters(&mut self, mut call: Box<XmlCall>, parts: &mut Vec<AnswerPart>) -> bool {
        let mut arguments = String::new();
        let ended = call.read(&mut self.held, &mut arguments);
        if !arguments.is_empty() {
            parts.push(AnswerPart::Arguments(self.count - 1, arguments));
        }
        self.state = if ended { State::Tail } else { State::Parameters(call) };
        ended
    }

    /// Drops what closes a call: a brace, a bracket, a tag. In an array, another call may follow.
    fn tail(&mut self) -> bool {
        let Some(calls) = &self.calls else { return true };
        let array = matches!(calls.form.syntax, CallSyntax::Array { .. });
        let brace = if calls.is_xml() { "" } else { "}" };
        let close = calls.form.close.trim();
        let mut rest = self.held.as_str();
        for part in [brace, if array { "," } else { "" }, if array { "]" } else { "" }, close] {
            if part.is_empty() {
                continue;
            }
            rest = rest.trim_start();
            match rest.strip_prefix(part) {
                Some(after) if part == "," => {
                    self.held = after.to_owned();
                    self.state = State::Head(String::new());
                    return true;
                }
                Some(after) => rest = after,
                None if part.starts_with(rest) => {
                    self.state = State::Tail;
                    return false;
                }
                None if part == "," => {}
                None => break,
            }
        }
        let tagged = calls.openings().next().is_some();
        self.held = rest.to_owned();
        self.state = if tagged { State::Text } else { State::Plain };
        true
    }
}

impl Depth {
    /// Reads a byte; returns whether it closes the value.
    fn closes(&mut self, byte: u8) -> bool {
        let outside = self.strings.read(byte);
        match byte {
            b'{' | b'[' if outside => self.depth += 1,
            b'}' | b']' if outside => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// The beginning of a call, `{"name": "NAME", "arguments": {`, with any white space.
#[derive(Debug, PartialEq, Eq)]
enum Head {
    /// The text may still become the beginning of a call.
    Incomplete,
    /// The text begins a call of this tool; its arguments begin after this many bytes.
    Named { name: String, bytes: usize },
    /// The text does not begin a call.
    Other,
}

impl Head {
    /// Reads a call's beginning after `array`, with these names of its fields.
    fn read(text: &str, array: &str, name: &str, arguments: &str) -> Head {
        let mut rest = text;
        for part in [array, "{", &format!("\"{name}\""), ":"] {
            rest = match after(rest, part) {
                Ok(rest) => rest,
                Err(head) => return head,
            };
        }
        rest = rest.trim_start();
        let name = match rest.strip_prefix('"').map(|rest| rest.split_once('"')) {
            // Names contain nothing that JSON escapes.
            Some(Some((name, after))) => {
                rest = after;
                name
            }
            Some(None) if rest.len() <= 1 + MAX_NAME => return Head::Incomplete,
            None if rest.is_empty() => return Head::Incomplete,
            _ => return Head::Other,
        };
        for part in [",", &format!("\"{arguments}\""), ":"] {
            rest = match after(rest, part) {
                Ok(rest) => rest,
                Err(head) => return head,
            };
        }
        rest = rest.trim_start();
        match rest.chars().next() {
            None => Head::Incomplete,
            Some('{') => Head::Named { name: name.to_owned(), bytes: text.len() - rest.len() },
            Some(_) => Head::Other,
        }
    }
}

/// Skips white space and `part`, and returns the rest.
fn after<'t>(text: &'t str, part: &str) -> Result<&'t str, Head> {
    let text = text.trim_start();
    match text.strip_prefix(part) {
        Some(rest) => Ok(rest),
        None if part.starts_with(text) => Err(Head::Incomplete),
        None => Err(Head::Other),
    }
}

#[cfg(test)]
mod tests;
