//! Requests without a prompt, by which clients load a model before they use it, and unload it after. Both are answered at
//! once: the model is loaded before the server answers, and stays loaded.

use axum::http::HeaderMap;
use bitnet::inference;
use serde_json::{Value, json, value::RawValue};

use super::{
    input::{read_chat, read_prompt},
    options,
};
use crate::{
    generate::{job::seed, read::take_all},
    http::{error::ApiError, fields::Fields, reading::Reading},
    service::Service,
};

/// What a request without a prompt asks for: `load`, or `unload` if it keeps the model for no time. Its other fields must
/// be those of a request with a prompt.
pub(super) fn asked(
    service: &Service,
    headers: &HeaderMap,
    body: &[u8],
    reading: &Reading,
    chat: bool,
) -> Result<Option<&'static str>, ApiError> {
    let mut fields = Fields::parse(body)?.strictly(service.config.strict);
    let (prompt, empty, some) = if chat {
        ("messages", json!([]), r#"[{"role": "user", "content": ""}]"#)
    } else {
        ("prompt", json!(""), r#""""#)
    };
    let nothing =
        |value: &RawValue| serde_json::from_str::<Value>(value.get()).is_ok_and(|value| value == empty);
    if fields.peek(prompt).is_some_and(|value| !nothing(value)) {
        return Ok(None);
    }
    let kept = fields.peek("keep_alive").and_then(|time| serde_json::from_str(time.get()).ok());
    fields.set(prompt, serde_json::from_str(some).map_err(ApiError::fault)?);
    let parsed = take_all(fields, service, reading, |fields, encoder| {
        if chat { read_chat(fields, encoder) } else { read_prompt(fields, encoder) }
    })?;
    seed(parsed.config.seed, headers)?;
    let valid = service.engine.validate(&inference::Request::new(vec![0], parsed.config));
    valid.map_err(|refused| ApiError::from(refused).renamed(&options::names(prompt)))?;
    Ok(Some(if kept.as_ref().is_some_and(is_no_time) { "unload" } else { "load" }))
}

/// Whether a time is 0: a number of seconds, or a text such as `0s`.
fn is_no_time(time: &Value) -> bool {
    let number = match time {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim_end_matches(char::is_alphabetic).parse().ok(),
        _ => None,
    };
    number == Some(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_zero_is_recognised_in_every_form() {
        for (time, none) in [
            (json!(0), true),
            (json!("0"), true),
            (json!("0s"), true),
            (json!("0m"), true),
            (json!(0.0), true),
        ]
        .into_iter()
        .chain([
            (json!(-1), false),
            (json!("5m"), false),
            (json!("10"), false),
            (json!(null), false),
        ]) {
            assert_eq!(is_no_time(&time), none, "{time}");
        }
    }
}
