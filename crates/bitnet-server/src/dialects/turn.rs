use std::time::{Duration, Instant};

use crate::openai::{
    answers::{Finish, Piece},
    job::Job,
    tools::reader::{AnswerPart, Reader},
};

/// The turn of an assistant, as it is generated.
pub(crate) struct Turn {
    /// The answer's name, which is part of all its ids.
    pub name: String,
    /// When the answer was begun, in seconds since 1970.
    pub created: u64,
    pub model: String,
    pub prompt_tokens: usize,
    pub items: Vec<Item>,
    /// Whether the last item may grow.
    open: bool,
    pub finish: Option<Finish>,
    /// Number of generated tokens; set at the end.
    pub tokens: usize,
    pub stop_strings: Vec<String>,
    reader: Reader,
    begun: Instant,
    first: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
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

impl Turn {
    /// The beginning of the answer to a job that arrived at `begun`.
    pub fn new(job: &Job, model: &str, created: u64, begun: Instant) -> Turn {
        let config = job.requests.first().map(|request| &request.config);
        Turn {
            name: job.name.to_string(),
            created,
            model: model.to_owned(),
            prompt_tokens: job.prompt_tokens(),
            items: Vec::new(),
            open: false,
            finish: None,
            tokens: 0,
            stop_strings: config.map_or_else(Vec::new, |config| config.stop_strings.clone()),
            reader: Reader::new(job.calls.clone()),
            begun,
            first: None,
        }
    }

    /// Adds a piece, and calls `each` with every change of the turn in order.
    pub fn add(&mut self, piece: &Piece, each: &mut dyn FnMut(&Turn, Change<'_>)) {
        if piece.token.is_some() {
            self.first.get_or_insert_with(Instant::now);
        }
        for part in self.reader.push(&piece.text) {
            self.add_part(part, each);
        }
        if piece.finish.is_some() {
            self.finish = piece.finish;
            for part in self.reader.finish() {
                self.add_part(part, each);
            }
            if self.items.is_empty() {
                self.open(Item::Text(String::new()), each);
            }
            self.close(each);
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
        if let Some(Item::Text(text) | Item::Call { arguments: text, .. }) = self.items.last_mut() {
            text.push_str(&more);
        }
        each(self, Change::More(&more));
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
            Item::Call { .. } => None,
        });
        texts.collect()
    }

    /// Whether the turn calls tools.
    pub fn calls(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Call { .. }))
    }

    /// Whether the answer was cut off before it was complete.
    pub fn is_cut_off(&self) -> bool {
        matches!(self.finish, Some(Finish::Length | Finish::Deadline))
    }

    /// The times from the arrival of the request to the first token, and from the first token to now.
    pub fn times(&self) -> (Duration, Duration) {
        let first = self.first.unwrap_or_else(Instant::now);
        (first - self.begun, first.elapsed())
    }
}
