//! Reads one text token by token and separates its thoughts from its answer.

use std::sync::Arc;

use super::{Part, Place, ThoughtBudget, ThoughtRule};

/// Most white space before an opening marker, in bytes.
const MAX_SPACE: usize = 64;
/// Most bytes after the first one of a character.
const MAX_CONTINUATION: usize = 3;

/// Reads one text and separates thoughts from the answer. The result does not depend on how the text is cut, except that
/// only a token begins a thought within the answer.
#[derive(Debug, Clone)]
pub struct ThoughtReader {
    rule: Arc<ThoughtRule>,
    state: State,
    /// Bytes that may still become part of a marker, or white space at the end of a thought.
    held: Vec<u8>,
    /// Tokens after the opening marker, as far as they are within the thought.
    used: usize,
    /// Tokens of the thought and its markers.
    counted: usize,
    /// Tokens before it is known whether the text begins with a thought.
    undecided: usize,
    /// The end of the thought that is being written before a call, with the call's token; empty if none is.
    closing: Vec<u32>,
    /// How many tokens of it, or of the budget's ending, have been read.
    ended: usize,
    /// Whether the answer is at the beginning of a line, before any call.
    may_think: bool,
    /// Whether a call has begun.
    called: bool,
    /// Bytes that the last character lacks.
    missing: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the beginning of a text that may open a thought.
    Before,
    /// In a thought, before its first character.
    Lead,
    Thought,
    /// After the end marker, before the first character of the answer.
    Gap,
    Answer,
}

impl ThoughtReader {
    pub(super) fn new(rule: Arc<ThoughtRule>) -> ThoughtReader {
        let state = if rule.open { State::Lead } else { State::Before };
        ThoughtReader {
            rule,
            state,
            held: Vec::new(),
            used: 0,
            counted: 0,
            undecided: 0,
            closing: Vec::new(),
            ended: 0,
            may_think: false,
            called: false,
            missing: 0,
        }
    }

    /// Reads the next token and its text, or more text without a token. Passes the parts that are now certain to `out`.
    pub fn push(&mut self, token: Option<u32>, text: &[u8], mut out: impl FnMut(Part, &[u8])) {
        let before = self.state;
        if let Some(forced) = self.forced() {
            // A text from elsewhere may go on differently; its thought is then not ended twice.
            let as_forced = token == Some(forced);
            self.ended = if as_forced { self.ended + 1 } else { usize::MAX };
        }
        self.missing = text.iter().fold(self.missing, |missing, &byte| still_missing(missing, byte));
        let calls = token.is_some_and(|token| self.rule.calls.contains(&token));
        if calls && self.thinks() {
            self.finish(&mut out);
            (self.state, self.called) = (State::Answer, true);
            out(Part::Answer, text);
            return;
        }
        if self.thinks_again(token) {
            let marker = self.rule.opening.text.as_bytes();
            pass(Part::Answer, text.strip_suffix(marker).unwrap_or_default(), &mut out);
            self.enter(State::Lead);
            (self.closing, self.ended) = (Vec::new(), 0);
            self.counted += 1;
            return;
        }
        self.follow_lines(text, calls);
        self.held.extend_from_slice(text);
        while self.step(&mut out) {}
        // Markers without text, such as control tokens.
        if token.is_some() && token == self.rule.opening.token && self.state == State::Before {
            self.enter(State::Lead);
        }
        if token.is_some() && token == self.rule.closing.token && self.thinks() {
            self.finish(&mut out);
            self.enter(State::Gap);
        }
        self.count(before);
    }

    /// Ends the text: passes what was held to `out`.
    pub fn finish(&mut self, mut out: impl FnMut(Part, &[u8])) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Before | State::Answer => pass(Part::Answer, &held, &mut out),
            State::Lead | State::Thought => pass(Part::Thought, held.trim_ascii(), &mut out),
            State::Gap => {}
        }
    }

    /// Whether the text ends within a thought.
    pub fn thinks(&self) -> bool {
        matches!(self.state, State::Lead | State::Thought)
    }

    /// Whether the answer has begun: the next text belongs to it, whatever it is.
    pub fn answers(&self) -> bool {
        self.state == State::Answer
    }

    /// Whether the text so far is a thought with its end marker, and the answer has not begun.
    pub fn is_closed(&self) -> bool {
        self.state == State::Gap
    }

    /// Number of bytes of the end marker with which the thought ends.
    pub fn begun(&self) -> usize {
        let marker = self.rule.closing.text.as_bytes();
        (1..marker.len()).rev().find(|&n| self.held.ends_with(&marker[..n])).unwrap_or(0)
    }

    /// Number of tokens of the thought, markers included.
    pub fn tokens(&self) -> usize {
        self.counted
    }

    /// The tokens that are written instead of a drawn one that begins a call within a thought: they close the thought, and
    /// the drawn token is the last of them. `None` if the drawn token can follow.
    pub fn closed_before(&self, drawn: u32) -> Option<Vec<u32>> {
        let end = self.rule.before_call.as_ref().filter(|_| self.thinks() && self.closing.is_empty())?;
        let begins_call = self.rule.calls.contains(&drawn);
        let has_tail = !end.tail.is_empty() && self.held.ends_with(end.tail.as_bytes());
        let tail = if has_tail { &[][..] } else { &end.tail_tokens };
        begins_call.then(|| tail.iter().chain(&end.tokens).copied().chain([drawn]).collect())
    }

    /// Begins to close the thought with these tokens: the next ones are forced.
    pub(crate) fn close_with(&mut self, tokens: Vec<u32>) {
        (self.closing, self.ended) = (tokens, 0);
    }

    /// The token that must follow, because the budget of the thought is used up, or a call follows.
    pub fn forced(&self) -> Option<u32> {
        if !self.closing.is_empty() {
            return self.closing.get(self.ended).copied();
        }
        let ThoughtBudget { tokens, ending } = self.rule.budget.as_ref()?;
        let whole = self.missing == 0 || self.used >= tokens.saturating_add(MAX_CONTINUATION);
        let due = self.ended > 0 || self.thinks() && self.used >= *tokens && whole;
        ending.get(self.ended).copied().filter(|_| due)
    }

    /// Reads the next token without keeping its text.
    pub(crate) fn place(&mut self, token: u32, text: &[u8]) -> Place {
        let mut answered = 0;
        self.push(Some(token), text, |part, bytes| {
            answered += if part == Part::Answer { bytes.len() } else { 0 };
        });
        match self.state {
            State::Before => Place::Undecided,
            State::Answer => Place::Answer { before: text.len().saturating_sub(answered) },
            _ => Place::Thought,
        }
    }

    /// Whether a token begins another thought.
    fn thinks_again(&self, token: Option<u32>) -> bool {
        let may = match self.state {
            State::Gap => true,
            State::Answer => self.may_think,
            _ => false,
        };
        may && self.rule.again && token.is_some() && token == self.rule.opening.token
    }

    /// Notes whether the next token is at the beginning of a line; after a call, no thought can begin.
    fn follow_lines(&mut self, text: &[u8], calls: bool) {
        self.called |= calls;
        self.may_think = !self.called && text.last().map_or(self.may_think, |&byte| byte == b'\n');
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.held.clear();
    }

    /// Reads some of the held text; returns whether there may be more to do.
    fn step(&mut self, out: &mut impl FnMut(Part, &[u8])) -> bool {
        match self.state {
            State::Before => self.before(out),
            State::Lead => self.lead(),
            State::Thought => self.thought(out),
            State::Gap => self.gap(),
            State::Answer => {
                pass(Part::Answer, &self.held, out);
                self.held.clear();
                false
            }
        }
    }

    fn before(&mut self, out: &mut impl FnMut(Part, &[u8])) -> bool {
        let rest = self.held.trim_ascii_start();
        let marker = self.rule.opening.text.as_bytes();
        let space = self.held.len() - rest.len();
        if space <= MAX_SPACE && !marker.is_empty() && rest.starts_with(marker) {
            self.held.drain(..space + marker.len());
            self.state = State::Lead;
            return true;
        }
        if space > MAX_SPACE || !marker.starts_with(rest) {
            pass(Part::Answer, &self.held, out);
            self.enter(State::Answer);
        }
        false
    }

    /// Skips white space, and an opening marker that repeats the prompt's.
    fn lead(&mut self) -> bool {
        let rest = self.held.trim_ascii_start();
        let marker = self.rule.opening.text.as_bytes();
        let space = self.held.len() - rest.len();
        let again = !marker.is_empty() && rest.starts_with(marker);
        let waits = marker.starts_with(rest);
        self.held.drain(..space + if again { marker.len() } else { 0 });
        if !again && !waits {
            self.state = State::Thought;
        }
        again || !waits
    }

    fn thought(&mut self, out: &mut impl FnMut(Part, &[u8])) -> bool {
        let marker = self.rule.closing.text.as_bytes();
        let at = self.held.windows(marker.len().max(1)).position(|window| window == marker);
        let end = at.unwrap_or_else(|| self.held.len() - self.begun());
        let certain = self.held[..end].trim_ascii_end().len();
        pass(Part::Thought, &self.held[..certain], out);
        self.held.drain(..at.map_or(certain, |at| at + marker.len()));
        if at.is_some() {
            self.state = State::Gap;
        }
        at.is_some()
    }

    /// Skips line ends, and whatever white space the template writes.
    fn gap(&mut self) -> bool {
        let skipped = |byte: &u8| b"\r\n".contains(byte) || self.rule.gap.as_bytes().contains(byte);
        let space = self.held.iter().take_while(|byte| skipped(byte)).count();
        self.held.drain(..space);
        if !self.held.is_empty() {
            self.state = State::Answer;
        }
        !self.held.is_empty()
    }

    /// Counts a token that was read in this state.
    fn count(&mut self, before: State) {
        match before {
            State::Before if self.state == State::Before => self.undecided += 1,
            State::Before if self.state != State::Answer => {
                self.counted += std::mem::take(&mut self.undecided) + 1;
            }
            State::Lead | State::Thought => {
                self.counted += 1;
                self.used += 1;
            }
            _ => {}
        }
    }
}

fn pass(part: Part, bytes: &[u8], out: &mut impl FnMut(Part, &[u8])) {
    if !bytes.is_empty() {
        out(part, bytes);
    }
}

/// Number of bytes that the last character lacks after this byte.
fn still_missing(missing: usize, byte: u8) -> usize {
    match byte {
        0x80..=0xBF => missing.saturating_sub(1),
        0xC2..=0xDF => 1,
        0xE0..=0xEF => 2,
        0xF0..=0xF4 => 3,
        _ => 0,
    }
}
