//! Schemas within a grammar.

use serde_json::{Deserializer, Value};

use super::{Form, compiled};

/// The grammar with each `%json` schema in the form that the compiler takes.
pub(super) fn rewritten(lark: &str) -> Result<String, String> {
    let (mut out, mut rules) = (String::with_capacity(lark.len()), String::new());
    let mut rest = lark;
    let mut count = 0;
    while let Some(at) = next_schema(rest) {
        let (before, after) = rest.split_at(at + KEYWORD.len());
        let mut values = Deserializer::from_str(after).into_iter::<Value>();
        let schema = match values.next() {
            Some(Ok(schema)) => schema,
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("a schema is missing".into()),
        };
        let end = values.byte_offset();
        match compiled(&schema, &format!("exact_{count}"))? {
            Form::Json(schema) => out.extend([before, " ", &schema.to_string()]),
            Form::Rules(exact) => {
                out.extend([&before[..at], "(", &exact.expression, ")"]);
                rules += &exact.rules;
            }
        }
        count += 1;
        rest = &after[end..];
    }
    out += rest;
    if !rules.is_empty() {
        out += "\n";
        out += &rules;
    }
    Ok(out)
}

const KEYWORD: &str = "%json";

/// Where the next schema's keyword is, outside of texts and regular expressions.
fn next_schema(lark: &str) -> Option<usize> {
    let bytes = lark.as_bytes();
    let (mut quote, mut at) = (None, 0);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            // A line's end closes what was no text.
            (Some(_), b'\n') => quote = None,
            (None, byte @ (b'"' | b'/')) => quote = Some(byte),
            (None, b'%') if lark[at..].starts_with(KEYWORD) => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_schemas_are_rewritten() {
        let lark = "start: \"%json {\" /\\/%json \"/ %json {\"$comment\": \"}\", \"type\": \"null\"} | b\nb: %json true\n";
        let want = "start: \"%json {\" /\\/%json \"/ %json {\"type\":\"null\"} | b\nb: %json true\n";
        assert_eq!(rewritten(lark).unwrap(), want);
        assert!(rewritten("start: %json {").is_err());
    }
}
