//! Thoughts: what a model writes before its answer, what a request says about them, and how to keep the two apart.
//!
//! [`Thinking`] is what a request says. With a model's [`Conventions`] it becomes variables of the chat template, and a
//! [`ThoughtRule`], which says how thoughts are written after a prompt. In a request to the engine
//! ([`inference::Request::thought`](crate::inference::Request)) the rule keeps stop strings out of thoughts and can limit
//! their length; [`ThoughtSplitter`] separates the text of a choice; a schema with the rule constrains the answer only.

use std::sync::Arc;

pub use bitnet_inference::{Marker, Part, ThoughtBudget, ThoughtEnd, ThoughtReader, ThoughtRule};
use bitnet_model::{CallForm, Conventions, Effort, ModelError, ThoughtForm, ThoughtState, Tokenizer};

/// What a request says about thoughts. Whatever it leaves out is as the model's template does it, except that earlier
/// thoughts are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thinking {
    /// Whether to think at all.
    pub on: Option<bool>,
    /// How much to think.
    pub effort: Option<Effort>,
    /// Whether the thoughts of earlier turns stay in the prompt.
    pub keep: Option<bool>,
    /// Maximum number of tokens of a thought.
    pub budget: Option<usize>,
    /// Text that ends a thought whose budget is used up, before the end marker. By default, the sentence with which Qwen's
    /// models were trained where thoughts are written as in their templates, and none elsewhere.
    pub last_words: Option<String>,
}

impl Thinking {
    /// The variables of the template that say so, each with its value as JSON. `keeps` says whether earlier thoughts are
    /// kept if the request does not say it.
    pub fn variables(&self, conventions: &Conventions, keeps: bool) -> Vec<(String, String)> {
        let keep = self.keep.or(keeps.then_some(true));
        let mut variables: Vec<_> =
            keep.and_then(|keep| conventions.keep_thoughts(keep)).into_iter().collect();
        let off = self.on == Some(false) || self.effort == Some(Effort::None) || self.budget == Some(0);
        match (off, self.effort) {
            (true, _) => variables.extend(conventions.effort(Effort::None)),
            (false, Some(effort)) => variables.extend(conventions.effort(effort)),
            (false, None) if self.on == Some(true) => {
                let form = conventions.thought.as_ref();
                let switch = form.and_then(|form| form.switch.as_ref());
                variables.extend(switch.map(|switch| (switch.variable.clone(), "true".to_owned())));
            }
            (false, None) => {}
        }
        variables
    }

    /// How thoughts are written after a prompt that leaves them like this; `None` if the whole text is the answer. A call
    /// in the form `calls`, if tools are offered, ends a thought.
    ///
    /// # Errors
    /// If the tokenizer refuses the text that ends a thought.
    pub fn rule(
        &self,
        form: Option<&ThoughtForm>,
        state: Option<ThoughtState>,
        calls: Option<&CallForm>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ThoughtRule>, ModelError> {
        let state = state.filter(|state| *state != ThoughtState::Closed);
        let (Some(form), Some(state)) = (form, state) else { return Ok(None) };
        let budget = self.budget.map(|tokens| {
            let last_words = self.last_words.as_deref().unwrap_or_else(|| last_words(form));
            let ending = format!("{last_words}{}{}{}", form.tail, form.close, form.gap);
            Ok::<_, ModelError>(ThoughtBudget { tokens, ending: tokenizer.encode(&ending, false)? })
        });
        let marker = |text: &str| Marker { text: text.to_owned(), token: tokenizer.token_id(text) };
        // Where the tag of a call is a token, it ends a thought.
        let call = calls.and_then(|calls| tokenizer.token_id(calls.open.trim()));
        let before_call = calls.zip(call).map(|(calls, call)| before_call(form, calls, call, tokenizer));
        Ok(Some(ThoughtRule {
            open: state == ThoughtState::Open,
            opening: marker(&form.open),
            closing: marker(&form.close),
            gap: form.gap.clone(),
            again: true,
            calls: call.into_iter().collect(),
            before_call: before_call.transpose()?.flatten(),
            budget: budget.transpose()?,
        }))
    }
}

/// What ends a thought before a call that begins with this token, in the tokens that a prompt has there; `None` if the end
/// marker is no token.
fn before_call(
    form: &ThoughtForm,
    calls: &CallForm,
    call: u32,
    tokenizer: &Tokenizer,
) -> Result<Option<ThoughtEnd>, ModelError> {
    let ThoughtForm { tail, close, gap, .. } = form;
    // A template that shows no call after a thought may still be followed by one.
    let gap = if calls.after_thought.is_empty() { gap } else { &calls.after_thought };
    let tag = calls.open.trim();
    let tokens = tokenizer.encode(&format!("{close}{tail}{close}{gap}{tag}"), false)?;
    let end = tokenizer.token_id(close).and_then(|marker| {
        let inside = tokens.strip_prefix(&[marker])?.strip_suffix(&[call])?;
        let at = inside.iter().position(|&token| token == marker)?;
        let (tail_tokens, tokens) = (inside[..at].to_vec(), inside[at..].to_vec());
        Some(ThoughtEnd { tail: tail.clone(), tail_tokens, tokens })
    });
    Ok(end)
}

/// What Qwen's models were trained to continue with an answer, before the end marker of a thought that is cut short.
const CUT_SHORT: &str = "\n\nConsidering the limited time by the user, I have to give the solution based on the \
                         thinking directly now.";

/// What ends a thought of this form that is cut short: Qwen's sentence where thoughts are written as Qwen's models write
/// them, and nothing elsewhere.
fn last_words(form: &ThoughtForm) -> &'static str {
    let ThoughtForm { lead, tail, close, gap, .. } = form;
    let written = [lead, tail, close, gap].map(String::as_str);
    if written == ["\n", "\n", "</think>", "\n\n"] { CUT_SHORT } else { "" }
}

/// Separates the decoded text of one choice into thoughts and answer, as it grows.
#[derive(Debug, Clone)]
pub struct ThoughtSplitter {
    reader: Option<ThoughtReader>,
    /// Whether there was a thought, and whether it has ended.
    thought: bool,
    ended: bool,
}

/// Text of both parts; the thought comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// More of the thought, without markers and without white space at its ends; a blank line comes before a further
    /// thought.
    pub thought: String,
    /// More of the answer, without the white space between end marker and answer.
    pub answer: String,
}

impl ThoughtSplitter {
    /// A splitter for the text after a prompt; without a rule, everything is the answer.
    pub fn new(rule: Option<&Arc<ThoughtRule>>) -> Self {
        ThoughtSplitter { reader: rule.map(ThoughtRule::reader), thought: false, ended: false }
    }

    /// Reads the next token, if the text is that of a token, and its text; returns what is now certain.
    pub fn push(&mut self, token: Option<u32>, text: &str) -> Split {
        let mut split = Split::default();
        match &mut self.reader {
            Some(reader) => reader.push(token, text.as_bytes(), |part, bytes| split.add(part, bytes)),
            None => split.answer.push_str(text),
        }
        self.separated(split)
    }

    /// Ends the text: returns what was held back because it could have become a marker.
    pub fn finish(&mut self) -> Split {
        let mut split = Split::default();
        if let Some(reader) = &mut self.reader {
            reader.finish(|part, bytes| split.add(part, bytes));
        }
        self.separated(split)
    }

    /// Puts a blank line before a further thought.
    fn separated(&mut self, mut split: Split) -> Split {
        if !split.thought.is_empty() {
            if std::mem::take(&mut self.ended) {
                split.thought.insert_str(0, "\n\n");
            }
            self.thought = true;
        }
        self.ended |= self.thought && !self.thinks();
        split
    }

    /// Whether the text ends within a thought.
    pub fn thinks(&self) -> bool {
        self.reader.as_ref().is_some_and(ThoughtReader::thinks)
    }

    /// Number of tokens of the thoughts, markers included.
    pub fn tokens(&self) -> usize {
        self.reader.as_ref().map_or(0, ThoughtReader::tokens)
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

    /// Adds what comes next.
    pub fn extend(&mut self, more: &Split) {
        self.thought += &more.thought;
        self.answer += &more.answer;
    }
}
