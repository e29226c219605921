//! Words of JSON schemas that their readers share: names of types, and escaped references.

use serde_json::Value;

/// The name of a value's type in a schema; integers are numbers.
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A text without the percent escapes of a URI; `None` if an escape is not two hexadecimal digits of UTF-8.
pub fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let hex = |b: u8| char::from(b).to_digit(16);
        match (first, others) {
            (b'%', [high, low, after @ ..]) => {
                bytes.push((hex(*high)? * 16 + hex(*low)?) as u8);
                rest = after;
            }
            (b'%', _) => return None,
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8(bytes).ok()
}
