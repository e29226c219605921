//! The values of parameters that are written without quotes, and their types by a tool's schema.

use bitnet::schema::{type_of, unescaped};
use serde_json::{Value, json, value::RawValue};

/// Most `$ref`s from one schema to the next.
const MAX_REFERENCES: usize = 16;

/// The type of a parameter's value, if several are allowed the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Boolean,
    /// An object or an array.
    Json,
}

/// How the value of a parameter is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kinds {
    first: Kind,
    nullable: bool,
}

/// The schema of a parameter; `None` if the tool's schema does not know it.
pub(super) fn parameter<'s>(arguments: &'s Value, key: &str) -> Option<&'s Value> {
    let object = resolved(arguments, arguments);
    let known = object.get("properties").and_then(|properties| properties.get(key));
    known.or_else(|| object.get("additionalProperties").filter(|schema| schema.is_object()))
}

/// The schema that a schema refers to, or itself. `root` holds the definitions.
pub(super) fn resolved<'s>(root: &'s Value, mut schema: &'s Value) -> &'s Value {
    for _ in 0..MAX_REFERENCES {
        let reference = schema.get("$ref").and_then(Value::as_str);
        match reference.and_then(|reference| root.pointer(&unescaped(reference.strip_prefix('#')?)?)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

impl Kinds {
    /// The types that a schema allows. A parameter without a schema, or without a type, is a text.
    pub fn of(root: &Value, schema: Option<&Value>) -> Kinds {
        let (mut kinds, mut nullable) = (Vec::new(), false);
        if let Some(schema) = schema {
            collect(root, schema, &mut kinds, &mut nullable, 0);
        }
        Kinds { first: kinds.first().copied().unwrap_or(Kind::Text), nullable }
    }

    /// Whether the value is a text whatever it is, so that it can be passed on as it comes.
    pub fn is_text(self) -> bool {
        self.first == Kind::Text && !self.nullable
    }

    /// The value as JSON.
    pub fn json(self, raw: &str) -> String {
        let value = raw.trim();
        let null = matches!(value, "null" | "None") && (self.nullable || self.first != Kind::Text);
        let valid = || serde_json::from_str::<&RawValue>(value).is_ok();
        let begins = |first: &[char]| value.starts_with(first);
        match self.first {
            _ if null => "null".into(),
            Kind::Boolean if value.eq_ignore_ascii_case("true") => "true".into(),
            Kind::Boolean if value.eq_ignore_ascii_case("false") => "false".into(),
            Kind::Number if valid() && value.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
                value.into()
            }
            Kind::Json if valid() && begins(&['{', '[']) => value.into(),
            _ => json!(raw).to_string(),
        }
    }
}

fn collect(root: &Value, schema: &Value, kinds: &mut Vec<Kind>, nullable: &mut bool, depth: usize) {
    let schema = resolved(root, schema);
    let mut add = |name: &str| match name {
        "null" => *nullable = true,
        "string" => kinds.push(Kind::Text),
        "integer" | "number" => kinds.push(Kind::Number),
        "boolean" => kinds.push(Kind::Boolean),
        "object" | "array" => kinds.push(Kind::Json),
        _ => {}
    };
    let listed = |word: &str| schema.get(word).and_then(Value::as_array).into_iter().flatten();
    match schema.get("type") {
        Some(Value::String(name)) => add(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).for_each(add),
        _ if depth < MAX_REFERENCES
            && ["anyOf", "oneOf", "allOf"].iter().any(|word| schema.get(*word).is_some()) =>
        {
            for part in ["anyOf", "oneOf", "allOf"].iter().flat_map(|word| listed(word)) {
                collect(root, part, kinds, nullable, depth + 1);
            }
        }
        _ => {
            let values = listed("enum").chain(schema.get("const"));
            values.for_each(|value| add(type_of(value)));
            if schema.get("properties").or(schema.get("items")).is_some() {
                kinds.push(Kind::Json);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_type_that_its_schema_gives_it() {
        let root = json!({"$defs": {"a b": {"type": "integer"}}});
        for (schema, raw, read) in [
            (json!({"type": "string"}), "42", "\"42\""),
            (json!({"type": "string"}), "null", "\"null\""),
            (json!({"type": ["string", "null"]}), "null", "null"),
            (json!({"type": ["string", "null"]}), "None", "null"),
            (json!({"type": ["null", "integer"]}), "42", "42"),
            (json!({"anyOf": [{"type": "null"}, {"type": "boolean"}]}), "True", "true"),
            (json!({"type": "boolean"}), "FALSE", "false"),
            (json!({"type": "boolean"}), "maybe", "\"maybe\""),
            (json!({"type": "integer"}), "-7", "-7"),
            (json!({"type": "number"}), "1e-07", "1e-07"),
            (json!({"type": "number"}), "many", "\"many\""),
            (json!({"type": "object"}), "{\"a\": [1]}", "{\"a\": [1]}"),
            (json!({"type": "array"}), "[1, ", "\"[1, \""),
            (json!({"$ref": "#/$defs/a%20b"}), "3", "3"),
            (json!({"enum": [1, 2]}), "2", "2"),
            (json!({"enum": ["1", "2"]}), "2", "\"2\""),
            (json!({"description": "anything"}), "{}", "\"{}\""),
            (json!({"type": "string"}), " a\n\"b\" ", "\" a\\n\\\"b\\\" \""),
        ] {
            assert_eq!(Kinds::of(&root, Some(&schema)).json(raw), read, "{schema} {raw}");
        }
        assert_eq!(Kinds::of(&root, None).json("7"), "\"7\"", "a parameter that is not in the schema");
    }
}
