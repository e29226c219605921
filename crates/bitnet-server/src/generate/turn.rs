//! The turn of an assistant, as it is generated: thoughts, texts and calls, put together from pieces.

use std::sync::Arc;

use bitnet::{
    inference::TokenLogprobs,
    thought::{Split, ThoughtRule, ThoughtSplitter},
};

use super::{
    pieces::{EndToken, Finish, Piece},
    tools::reader::{AnswerPart, Calls, Reader},
};

/// What stands between thoughts where an API has one text for all of them.
pub(crate) const BETWEEN_THOUGHTS: &str = "\n\n";

/// One choice of an answer.
pub(crate) struct Turn {
    /// Index among the choices of all prompts.
    pub choice: usize,
    pub items: Vec<Item>,
    /// Whether the last item may grow.
    open: bool,
    pub finish: Option<Finish>,
    /// The tokens, where they are kept.
    pub tokens: Tokens,
    splitter: ThoughtSplitter,
    reader: Reader,
}

/// A part of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// What the model thought, without markers; further thoughts may follow texts.
    Thought(String),
    Text(String),
    /// The arguments are JSON, unless the answer was cut off in them.
    Call {
        name: String,
        arguments: String,
    },
}

/// What happened to the last item of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change<'t> {
    Opened,
    /// This was added to its text or arguments.
    More(&'t str),
    Closed,
}

/// The tokens of a choice, or of a piece of one.
#[derive(Default)]
pub(crate) struct Tokens {
    pub ids: Vec<u32>,
    /// Number of characters before each token.
    pub offsets: Vec<usize>,
    /// Log-probabilities of each token, if requested; the first token of a prompt has none.
    pub logprobs: Vec<Option<TokenLogprobs>>,
    pub end_token: Option<EndToken>,
    /// Sum and number of the generated tokens' log-probabilities.
    sum: (f64, usize),
}

impl Turn {
    /// A turn without contents; `thought` says how thoughts may precede the answer, and `calls` how it may call tools.
    pub fn new(choice: usize, thought: Option<&Arc<ThoughtRule>>, calls: Option<Calls>) -> Turn {
        Turn {
            choice,
            items: Vec::new(),
            open: false,
            finish: None,
            tokens: Tokens::default(),
            splitter: ThoughtSplitter::new(thought),
            reader: Reader::new(calls),
        }
    }

    /// Adds the text of a piece, and calls `each` with every change of the turn in order.
    pub fn add(&mut self, piece: &Piece, each: &mut dyn FnMut(&Turn, Change<'_>)) {
        let token = piece.token.as_ref().map(|(id, _)| *id);
        let split = self.splitter.push(token, &piece.text);
        self.add_split(split, each);
        if piece.finish.is_some() {
            self.finish = piece.finish;
            let split = self.splitter.finish();
            self.add_split(split, each);
            let cut = self.is_cut_off();
            for part in self.reader.finish(cut) {
                self.add_part(part, each);
            }
            if self.items.is_empty() {
                self.open(Item::Text(String::new()), each);
            }
            self.close(each);
        }
    }

    fn add_split(&mut self, split: Split, each: &mut dyn FnMut(&Turn, Change<'_>)) {
        if !split.thought.is_empty() {
            let mut more = split.thought.as_str();
            if !self.open || !matches!(self.items.last(), Some(Item::Thought(_))) {
                for part in self.reader.pause() {
                    self.add_part(part, each);
                }
                // As an item of its own, a further thought needs no blank line before it.
                more = more.trim_start();
                self.open(Item::Thought(String::new()), each);
            }
            self.grow(more, each);
        }
        if !self.splitter.thinks() && matches!(self.items.last(), Some(Item::Thought(_))) {
            self.close(each);
        }
        for part in self.reader.push(&split.answer) {
            self.add_part(part, each);
        }
    }

    fn add_part(&mut self, part: AnswerPart, each: &mut dyn FnMut(&Turn, Change<'_>)) {
        let more = match part {
            AnswerPart::Call(_, name) => {
                return self.open(Item::Call { name, arguments: String::new() }, each);
            }
            AnswerPart::Text(text) => {
                if !matches!(self.items.last(), Some(Item::Text(_))) {
                    self.open(Item::Text(String::new()), each);
                }
                text
            }
            AnswerPart::Arguments(_, arguments) => arguments,
        };
        self.grow(&more, each);
    }

    /// Adds to the last item.
    fn grow(&mut self, more: &str, each: &mut dyn FnMut(&Turn, Change<'_>)) {
        if let Some(Item::Thought(text) | Item::Text(text) | Item::Call { arguments: text, .. }) =
            self.items.last_mut()
        {
            text.push_str(more);
        }
        each(self, Change::More(more));
    }

    fn open(&mut self, item: Item, each: &mut dyn FnMut(&Turn, Change<'_>)) {
        self.close(each);
        self.items.push(item);
        self.open = true;
        each(self, Change::Opened);
    }

    fn close(&mut self, each: &mut dyn FnMut(&Turn, Change<'_>)) {
        if std::mem::take(&mut self.open) {
            each(self, Change::Closed);
        }
    }

    /// Index and contents of the last item; only for a turn that has one.
    pub fn last(&self) -> (usize, &Item) {
        let index = self.items.len().checked_sub(1).expect("an item has begun");
        (index, &self.items[index])
    }

    /// Whether the last item may grow.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// All its texts.
    pub fn text(&self) -> String {
        let texts = self.items.iter().filter_map(|item| match item {
            Item::Text(text) => Some(text.as_str()),
            Item::Thought(_) | Item::Call { .. } => None,
        });
        texts.collect()
    }

    /// What the model thought; empty if it did not think.
    pub fn thought(&self) -> String {
        let thoughts = self.items.iter().filter_map(|item| match item {
            Item::Thought(thought) => Some(thought.as_str()),
            Item::Text(_) | Item::Call { .. } => None,
        });
        thoughts.collect::<Vec<_>>().join(BETWEEN_THOUGHTS)
    }

    /// Whether its last item is a thought that follows another one.
    pub fn thinks_again(&self) -> bool {
        let is_thought = |item: &Item| matches!(item, Item::Thought(_));
        self.items.iter().rev().filter(|item| is_thought(item)).count() > 1
            && self.items.last().is_some_and(is_thought)
    }

    /// Whether the turn is, or has ended, within a thought.
    pub fn thinks(&self) -> bool {
        self.splitter.thinks()
    }

    /// Number of tokens of its thoughts, markers included.
    pub fn thought_tokens(&self) -> usize {
        self.splitter.tokens()
    }

    /// The name and the arguments of each call.
    pub fn calls(&self) -> impl Iterator<Item = (&str, &str)> {
        self.items.iter().filter_map(|item| match item {
            Item::Thought(_) | Item::Text(_) => None,
            Item::Call { name, arguments } => Some((name.as_str(), arguments.as_str())),
        })
    }

    /// Whether the turn calls tools.
    pub fn has_called(&self) -> bool {
        self.calls().next().is_some()
    }

    /// Whether the answer was cut off before it was complete.
    pub fn is_cut_off(&self) -> bool {
        matches!(self.finish, Some(Finish::Length | Finish::Deadline))
    }
}

impl Tokens {
    /// Adds the tokens of a piece.
    pub fn add(&mut self, piece: Piece) {
        if let Some(echo) = piece.echo {
            self.ids.extend(&echo.ids);
            self.offsets.extend(&echo.offsets);
            self.logprobs.extend(echo.logprobs.iter().cloned());
        }
        if let Some((id, logprobs)) = piece.token {
            if let Some(at) = &logprobs {
                self.sum = (self.sum.0 + f64::from(at.logprob), self.sum.1 + 1);
            }
            self.ids.push(id);
            self.offsets.push(piece.offset);
            self.logprobs.extend(logprobs.map(Some));
        }
        self.end_token = piece.end_token;
    }

    /// The mean log-probability of the generated tokens; the lowest of all without any.
    pub fn mean_logprob(&self) -> f64 {
        match self.sum {
            (_, 0) => f64::NEG_INFINITY,
            (sum, count) => sum / count as f64,
        }
    }
}

/// Keeps the `best` of every `of` choices, by their mean log-probability and the best first; of equals, the first.
pub(super) fn keep_best(turns: Vec<Turn>, of: usize, best: usize) -> Vec<Turn> {
    let (mut kept, mut turns) = (Vec::new(), turns.into_iter());
    loop {
        let mut choices: Vec<Turn> = turns.by_ref().take(of).collect();
        if choices.is_empty() {
            return kept;
        }
        choices.sort_by(|a, b| b.tokens.mean_logprob().total_cmp(&a.tokens.mean_logprob()));
        for turn in choices.into_iter().take(best) {
            kept.push(Turn { choice: kept.len(), ..turn });
        }
    }
}
