//! Finds markers and calls in a rendered text.

use serde_json::Value;

use super::conventions::{CallSyntax, Literals};

/// Functions that the calls of a probe name, and the parameter of each.
pub(super) const NAMES: [&str; 2] = ["zqFirst", "zqSecond"];
pub(super) const KEY: &str = "zqKey";

/// The marker at the end of a text: `<think>`, `[THINK]`.
pub(super) fn tag_at_end(text: &str) -> Option<&str> {
    let open = match text.chars().next_back()? {
        '>' => '<',
        ']' => '[',
        _ => return None,
    };
    let tag = &text[text.rfind(open)?..];
    (!tag.contains(char::is_whitespace)).then_some(tag)
}

/// A text in three parts: the white space at its beginning, the rest, and the white space at its end.
pub(super) fn trimmed(text: &str) -> (&str, &str, &str) {
    let start = text.len() - text.trim_start().len();
    let end = start.max(text.trim_end().len());
    (&text[..start], &text[start..end], &text[end..])
}

/// The first call in a text.
pub(super) struct Found {
    pub syntax: CallSyntax,
    pub name: String,
    /// Where it is, without the markers around it.
    pub begin: usize,
    pub end: usize,
}

/// Finds the first call of one of [`NAMES`].
pub(super) fn call(text: &str) -> Option<Found> {
    xml(text).or_else(|| json(text))
}

fn xml(text: &str) -> Option<Found> {
    let begin = text.find("<function=zq")?;
    let name = text[begin + "<function=".len()..].split('>').next()?;
    let end = begin + text[begin..].find("</function>")? + "</function>".len();
    let parameter = format!("<parameter={KEY}>\n");
    (NAMES.contains(&name) && text[begin..end].contains(&parameter)).then(|| Found {
        syntax: CallSyntax::Xml { literals: Literals::Json },
        name: name.into(),
        begin,
        end,
    })
}

fn json(text: &str) -> Option<Found> {
    text.match_indices(['{', '[']).find_map(|(begin, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
        let value = values.next()?.ok()?;
        let end = begin + values.byte_offset();
        let (array, object) = match &value {
            Value::Array(items) => (true, items.first()?),
            object => (false, object),
        };
        // OpenAI's own form has the call in a field.
        let call = object.get("function").unwrap_or(object).as_object()?;
        let (name, of) = call.iter().find(|(_, value)| NAMES.iter().any(|name| *value == name))?;
        let (arguments, _) = call.iter().find(|(_, value)| {
            value.get(KEY).is_some() || value.as_str().is_some_and(|text| text.contains(KEY))
        })?;
        let (field, arguments) = (name.clone(), arguments.clone());
        let syntax = if array {
            CallSyntax::Array { name: field, arguments }
        } else {
            CallSyntax::Json { name: field, arguments }
        };
        Some(Found { syntax, name: of.as_str()?.into(), begin, end })
    })
}
