//! Thoughts: what a model writes before its answer, or in several parts of it. The rule says how they are written and how
//! long they may be; the reader finds them while the text grows, and says which tokens must follow.

use std::sync::Arc;

mod reader;

pub use reader::ThoughtReader;

/// How thoughts are written in the text of a request, and how long they may be.
///
/// A thought is at the beginning of a text: the prompt has opened it, or the text begins with the opening marker, after
/// white space at most. It ends at the first end marker; what follows is the answer. With [`ThoughtRule::again`], more
/// thoughts may follow within the answer.
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
    /// Whether the opening marker's token begins another thought at the beginning of a line of the answer, up to the
    /// first call.
    pub again: bool,
    /// Tokens that end a thought without an end marker, because they begin a tool call; they belong to the answer.
    pub calls: Vec<u32>,
    /// Tokens that are written before such a token, so that the thought ends as in a prompt.
    pub before_call: Option<ThoughtEnd>,
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

/// The maximum length of thoughts, and what ends them then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThoughtBudget {
    /// Number of tokens after the opening marker, in all thoughts of a text. A few more are drawn where the last one ends
    /// within a character.
    pub tokens: usize,
    /// The tokens that then follow instead of drawn ones. They must close the thought, and count as generated tokens.
    pub ending: Vec<u32>,
}

/// The end of a thought as a template writes it: white space and the end marker, up to what follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThoughtEnd {
    /// White space before the end marker, such as `\n`.
    pub tail: String,
    /// The tokens of the white space; they are left out where the thought ends with it already.
    pub tail_tokens: Vec<u32>,
    /// The tokens of the end marker and of the white space after it. They must close the thought.
    pub tokens: Vec<u32>,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What the model thought, without markers, and without white space at its ends.
    Thought,
    /// The answer, without the gap before it.
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
        ThoughtReader::new(Arc::clone(self))
    }

    /// Whether some marker can only be found in the text of tokens.
    pub(crate) fn needs_text(&self) -> bool {
        self.closing.token.is_none() || !self.open && self.opening.token.is_none()
    }

    /// All tokens that may be written instead of drawn ones.
    pub(crate) fn written(&self) -> impl Iterator<Item = u32> {
        let budget = self.budget.iter().flat_map(|budget| &budget.ending);
        let before_call = self.before_call.iter().flat_map(|end| end.tail_tokens.iter().chain(&end.tokens));
        budget.chain(before_call).copied()
    }
}
