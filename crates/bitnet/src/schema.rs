//! Texts that follow a JSON schema, as constraints on tokens. `llguidance` says which tokens may follow.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
};

use bitnet_inference::{Constraint, ConstraintError, TokenSet};
use bitnet_model::{ModelSpec, Tokenizer};
use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Error;

/// Compiles schemas for one vocabulary.
pub struct Schemas {
    tokenizer: Option<Tokenizer>,
    eos: Vec<u32>,
    vocab: usize,
    /// The vocabulary as a tree; made when the first schema comes.
    factory: OnceLock<Result<ParserFactory, String>>,
}

/// A compiled schema, which any number of texts can follow.
pub struct Schema {
    start: Arc<Matcher>,
}

impl Schemas {
    /// For a model with this tokenizer, logits for so many tokens, and these end tokens.
    pub fn new(tokenizer: Option<Tokenizer>, spec: &ModelSpec) -> Self {
        Schemas { tokenizer, eos: spec.eos.clone(), vocab: spec.vocab, factory: OnceLock::new() }
    }

    /// Compiles a schema, given as JSON text.
    ///
    /// # Errors
    /// If it is no schema, or no text can follow it, or the model has no tokenizer or end token.
    pub fn compile(&self, schema: &str) -> Result<Schema, Error> {
        let refused = |problem: String| Error::Schema { problem };
        let factory = self.factory.get_or_init(|| self.factory());
        let factory = factory.as_ref().map_err(|problem| refused(problem.clone()))?;
        let mut schema: Value = serde_json::from_str(schema).map_err(|e| refused(e.to_string()))?;
        // White space at will is what small models fill their texts with.
        match &mut schema {
            Value::Object(map) => {
                map.entry("x-guidance").or_insert(json!({"whitespace_flexible": false}));
            }
            Value::Bool(_) => {}
            _ => return Err(refused("it is neither an object nor a boolean".into())),
        }
        let start = Matcher::new(factory.create_parser(TopLevelGrammar::from_json_schema(schema)));
        if let Some(problem) = start.get_error() {
            return Err(refused(problem));
        }
        // Some schemas are sound and still have no text, which shows where the first token is looked for.
        let first = start.deep_clone().compute_mask_or_eos();
        first.map_err(|e| refused(format!("no text begins in this format: {e}")))?;
        Ok(Schema { start: Arc::new(start) })
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let tokenizer =
            self.tokenizer.as_ref().ok_or("this model has no tokenizer, so its texts have no format")?;
        let [eos, ..] = self.eos[..] else {
            return Err("this model has no token that ends a text, so a format could not end".into());
        };
        let info = TokRxInfo::new(self.vocab as u32, eos);
        let words: Vec<Vec<u8>> = (0..self.vocab as u32).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&self.eos);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(factory)
    }
}

/// What a token spells; control tokens are marked, so that no text spells one.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match tokenizer.is_special(id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        false => bytes.to_vec(),
    }
}

impl Schema {
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

impl fmt::Debug for Schemas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schemas").field("vocab", &self.vocab).finish_non_exhaustive()
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema").finish_non_exhaustive()
    }
}
