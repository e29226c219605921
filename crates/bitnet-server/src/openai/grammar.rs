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
use serde_json::{Value, json};

use crate::{
    http::{error::ApiError, fields::Fields},
    service::ServedModel,
};

/// A `response_format` that asks for something.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Format {
    schema: Value,
}

impl Format {
    /// Reads the field; plain text asks for nothing.
    pub fn read(mut fields: Fields) -> Result<Option<Format>, ApiError> {
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
                let schema: Value = inner.need("schema")?;
                if !schema.is_object() && !schema.is_boolean() {
                    return Err(ApiError::field(inner.name("schema"), "it must be a JSON schema"));
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
}

impl Grammars {
    /// For a model with logits for `vocab` tokens.
    pub fn new(model: Arc<ServedModel>, vocab: usize) -> Self {
        Grammars { model, vocab, factory: OnceLock::new() }
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
        Ok(Grammar { start: Arc::new(start) })
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

/// A format, ready to be followed by any number of texts.
pub(crate) struct Grammar {
    start: Arc<Matcher>,
}

impl Grammar {
    /// Follows the texts of one request.
    pub fn constraint(&self) -> Arc<dyn Constraint> {
        Arc::new(Followed { start: Arc::clone(&self.start), texts: Mutex::default() })
    }
}

/// The texts of one request, as far as they have been read.
struct Followed {
    start: Arc<Matcher>,
    texts: Mutex<HashMap<u32, Text>>,
}

struct Text {
    read: Vec<u32>,
    matcher: Matcher,
}

impl Text {
    /// Reads on to the end of `tokens`; starts over if they do not begin with what has been read.
    fn follow(&mut self, tokens: &[u32], start: &Matcher) -> Result<(), ConstraintError> {
        if !tokens.starts_with(&self.read) {
            *self = Text { read: Vec::new(), matcher: start.deep_clone() };
        }
        let new = &tokens[self.read.len()..];
        self.matcher.consume_tokens(new).map_err(problem)?;
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
        let text = texts
            .entry(choice)
            .or_insert_with(|| Text { read: Vec::new(), matcher: self.start.deep_clone() });
        text.follow(generated, &self.start)?;
        allowed.insert_words(text.matcher.compute_mask_or_eos().map_err(problem)?.as_slice());
        Ok(())
    }
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed").finish_non_exhaustive()
    }
}
