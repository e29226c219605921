//! A schema or grammar as a constraint on tokens, followed token by token.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
};

use bitnet_inference::{Constraint, ConstraintError, TokenSet};
use llguidance::Matcher;
use parking_lot::Mutex;

use super::{
    Schema,
    number::{Digits, Number},
    thought::{Prefaced, Read},
};

impl Schema {
    /// A constraint for the texts of a request.
    pub fn constraint(&self) -> Arc<dyn Constraint> {
        Arc::new(SchemaConstraint { schema: self.clone(), texts: Mutex::default() })
    }

    /// Whether a whole text follows the schema, as a constraint allows it.
    pub fn is_followed_by(&self, text: &str) -> bool {
        let bound = Bound::after(self, text.as_bytes());
        bound.is_some_and(|mut bound| bound.matcher.is_accepting().unwrap_or(false))
    }
}

/// The texts of a request, as far as they have been read.
struct SchemaConstraint {
    schema: Schema,
    texts: Mutex<HashMap<u32, Text>>,
}

impl Constraint for SchemaConstraint {
    fn allow(&self, choice: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        let mut texts = self.texts.lock();
        let text = texts.entry(choice).or_insert_with(|| Text::new(&self.schema));
        text.follow(generated, &self.schema)?;
        text.part.allow(&self.schema, allowed)
    }

    fn forced(&self, choice: u32, generated: &[u32]) -> Option<u32> {
        let mut texts = self.texts.lock();
        let text = texts.entry(choice).or_insert_with(|| Text::new(&self.schema));
        text.follow(generated, &self.schema).ok()?;
        match &mut text.part {
            Part::Bound(bound) => bound.forced(&self.schema.digits),
            _ => None,
        }
    }
}

bitnet_tensor::opaque_debug!(SchemaConstraint);

/// A text, with its tokens that have been read.
struct Text {
    read: Vec<u32>,
    part: Part,
}

/// The state of a text.
enum Part {
    /// In the thought before the text, or where one may begin.
    Thought(Prefaced),
    /// Between the thought and the text, after this many tokens of the gap.
    Gap(usize),
    /// In the free part, where any token may follow. Holds the end of the text that may belong to an opening.
    Free(Vec<u8>),
    /// In the part that follows the schema.
    Bound(Box<Bound>),
}

struct Bound {
    matcher: Matcher,
    number: Number,
    /// What `number` was before each of the last tokens.
    numbers: VecDeque<Number>,
}

/// Number of tokens that can be taken back: more than a step drafts.
const MAX_BACK: usize = 32;

impl Text {
    fn new(schema: &Schema) -> Self {
        let part = match &schema.preface {
            Some(preface) => Part::Thought(Prefaced::new(preface)),
            None => Part::begin(schema),
        };
        Text { read: Vec::new(), part }
    }

    /// Reads to the end of `tokens`, after taking back what they do not begin with.
    fn follow(&mut self, tokens: &[u32], schema: &Schema) -> Result<(), ConstraintError> {
        let common = self.read.iter().zip(tokens).take_while(|(read, token)| read == token).count();
        if !self.part.take_back(self.read.len() - common) {
            *self = Text::new(schema);
        }
        self.read.truncate(common);
        for &token in &tokens[self.read.len()..] {
            if let Err(error) = self.part.read(token, schema) {
                // What failed to read one text says nothing about another.
                *self = Text::new(schema);
                return Err(error);
            }
            self.read.push(token);
        }
        Ok(())
    }
}

impl Part {
    /// The beginning of the text that follows the schema, wholly or in parts.
    fn begin(schema: &Schema) -> Part {
        match schema.within {
            Some(_) => Part::Free(Vec::new()),
            None => Part::Bound(Box::new(Bound::new(schema))),
        }
    }

    /// Takes the last `tokens` tokens back; false if that is not possible.
    fn take_back(&mut self, tokens: usize) -> bool {
        match self {
            _ if tokens == 0 => true,
            Part::Bound(bound) => bound.take_back(tokens),
            _ => false,
        }
    }

    fn read(&mut self, token: u32, schema: &Schema) -> Result<(), ConstraintError> {
        match &mut *self {
            Part::Thought(thought) => match thought.read(token, schema.digits.text(token)) {
                Read::On => {}
                Read::Gap => *self = Part::Gap(0),
                Read::After(bytes) => *self = Part::after(schema, bytes)?,
                Read::Text => {
                    let undecided = std::mem::take(&mut thought.undecided);
                    *self = Part::begin(schema);
                    undecided.into_iter().chain([token]).try_for_each(|token| self.read(token, schema))?;
                }
            },
            Part::Gap(read) => {
                *read += 1;
                let gap = schema.preface.as_ref().map_or(&[][..], |preface| preface.gap());
                if schema.within.is_some() || gap.get(*read - 1) != Some(&token) {
                    *self = Part::begin(schema);
                    self.read(token, schema)?;
                }
            }
            Part::Free(end) => {
                end.extend_from_slice(schema.digits.text(token));
                self.open(schema);
            }
            Part::Bound(bound) => {
                bound.read(token, &schema.digits)?;
                if schema.within.as_ref().is_some_and(|within| within.again)
                    && bound.matcher.is_accepting().map_err(problem)?
                {
                    *self = Part::Free(Vec::new());
                }
            }
        }
        Ok(())
    }

    /// The text of a schema that has begun with these bytes.
    fn after(schema: &Schema, bytes: Vec<u8>) -> Result<Part, ConstraintError> {
        if schema.within.is_some() {
            let mut part = Part::Free(bytes);
            part.open(schema);
            return Ok(part);
        }
        let bound = Bound::after(schema, &bytes);
        let bound = bound.ok_or_else(|| problem("the text after the thought does not follow the format"))?;
        Ok(Part::Bound(Box::new(bound)))
    }

    /// Begins the part that follows the schema if the end of a free text opens it.
    fn open(&mut self, schema: &Schema) {
        let (Part::Free(end), Some(within)) = (&mut *self, &schema.within) else { return };
        match within.opens.find(end) {
            Some(at) => {
                let rest = end.split_off(at);
                // A token that opens the part but continues in a way that the schema forbids does not open it.
                match Bound::after(schema, &rest) {
                    Some(bound) => *self = Part::Bound(Box::new(bound)),
                    None => *end = rest,
                }
            }
            None => within.opens.forget(end),
        }
    }

    fn allow(&mut self, schema: &Schema, allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        match self {
            Part::Free(_) => allowed.insert_all(),
            Part::Bound(bound) => bound.allow(&schema.digits, allowed)?,
            Part::Thought(_) | Part::Gap(_) if schema.within.is_some() => allowed.insert_all(),
            Part::Thought(thought) if thought.is_undecided() => {
                // The text itself may begin here, as well as a thought.
                let mut bound = Bound::new(schema);
                let fits = thought.undecided.iter().try_for_each(|&token| bound.read(token, &schema.digits));
                if fits.is_ok() {
                    bound.allow(&schema.digits, allowed)?;
                }
                thought.opening().into_iter().for_each(|token| allowed.insert(token));
            }
            Part::Thought(thought) => {
                // A thought must end before the text can.
                allowed.insert_all();
                schema.eos.iter().for_each(|&token| allowed.remove(token));
                // A token that completes the end marker may only go on as the text begins.
                let tokens = if thought.is_closing() { schema.digits.tokens() } else { 0..0 };
                for token in tokens {
                    let answer = thought.answer(schema.digits.text(token));
                    if answer.is_some_and(|answer| Bound::after(schema, answer).is_none()) {
                        allowed.remove(token);
                    }
                }
            }
            Part::Gap(read) => match schema.preface.as_ref().and_then(|preface| preface.gap().get(*read)) {
                Some(&token) => allowed.insert(token),
                None => Bound::new(schema).allow(&schema.digits, allowed)?,
            },
        }
        Ok(())
    }
}

impl Bound {
    fn new(schema: &Schema) -> Self {
        let matcher = schema.start.deep_clone();
        let number = Number::new(schema.embedded);
        Bound { matcher, number, numbers: VecDeque::new() }
    }

    /// The state after these bytes, if the schema allows them.
    fn after(schema: &Schema, bytes: &[u8]) -> Option<Bound> {
        let mut bound = Bound::new(schema);
        if !bytes.is_empty() {
            let vocabulary = schema.start.tok_env().ok()?;
            let tokens = vocabulary.tok_trie().greedy_tokenize(bytes);
            let whole = vocabulary.tok_trie().decode(&tokens) == bytes;
            bound.matcher.consume_tokens(tokens.get(..).filter(|_| whole)?).ok()?;
            bound.number.read(bytes);
        }
        Some(bound)
    }

    fn read(&mut self, token: u32, digits: &Digits) -> Result<(), ConstraintError> {
        self.matcher.consume_token(token).map_err(problem)?;
        if self.numbers.len() == MAX_BACK {
            self.numbers.pop_front();
        }
        self.numbers.push_back(self.number);
        self.number.read(digits.text(token));
        Ok(())
    }

    /// Takes the last `tokens` tokens of this part back; false if it has not read so many, or cannot.
    fn take_back(&mut self, tokens: usize) -> bool {
        let Some(kept) = self.numbers.len().checked_sub(tokens) else { return false };
        self.number = self.numbers[kept];
        self.numbers.truncate(kept);
        self.matcher.rollback(tokens).is_ok()
    }

    /// The only token that may follow, if the grammar leaves no choice about the text.
    fn forced(&mut self, digits: &Digits) -> Option<u32> {
        if self.matcher.compute_ff_tokens().is_empty() {
            return None;
        }
        let mut allowed = TokenSet::new(digits.tokens().end as usize);
        self.allow(digits, &mut allowed).ok()?;
        allowed.only()
    }

    fn allow(&mut self, digits: &Digits, allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        let next = self.matcher.compute_mask_or_eos().map_err(problem)?;
        match self.number.is_full().then(|| digits.ended(next.as_slice())).flatten() {
            Some(others) => allowed.insert_words(&others),
            None => allowed.insert_words(next.as_slice()),
        }
        Ok(())
    }
}

fn problem(error: impl fmt::Display) -> ConstraintError {
    ConstraintError(error.to_string())
}
