use serde_json::{Map, Value};

/// The largest integer up to which doubles are exact.
pub(super) const EXACT: f64 = 9_007_199_254_740_992.0;

/// A count, which may be written with a point.
pub(super) fn count(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        (float >= 0.0 && float.fract() == 0.0 && float <= EXACT).then_some(float as u64)
    })
}

/// Checks the keywords of numbers. Returns the one at fault.
pub(super) fn check(schema: &Map<String, Value>) -> Result<(), (&'static str, &'static str)> {
    for keyword in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"] {
        if schema.get(keyword).is_some_and(|value| !value.is_number()) {
            return Err((keyword, "it must be a number"));
        }
    }
    let step = schema.get("multipleOf").and_then(Value::as_f64);
    if step.is_some_and(|step| step <= 0.0) {
        return Err(("multipleOf", "it must be above 0"));
    }
    Ok(())
}
