//! Whether two schemas have no value in common, so that a choice of one is a choice of any.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{MAX_DEPTH, Normaliser, size};
use crate::schema::type_of;

impl Normaliser<'_> {
    /// Whether no value can follow both of these rewritten schemas; `false` if that is not plain to see.
    pub(super) fn disjoint(&mut self, one: &Value, other: &Value, depth: usize) -> Result<bool, String> {
        if depth > MAX_DEPTH {
            return Ok(false);
        }
        self.spend(1)?;
        let ones = self.conjuncts(one, depth)?;
        let others = self.conjuncts(other, depth)?;
        for one in &ones {
            for other in &others {
                if self.plainly_disjoint(one, other, depth)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Schemas that all hold where this one does, without `allOf` and references.
    fn conjuncts(&mut self, schema: &Value, depth: usize) -> Result<Vec<Value>, String> {
        self.spend(size(schema))?;
        let mut all = vec![schema.clone()];
        if depth > MAX_DEPTH {
            return Ok(all);
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            all.extend(self.conjuncts(part, depth + 1)?);
        }
        if let Some(reference) = schema.get("$ref") {
            // A narrower schema shows nothing about the one it stands for.
            if let Some(target) = self.resolved(reference)? {
                all.extend(self.conjuncts(&target, depth + 1)?);
            }
        }
        Ok(all)
    }

    fn plainly_disjoint(&mut self, one: &Value, other: &Value, depth: usize) -> Result<bool, String> {
        if one == &json!(false) || other == &json!(false) {
            return Ok(true);
        }
        let (kinds, other_kinds) = (kinds(one), kinds(other));
        if kinds.is_disjoint(&other_kinds) {
            return Ok(true);
        }
        if let (Some(values), Some(others)) = (values(one), values(other)) {
            return Ok(!values.iter().any(|value| others.iter().any(|other| same(value, other))));
        }
        for (schema, other) in [(one, other), (other, one)] {
            let Some(options) = schema.get("anyOf").and_then(Value::as_array) else { continue };
            let mut all = true;
            for option in options {
                all = all && self.disjoint(option, other, depth + 1)?;
            }
            if all {
                return Ok(true);
            }
        }
        let objects = BTreeSet::from(["object"]);
        if kinds == objects && other_kinds == objects {
            for name in required(one).chain(required(other)) {
                if self.disjoint(&property(one, name), &property(other, name), depth + 1)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The types that a value of this schema can have. Whole numbers are numbers.
fn kinds(schema: &Value) -> BTreeSet<&str> {
    let named: BTreeSet<&str> = match schema.get("type") {
        Some(Value::String(kind)) => BTreeSet::from([kind.as_str()]),
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => BTreeSet::from(["null", "boolean", "number", "string", "array", "object"]),
    };
    let named = named.into_iter().map(|kind| if kind == "integer" { "number" } else { kind }).collect();
    match values(schema) {
        Some(values) => &named & &values.iter().map(type_of).collect(),
        None => named,
    }
}

/// The values of a schema that lists them.
pub(super) fn values(schema: &Value) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// Whether two values are the same; 1 and 1.0 are.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The schema of a property; anything, where patterns may apply.
fn property(schema: &Value, name: &str) -> Value {
    let declared = schema.get("properties").and_then(|properties| properties.get(name));
    let other = || match schema.get("patternProperties") {
        None => schema.get("additionalProperties").cloned(),
        Some(_) => None,
    };
    declared.cloned().or_else(other).unwrap_or(json!(true))
}
