//! Thoughts: what a model writes before its answer, and how to keep the two apart.
//!
//! A [`ThoughtRule`] says how thoughts are written after a prompt. In a request to the engine
//! ([`inference::Request::thought`](crate::inference::Request)) it keeps stop strings out of the thought and can limit the
//! thought's length; [`ThoughtSplitter`] separates the text of a choice; a
//! schema with the rule constrains the answer only.

use std::sync::Arc;

pub use bitnet_inference::{Marker, Part, ThoughtBudget, ThoughtReader, ThoughtRule};
use bitnet_model::{ModelError, ThoughtForm, ThoughtState, Tokenizer};

/// Separates the decoded text of one choice into thought and answer, as it grows.
#[derive(Debug, Clone)]
pub struct ThoughtSplitter(Option<ThoughtReader>);

/// Text of both parts; the thought comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// More of the thought, without markers and without white space at its ends.
    pub thought: String,
    /// More of the answer, without the white space between end marker and answer.
    pub answer: String,
}

impl ThoughtSplitter {
    /// A splitter for the text after a prompt; without a rule, everything is the answer.
    pub fn new(rule: Option<&Arc<ThoughtRule>>) -> Self {
        ThoughtSplitter(rule.map(ThoughtRule::reader))
    }

    /// Reads the next token, if the text is that of a token, and its text; returns what is now certain.
    pub fn push(&mut self, token: Option<u32>, text: &str) -> Split {
        let mut split = Split::default();
        match &mut self.0 {
            Some(reader) => reader.push(token, text.as_bytes(), |part, bytes| split.add(part, bytes)),
            None => split.answer.push_str(text),
        }
        split
    }

    /// Ends the text: returns what was held back because it could have become a marker.
    pub fn finish(&mut self) -> Split {
        let mut split = Split::default();
        if let Some(reader) = &mut self.0 {
            reader.finish(|part, bytes| split.add(part, bytes));
        }
        split
    }

    /// Whether the text ends within a thought.
    pub fn thinks(&self) -> bool {
        self.0.as_ref().is_some_and(ThoughtReader::thinks)
    }

    /// Number of tokens of the thought, markers included.
    pub fn tokens(&self) -> usize {
        self.0.as_ref().map_or(0, ThoughtReader::tokens)
    }
}

impl Split {
    /// Adds bytes of a text that is cut only at markers and white space, so between characters.
    fn add(&mut self, part: Part, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        match part {
            Part::Thought => self.thought.push_str(&text),
            Part::Answer => self.answer.push_str(&text),
        }
    }
}

/// The rule for the text after a prompt, for a model that writes thoughts in this form; `None` if the prompt closes the
/// thought, so that the whole text is the answer.
pub fn after_prompt(form: &ThoughtForm, tokenizer: &Tokenizer, prompt: &str) -> Option<ThoughtRule> {
    let state = form.state(prompt);
    (state != ThoughtState::Closed).then(|| rule(form, state, tokenizer))
}

/// The text that ends a thought whose budget is used up: `message`, then the end marker as the template writes it.
pub fn ending(form: &ThoughtForm, message: &str) -> String {
    format!("{message}{}{}{}", form.tail, form.close, form.gap)
}

/// What Qwen's models were trained to continue with an answer, before the end marker of a thought that is cut short.
pub const CUT_SHORT: &str = "\n\nConsidering the limited time by the user, I have to give the solution based on the \
                             thinking directly now.";

/// The marker of this text, as a token if a vocabulary has one.
pub fn marker(tokenizer: &Tokenizer, text: &str) -> Marker {
    Marker { text: text.to_owned(), token: tokenizer.token_id(text) }
}

/// A budget of this many tokens, after which `ending`, which must contain the end marker, is written.
///
/// # Errors
/// If the tokenizer refuses the text.
pub fn budget(tokenizer: &Tokenizer, tokens: usize, ending: &str) -> Result<ThoughtBudget, ModelError> {
    Ok(ThoughtBudget { tokens, ending: tokenizer.encode(ending, false)? })
}

/// The rule for thoughts of this form after a prompt that leaves them like this, without a budget.
pub fn rule(form: &ThoughtForm, state: ThoughtState, tokenizer: &Tokenizer) -> ThoughtRule {
    ThoughtRule {
        open: state == ThoughtState::Open,
        opening: marker(tokenizer, &form.open),
        closing: marker(tokenizer, &form.close),
        gap: form.gap.clone(),
        ..ThoughtRule::default()
    }
}

/// What ends a thought of this form that is cut short: Qwen's sentence where thoughts are written as Qwen's models write
/// them, and nothing elsewhere.
pub fn last_words(form: &ThoughtForm) -> &'static str {
    let ThoughtForm { lead, tail, close, gap, .. } = form;
    let written = [lead, tail, close, gap].map(String::as_str);
    if written == ["\n", "\n", "</think>", "\n\n"] { CUT_SHORT } else { "" }
}
