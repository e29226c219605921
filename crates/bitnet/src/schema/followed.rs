use std::{collections::HashMap, fmt, sync::Arc};

use bitnet_inference::{Constraint, ConstraintError, TokenSet};
use llguidance::Matcher;
use parking_lot::Mutex;

use super::{
    Schema,
    number::{Digits, Number},
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
        match &mut text.part {
            Part::Free(_) => allowed.insert_all(),
            Part::Bound(bound) => bound.allow(&self.schema.digits, allowed)?,
        }
        Ok(())
    }
}

impl fmt::Debug for SchemaConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchemaConstraint").finish_non_exhaustive()
    }
}

/// A text, with its tokens that have been read.
struct Text {
    read: Vec<u32>,
    part: Part,
}

/// The state of a text.
enum Part {
    /// In the free part, where any token may follow. Holds the end of the text that may belong to an opening.
    Free(Vec<u8>),
    /// In the part that follows the schema.
    Bound(Box<Bound>),
}

struct Bound {
    matcher: Matcher,
    number: Number,
}

impl Text {
    fn new(schema: &Schema) -> Self {
        let part = match schema.within {
            Some(_) => Part::Free(Vec::new()),
            None => Part::Bound(Box::new(Bound::new(schema))),
        };
        Text { read: Vec::new(), part }
    }

    /// Reads to the end of `tokens`; starts over if they do not begin with the tokens read before.
    fn follow(&mut self, tokens: &[u32], schema: &Schema) -> Result<(), ConstraintError> {
        if !tokens.starts_with(&self.read) {
            *self = Text::new(schema);
        }
        for &token in &tokens[self.read.len()..] {
            self.part.read(token, schema)?;
            self.read.push(token);
        }
        Ok(())
    }
}

impl Part {
    fn read(&mut self, token: u32, schema: &Schema) -> Result<(), ConstraintError> {
        match (&mut *self, &schema.within) {
            (Part::Free(end), Some(within)) => {
                end.extend_from_slice(schema.digits.text(token));
                if let Some(at) = within.opens.find(end) {
                    let rest = end.split_off(at);
                    // A token that opens the part but continues in a way that the schema forbids does not open it.
                    match Bound::after(schema, &rest) {
                        Some(bound) => *self = Part::Bound(Box::new(bound)),
                        None => *end = rest,
                    }
                } else {
                    within.opens.forget(end);
                }
            }
            (Part::Bound(bound), within) => {
                bound.read(token, &schema.digits)?;
                if within.as_ref().is_some_and(|within| within.again)
                    && bound.matcher.is_accepting().map_err(problem)?
                {
                    *self = Part::Free(Vec::new());
                }
            }
            (Part::Free(_), None) => {}
        }
        Ok(())
    }
}

impl Bound {
    fn new(schema: &Schema) -> Self {
        Bound { matcher: schema.start.deep_clone(), number: Number::new(schema.embedded) }
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
        self.number.read(digits.text(token));
        Ok(())
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
