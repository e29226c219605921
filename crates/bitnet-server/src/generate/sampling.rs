//! Reads the fields of a body that configure generation.

use std::collections::BTreeMap;

use bitnet::inference::GenerationConfig;
use bitnet::model::GenerationDefaults;
use serde_json::Number;

use crate::http::{
    error::ApiError,
    fields::{EXACT, Fields, list, plainly},
};

/// Temperature if neither the client nor the model sets one, as with OpenAI.
const TEMPERATURE: f32 = 1.0;
/// Maximum number of tokens that may be biased, as with OpenAI.
const MAX_BIASES: usize = 1024;
/// Maximum number of tokens that end a text, besides the model's own.
const MAX_STOP_TOKENS: usize = 256;

/// Takes the fields that both endpoints share, except for limits and log-probabilities.
pub(crate) fn config(
    fields: &mut Fields<'_>,
    defaults: &GenerationDefaults,
) -> Result<GenerationConfig, ApiError> {
    let models_own = match defaults.do_sample {
        Some(false) => Some(0.0),
        _ => defaults.temperature,
    };
    Ok(GenerationConfig {
        temperature: fields.take("temperature")?.or(models_own).unwrap_or(TEMPERATURE),
        top_k: top_k(fields)?.or(defaults.top_k).unwrap_or(0),
        top_p: top_p(fields)?.or(defaults.top_p).unwrap_or(1.0),
        min_p: fields.take("min_p")?.or(defaults.min_p).unwrap_or(0.0),
        repetition_penalty: fields.take("repetition_penalty")?.or(defaults.repetition_penalty).unwrap_or(1.0),
        presence_penalty: fields.take("presence_penalty")?.unwrap_or(0.0),
        frequency_penalty: fields.take("frequency_penalty")?.unwrap_or(0.0),
        logit_bias: logit_bias(fields)?,
        seed: seed(fields)?,
        stop_strings: stop(fields)?,
        stop_tokens: fields.list("stop_token_ids", MAX_STOP_TOKENS)?,
        ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
        min_new_tokens: fields.take("min_tokens")?.unwrap_or(0),
        n: fields.take("n")?.unwrap_or(1),
        ..GenerationConfig::default()
    })
}

/// Takes `top_k`; -1 stands for all tokens, as 0 does.
fn top_k(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    limit_or(fields, "top_k", 0)
}

/// Takes `top_p`; 0 stands for the smallest set, which is the most likely token.
fn top_p(fields: &mut Fields<'_>) -> Result<Option<f32>, ApiError> {
    let top_p: Option<f32> = fields.take("top_p")?;
    Ok(top_p.map(|top_p| if top_p == 0.0 { f32::MIN_POSITIVE } else { top_p }))
}

/// Takes a maximum number of tokens; -1 stands for as many as the context has room for, as for other servers.
pub(crate) fn limit(fields: &mut Fields<'_>, field: &'static str) -> Result<Option<usize>, ApiError> {
    limit_or(fields, field, usize::MAX)
}

/// Takes a number of 0 or more, or -1, which stands for another.
fn limit_or(
    fields: &mut Fields<'_>,
    field: &'static str,
    unlimited: usize,
) -> Result<Option<usize>, ApiError> {
    match fields.peek(field).and_then(|value| value.get().parse::<f64>().ok()) {
        Some(-1.0) => {
            fields.raw(field);
            Ok(Some(unlimited))
        }
        _ => fields.take(field),
    }
}

/// Token ids are the names of the object's fields.
fn logit_bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let one = |(token, bias): (String, f32)| match token.parse() {
        Ok(token) => Ok((token, bias)),
        Err(_) => Err(ApiError::field("logit_bias", format!("{token:.20?} is not a token id"))),
    };
    // If a token occurs twice, its last bias counts, as in any JSON object.
    let biases = fields.pairs("logit_bias", MAX_BIASES)?.into_iter().map(one);
    Ok(biases.collect::<Result<BTreeMap<u32, f32>, _>>()?.into_iter().collect())
}

/// A negative seed stands for the unsigned number with the same 64 bits.
fn seed(fields: &mut Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(number) = fields.take::<Number>("seed")? else { return Ok(None) };
    let seed = number.as_u64().or(number.as_i64().map(i64::cast_unsigned)).or_else(|| {
        let whole = number.as_f64().filter(|seed| seed.fract() == 0.0 && seed.abs() <= EXACT);
        whole.map(|seed| (seed as i64).cast_unsigned())
    });
    seed.map(Some).ok_or_else(|| ApiError::field("seed", "it must be an integer of 64 bits"))
}

fn stop(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let problem =
        |problem| ApiError::field("stop", format!("{problem}: it must be a string or a list of strings"));
    let Some(raw) = fields.raw("stop") else { return Ok(Vec::new()) };
    if raw.get().starts_with('[') {
        list(raw, GenerationConfig::MAX_STOP_STRINGS).map_err(problem)
    } else {
        serde_json::from_str(raw.get()).map(|text| vec![text]).map_err(|e| problem(plainly(&e)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<GenerationConfig, ApiError> {
        config(&mut Fields::parse(body.as_bytes()).unwrap(), &GenerationDefaults::default())
    }

    #[test]
    fn a_stop_is_one_string_or_several() {
        assert_eq!(read(r#"{"stop": "x"}"#).unwrap().stop_strings, ["x"]);
        assert_eq!(read(r#"{"stop": ["x", "y"]}"#).unwrap().stop_strings, ["x", "y"]);
        assert_eq!(read(r#"{"stop": null}"#).unwrap().stop_strings, [""; 0]);
        assert_eq!(read(r#"{"stop": [1]}"#).unwrap_err().body.param.as_deref(), Some("stop"));
    }

    #[test]
    fn a_seed_is_any_integer_of_64_bits() {
        assert_eq!(read(r#"{"seed": 18446744073709551615}"#).unwrap().seed, Some(u64::MAX));
        assert_eq!(read(r#"{"seed": -1}"#).unwrap().seed, Some(u64::MAX));
        assert_eq!(read(r#"{"seed": 7.0}"#).unwrap().seed, Some(7));
        for bad in ["1.5", "\"1\"", "18446744073709551616"] {
            let error = read(&format!(r#"{{"seed": {bad}}}"#)).unwrap_err();
            assert_eq!(error.body.param.as_deref(), Some("seed"), "{bad}");
        }
    }

    #[test]
    fn the_settings_of_the_model_are_the_defaults_of_the_fields() {
        let defaults = GenerationDefaults { temperature: Some(0.6), top_k: Some(5), ..Default::default() };
        let read = |body: &str| config(&mut Fields::parse(body.as_bytes()).unwrap(), &defaults).unwrap();
        assert_eq!((read("{}").temperature, read("{}").top_k), (0.6, 5));
        assert_eq!(read(r#"{"temperature": 0}"#).temperature, 0.0);
        let greedy = GenerationDefaults { do_sample: Some(false), ..defaults.clone() };
        assert_eq!(config(&mut Fields::parse(b"{}").unwrap(), &greedy).unwrap().temperature, 0.0);
    }

    #[test]
    fn a_bias_names_a_token_by_its_id() {
        assert_eq!(read(r#"{"logit_bias": {"7": -100}}"#).unwrap().logit_bias, [(7, -100.0)]);
        let error = read(r#"{"logit_bias": {"the": 1}}"#).unwrap_err();
        assert_eq!(error.body.param.as_deref(), Some("logit_bias"));
    }

    #[test]
    fn lists_that_are_too_long_are_refused_with_their_bound() {
        let ids = |n: u32| (0..n).map(|i| i.to_string()).collect::<Vec<_>>();
        let biases = |n| ids(n).iter().map(|i| format!("\"{i}\": 1")).collect::<Vec<_>>().join(",");
        assert_eq!(
            read(&format!(r#"{{"stop_token_ids": [{}]}}"#, ids(256).join(","))).unwrap().stop_tokens.len(),
            256
        );
        assert_eq!(
            read(&format!(r#"{{"logit_bias": {{{}}}}}"#, biases(1024))).unwrap().logit_bias.len(),
            1024
        );
        for (field, value, bound) in [
            ("stop_token_ids", format!("[{}]", ids(257).join(",")), "256"),
            ("logit_bias", format!("{{{}}}", biases(1025)), "1024"),
            ("stop", format!("[{}]", vec!["\"x\""; 17].join(",")), "16"),
        ] {
            let error = read(&format!("{{\"{field}\": {value}}}")).unwrap_err().body;
            assert_eq!(error.param.as_deref(), Some(field));
            assert!(error.message.contains(bound), "{error:?}");
        }
    }
}
