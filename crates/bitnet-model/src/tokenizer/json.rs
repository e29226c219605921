//! `tokenizer.json` of a Hugging Face folder.
//!
//! The `tokenizers` crate parses the parts that split text. Vocabulary, merges and special tokens are read here,
//! because that crate does not validate them.

use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, models::bpe::Vocab};

use super::{CURE, Recipe, Spelling};
use crate::{ModelError, error::one_line, spec::fields::without_mark};

/// Maximum size in bytes of a `tokenizer.json`; Llama 3's has 17 MB.
pub(crate) const MAX_BYTES: u64 = 64 << 20;
const FILE: &str = "tokenizer.json";
/// Maximum number of times that a part of a pattern may be repeated.
const MAX_REPEATS: u64 = 10_000;
/// Maximum number of groups and classes in a pattern, over which its compiler recurses; real ones have about 20.
const MAX_GROUPS: usize = 200;
/// Maximum size in bytes of a pattern; real ones have about 500.
const MAX_PATTERN: usize = 8 << 10;

#[derive(Deserialize)]
struct Json {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
struct Model {
    /// Missing in old files.
    r#type: Option<String>,
    #[serde(default)]
    vocab: Vocab,
    #[serde(default)]
    merges: Vec<Merge>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair(String, String),
}

fn fail(problem: impl ToString) -> ModelError {
    ModelError::Tokenizer { file: FILE.into(), problem: one_line(problem), cure: CURE }
}

fn unsupported(field: &str, value: impl ToString) -> ModelError {
    ModelError::unsupported(FILE, field, value, "use byte-level BPE or BPE with byte fallback")
}

pub(super) fn read(bytes: &[u8]) -> Result<Recipe, ModelError> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ModelError::TooLarge { file: FILE.into(), size: bytes.len() as u64, limit: MAX_BYTES });
    }
    let json: Json = serde_json::from_slice(without_mark(bytes)).map_err(fail)?;
    let model = json.model;
    if let Some(other) = model.r#type.filter(|t| t != "BPE") {
        return Err(unsupported("model.type", other));
    }
    for (field, value) in [
        ("model.continuing_subword_prefix", model.continuing_subword_prefix),
        ("model.end_of_word_suffix", model.end_of_word_suffix),
    ] {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            return Err(unsupported(field, value));
        }
    }
    let merges = model.merges.into_iter().map(|merge| match merge {
        Merge::Pair(a, b) => Ok((a, b)),
        Merge::Line(line) => match line.split_once(' ') {
            Some((a, b)) if !b.contains(' ') => Ok((a.into(), b.into())),
            _ => Err(fail(format!("merge {line:?} is not two tokens"))),
        },
    });
    let merges = merges.collect::<Result<_, _>>()?;
    for part in [&json.normalizer, &json.pre_tokenizer].into_iter().flatten() {
        check_patterns(part)?;
    }
    let (spelling, leading_space) = spelling(json.decoder.as_ref(), model.byte_fallback)?;
    let (prefix, suffix) = match &json.post_processor {
        Some(processor) => around(processor)?,
        None => Default::default(),
    };
    let (normalizer, pre_tokenizer) = splitters(json.normalizer, json.pre_tokenizer)?;
    Ok(Recipe {
        file: FILE.into(),
        vocab: model.vocab,
        merges,
        added: json.added_tokens.into_iter().map(|a| (a.id, a.token)).collect(),
        normalizer,
        pre_tokenizer,
        ignore_merges: model.ignore_merges,
        unknown: model.unk_token,
        fuse_unknown: model.fuse_unk,
        spelling,
        prefix,
        suffix,
        leading_space,
    })
}

/// The parts that split text. They are parsed as those of a tokenizer without tokens, because the crate has this parser
/// compiled; a parser for each part would be compiled here again.
fn splitters(
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
) -> Result<(Option<NormalizerWrapper>, Option<PreTokenizerWrapper>), ModelError> {
    let model = json!({"type": "BPE", "vocab": {}, "merges": []});
    let json = json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model});
    let empty: tokenizers::Tokenizer = json.to_string().parse().map_err(fail)?;
    Ok((empty.get_normalizer().cloned(), empty.get_pre_tokenizer().cloned()))
}

/// Derives from the decoder how the vocabulary is spelled, and whether decoding removes a space that encoding puts before
/// a text. Steps that would decode otherwise are refused by name.
fn spelling(decoder: Option<&Value>, byte_fallback: bool) -> Result<(Spelling, bool), ModelError> {
    let steps = match decoder {
        Some(sequence) if sequence["type"] == "Sequence" => {
            sequence["decoders"].as_array().map(Vec::as_slice).unwrap_or_default()
        }
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    let (mut spelling, mut strips) = (None, false);
    for step in steps {
        match step["type"].as_str().unwrap_or("missing") {
            "ByteLevel" => spelling = Some(Spelling::ByteLevel),
            "Metaspace" => {
                only(step, "replacement", &json!("▁"))?;
                spelling = spelling.or(Some(Spelling::SentencePiece));
                // Old files say the same by `add_prefix_space`.
                let never = step["prepend_scheme"] == "never"
                    || step["prepend_scheme"].is_null() && step["add_prefix_space"] == false;
                strips = strips || !never;
            }
            "Replace" => {
                only(step, "pattern", &json!({"String": "▁"}))?;
                only(step, "content", &json!(" "))?;
            }
            "Strip" => {
                only(step, "content", &json!(" "))?;
                only(step, "stop", &json!(0))?;
                strips = strips || step["start"] != 0;
            }
            "ByteFallback" | "Fuse" => {}
            other => return Err(unsupported("decoder.type", other)),
        }
    }
    match spelling {
        Some(Spelling::ByteLevel) => Ok((Spelling::ByteLevel, false)),
        Some(Spelling::SentencePiece) => Ok((Spelling::SentencePiece, strips)),
        None if byte_fallback => Ok((Spelling::SentencePiece, strips)),
        None => {
            let kinds: Vec<&str> = steps.iter().filter_map(|step| step["type"].as_str()).collect();
            Err(unsupported("decoder", if kinds.is_empty() { "missing".into() } else { kinds.join(", ") }))
        }
    }
}

/// Refuses a step of the decoder whose field has another value than the only supported one.
fn only(step: &Value, field: &str, value: &Value) -> Result<(), ModelError> {
    if step[field] == *value {
        return Ok(());
    }
    let kind = step["type"].as_str().unwrap_or_default();
    Err(unsupported(&format!("decoder.{kind}.{field}"), one_line(&step[field])))
}

/// The special tokens that a `TemplateProcessing` puts before and after one text.
fn around(processor: &Value) -> Result<(Vec<u32>, Vec<u32>), ModelError> {
    match processor["type"].as_str() {
        Some("Sequence") => {
            let list = processor["processors"].as_array().map(Vec::as_slice).unwrap_or_default();
            let template = list.iter().find(|p| p["type"] != "ByteLevel");
            template.map_or(Ok(Default::default()), around)
        }
        Some("ByteLevel") => Ok(Default::default()),
        Some("TemplateProcessing") => {
            let (mut prefix, mut suffix, mut behind) = (Vec::new(), Vec::new(), false);
            for piece in processor["single"].as_array().map(Vec::as_slice).unwrap_or_default() {
                if let Some(token) = piece["SpecialToken"]["id"].as_str() {
                    let ids = processor["special_tokens"][token]["ids"].as_array();
                    let ids: Option<Vec<u32>> =
                        ids.and_then(|ids| ids.iter().map(|id| id.as_u64()?.try_into().ok()).collect());
                    let ids = ids.ok_or_else(|| {
                        fail(format!("post_processor: special token {} has no ids", one_line(token)))
                    })?;
                    if behind { &mut suffix } else { &mut prefix }.extend(ids);
                } else {
                    behind = true;
                }
            }
            Ok((prefix, suffix))
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            let id = |field: &str| {
                let id = processor[field].get(1).and_then(Value::as_u64).and_then(|id| id.try_into().ok());
                id.ok_or_else(|| fail(format!("post_processor: {field} has no id")))
            };
            Ok((vec![id("cls")?], vec![id("sep")?]))
        }
        other => Err(unsupported("post_processor.type", other.unwrap_or("missing"))),
    }
}

/// Refuses parts that could be too costly: character maps in a foreign binary format, and patterns whose counted
/// repetitions unroll too far.
fn check_patterns(part: &Value) -> Result<(), ModelError> {
    match part {
        Value::Object(fields) => {
            if part["type"] == "Precompiled" {
                return Err(unsupported("normalizer.type", "Precompiled"));
            }
            if let Some(pattern) = fields.get("Regex").and_then(Value::as_str) {
                let groups = pattern.bytes().filter(|b| matches!(b, b'(' | b'[')).count();
                if groups > MAX_GROUPS || pattern.len() > MAX_PATTERN {
                    return Err(fail(format!(
                        "a pattern has {} bytes and {groups} groups, more than allowed",
                        pattern.len()
                    )));
                }
                let unrolled = repeats(pattern);
                if unrolled > MAX_REPEATS {
                    return Err(fail(format!(
                        "a pattern repeats a part {unrolled} times, more than allowed"
                    )));
                }
            }
            fields.values().try_for_each(check_patterns)
        }
        Value::Array(list) => list.iter().try_for_each(check_patterns),
        _ => Ok(()),
    }
}

/// How many characters a pattern matches at most when counts such as `{1,3}` are written out and `*` is one: counts in
/// each other multiply, counts side by side add.
fn repeats(pattern: &str) -> u64 {
    // The groups that are open, each with its parts so far and its last part, which a count may repeat.
    let mut outer: Vec<(u64, u64)> = Vec::new();
    let (mut before, mut last) = (0u64, 0u64);
    let mut rest = pattern;
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        rest = after;
        let part = match char {
            '{' if let Some((most, after)) = count(after) => {
                last = last.saturating_mul(most.max(1));
                rest = after;
                continue;
            }
            '(' => {
                outer.push((before, last));
                (before, last) = (0, 0);
                continue;
            }
            ')' if let Some(group) = outer.pop() => {
                let inside = before.saturating_add(last);
                (before, last) = group;
                inside.max(1)
            }
            '[' => {
                rest = after_class(after);
                1
            }
            '\\' => {
                rest = after_escape(after);
                1
            }
            _ => 1,
        };
        (before, last) = (before.saturating_add(last), part);
    }
    outer.into_iter().fold(before.saturating_add(last), |sum, (before, last)| {
        sum.saturating_add(before).saturating_add(last)
    })
}

/// The larger number of a count, and what follows its closing brace.
fn count(text: &str) -> Option<(u64, &str)> {
    let (numbers, after) = text.split_once('}')?;
    let most = numbers.split(',').filter_map(|n| n.trim().parse().ok()).max()?;
    Some((most, after))
}

/// What follows an escaped character or a class like `\p{L}`, whose backslash has been read.
fn after_escape(text: &str) -> &str {
    let class = text.strip_prefix(['p', 'P']).and_then(|text| text.strip_prefix('{'));
    match class.and_then(|class| class.split_once('}')) {
        Some((_, after)) => after,
        None => text.get(text.chars().next().map_or(0, char::len_utf8)..).unwrap_or_default(),
    }
}

/// What follows a class of characters, whose opening bracket has been read.
fn after_class(text: &str) -> &str {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, char)| {
        let ends = char == ']' && !escaped;
        escaped = char == '\\' && !escaped;
        ends
    });
    end.map_or("", |(at, _)| &text[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::repeats;

    #[test]
    fn counts_in_each_other_multiply_and_counts_side_by_side_add() {
        assert_eq!(repeats("((a{999}){999}){999}"), 999 * 999 * 999);
        assert_eq!(repeats(r"\s{512}|\s{256}"), 512 + 1 + 256);
        assert_eq!(repeats(r"[\]{9]{1,3}\p{Lu}{2}\{"), 3 + 2 + 1);
        assert_eq!(repeats("(ab{2}){3}c"), 9 + 1);
        assert_eq!(repeats("(((a{9}){9}"), 81);
    }
}
