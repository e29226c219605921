//! The opposite of a schema, where it can be written as a schema.

use serde_json::{Map, Value, json};

use super::{MAX_DEPTH, Normaliser, any_of, both, names};

/// All types of values, without `integer`, whose values are numbers.
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

impl Normaliser<'_> {
    /// A schema for values that do not follow this rewritten one. Leaves out what it cannot express.
    pub(super) fn negated(&mut self, schema: &Value, depth: usize) -> Result<Value, String> {
        let map = match schema {
            Value::Bool(holds) => return Ok(json!(!holds)),
            Value::Object(map) => map,
            _ => return Ok(json!(false)),
        };
        self.spend(map.len())?;
        if depth > MAX_DEPTH {
            self.narrowed = true;
            return Ok(json!(false));
        }
        let mut options = Vec::new();
        for (keyword, value) in map {
            options.push(self.keyword_negated(keyword, value, depth)?);
        }
        Ok(any_of(options))
    }

    fn keyword_negated(&mut self, keyword: &str, value: &Value, depth: usize) -> Result<Value, String> {
        let count = |keyword: &str, kind: &str, count: Option<u64>| match count {
            Some(count) => json!({"type": kind, keyword: count}),
            None => json!(false),
        };
        let fewer = value.as_u64().and_then(|n| n.checked_sub(1));
        let more = value.as_u64().map(|n| n + 1);
        Ok(match keyword {
            "type" => self.other_types(value),
            "const" => self.other_values(std::slice::from_ref(value)),
            "enum" => self.other_values(value.as_array().map_or(&[], Vec::as_slice)),
            "required" => {
                let names = value.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
                any_of(names.map(|name| json!({"type": "object", "properties": {name: false}})).collect())
            }
            "properties" => {
                let mut options = Vec::new();
                for (name, schema) in value.as_object().into_iter().flatten() {
                    let negated = self.negated(schema, depth + 1)?;
                    if negated != json!(false) {
                        options.push(
                            json!({"type": "object", "properties": {name: negated}, "required": [name]}),
                        );
                    }
                }
                any_of(options)
            }
            "allOf" => {
                let schemas = value.as_array().map_or(&[][..], Vec::as_slice).iter();
                any_of(schemas.map(|schema| self.negated(schema, depth + 1)).collect::<Result<_, _>>()?)
            }
            "anyOf" => {
                let mut all = json!(true);
                for schema in value.as_array().map_or(&[][..], Vec::as_slice) {
                    all = both(all, self.negated(schema, depth + 1)?);
                }
                all
            }
            "$ref" => match self.resolved(value)? {
                Some(schema) => self.negated(&schema, depth + 1)?,
                None => json!(false),
            },
            "minimum" => json!({"type": "number", "exclusiveMaximum": value}),
            "maximum" => json!({"type": "number", "exclusiveMinimum": value}),
            "exclusiveMinimum" => json!({"type": "number", "maximum": value}),
            "exclusiveMaximum" => json!({"type": "number", "minimum": value}),
            "minLength" => count("maxLength", "string", fewer),
            "maxLength" => count("minLength", "string", more),
            "minItems" => count("maxItems", "array", fewer),
            "maxItems" => count("minItems", "array", more),
            _ => {
                self.narrowed = true;
                json!(false)
            }
        })
    }

    /// What a reference of a rewritten schema refers to, rewritten, if nothing is left out of it.
    pub(super) fn resolved(&mut self, reference: &Value) -> Result<Option<Value>, String> {
        let name = reference.as_str().unwrap_or_default();
        let Some((value, place)) = self.references.sent(name) else { return Ok(None) };
        if self.resolving.len() >= MAX_DEPTH || self.resolving.iter().any(|other| other == name) {
            self.narrowed = true;
            return Ok(None);
        }
        let before = std::mem::replace(&mut self.narrowed, false);
        self.resolving.push(name.to_owned());
        let schema = self.schema(value, &place);
        self.resolving.pop();
        let schema = schema?;
        let narrowed = std::mem::replace(&mut self.narrowed, before);
        self.narrowed |= narrowed;
        Ok((!narrowed).then_some(schema))
    }

    fn other_types(&mut self, kinds: &Value) -> Value {
        let named = |kind: &str| match kinds {
            Value::Array(kinds) => kinds.iter().any(|other| other == kind),
            other => other == kind,
        };
        // There is no schema for numbers that are not whole.
        self.narrowed |= named("integer") && !named("number");
        let others = TYPES.into_iter().filter(|&kind| !(named(kind) || kind == "number" && named("integer")));
        match others.collect::<Vec<_>>()[..] {
            [] => json!(false),
            [kind] => json!({"type": kind}),
            ref kinds => json!({"type": kinds}),
        }
    }

    fn other_values(&mut self, values: &[Value]) -> Value {
        let has = |is: fn(&Value) -> bool| values.iter().any(is);
        self.narrowed |= has(Value::is_array) || has(Value::is_object);
        let mut plain = Vec::new();
        let mut options = Vec::new();
        let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        for (kind, listed) in [
            ("null", has(Value::is_null)),
            ("array", has(Value::is_array)),
            ("object", has(Value::is_object)),
            ("boolean", has(Value::is_boolean)),
            ("number", has(Value::is_number)),
            ("string", has(Value::is_string)),
        ] {
            match kind {
                _ if !listed => plain.push(kind),
                "string" => match names::others(&texts) {
                    Some(pattern) => options.push(json!({"type": "string", "pattern": pattern})),
                    None => self.narrowed = true,
                },
                "boolean" => {
                    let other = [true, false].into_iter().filter(|one| !values.contains(&json!(one)));
                    options.extend(other.map(|one| json!({"const": one})));
                }
                "number" => options.push(between(values)),
                _ => {}
            }
        }
        if !plain.is_empty() {
            options.push(json!({"type": plain}));
        }
        any_of(options)
    }
}

/// The numbers before, between and after those of a list.
fn between(values: &[Value]) -> Value {
    let mut numbers: Vec<&Value> = values.iter().filter(|value| value.is_number()).collect();
    numbers.sort_by(|a, b| a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(std::cmp::Ordering::Equal));
    numbers.dedup_by(|a, b| a.as_f64() == b.as_f64());
    let bound = |low: Option<&&Value>, high: Option<&&Value>| {
        let mut range = Map::from_iter([("type".to_owned(), json!("number"))]);
        range.extend(low.map(|&low| ("exclusiveMinimum".to_owned(), low.clone())));
        range.extend(high.map(|&high| ("exclusiveMaximum".to_owned(), high.clone())));
        Value::Object(range)
    };
    let mut ranges: Vec<Value> =
        numbers.windows(2).map(|pair| bound(Some(&pair[0]), Some(&pair[1]))).collect();
    ranges.push(bound(None, numbers.first()));
    ranges.push(bound(numbers.last(), None));
    any_of(ranges)
}
