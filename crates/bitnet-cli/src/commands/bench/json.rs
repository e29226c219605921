//! A text under a JSON schema, for measurements: the schema, and a vocabulary for models without one.

use std::{iter, sync::Arc};

use bitnet::{
    Constraint,
    model::{Checkpoint, Tokenizer},
    schema::Schemas,
};
use serde_json::{Map, Value, json};

use crate::error::CliError;

/// A list of records, too long to end within a measurement: keys that are known, short strings, a choice and numbers.
fn schema() -> Value {
    json!({"type": "array", "minItems": 10_000, "items": {"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 16},
        "kind": {"enum": ["person", "place", "thing"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
        "is_known": {"type": "boolean"},
        "description": {"type": "string", "maxLength": 60}
    }, "required": ["name", "kind", "count", "is_known", "description"], "additionalProperties": false}})
}

/// The schema as a constraint on the tokens of a model.
pub fn constraint(checkpoint: &Checkpoint) -> Result<Arc<dyn Constraint>, CliError> {
    let vocab = checkpoint.spec.vocab;
    let (tokenizer, eos) = match &checkpoint.tokenizer {
        Some(tokenizer) => (tokenizer.clone(), checkpoint.defaults.eos.clone()),
        None => (made_up(vocab)?, vec![vocab as u32 - 1]),
    };
    Ok(Schemas::new(Some(tokenizer), &eos, vocab).json(schema())?.constraint())
}

/// A vocabulary of all bytes, marks that are common in JSON, and words: all texts of two letters and more, with and
/// without a space before, as far as there is room.
fn made_up(vocab: usize) -> Result<Tokenizer, CliError> {
    // The printable characters of GPT-2's alphabet; then those for the other bytes.
    let printable = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ');
    let bytes = printable.chain('\u{100}'..='\u{143}').map(String::from);
    let marks = ["\":", "\",", "{\"", "\"}", "},", "[{", "[\"", "\"]", ",\"", ":\"", "\":\"", "\",\""];
    let known =
        ["name", "kind", "count", "is_known", "description", "person", "place", "thing", "true", "false"];
    // All words of two letters, then of three, and so on.
    let longer = |words: &Vec<String>| {
        let each = |word: &String| ('a'..='z').map(|letter| format!("{word}{letter}")).collect::<Vec<_>>();
        Some(words.iter().flat_map(each).collect::<Vec<_>>())
    };
    let words = iter::successors(Some(vec![String::new()]), longer).skip(2).flatten();
    let words = words.flat_map(|word| [format!("Ġ{word}"), word]);
    let all = bytes.chain(marks.into_iter().chain(known).map(String::from)).chain(words);
    let mut ids = Map::new();
    for token in all {
        if ids.len() + 1 >= vocab {
            break;
        }
        let next = ids.len();
        ids.entry(token).or_insert(next.into());
    }
    let split =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let file = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": split,
        "post_processor": null, "decoder": split,
        "model": {"type": "BPE", "ignore_merges": true, "vocab": ids, "merges": []}});
    Ok(Tokenizer::from_json(file.to_string().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use bitnet::TokenSet;

    use super::*;

    #[test]
    fn a_made_up_vocabulary_can_write_the_schema_in_tokens_of_several_bytes() {
        let tokenizer = made_up(50_000).unwrap();
        assert_eq!(tokenizer.vocab_size(), 49_999);
        let schemas = Schemas::new(Some(tokenizer), &[49_999], 50_000);
        let constraint = schemas.json(schema()).unwrap().constraint();
        let (mut text, mut forced) = (Vec::new(), 0);
        for step in 0..80 {
            let mut allowed = TokenSet::new(50_000);
            constraint.allow(0, &text, &mut allowed).unwrap();
            forced += usize::from(constraint.forced(0, &text).is_some());
            let tokens: Vec<u32> = (0..50_000).filter(|&token| allowed.contains(token)).collect();
            text.push(tokens[step * 37 % tokens.len()]);
        }
        assert!(forced > 10, "{forced} of 80 tokens");
    }
}
