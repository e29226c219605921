//! Reads completions: their forms of prompts, and the fields that only they have.

use bitnet::inference::{GenerationConfig, InvalidRequest};
use serde::de::IgnoredAny;
use serde_json::{json, value::RawValue};

use super::harmless;
use crate::{
    generate::{
        conversation::Conversation,
        parsed::Parsed,
        prompt::{Encoder, tokenizer},
        sampling,
    },
    http::{
        error::ApiError,
        fields::{Fields, list},
    },
};

/// Maximum number of prompts in one request.
const MAX_PROMPTS: usize = 128;

/// Takes all fields of completions, except those that every request has.
pub(super) fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>, stream: bool) -> Result<Parsed, ApiError> {
    let prompts = prompts(fields, encoder)?;
    let mut config = sampling::config(fields, &encoder.model.defaults)?;
    // 16 by default, as with OpenAI.
    config.max_new_tokens = sampling::limit(fields, "max_tokens")?.unwrap_or(16);
    config.logprobs = logprobs(fields)?;
    config.echo = fields.take("echo")?.unwrap_or(false);
    let best = best_of(fields, &mut config, stream)?;
    let generated = fields.take("generated_tokens")?.unwrap_or(0);
    fields.only("add_special_tokens", &[json!(true)])?;
    harmless::of_both(fields)?;
    let none = Conversation { tokens: Vec::new(), offer: None, thought: None };
    Ok(Parsed { chat: false, prompts, best, generated, ..Parsed::turn(none, config) })
}

/// Reads the prompts: a text, a list of texts, a list of token ids, or a list of such lists; with a suffix, texts.
fn prompts(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Vec<Vec<u32>>, ApiError> {
    if let Some(suffix) = fields.take::<String>("suffix")?.filter(|suffix| !suffix.is_empty()) {
        fields.only("echo", &[json!(false)]).map_err(|e| e.advised("leave out suffix"))?;
        return gaps(fields, &suffix, encoder);
    }
    texts_or_ids(fields, "prompt", MAX_PROMPTS, encoder)
}

/// How many of the most likely tokens are returned with each token; `false` asks for none, as chats do.
pub(super) fn logprobs(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    if fields.peek("logprobs").is_some_and(|value| value.get() == "false") {
        fields.raw("logprobs");
    }
    fields.take("logprobs")
}

/// Reads a field that is a text, a list of texts, a list of token ids, or a list of such lists: at most `most` of them.
pub(super) fn texts_or_ids(
    fields: &mut Fields<'_>,
    field: &'static str,
    most: usize,
    encoder: &Encoder<'_>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let value = fields.need_raw(field)?;
    let Some(entries) = value.get().strip_prefix('[') else {
        return Ok(vec![prompt(value, field, encoder)?]);
    };
    if entries.trim_ascii_start().starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        return Ok(vec![ids(value, field, encoder)?]);
    }
    let items: Vec<&RawValue> = list(value, most).unwrap_or_default();
    if items.is_empty() {
        return Err(ApiError::field(field, format!("it must be a text, or a list of 1 to {most}")));
    }
    items.into_iter().map(|item| prompt(item, field, encoder)).collect()
}

fn prompt(value: &RawValue, field: &str, encoder: &Encoder<'_>) -> Result<Vec<u32>, ApiError> {
    if !value.get().starts_with('"') {
        return ids(value, field, encoder);
    }
    let tokens = encoder.json(value, true, field)?;
    // Checked here and not with the other limits, so that no work is spent on the prompts after one that is too long.
    match (tokens.len(), encoder.context) {
        (tokens, context) if tokens >= context => Err(too_long(tokens, context, field)),
        _ => Ok(tokens),
    }
}

fn too_long(tokens: usize, context: usize, field: &str) -> ApiError {
    ApiError::from(InvalidRequest::TooLong { tokens, context }).about(field)
}

fn ids(value: &RawValue, field: &str, encoder: &Encoder<'_>) -> Result<Vec<u32>, ApiError> {
    let unlike = |_| {
        let kinds = "a text, a list of texts, a list of token ids, or a list of such lists";
        ApiError::field(field, format!("it must be {kinds}"))
    };
    let tokens = list::<IgnoredAny>(value, usize::MAX).map_err(unlike)?.len();
    match encoder.context {
        context if tokens >= context => Err(too_long(tokens, context, field)),
        context => list(value, context).map_err(unlike),
    }
}

/// Takes `best_of`, the number of choices to compute; the `n` best are returned. Returns `n` if it is smaller.
fn best_of(
    fields: &mut Fields<'_>,
    config: &mut GenerationConfig,
    stream: bool,
) -> Result<Option<usize>, ApiError> {
    let (n, most) = (config.n, GenerationConfig::MAX_CHOICES);
    match fields.take::<usize>("best_of")? {
        None => Ok(None),
        Some(best_of) if best_of == n => Ok(None),
        Some(best_of) if best_of < n || best_of > most => {
            Err(ApiError::field("best_of", format!("{best_of} is not from {n}, which is n, to {most}")))
        }
        Some(_) if stream => {
            Err(ApiError::field("best_of", "the best choices are known only at the end: leave out stream"))
        }
        Some(best_of) => {
            config.n = best_of;
            Ok(Some(n))
        }
    }
}

/// The tokens before the text that precedes a gap, before the text that follows it, and before the text that fills it.
const FILL: [[&str; 3]; 2] = [
    // Qwen 2.5, CodeGemma
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    // StarCoder
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
];

/// Reads prompts that are texts, whose completions fill the gap before `suffix`.
fn gaps(fields: &mut Fields<'_>, suffix: &str, encoder: &Encoder<'_>) -> Result<Vec<Vec<u32>>, ApiError> {
    let tokenizer = tokenizer(encoder.model, "suffix")?;
    let id = |token: &str| tokenizer.token_id(token).filter(|&id| tokenizer.is_special(id));
    let fill = FILL.iter().find_map(|[a, b, c]| Some([id(a)?, id(b)?, id(c)?]));
    let [before, after, middle] = fill.ok_or_else(|| {
        let problem = "this model's vocabulary has no tokens to fill in the middle: leave it out";
        ApiError::field("suffix", problem)
    })?;
    let suffix = encoder.text(suffix, false, "suffix")?;
    let value = fields.need_raw("prompt")?;
    let texts: Vec<&RawValue> = if value.get().starts_with('[') {
        list(value, MAX_PROMPTS).map_err(|problem| ApiError::field("prompt", problem))?
    } else {
        vec![value]
    };
    if texts.is_empty() || texts.iter().any(|text| !text.get().starts_with('"')) {
        return Err(ApiError::field("prompt", "with a suffix, it must be a text or a list of texts"));
    }
    let gap = |text: &RawValue| {
        let prompt = encoder.json(text, false, "prompt")?;
        Ok([tokenizer.prefix(), &[before], &prompt, &[after], &suffix, &[middle]].concat())
    };
    texts.into_iter().map(gap).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bitnet::model::{Checkpoint, Synthetic};

    use super::*;
    use crate::{
        http::{caller::Caller, reading::Reading},
        service::ServedModel,
    };

    fn read(text: &str) -> Result<Vec<Vec<u32>>, ApiError> {
        let checkpoint = Checkpoint::synthetic("ids only", Synthetic::named("tiny").unwrap());
        let model = ServedModel::new(None, None, &checkpoint);
        let reading = Reading::within(Duration::MAX, Caller::new("", None));
        let encoder = Encoder { model: &model, context: 8, reading: &reading };
        prompts(&mut Fields::parse(format!("{{\"prompt\": {text}}}").as_bytes()).unwrap(), &encoder)
    }

    #[test]
    fn token_ids_come_as_one_list_or_as_several() {
        assert_eq!(read("[1, 2]"), Ok(vec![vec![1, 2]]));
        assert_eq!(read("[[1, 2], [3]]"), Ok(vec![vec![1, 2], vec![3]]));
        for bad in ["[]", "[1, \"x\"]", "[[1], 2]", "{}", "true", "[-1]", "[1.5]", "[4294967296]", "[[[1]]]"]
        {
            let error = read(bad).unwrap_err();
            assert_eq!((error.status.as_u16(), error.body.param.as_deref()), (400, Some("prompt")), "{bad}");
        }
    }

    #[test]
    fn ids_that_no_context_holds_are_counted_and_not_kept() {
        let many = format!("[{}]", vec!["1"; 100_000].join(","));
        let error = read(&many).unwrap_err().body;
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(error.message.contains("100000 tokens") && error.message.contains("at most 8"), "{error:?}");
    }

    #[test]
    fn a_text_for_a_model_without_a_tokenizer_is_refused_with_a_cure() {
        let error = read("\"x\"").unwrap_err();
        assert!(error.body.message.contains("token ids"), "{error:?}");
    }
}
