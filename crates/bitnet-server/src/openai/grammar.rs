//! `response_format`: texts that are JSON, or JSON of a schema. `llguidance` says which tokens may follow.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
};

use bitnet_inference::{Constraint, ConstraintError, TokenSet};
use bitnet_model::Tokenizer;
use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie},
};
use parking_lot::Mutex;
use serde_json::{Value, json, value::RawValue};

use crate::{
    http::{
        error::ApiError,
        fields::{Fields, plainly},
    },
    service::ServedModel,
};

/// Maximum bytes of a schema.
const MAX_SCHEMA: usize = 64 << 10;
/// Maximum number of digits in a row, before or after the point or in the exponent of a number: any 64-bit integer
/// fits. Without a bound a model that repeats itself writes digits until its length is used up.
const MAX_DIGITS: usize = 20;

/// A `response_format` that asks for something.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Format {
    schema: Value,
}

impl Format {
    /// Reads the field; plain text asks for nothing.
    pub fn read(mut fields: Fields<'_>) -> Result<Option<Format>, ApiError> {
        let kind: String = fields.need("type")?;
        let format = match kind.as_str() {
            "text" => None,
            "json_object" => Some(Format { schema: json!({"type": "object"}) }),
            "json_schema" => {
                let missing = || ApiError::field("response_format.json_schema", "it is missing");
                let mut inner = fields.object("json_schema")?.ok_or_else(missing)?;
                // A name and a description are for people; a schema is always kept to, strict or not.
                inner.take::<String>("name")?;
                inner.take::<String>("description")?;
                inner.take::<bool>("strict")?;
                let schema: &RawValue = inner.need_raw("schema")?;
                let (name, bytes) = (inner.name("schema"), schema.get().len());
                if bytes > MAX_SCHEMA {
                    let problem = format!("it has {bytes} bytes, and at most {MAX_SCHEMA} are allowed");
                    return Err(ApiError::field(name, problem));
                }
                let schema: Value =
                    serde_json::from_str(schema.get()).map_err(|e| ApiError::field(&name, plainly(&e)))?;
                if !schema.is_object() && !schema.is_boolean() {
                    return Err(ApiError::field(name, "it must be a JSON schema"));
                }
                inner.finish()?;
                Some(Format { schema })
            }
            other => return Err(ApiError::unsupported(fields.name("type"), format!("{other:.20?}"))),
        };
        fields.finish()?;
        Ok(format)
    }
}

/// Compiles formats for one vocabulary.
pub(crate) struct Grammars {
    model: Arc<ServedModel>,
    vocab: usize,
    /// The vocabulary as a tree; made when the first format comes.
    factory: OnceLock<Result<ParserFactory, String>>,
    digits: OnceLock<Arc<Digits>>,
}

impl Grammars {
    /// For a model with logits for `vocab` tokens.
    pub fn new(model: Arc<ServedModel>, vocab: usize) -> Self {
        Grammars { model, vocab, factory: OnceLock::new(), digits: OnceLock::new() }
    }

    /// A format as rules over tokens.
    pub fn compile(&self, format: Format) -> Result<Grammar, ApiError> {
        let factory = self.factory.get_or_init(|| factory(&self.model, self.vocab));
        let factory = factory.as_ref().map_err(ApiError::format)?;
        let mut schema = format.schema;
        // White space at will is what small models fill their texts with.
        if let Some(map) = schema.as_object_mut() {
            map.entry("x-guidance").or_insert(json!({"whitespace_flexible": false}));
        }
        let parser = factory.create_parser(TopLevelGrammar::from_json_schema(schema));
        let start = Matcher::new(parser);
        if let Some(problem) = start.get_error() {
            return Err(ApiError::format(problem));
        }
        // Some formats are sound and still have no text, which shows where the first token is looked for.
        let first = start.deep_clone().compute_mask_or_eos();
        first.map_err(|e| ApiError::format(format!("no text begins in this format: {e}")))?;
        let digits = self.digits.get_or_init(|| Arc::new(Digits::new(&self.model, self.vocab)));
        Ok(Grammar { start: Arc::new(start), digits: Arc::clone(digits) })
    }
}

fn factory(model: &ServedModel, vocab: usize) -> Result<ParserFactory, String> {
    let tokenizer =
        model.tokenizer.as_ref().ok_or("this model has no tokenizer, so its texts have no format")?;
    let [eos, ..] = model.defaults.eos[..] else {
        return Err("this model has no token that ends a text, so a format could not end".into());
    };
    let info = TokRxInfo::new(vocab as u32, eos);
    let words: Vec<Vec<u8>> = (0..vocab as u32).map(|id| word(tokenizer, id)).collect();
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&model.defaults.eos);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// What a token spells; control tokens are marked, so that no text spells one.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match tokenizer.is_special(id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        false => bytes.to_vec(),
    }
}

/// Which tokens make a number longer.
struct Digits {
    model: Arc<ServedModel>,
    /// The tokens that begin with a digit, 32 a word, lowest first.
    leading: Vec<u32>,
}

impl Digits {
    fn new(model: &Arc<ServedModel>, vocab: usize) -> Self {
        let mut digits = Digits { model: Arc::clone(model), leading: vec![0; vocab.div_ceil(32)] };
        for id in 0..vocab as u32 {
            if digits.text(id).first().is_some_and(u8::is_ascii_digit) {
                digits.leading[id as usize / 32] |= 1 << (id % 32);
            }
        }
        digits
    }

    fn text(&self, id: u32) -> &[u8] {
        let tokenizer = self.model.tokenizer.as_ref();
        tokenizer.filter(|t| !t.is_special(id)).and_then(|t| t.token_bytes(id)).unwrap_or_default()
    }

    /// What is allowed without the tokens that begin with a digit, unless nothing would be left: a schema may ask for
    /// a longer number by its value.
    fn ended(&self, allowed: &[u32]) -> Option<Vec<u32>> {
        let others: Vec<u32> =
            allowed.iter().zip(&self.leading).map(|(word, digits)| word & !digits).collect();
        others.iter().any(|&word| word != 0).then_some(others)
    }
}

/// How far a JSON text is in a number.
#[derive(Debug, Default, Clone, Copy)]
struct Number {
    quoted: bool,
    escaped: bool,
    /// Digits in a row up to here, outside of texts.
    digits: usize,
}

impl Number {
    fn read(&mut self, text: &[u8]) {
        for byte in text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.quoted => self.escaped = true,
                b'"' => self.quoted = !self.quoted,
                _ => {}
            }
            self.digits = if byte.is_ascii_digit() && !self.quoted { self.digits + 1 } else { 0 };
        }
    }
}

/// A format, ready to be followed by any number of texts.
pub(crate) struct Grammar {
    start: Arc<Matcher>,
    digits: Arc<Digits>,
}

impl Grammar {
    /// Follows the texts of one request.
    pub fn constraint(&self) -> Arc<dyn Constraint> {
        let (start, digits) = (Arc::clone(&self.start), Arc::clone(&self.digits));
        Arc::new(Followed { start, digits, texts: Mutex::default() })
    }
}

/// The texts of one request, as far as they have been read.
struct Followed {
    start: Arc<Matcher>,
    digits: Arc<Digits>,
    texts: Mutex<HashMap<u32, Text>>,
}

struct Text {
    read: Vec<u32>,
    matcher: Matcher,
    number: Number,
}

impl Text {
    fn new(start: &Matcher) -> Self {
        Text { read: Vec::new(), matcher: start.deep_clone(), number: Number::default() }
    }

    /// Reads on to the end of `tokens`; starts over if they do not begin with what has been read.
    fn follow(&mut self, tokens: &[u32], start: &Matcher, digits: &Digits) -> Result<(), ConstraintError> {
        if !tokens.starts_with(&self.read) {
            *self = Text::new(start);
        }
        let new = &tokens[self.read.len()..];
        self.matcher.consume_tokens(new).map_err(problem)?;
        new.iter().for_each(|&id| self.number.read(digits.text(id)));
        self.read.extend_from_slice(new);
        Ok(())
    }
}

fn problem(error: impl fmt::Display) -> ConstraintError {
    ConstraintError(error.to_string())
}

impl Constraint for Followed {
    fn allow(&self, choice: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        let mut texts = self.texts.lock();
        let text = texts.entry(choice).or_insert_with(|| Text::new(&self.start));
        text.follow(generated, &self.start, &self.digits)?;
        let next = text.matcher.compute_mask_or_eos().map_err(problem)?;
        match (text.number.digits >= MAX_DIGITS).then(|| self.digits.ended(next.as_slice())).flatten() {
            Some(others) => allowed.insert_words(&others),
            None => allowed.insert_words(next.as_slice()),
        }
        Ok(())
    }
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_of_a_number_count() {
        for (text, digits) in [
            ("", 0),
            ("{\"a\":12", 2),
            ("{\"a\":-12.345", 3),
            ("[1e17", 2),
            ("[123,", 0),
            ("{\"123", 0),
            ("{\"1\\\"23", 0),
            ("{\"1\\\\\":23", 2),
        ] {
            let mut number = Number::default();
            number.read(text.as_bytes());
            assert_eq!(number.digits, digits, "{text}");
        }
    }
}
