//! What a model's files say about generation: the tokens that begin and end a text, and defaults for sampling.
//! [`GenerationDefaults`] are the same from `generation_config.json` and from GGUF's metadata. What a file says about
//! sampling and is not honoured is named in a warning; it never keeps a model from loading.

use std::ops::RangeInclusive;

use serde::Serialize;
use serde_json::{Value, json};

use super::gguf::Gguf;
use crate::{
    ModelError,
    error::one_line,
    spec::{
        Config,
        fields::{Fields, json},
    },
    tokenizer::{self, SpecialTokens, Tokenizer},
};

/// The model's own defaults for generation, used where a request sets nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GenerationDefaults {
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// All tokens that end an answer.
    pub eos: Vec<u32>,
    /// Sampling temperature, 0 to 100.
    pub temperature: Option<f32>,
    /// Probability mass to sample from, above 0 and at most 1.
    pub top_p: Option<f32>,
    /// Number of candidates to sample from; 0 for all.
    pub top_k: Option<usize>,
    /// Lowest probability of a candidate, as a fraction of the highest, 0 to 1.
    pub min_p: Option<f32>,
    /// Divides the positive logits of tokens in the prompt or text, and multiplies the others, 0.01 to 100.
    pub repetition_penalty: Option<f32>,
    /// Whether the model is meant to be sampled rather than decoded greedily.
    pub do_sample: Option<bool>,
}

/// Keys for temperature, `top_p`, `min_p` and the repetition penalty.
type Keys = [&'static str; 4];
const JSON_KEYS: Keys = ["temperature", "top_p", "min_p", "repetition_penalty"];
const GGUF_KEYS: Keys = ["temp", "top_p", "min_p", "penalty_repeat"];

/// Settings of `generation_config.json` that change which tokens are drawn and are not applied.
const NOT_APPLIED: [&str; 22] = [
    "bad_words_ids",
    "begin_suppress_tokens",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "frequency_penalty",
    "guidance_scale",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "penalty_alpha",
    "presence_penalty",
    "sequence_bias",
    "suppress_tokens",
    "top_h",
    "typical_p",
];
/// The same for keys of `general.sampling`.
const NOT_APPLIED_GGUF: [&str; 3] = ["mirostat", "sequence", "xtc_probability"];

/// The values of a file's settings, and warnings about those that are not honoured.
struct Settings<'a, 'w> {
    fields: Fields<'a>,
    warnings: &'w mut Vec<String>,
}

impl Settings<'_, '_> {
    fn ignored(&mut self, field: &str, problem: &str) {
        let Fields { file, prefix, .. } = self.fields;
        self.warnings.push(format!("{file}: {prefix}{field} {problem}, so it is ignored"));
    }

    fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Option<f32> {
        let value = self.fields.get(field)?;
        let number = value.as_f64().filter(|number| range.contains(number));
        if number.is_none() {
            let (value, start, end) = (one_line(value), range.start(), range.end());
            self.ignored(field, &format!("is {value}, not a number from {start} to {end}"));
        }
        number.map(|number| number as f32)
    }

    /// Number of candidates. Some files write it with a fraction, and -1 or 0 for all tokens.
    fn top_k(&mut self) -> Option<usize> {
        let value = self.fields.get("top_k")?;
        let whole = value.as_f64().filter(|k| k.fract() == 0.0 && k.abs() <= f64::from(u32::MAX));
        if whole.is_none() {
            self.ignored("top_k", &format!("is {}, not a whole number", one_line(value)));
        }
        // A negative number becomes 0.
        whole.map(|k| k as usize)
    }

    fn flag(&mut self, field: &str) -> Option<bool> {
        let value = self.fields.get(field)?;
        if value.as_bool().is_none() {
            self.ignored(field, &format!("is {}, not true or false", one_line(value)));
        }
        value.as_bool()
    }

    /// Names the settings that are not applied, unless their values change nothing.
    fn name_others(&mut self, fields: &[&str]) {
        let neutral = |field: &str, value: &Value| {
            let one = ["typical_p", "num_beams", "encoder_repetition_penalty", "guidance_scale"];
            let number = value.as_f64().map(|n| n == if one.contains(&field) { 1.0 } else { 0.0 });
            let empty = value.as_array().map(Vec::is_empty).or(value.as_object().map(|o| o.is_empty()));
            number.or(empty).or(value.as_bool().map(|flag| !flag)).unwrap_or(false)
        };
        let set =
            fields.iter().filter(|field| self.fields.get(field).is_some_and(|value| !neutral(field, value)));
        let set: Vec<&str> = set.copied().collect();
        if !set.is_empty() {
            self.ignored(&set.join(", "), "has no counterpart here");
        }
    }

    /// Everything but the tokens.
    fn read(&mut self, [temperature, top_p, min_p, penalty]: Keys) -> GenerationDefaults {
        GenerationDefaults {
            temperature: self.number(temperature, 0.0..=100.0),
            top_p: self.number(top_p, f64::from(f32::MIN_POSITIVE)..=1.0),
            top_k: self.top_k(),
            min_p: self.number(min_p, 0.0..=1.0),
            repetition_penalty: self.number(penalty, 0.01..=100.0),
            ..GenerationDefaults::default()
        }
    }
}

/// Defaults from `generation_config.json`, completed by `config.json`.
pub(super) fn of_folder(
    config: &Config,
    generation: Option<&[u8]>,
    warnings: &mut Vec<String>,
) -> Result<GenerationDefaults, ModelError> {
    let file = "generation_config.json";
    let json = generation.map_or(Ok(Value::Null), |bytes| json(file, bytes))?;
    let mut settings = Settings { fields: Fields { file, prefix: "", json: &json }, warnings };
    let mut eos = settings.fields.ids("eos_token_id")?;
    eos.extend(&config.eos);
    let sampling = settings.read(JSON_KEYS);
    settings.name_others(&NOT_APPLIED);
    Ok(GenerationDefaults {
        bos: settings.fields.ids("bos_token_id")?.first().copied().or(config.bos),
        eos: deduplicated(eos),
        do_sample: settings.flag("do_sample"),
        ..sampling
    })
}

/// Defaults from the metadata of a GGUF file. Temperature 0 means that the model is not meant to be sampled.
pub(super) fn of_gguf(
    gguf: &Gguf,
    special: &SpecialTokens,
    tokenizer: Option<&Tokenizer>,
    warnings: &mut Vec<String>,
) -> Result<GenerationDefaults, ModelError> {
    const PREFIX: &str = "general.sampling.";
    let json = gguf.json(PREFIX, &[]);
    let mut settings =
        Settings { fields: Fields { file: &gguf.file, prefix: PREFIX, json: &json }, warnings };
    let sampling = settings.read(GGUF_KEYS);
    let mut not_applied = NOT_APPLIED_GGUF.to_vec();
    let everything = json.get("penalty_last_n").is_none_or(|n| *n == json!(-1));
    if sampling.repetition_penalty.is_some_and(|penalty| penalty != 1.0) && !everything {
        // Penalties look at the whole text.
        not_applied.push("penalty_last_n");
    }
    settings.name_others(&not_applied);
    Ok(GenerationDefaults {
        bos: special.bos,
        eos: deduplicated(ends_of_gguf(gguf, special, tokenizer)?),
        do_sample: sampling.temperature.map(|t| t != 0.0),
        temperature: sampling.temperature.filter(|&t| t != 0.0),
        ..sampling
    })
}

/// The tokens that end an answer: those that the file names by id. A file without a list names at most three, and
/// llama.cpp finds the others by their texts. So must we, or a chat model would go on talking to itself.
fn ends_of_gguf(
    gguf: &Gguf,
    special: &SpecialTokens,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<u32>, ModelError> {
    let listed = gguf.opt_array("tokenizer.ggml.eos_token_ids")?.and_then(|ids| ids.integers());
    let listed: Vec<u32> = listed.into_iter().flatten().filter_map(|id| u32::try_from(id).ok()).collect();
    let whole = !listed.is_empty();
    let named = [special.eos, special.eot, special.eom].into_iter().flatten();
    let mut ends: Vec<u32> = named.chain(listed).collect();
    if let Some(tokenizer) = tokenizer.filter(|_| !whole) {
        let texts = tokenizer::ends(|text| tokenizer.token_id(text).is_some());
        ends.extend(texts.filter_map(|text| tokenizer.token_id(text)));
    }
    Ok(ends)
}

fn deduplicated(ids: Vec<u32>) -> Vec<u32> {
    let mut seen = Vec::new();
    for id in ids {
        if !seen.contains(&id) {
            seen.push(id);
        }
    }
    seen
}
