//! Constraints that make a text follow a JSON schema or a grammar. `llguidance` computes which tokens may follow.

mod embedded;
mod exact;
mod followed;
mod normal;
mod number;
mod strings;
mod thought;
mod vocabulary;
mod words;

use std::sync::{Arc, OnceLock};

use bitnet_inference::ThoughtRule;
use bitnet_model::Tokenizer;
use llguidance::{Matcher, ParserFactory, api::TopLevelGrammar};
pub use serde_json::Value;
use serde_json::json;

use self::{exact::Rules, number::Digits, thought::Preface};
use crate::Error;
#[doc(hidden)]
pub use strings::StringTracker;
pub use words::{type_of, unescaped};

/// Compiles schemas for a vocabulary.
pub struct Schemas {
    tokenizer: Option<Tokenizer>,
    eos: Vec<u32>,
    vocab: usize,
    /// The vocabulary as a tree, built for the first schema.
    factory: OnceLock<Result<ParserFactory, String>>,
    digits: OnceLock<Arc<Digits>>,
}

/// A compiled schema or grammar, for any number of texts.
#[derive(Clone)]
pub struct Schema {
    start: Arc<Matcher>,
    digits: Arc<Digits>,
    /// Whether JSON in the text can be within other text.
    embedded: bool,
    within: Option<Within>,
    /// The thought before the text that the schema is for.
    preface: Option<Arc<Preface>>,
    eos: Arc<[u32]>,
}

/// Which part of an otherwise free text follows a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Within {
    /// The opening of the part that follows the schema.
    pub opens: Opens,
    /// Whether the text is free again after that part, until the next one; otherwise it ends there.
    pub again: bool,
}

/// The opening of the part of a text that follows a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opens {
    /// These bytes, anywhere; the part begins after them.
    After(Vec<u8>),
    /// An object with this first key at the start of the text; the part begins with its brace.
    Object(String),
}

impl Opens {
    /// The start of the part, if the end of a free text opens it.
    fn find(&self, text: &[u8]) -> Option<usize> {
        match self {
            Opens::After(mark) => {
                let mut ends = mark.len()..=text.len();
                ends.find(|&end| text[..end].ends_with(mark))
            }
            Opens::Object(key) => {
                let rest = text.trim_ascii_start();
                let inside = rest.strip_prefix(b"{")?.trim_ascii_start();
                let key = format!("{key:?}");
                inside.starts_with(key.as_bytes()).then_some(text.len() - rest.len())
            }
        }
    }

    /// Drops text that cannot become an opening, whatever follows.
    fn forget(&self, text: &mut Vec<u8>) {
        match self {
            Opens::After(mark) => drop(text.drain(..(text.len() + 1).saturating_sub(mark.len()))),
            // Only the start of the text matters, so it is kept.
            Opens::Object(key) => text.truncate(MAX_SPACE + key.len()),
        }
    }
}

/// Maximum bytes of white space around an opening brace.
const MAX_SPACE: usize = 64;

impl Schemas {
    /// Creates a compiler for a model with this tokenizer, these end tokens, and logits for `vocab` tokens.
    pub fn new(tokenizer: Option<Tokenizer>, eos: &[u32], vocab: usize) -> Self {
        let (factory, digits) = (OnceLock::new(), OnceLock::new());
        Schemas { tokenizer, eos: eos.to_vec(), vocab, factory, digits }
    }

    /// Compiles a JSON schema, given as JSON text.
    ///
    /// # Errors
    /// If the schema is invalid or no text can follow it, or the model has no tokenizer or end token.
    pub fn compile(&self, schema: &str) -> Result<Schema, Error> {
        self.json(serde_json::from_str(schema).map_err(|e| Error::Schema { problem: e.to_string() })?)
    }

    /// Compiles a JSON schema.
    ///
    /// # Errors
    /// As [`Schemas::compile`].
    pub fn json(&self, schema: Value) -> Result<Schema, Error> {
        if !schema.is_object() && !schema.is_boolean() {
            return Err(Error::Schema { problem: "it is neither an object nor a boolean".into() });
        }
        let grammar = match compiled(&spaced(schema), "exact").map_err(refused)? {
            Form::Json(schema) => TopLevelGrammar::from_json_schema(schema),
            Form::Rules(Rules { expression, rules }) => {
                TopLevelGrammar::from_lark(format!("start: {expression}\n{rules}"))
            }
        };
        self.checked(grammar, false)
    }

    /// Compiles a grammar in `llguidance`'s variant of Lark, in which `%json {...}` stands for a JSON schema.
    ///
    /// # Errors
    /// As [`Schemas::compile`].
    pub fn grammar(&self, lark: &str) -> Result<Schema, Error> {
        self.checked(TopLevelGrammar::from_lark(embedded::rewritten(lark).map_err(refused)?), true)
    }

    /// Compiles a regular expression that the whole text must match, in the syntax of Rust's `regex`.
    ///
    /// # Errors
    /// As [`Schemas::compile`].
    pub fn regex(&self, pattern: &str) -> Result<Schema, Error> {
        self.checked(TopLevelGrammar::from_regex(pattern), true)
    }

    fn checked(&self, grammar: TopLevelGrammar, embedded: bool) -> Result<Schema, Error> {
        let factory = || vocabulary::factory(self.tokenizer.as_ref(), &self.eos, self.vocab);
        let factory = self.factory.get_or_init(factory);
        let factory = factory.as_ref().map_err(|problem| refused(problem.clone()))?;
        let start = Matcher::new(factory.create_parser(grammar));
        if let Some(problem) = start.get_error() {
            return Err(refused(problem));
        }
        // Some valid schemas have no text, which shows when the first token is computed.
        let first = start.deep_clone().compute_mask_or_eos();
        first.map_err(|e| refused(format!("no text begins in this format: {e}")))?;
        let digits = || Arc::new(Digits::new(self.tokenizer.clone(), self.vocab));
        let digits = Arc::clone(self.digits.get_or_init(digits));
        Ok(Schema {
            start: Arc::new(start),
            digits,
            embedded,
            within: None,
            preface: None,
            eos: self.eos[..].into(),
        })
    }
}

/// A schema in a form that the compiler takes.
enum Form {
    Json(Value),
    Rules(Rules),
}

/// Rewrites a schema. `prefix` begins the names of its rules, if it needs any.
fn compiled(schema: &Value, prefix: &str) -> Result<Form, String> {
    let schema = normal::normal(schema)?;
    match exact::rules(&schema, prefix) {
        Some(rules) => rules.map(Form::Rules),
        None => Ok(Form::Json(schema)),
    }
}

fn refused(problem: String) -> Error {
    Error::Schema { problem }
}

/// Allows no white space that the schema does not ask for: small models fill their texts with it if they can.
pub fn spaced(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema {
        map.entry("x-guidance").or_insert(json!({"whitespace_flexible": false}));
    }
    schema
}

impl Schema {
    /// The same schema, for only a part of the text.
    #[must_use]
    pub fn within(self, within: Within) -> Self {
        Schema { within: Some(within), ..self }
    }

    /// The same schema, for the answer after a thought. The thought is free. If the whole answer follows the schema, the
    /// gap of the rule comes between the end marker and the answer, in the tokens that a prompt has there, and `rule`
    /// allows no thought within the answer.
    #[must_use]
    pub fn after_thought(self, rule: &mut Arc<ThoughtRule>) -> Self {
        Arc::make_mut(rule).again &= self.within.is_some();
        let preface = Preface::new(rule, self.digits.tokenizer());
        Schema { preface: Some(Arc::new(preface)), ..self }
    }
}

bitnet_tensor::opaque_debug!(Schemas { vocab }, Schema);
