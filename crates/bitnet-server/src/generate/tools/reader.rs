//! Separates the text of an answer from the tool calls in it, as the answer is generated.

use std::sync::Arc;

use bitnet::schema::StringTracker;

use super::{
    MAX_NAME,
    form::{CLOSE, Form, OPEN},
};

/// How calls are written in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Calls {
    pub form: Form,
    /// The tools that may be called.
    pub names: Arc<[String]>,
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

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Only text can follow.
    Plain,
    /// In text, until a call opens.
    Text,
    /// A call has opened, with this text before its brace.
    Head(String),
    Arguments(Depth),
    /// The arguments have ended, but the call has not.
    Tail,
}

/// The depth of braces and brackets in a JSON text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Depth {
    depth: usize,
    strings: StringTracker,
}

impl Reader {
    /// Makes a reader of calls, or of text only.
    pub fn new(calls: Option<Calls>) -> Self {
        let state = match calls.as_ref().map(|calls| calls.form) {
            None => State::Plain,
            Some(Form::Tagged) => State::Text,
            Some(Form::Bare) => State::Head(String::new()),
        };
        Reader { calls, state, held: String::new(), count: 0 }
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

    /// Ends the text: what was held is text after all.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let held = std::mem::take(&mut self.held);
        let text = match std::mem::replace(&mut self.state, State::Plain) {
            State::Head(before) => before + &held,
            State::Tail => String::new(),
            _ if self.has_called() && held.trim().is_empty() => String::new(),
            _ => held,
        };
        if text.is_empty() { Vec::new() } else { vec![AnswerPart::Text(text)] }
    }

    /// Reads some of the held text; returns whether there may be more to do.
    fn step(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match self.state.clone() {
            State::Plain => {
                self.release(self.held.len(), parts);
                false
            }
            State::Text => self.text(parts),
            State::Head(before) => self.head(before, parts),
            State::Arguments(depth) => self.arguments(depth, parts),
            State::Tail => self.tail(),
        }
    }

    /// Releases the first `bytes` held bytes as text.
    fn release(&mut self, bytes: usize, parts: &mut Vec<AnswerPart>) {
        if bytes > 0 {
            parts.push(AnswerPart::Text(self.held.drain(..bytes).collect()));
        }
    }

    /// Reads text up to the opening of a call. White space before the opening belongs to the call.
    fn text(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        if let Some(at) = self.held.find(OPEN) {
            let end = self.held[..at].trim_end().len();
            self.release(end, parts);
            let before = self.held.drain(..at - end + OPEN.len()).collect();
            self.state = State::Head(before);
            return true;
        }
        let begun = (1..OPEN.len()).rev().find(|&n| self.held.ends_with(&OPEN[..n])).unwrap_or(0);
        let end = self.held[..self.held.len() - begun].trim_end().len();
        self.release(end, parts);
        false
    }

    /// Reads the name of a call, up to the brace of its arguments.
    fn head(&mut self, before: String, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(Calls { form, names }) = &self.calls else { return false };
        match Head::read(&self.held, form.arguments()) {
            Head::Incomplete => false,
            Head::Named { name, bytes } if names.contains(&name) => {
                self.held.drain(..bytes);
                parts.push(AnswerPart::Call(self.count, name));
                self.count += 1;
                self.state = State::Arguments(Depth::default());
                true
            }
            Head::Named { .. } | Head::Other => {
                self.state = if *form == Form::Tagged { State::Text } else { State::Plain };
                if !before.is_empty() {
                    parts.push(AnswerPart::Text(before));
                }
                true
            }
        }
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

    /// Drops the closing brace of the call and, in the tagged form, the closing tag.
    fn tail(&mut self) -> bool {
        let form = self.calls.as_ref().map_or(Form::Bare, |calls| calls.form);
        let (mut rest, close) = (self.held.as_str(), if form == Form::Tagged { CLOSE } else { "" });
        for part in ["}", close] {
            rest = rest.trim_start();
            match rest.strip_prefix(part) {
                Some(after) => rest = after,
                None if part.starts_with(rest) => return false,
                None => break,
            }
        }
        self.held = rest.to_owned();
        self.state = if form == Form::Tagged { State::Text } else { State::Plain };
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
    fn read(text: &str, arguments: &str) -> Head {
        let mut rest = text;
        for part in ["{", "\"name\"", ":"] {
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
mod tests {
    use super::*;

    fn reader(form: Form) -> Reader {
        Reader::new(Some(Calls { form, names: ["add".to_owned(), "now".to_owned()].into() }))
    }

    /// The parts of an answer, with neighbouring parts of one kind put together.
    fn parts(mut reader: Reader, pieces: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<AnswerPart> {
        let mut all: Vec<AnswerPart> = Vec::new();
        let mut add = |parts: Vec<AnswerPart>| {
            for part in parts {
                match (all.last_mut(), part) {
                    (Some(AnswerPart::Text(text)), AnswerPart::Text(more)) => text.push_str(&more),
                    (Some(AnswerPart::Arguments(a, text)), AnswerPart::Arguments(b, more)) if *a == b => {
                        text.push_str(&more);
                    }
                    (_, part) => all.push(part),
                }
            }
        };
        for piece in pieces {
            add(reader.push(piece.as_ref()));
        }
        add(reader.finish());
        all
    }

    fn text(text: &str) -> AnswerPart {
        AnswerPart::Text(text.into())
    }

    fn call(index: usize, name: &str, arguments: &str) -> [AnswerPart; 2] {
        [AnswerPart::Call(index, name.into()), AnswerPart::Arguments(index, arguments.into())]
    }

    const TWO: &str = "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": [{}]}}\n\
                       </tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n";

    #[test]
    fn calls_are_the_same_however_the_text_is_cut() {
        let mut want = vec![text("I add.")];
        want.extend(call(0, "add", "{\"a\": \"}\\\"{\", \"b\": [{}]}"));
        want.extend(call(1, "now", "{}"));
        assert_eq!(parts(reader(Form::Tagged), [TWO]), want);
        assert_eq!(parts(reader(Form::Tagged), TWO.chars().map(String::from)), want);
        for at in 0..TWO.len() {
            assert_eq!(parts(reader(Form::Tagged), [&TWO[..at], &TWO[at..]]), want, "{at}");
        }
    }

    #[test]
    fn a_whole_answer_is_a_call_where_the_form_has_no_tags() {
        let answer = "\n{\"name\": \"add\", \"parameters\": {\"a\": 1}}";
        assert_eq!(parts(reader(Form::Bare), [answer]), call(0, "add", "{\"a\": 1}"));
        assert_eq!(parts(reader(Form::Bare), answer.chars().map(String::from)), call(0, "add", "{\"a\": 1}"));
        let later = format!("Here: {answer}");
        assert_eq!(parts(reader(Form::Bare), [&later]), [text(&later)], "only at the beginning");
    }

    #[test]
    fn what_is_no_call_is_text() {
        for other in [
            "no call",
            "a < b <tool_cal",
            "<tool_call>",
            "<tool_call>\nhello</tool_call>",
            "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"add\", \"arguments\": [1]}\n</tool_call>",
            "<tool_call>\n{\"arguments\": {}, \"name\": \"add\"}\n</tool_call>",
            "<tool_call>\n{\"name\": \"add\", \"argu",
            "{\"name\": \"add\", \"parameters\": {}}",
            "trailing space \n ",
        ] {
            assert_eq!(parts(reader(Form::Tagged), [other]), [text(other)], "{other}");
            assert_eq!(
                parts(reader(Form::Tagged), other.chars().map(String::from)),
                [text(other)],
                "{other}"
            );
        }
        for other in ["{\"name\": \"other\", \"parameters\": {}}", "{\"a\": 1}", "{", " {\"nam", TWO] {
            assert_eq!(parts(reader(Form::Bare), [other]), [text(other)], "{other}");
        }
        assert_eq!(parts(Reader::new(None), [TWO]), [text(TWO)], "none was offered");
    }

    #[test]
    fn a_call_that_is_cut_off_keeps_the_arguments_that_came() {
        let cut = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1";
        assert_eq!(parts(reader(Form::Tagged), [cut]), call(0, "add", "{\"a\": 1"));
        assert_eq!(
            parts(reader(Form::Tagged), [&format!("{cut}}}}}\n</tool")]),
            call(0, "add", "{\"a\": 1}")
        );
    }
}
