//! Schemas with integers beyond 2^53. `llguidance` reads numbers as doubles, which are not exact there, so the parts of
//! such a schema that lead to one of its integers become rules of a grammar.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// The largest integer up to which every double is exact.
const DOUBLES: i128 = 1 << 53;

/// A schema as an expression of a grammar, and the rules that it needs.
pub(super) struct Rules {
    pub expression: String,
    pub rules: String,
}

/// The rules of a rewritten schema, if it has integers that doubles do not hold. `prefix` begins the names of its rules.
pub(super) fn rules(schema: &Value, prefix: &str) -> Option<Result<Rules, String>> {
    let mut root = schema.clone();
    let map = root.as_object_mut()?;
    let mut definitions = match map.shift_remove("$defs") {
        Some(Value::Object(definitions)) => definitions,
        _ => Map::new(),
    };
    let guidance = map.shift_remove("x-guidance").unwrap_or_else(|| json!({}));
    if !has_large(&root) && !definitions.values().any(has_large) {
        return None;
    }
    if definitions.len() > MAX_DEFINITIONS {
        return Some(Err(format!(
            "$defs: with an integer beyond 2^53, at most {MAX_DEFINITIONS} are supported"
        )));
    }
    if refers_to_root(&root) || definitions.values().any(refers_to_root) {
        definitions.insert(ROOT.into(), root.clone());
        for value in definitions.values_mut().chain([&mut root]) {
            name_root(value);
        }
    }
    let separator = |key: &str, usual: &str| guidance[key].as_str().unwrap_or(usual).to_owned();
    let comma = separator("item_separator", ",");
    let colon = separator("key_separator", ":");
    let mut exact = Exact {
        definitions,
        guidance,
        comma,
        colon,
        prefix,
        named: BTreeMap::new(),
        rules: Vec::new(),
        bytes: 0,
    };
    if !exact.is_needed(&root, &mut BTreeSet::new()) {
        return None;
    }
    let expression = exact.expression(&root);
    Some(expression.map(|expression| Rules { expression, rules: exact.rules.concat() }))
}

/// Maximum number of definitions.
const MAX_DEFINITIONS: usize = 256;

/// Maximum bytes of all expressions.
const MAX_BYTES: usize = 1 << 20;

/// The name under which parts of a schema refer to all of it.
const ROOT: &str = "root";

fn refers_to_root(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.get("$ref") == Some(&json!("#")) || map.values().any(refers_to_root),
        Value::Array(list) => list.iter().any(refers_to_root),
        _ => false,
    }
}

fn refers(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key("$ref") || map.values().any(refers),
        Value::Array(list) => list.iter().any(refers),
        _ => false,
    }
}

fn name_root(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(reference) = map.get_mut("$ref").filter(|reference| **reference == json!("#")) {
                *reference = json!(format!("#/$defs/{ROOT}"));
            }
            map.values_mut().for_each(name_root);
        }
        Value::Array(list) => list.iter_mut().for_each(name_root),
        _ => {}
    }
}

struct Exact<'p> {
    definitions: Map<String, Value>,
    guidance: Value,
    comma: String,
    colon: String,
    prefix: &'p str,
    /// The rules of references.
    named: BTreeMap<String, String>,
    rules: Vec<String>,
    /// Bytes of all expressions so far.
    bytes: usize,
}

const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

impl Exact<'_> {
    /// Whether a schema has an integer that doubles do not hold, or refers to one that has.
    fn is_needed(&self, schema: &Value, seen: &mut BTreeSet<String>) -> bool {
        let Value::Object(map) = schema else { return false };
        map.iter().any(|(keyword, value)| match keyword.as_str() {
            "const" | "enum" => has_large(value),
            "$ref" => {
                let name = value.as_str().unwrap_or_default().to_owned();
                let target = self.definition(&name);
                seen.insert(name) && target.is_some_and(|target| self.is_needed(target, seen))
            }
            "properties" | "patternProperties" => {
                value.as_object().is_some_and(|map| map.values().any(|value| self.is_needed(value, seen)))
            }
            _ if BOUNDS.contains(&keyword.as_str()) => is_large(value),
            _ => match value {
                Value::Array(list) => list.iter().any(|value| self.is_needed(value, seen)),
                value => self.is_needed(value, seen),
            },
        })
    }

    fn definition(&self, reference: &str) -> Option<&Value> {
        self.definitions.get(reference.strip_prefix("#/$defs/")?)
    }

    fn rule(&mut self, expression: &str) -> String {
        let name = format!("{}_{}", self.prefix, self.rules.len());
        self.rules.push(format!("{name}: {expression}\n"));
        name
    }

    fn expression(&mut self, schema: &Value) -> Result<String, String> {
        let expression = self.part(schema)?;
        self.bytes += expression.len();
        if self.bytes > MAX_BYTES { Err("the schema is too large".into()) } else { Ok(expression) }
    }

    fn part(&mut self, schema: &Value) -> Result<String, String> {
        let map = match schema {
            Value::Object(map) if self.is_needed(schema, &mut BTreeSet::new()) => map,
            _ => return Ok(self.json(schema)),
        };
        let only = |known: &[&str]| match map.keys().find(|keyword| !known.contains(&keyword.as_str())) {
            Some(other) => Err(format!("{other}: it cannot be combined with an integer beyond 2^53")),
            None => Ok(()),
        };
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            only(&["$ref"])?;
            return self.reference(reference);
        }
        if map.contains_key("const") || map.contains_key("enum") {
            only(&["const", "enum", "type"])?;
            return self.values(map);
        }
        if let Some(Value::Array(options)) = map.get("anyOf") {
            only(&["anyOf", "type"])?;
            return self.options(options);
        }
        if let (Some(Value::Array(parts)), 1) = (map.get("allOf"), map.len())
            && let [part] = &parts[..]
        {
            return self.expression(part);
        }
        match map.get("type") {
            Some(Value::String(kind)) => match kind.as_str() {
                "integer" => {
                    only(&["type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])?;
                    range(map)
                }
                "number" => Err("minimum, maximum: beyond 2^53 they need the type integer".into()),
                "object" => {
                    only(&["type", "properties", "required", "additionalProperties"])?;
                    self.object(map)
                }
                "array" => {
                    only(&["type", "items", "prefixItems", "minItems", "maxItems"])?;
                    self.array(map)
                }
                _ => Ok(self.json(&json!({"type": kind}))),
            },
            kinds => {
                let all = json!(["null", "boolean", "number", "string", "array", "object"]);
                let kinds = kinds.unwrap_or(&all).as_array().cloned().unwrap_or_default();
                let with_kind = |kind: &Value| {
                    let mut map = map.clone();
                    map.insert("type".into(), kind.clone());
                    Value::Object(of_kind(map, kind.as_str().unwrap_or_default()))
                };
                self.options(&kinds.iter().map(with_kind).collect::<Vec<_>>())
            }
        }
    }

    /// A schema without such integers.
    fn json(&self, schema: &Value) -> String {
        let mut map = match schema {
            Value::Object(map) => map.clone(),
            Value::Bool(true) => Map::new(),
            _ => Map::from_iter([("enum".to_owned(), json!([]))]),
        };
        if refers(schema) {
            map.insert("$defs".into(), Value::Object(self.definitions.clone()));
        }
        map.insert("x-guidance".into(), self.guidance.clone());
        format!("%json {}", Value::Object(map))
    }

    fn reference(&mut self, reference: &str) -> Result<String, String> {
        if let Some(rule) = self.named.get(reference) {
            return Ok(rule.clone());
        }
        let target = self.definition(reference).cloned().unwrap_or(json!(true));
        let rule = format!("{}_ref_{}", self.prefix, self.named.len());
        self.named.insert(reference.to_owned(), rule.clone());
        let expression = self.expression(&target)?;
        self.rules.push(format!("{rule}: {expression}\n"));
        Ok(rule)
    }

    fn options(&mut self, options: &[Value]) -> Result<String, String> {
        let each = options.iter().filter(|option| **option != json!(false));
        let each = each.map(|option| self.expression(option)).collect::<Result<Vec<_>, _>>()?;
        Ok(format!("({})", each.join(" | ")))
    }

    fn values(&mut self, map: &Map<String, Value>) -> Result<String, String> {
        let values = match (map.get("const"), map.get("enum")) {
            (Some(value), None) => vec![value.clone()],
            (None, Some(Value::Array(values))) => values.clone(),
            _ => return Err("const: it cannot be combined with enum and an integer beyond 2^53".into()),
        };
        let (large, rest): (Vec<Value>, Vec<Value>) = values.into_iter().partition(has_large);
        let kinds: Vec<&str> = match map.get("type") {
            None => vec!["number", "array", "object"],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            Some(kind) => kind.as_str().into_iter().collect(),
        };
        let fits = |value: &&Value| match value {
            Value::Array(_) => kinds.contains(&"array"),
            Value::Object(_) => kinds.contains(&"object"),
            _ => kinds.contains(&"number") || kinds.contains(&"integer"),
        };
        let mut options: Vec<String> =
            large.iter().filter(fits).map(|value| json!(value.to_string()).to_string()).collect();
        if !rest.is_empty() {
            let mut others = map.clone();
            others.shift_remove("const");
            others.insert("enum".into(), rest.into());
            options.push(self.json(&Value::Object(others)));
        }
        if options.is_empty() {
            Err("enum: no value has the type".into())
        } else {
            Ok(format!("({})", options.join(" | ")))
        }
    }

    fn object(&mut self, map: &Map<String, Value>) -> Result<String, String> {
        let (empty, none) = (Map::new(), Vec::new());
        let properties = map.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required = map.get("required").and_then(Value::as_array).unwrap_or(&none);
        let other = map.get("additionalProperties").cloned().unwrap_or(json!(true));
        let mut fields: Vec<(String, Value, bool)> = Vec::new();
        for (name, schema) in properties {
            fields.push((name.clone(), schema.clone(), required.contains(&json!(name))));
        }
        for name in required.iter().filter_map(Value::as_str).filter(|name| !properties.contains_key(*name)) {
            fields.push((name.to_owned(), other.clone(), true));
        }
        fields.retain(|(_, schema, needed)| *needed || schema != &json!(false));
        // What follows the last declared property, as the first of the object and after another. Other names are only
        // allowed where none is declared.
        let (mut first, mut later) = (String::from("\"\""), String::from("\"\""));
        if fields.is_empty() && properties.is_empty() && other != json!(false) {
            let value = self.expression(&other)?;
            let name = self.json(&json!({"type": "string"}));
            let field = self.rule(&format!("{name} {} {value}", json!(self.colon)));
            first = self.rule(&format!("({field} ({} {field})*)?", json!(self.comma)));
        }
        for (name, schema, needed) in fields.iter().rev() {
            let value = self.expression(schema)?;
            let key = json!(format!("{}{}", json!(name), self.colon));
            let field = self.rule(&format!("{key} {value}"));
            let start = format!("{field} {later}");
            let next = format!("{} {field} {later}", json!(self.comma));
            (first, later) = if *needed {
                (self.rule(&start), self.rule(&next))
            } else {
                (self.rule(&format!("{start} | {first}")), self.rule(&format!("{next} | {later}")))
            };
        }
        Ok(format!("(\"{{\" {first} \"}}\")"))
    }

    fn array(&mut self, map: &Map<String, Value>) -> Result<String, String> {
        let count = |keyword: &str| map.get(keyword).and_then(Value::as_u64);
        let least = count("minItems").unwrap_or(0);
        let most = count("maxItems").unwrap_or(u64::MAX);
        let listed = map.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let listed = &listed[..listed.len().min(usize::try_from(most).unwrap_or(usize::MAX))];
        let comma = json!(self.comma);
        let items = map.get("items").cloned().unwrap_or(json!(true));
        let before = listed.len() as u64;
        let mut rest = String::from("\"\"");
        if items != json!(false) && most > before {
            let item = self.expression(&items)?;
            let item = self.rule(&item);
            let low = least.saturating_sub(before);
            let high = most.saturating_sub(before);
            // The first item of all has no comma before it.
            let (one, low, high) = match before {
                0 => (format!("{item} "), low.saturating_sub(1), high.saturating_sub(1)),
                _ => (String::new(), low, high),
            };
            let high = if most == u64::MAX { String::new() } else { high.to_string() };
            let several = self.rule(&format!("{one}({comma} {item}){{{low},{high}}}"));
            rest = if before == 0 && least == 0 { format!("{several}?") } else { several };
        } else if least > before {
            return Err("minItems: there are fewer items".into());
        }
        for (i, item) in listed.iter().enumerate().rev() {
            let value = self.expression(item)?;
            let comma = if i == 0 { String::new() } else { format!("{comma} ") };
            let part = self.rule(&format!("{comma}{value} {rest}"));
            rest = if (i as u64) < least { part } else { format!("{part}?") };
        }
        Ok(format!("(\"[\" {rest} \"]\")"))
    }
}

/// A schema of one type, without the keywords of other types.
fn of_kind(mut map: Map<String, Value>, kind: &str) -> Map<String, Value> {
    let numeric = matches!(kind, "integer" | "number");
    map.retain(|keyword, _| match keyword.as_str() {
        "properties"
        | "required"
        | "additionalProperties"
        | "patternProperties"
        | "minProperties"
        | "maxProperties" => kind == "object",
        "items" | "prefixItems" | "minItems" | "maxItems" => kind == "array",
        "minLength" | "maxLength" | "pattern" | "format" => kind == "string",
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => numeric,
        _ => true,
    });
    map
}

fn is_large(value: &Value) -> bool {
    match value {
        Value::Number(number) => match number.as_i128() {
            Some(integer) => integer.abs() > DOUBLES,
            None => number.as_f64().is_some_and(|float| float.abs() > DOUBLES as f64),
        },
        _ => false,
    }
}

fn has_large(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().any(has_large),
        Value::Object(map) => map.values().any(has_large),
        value => is_large(value),
    }
}

/// The integers of a schema, as an expression.
fn range(map: &Map<String, Value>) -> Result<String, String> {
    let mut bounds = [None, None];
    for (keyword, side, exclusive) in
        [("minimum", 0, 0), ("maximum", 1, 0), ("exclusiveMinimum", 0, 1), ("exclusiveMaximum", 1, -1)]
    {
        let Some(Value::Number(number)) = map.get(keyword) else { continue };
        let whole = number.as_i128();
        let float = number.as_f64().filter(|float| float.abs() < 1e30);
        let rounded = float.map(|float| if side == 0 { float.ceil() } else { float.floor() } as i128);
        let fraction = whole.is_none() && float.is_some_and(|float| float.fract() != 0.0);
        let bound = whole.or(rounded).ok_or_else(|| format!("{keyword}: it is too large"))?;
        let bound = bound + if fraction { 0 } else { exclusive };
        bounds[side] = Some(match (bounds[side], side) {
            (None, _) => bound,
            (Some(other), 0) => bound.max(other),
            (Some(other), _) => bound.min(other),
        });
    }
    match bounds {
        [Some(low), Some(high)] if low > high => Err("minimum: it is above the maximum".into()),
        [low, high] => Ok(format!("/{}/", integers(low, high))),
    }
}

/// Limit of integers that are not bounded: more digits than any number in a text has.
const ENDLESS: i128 = 10_i128.pow(24);

/// A regular expression for the integers from `low` to `high`.
fn integers(low: Option<i128>, high: Option<i128>) -> String {
    let (low, high) = (low.unwrap_or(-ENDLESS), high.unwrap_or(ENDLESS));
    let mut parts = Vec::new();
    if low < 0 {
        parts.extend(naturals(1.max(-high), -low).map(|part| format!("-{part}")));
    }
    if high >= 0 {
        parts.extend(naturals(low.max(0), high));
    }
    format!("({})", parts.join("|"))
}

/// Expressions for the natural numbers from `low` to `high`, each with as many free last digits as possible.
fn naturals(mut low: i128, high: i128) -> impl Iterator<Item = String> {
    std::iter::from_fn(move || {
        if low > high {
            return None;
        }
        // The largest power of ten by which blocks of numbers that begin at `low` fit.
        let mut free = 0;
        while low != 0 && low % 10_i128.pow(free + 1) == 0 && low + 10_i128.pow(free + 1) - 1 <= high {
            free += 1;
        }
        let block = 10_i128.pow(free);
        let (head, digit) = (low / block / 10, low / block % 10);
        // Numbers of one length with the same digits before: 0 stands alone, before 1.
        let last = match low {
            0 => 0,
            _ => (9 - digit).min((high + 1 - low) / block - 1) + digit,
        };
        let head = if head == 0 { String::new() } else { head.to_string() };
        low += (last - digit + 1) * block;
        let digits = if digit == last { digit.to_string() } else { format!("[{digit}-{last}]") };
        let rest = if free == 0 { String::new() } else { format!("[0-9]{{{free}}}") };
        Some(format!("{head}{digits}{rest}"))
    })
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;

    use super::*;

    #[test]
    fn an_expression_for_a_range_matches_its_integers_and_no_others() {
        for (low, high) in
            [(0, 0), (-1, 1), (7, 123), (95, 105), (-250, -3), (-99, 1000), (10, 10), (1, 1009)]
        {
            let mut builder = RegexBuilder::new();
            let expression = builder.mk_regex(&integers(Some(low), Some(high))).unwrap();
            let mut regex = builder.to_regex(expression);
            for n in -1100..1100 {
                assert_eq!(
                    regex.is_match(&n.to_string()),
                    (low..=high).contains(&n),
                    "{n} in {low}..={high}"
                );
            }
            for text in ["-0", "007", "", "1.0"] {
                assert!(!regex.is_match(text), "{text} in {low}..={high}");
            }
        }
        let far = integers(Some(9_007_199_254_740_993), None);
        let mut builder = RegexBuilder::new();
        let expression = builder.mk_regex(&far).unwrap();
        let mut regex = builder.to_regex(expression);
        for (text, within) in
            [("9007199254740992", false), ("9007199254740993", true), ("18446744073709551616", true)]
        {
            assert_eq!(regex.is_match(text), within, "{text}");
        }
    }
}
