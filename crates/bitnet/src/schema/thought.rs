//! The thought before a text that follows a schema.

use std::sync::Arc;

use bitnet_inference::{Part, ThoughtReader, ThoughtRule};
use bitnet_model::Tokenizer;

/// How a thought is written before the text of a schema.
pub(super) struct Preface {
    rule: Arc<ThoughtRule>,
    /// The tokens of the opening marker.
    opening: Vec<u32>,
    /// The tokens of the gap after the end marker.
    gap: Vec<u32>,
}

/// The position of a text in its thought.
pub(super) struct Prefaced {
    preface: Arc<Preface>,
    reader: ThoughtReader,
    /// Tokens that may still become an opening marker, or the text itself.
    pub undecided: Vec<u32>,
}

/// What a token in a thought leads to.
pub(super) enum Read {
    /// The thought, or what may become one, goes on.
    On,
    /// The end marker is complete: the gap follows.
    Gap,
    /// The text has begun with the undecided tokens and this one.
    Text,
    /// The text has begun with these bytes.
    After(Vec<u8>),
}

impl Preface {
    pub fn new(rule: &Arc<ThoughtRule>, tokenizer: Option<&Tokenizer>) -> Self {
        let encode = |text: &str| tokenizer.and_then(|t| t.encode(text, false).ok()).unwrap_or_default();
        // Within a text, where some tokenizers give other tokens than at its beginning.
        let after_marker = |gap: &str| {
            let closing = encode(&rule.closing.text);
            let tokens = encode(&format!("{}{gap}", rule.closing.text));
            tokens.strip_prefix(&closing[..]).map(<[u32]>::to_vec).unwrap_or_default()
        };
        let opening = match rule.opening.token {
            _ if rule.open => Vec::new(),
            Some(token) => vec![token],
            None => encode(&rule.opening.text),
        };
        Preface { opening, gap: after_marker(&rule.gap), rule: Arc::clone(rule) }
    }

    /// The tokens of the gap after the end marker.
    pub fn gap(&self) -> &[u32] {
        &self.gap
    }
}

impl Prefaced {
    pub fn new(preface: &Arc<Preface>) -> Self {
        let reader = preface.rule.reader();
        Prefaced { preface: Arc::clone(preface), reader, undecided: Vec::new() }
    }

    /// Reads the next token and its text.
    pub fn read(&mut self, token: u32, text: &[u8]) -> Read {
        let (mut answer, decided) = (Vec::new(), self.reader.thinks());
        self.reader.push(Some(token), text, |part, bytes| {
            if part == Part::Answer {
                answer.extend_from_slice(bytes);
            }
        });
        match () {
            () if self.reader.thinks() => Read::On,
            () if self.reader.is_closed() && self.ends_in_marker(token, text) => Read::Gap,
            // Some of the gap, or of another one, has been written.
            () if self.reader.is_closed() => Read::After(Vec::new()),
            () if self.reader.answers() && decided => Read::After(answer),
            () if self.reader.answers() => Read::Text,
            () => {
                self.undecided.push(token);
                Read::On
            }
        }
    }

    fn ends_in_marker(&self, token: u32, text: &[u8]) -> bool {
        let closing = &self.preface.rule.closing;
        closing.token == Some(token)
            || closing.text.as_bytes().ends_with(text)
            || text.ends_with(closing.text.as_bytes())
    }

    /// Whether it is not yet known if the text begins with a thought.
    pub fn is_undecided(&self) -> bool {
        !self.reader.thinks()
    }

    /// The text that a token would leave to the answer, after the rest of an end marker that has begun.
    pub fn answer<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        let rule = &self.preface.rule;
        let begun = Some(self.reader.begun()).filter(|&begun| begun > 0)?;
        let after = text.strip_prefix(&rule.closing.text.as_bytes()[begun..])?;
        let skipped = |byte: &u8| b"\r\n".contains(byte) || rule.gap.as_bytes().contains(byte);
        let answer = &after[after.iter().take_while(|byte| skipped(byte)).count()..];
        (!answer.is_empty()).then_some(answer)
    }

    /// Whether the end marker has begun, so that some tokens end it and begin the answer.
    pub fn is_closing(&self) -> bool {
        self.reader.begun() > 0
    }

    /// The next token of the opening marker, if it can still follow.
    pub fn opening(&self) -> Option<u32> {
        let rest = self.preface.opening.strip_prefix(&self.undecided[..])?;
        rest.first().copied()
    }
}
