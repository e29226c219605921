//! What `tokenizer_config.json` adds to a `tokenizer.json`, as transformers reads the two ([`extend`]): tokens that stand
//! only there, and which tokens are special.

use std::collections::HashMap;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::Recipe;
use crate::{ModelError, error::one_line, spec::fields::json};

const FILE: &str = "tokenizer_config.json";

/// Fields that name one special token each.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Fields that name several.
const SPECIAL_LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The contents of `tokenizer_config.json`; null if the folder has none.
pub(crate) fn read(bytes: Option<&[u8]>) -> Result<Value, ModelError> {
    bytes.map_or(Ok(Value::Null), |bytes| json(FILE, bytes))
}

/// The text of the token that ends a text, if the file names one.
pub(crate) fn eos_text(config: &Value) -> Option<&str> {
    text(&config["eos_token"])
}

/// A token is either its text or an object with the text.
fn text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// Adds the tokens of the file to those of `tokenizer.json`. Where both have a token, this file says how it is matched. A
/// token that is not in the vocabulary gets the next id, in the order of the ids that the file lists.
pub(super) fn extend(recipe: &mut Recipe, config: &Value) -> Result<(), ModelError> {
    let listed = config.get("added_tokens_decoder").and_then(Value::as_object);
    let mut tokens = listed.into_iter().flatten().map(listed_token).collect::<Result<Vec<_>, _>>()?;
    tokens.sort_by_key(|&(id, _)| id);
    let mut places: HashMap<String, usize> =
        recipe.added.iter().enumerate().map(|(place, (_, token))| (token.content.clone(), place)).collect();
    let added = recipe.added.iter().map(|&(id, _)| id);
    let mut next = recipe.vocab.values().copied().chain(added).max().map_or(0, |id| id.saturating_add(1));
    for (_, token) in tokens {
        if let Some(&place) = places.get(&token.content) {
            recipe.added[place].1 = token;
            continue;
        }
        let id = recipe.vocab.get(&token.content).copied().unwrap_or_else(|| {
            next = next.saturating_add(1);
            next - 1
        });
        places.insert(token.content.clone(), recipe.added.len());
        recipe.added.push((id, token));
    }
    let lists = SPECIAL_LISTS.iter().flat_map(|field| match &config[*field] {
        Value::Array(list) => list.iter().collect::<Vec<_>>(),
        Value::Object(named) => named.values().collect(),
        _ => Vec::new(),
    });
    for name in SPECIAL.iter().map(|field| &config[*field]).chain(lists).filter_map(text) {
        let Some(&id) = recipe.vocab.get(name).filter(|_| !places.contains_key(name)) else { continue };
        places.insert(name.to_owned(), recipe.added.len());
        recipe.added.push((id, AddedToken::from(name, true)));
    }
    Ok(())
}

/// A token of `added_tokens_decoder`, with its id.
fn listed_token((id, token): (&String, &Value)) -> Result<(u32, AddedToken), ModelError> {
    let bad =
        |problem: &str| ModelError::field(FILE, format!("added_tokens_decoder.{}", one_line(id)), problem);
    let number = id.parse().map_err(|_| bad("is not the id of a token"))?;
    let content = text(token).ok_or_else(|| bad("has no content"))?;
    let none = Map::new();
    let fields = token.as_object().unwrap_or(&none);
    let flag = |field: &str| fields.get(field).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    let token = AddedToken::from(content, special)
        .normalized(flag("normalized").unwrap_or(!special))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .single_word(flag("single_word").unwrap_or(false));
    Ok((number, token))
}
