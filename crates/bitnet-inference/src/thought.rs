//! Thoughts: what a model writes before its answer. Finds where a thought ends while the text grows, and ends a thought
//! whose budget is used up.

use std::sync::Arc;

/// How thoughts are written in the text of a request, and how long they may be.
///
/// A thought can only be at the beginning of a text: the prompt has opened it, or the text begins with the opening
/// marker, after white space at most. It ends at the first end marker; everything after that is the answer, further
/// markers included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThoughtRule {
    /// Whether the prompt ends within a thought.
    pub open: bool,
    /// The marker before a thought, such as `<think>`.
    pub opening: Marker,
    /// The marker after a thought, such as `</think>`.
    pub closing: Marker,
    /// White space that the model's template writes between the end marker and the answer, such as `\n\n`.
    pub gap: String,
    /// Tokens that end a thought without an end marker, because they begin a tool call; they belong to the answer.
    pub calls: Vec<u32>,
    /// Ends a thought that is too long.
    pub budget: Option<ThoughtBudget>,
}

/// A marker in a text, found as its token or as its characters, in any number of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marker {
    /// The marker's characters; with an empty text, it is found as its token only.
    pub text: String,
    /// The marker's token, if the vocabulary has one.
    pub token: Option<u32>,
}

/// The maximum length of a thought, and what ends it then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThoughtBudget {
    /// Number of tokens after the opening marker. A few more are drawn where the last one ends within a character.
    pub tokens: usize,
    /// The tokens that then follow instead of drawn ones. They must close the thought, and count as generated tokens.
    pub ending: Vec<u32>,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What the model thought, without markers, and without white space at its ends.
    Thought,
    /// The answer, without the gap before it.
    Answer,
}

/// Most white space before an opening marker, in bytes.
const MAX_SPACE: usize = 64;
/// Most bytes after the first one of a character.
const MAX_CONTINUATION: usize = 3;

/// Reads one text and separates the thought from the answer. The result does not depend on how the text is cut.
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
    /// How many tokens of the budget's ending have been read.
    ended: usize,
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

/// Where the last token of a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In what may still become an opening marker.
    Undecided,
    /// In the thought, its markers or the gap.
    Thought,
    /// In the answer, except for its first `before` bytes.
    Answer { before: usize },
}

impl ThoughtRule {
    /// A reader of the text after a prompt.
    pub fn reader(self: &Arc<Self>) -> ThoughtReader {
        let state = if self.open { State::Lead } else { State::Before };
        let rule = Arc::clone(self);
        ThoughtReader {
            rule,
            state,
            held: Vec::new(),
            used: 0,
            counted: 0,
            undecided: 0,
            ended: 0,
            missing: 0,
        }
    }

    /// Whether some marker can only be found in the text of tokens.
    pub(crate) fn needs_text(&self) -> bool {
        self.closing.token.is_none() || !self.open && self.opening.token.is_none()
    }
}

impl ThoughtReader {
    /// Reads the next token and its text, or more text without a token. Passes the parts that are now certain to `out`.
    pub fn push(&mut self, token: Option<u32>, text: &[u8], mut out: impl FnMut(Part, &[u8])) {
        let before = self.state;
        if let Some(forced) = self.forced() {
            // A text from elsewhere may go on differently; its thought is then not ended twice.
            let as_forced = token == Some(forced);
            self.ended = if as_forced { self.ended + 1 } else { usize::MAX };
        }
        self.missing = text.iter().fold(self.missing, |missing, &byte| still_missing(missing, byte));
        if self.thinks() && token.is_some_and(|token| self.rule.calls.contains(&token)) {
            self.finish(&mut out);
            self.state = State::Answer;
            out(Part::Answer, text);
            return;
        }
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

    /// The token that must follow, because the budget of the thought is used up.
    pub fn forced(&self) -> Option<u32> {
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
