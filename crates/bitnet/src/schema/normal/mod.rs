//! Rewrites a JSON schema of any draft into the keywords that `llguidance` holds: one form of references, no keywords that
//! constrain nothing, and other keywords expressed by simpler ones. What cannot be expressed is refused by name, so that
//! nothing that constrains a text is ignored. The result may allow fewer texts than the schema, and never more.

mod arrays;
mod disjoint;
mod names;
mod negated;
mod numbers;
mod objects;
mod references;
mod times;

use serde_json::{Map, Value, json};

use self::references::References;

/// Maximum number of values visited for one schema, including those that rewriting makes: it can multiply them.
const MAX_VISITED: usize = 100_000;

/// Maximum depth of schemas within each other, references included, that are compared or negated.
const MAX_DEPTH: usize = 16;

/// A schema in the form that the compiler takes.
///
/// # Errors
/// A sentence that names the keyword at fault, by its place in the schema.
pub(super) fn normal(schema: &Value) -> Result<Value, String> {
    let mut normaliser = Normaliser {
        references: References::new(schema),
        visited: 0,
        resolving: Vec::new(),
        narrowed: false,
        guidance: Map::new(),
    };
    let mut root = normaliser.schema(schema, &Place::root())?;
    if root == json!(false) && schema.is_object() {
        return Err("no text follows it".into());
    }
    let definitions = normaliser.definitions()?;
    if let Value::Object(root) = &mut root {
        if !definitions.is_empty() {
            root.insert("$defs".into(), Value::Object(definitions));
        }
        root.append(&mut normaliser.guidance);
    }
    Ok(root)
}

/// The place of a schema in the one that was sent.
#[derive(Debug, Clone)]
struct Place {
    /// A JSON pointer, for errors and for what is relative to it.
    pointer: String,
    /// Index of the resource that it is part of: the root, or a schema with an `$id`.
    resource: usize,
}

impl Place {
    fn root() -> Place {
        Place { pointer: String::new(), resource: 0 }
    }

    fn inside(&self, key: &str) -> Place {
        let key = key.replace('~', "~0").replace('/', "~1");
        Place { pointer: format!("{}/{key}", self.pointer), resource: self.resource }
    }

    fn problem(&self, keyword: &str, problem: impl std::fmt::Display) -> String {
        if self.pointer.is_empty() {
            format!("{keyword}: {problem}")
        } else {
            format!("{keyword} of #{:.200}: {problem}", self.pointer)
        }
    }
}

struct Normaliser<'s> {
    references: References<'s>,
    visited: usize,
    /// The references that are being resolved, each for the one before it.
    resolving: Vec<String>,
    /// Whether the result allows fewer texts than the schema.
    narrowed: bool,
    /// `x-guidance` of the root, which says how the compiler writes white space.
    guidance: Map<String, Value>,
}

/// A schema that is being rewritten.
struct Draft<'v> {
    sent: &'v Map<String, Value>,
    out: Map<String, Value>,
    /// Other schemas that must hold as well.
    also: Vec<Value>,
}

impl Normaliser<'_> {
    /// The definitions that are referred to.
    fn definitions(&mut self) -> Result<Map<String, Value>, String> {
        let mut definitions = Map::new();
        while let Some((name, value, place)) = self.references.next_pending() {
            definitions.insert(name, self.schema(value, &place)?);
        }
        Ok(definitions)
    }

    fn schema(&mut self, value: &Value, place: &Place) -> Result<Value, String> {
        self.spend(1)?;
        let sent = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(sent) => sent,
            _ => return Err(place.problem("schema", "it must be an object or a boolean")),
        };
        let place = &self.references.enter(place);
        let mut draft = Draft { sent, out: Map::new(), also: Vec::new() };
        for (keyword, value) in sent {
            self.keyword(&mut draft, keyword, value, place)?;
        }
        self.arrays(&mut draft, place)?;
        self.objects(&mut draft, place)?;
        numbers::check(&draft.out).map_err(|(keyword, problem)| place.problem(keyword, problem))?;
        Ok(draft.finish())
    }

    /// Counts values that are visited or made.
    fn spend(&mut self, values: usize) -> Result<(), String> {
        self.visited = self.visited.saturating_add(values);
        if self.visited > MAX_VISITED { Err("the schema is too large".into()) } else { Ok(()) }
    }

    /// A schema that is rewritten without allowing fewer texts, so that it may be negated.
    fn exactly(&mut self, value: &Value, keyword: &str, place: &Place) -> Result<Value, String> {
        let before = std::mem::replace(&mut self.narrowed, false);
        let schema = self.schema(value, &place.inside(keyword))?;
        if std::mem::replace(&mut self.narrowed, before) {
            Err(place.problem(keyword, "what it says cannot be negated"))
        } else {
            Ok(schema)
        }
    }

    fn each(&mut self, value: &Value, keyword: &str, place: &Place) -> Result<Vec<Value>, String> {
        let place = place.inside(keyword);
        let list = value.as_array().ok_or_else(|| place.problem(keyword, "it must be a list of schemas"))?;
        list.iter().enumerate().map(|(i, value)| self.schema(value, &place.inside(&i.to_string()))).collect()
    }

    fn keyword(
        &mut self,
        draft: &mut Draft<'_>,
        keyword: &str,
        value: &Value,
        place: &Place,
    ) -> Result<(), String> {
        let rewritten = match keyword {
            "x-guidance" if place.pointer.is_empty() => {
                // What else it can say would relax the schema.
                let spaces = ["whitespace_flexible", "item_separator", "key_separator"];
                let mut guidance = value.as_object().cloned().unwrap_or_default();
                guidance.retain(|key, _| spaces.contains(&key.as_str()));
                self.guidance.insert(keyword.into(), guidance.into());
                return Ok(());
            }
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let name = self.references.name(keyword, value, place);
                let name = name.map_err(|problem| place.problem(keyword, problem))?;
                let reference = json!({"$ref": name});
                if draft.out.contains_key("$ref") {
                    draft.also.push(reference)
                } else {
                    drop(draft.out.insert("$ref".into(), json!(name)))
                }
                return Ok(());
            }
            "type" => match value {
                Value::String(kind) if kind == "any" => return Ok(()),
                Value::Array(kinds) if kinds.iter().any(|kind| kind == "any") => return Ok(()),
                _ => value.clone(),
            },
            "const" => value.clone(),
            "enum" => value.clone(),
            "allOf" => {
                let each = self.each(value, keyword, place)?;
                draft.also.extend(each);
                return Ok(());
            }
            "anyOf" => Value::Array(self.each(value, keyword, place)?),
            "oneOf" => {
                let exclusive = self.one_of(value, place)?;
                draft.also.push(exclusive);
                return Ok(());
            }
            "not" => {
                let denied = self.exactly(value, keyword, place)?;
                let negated = self.negated(&denied, 0)?;
                if negated == json!(false) && denied != json!(true) && denied != json!({}) {
                    return Err(place.problem(keyword, "what it says cannot be negated"));
                }
                draft.also.push(negated);
                return Ok(());
            }
            "if" => {
                let condition = self.condition(draft.sent, value, place)?;
                draft.also.extend(condition);
                return Ok(());
            }
            "format" => match value.as_str() {
                Some(time) if times::pattern(time).is_some() => {
                    draft.also.extend(times::pattern(time).map(|pattern| json!({"pattern": pattern})));
                    return Ok(());
                }
                Some(known) if FORMATS.contains(&known) => value.clone(),
                Some(_) => return Ok(()),
                None => return Err(place.problem(keyword, "it must be a text")),
            },
            "pattern" => {
                let pattern = value.as_str().ok_or_else(|| place.problem(keyword, "it must be a text"))?;
                names::sound(pattern).map_err(|problem| place.problem(keyword, problem))?;
                value.clone()
            }
            "multipleOf" | "minimum" | "maximum" => value.clone(),
            "exclusiveMinimum" | "exclusiveMaximum" => {
                let inclusive = if keyword == "exclusiveMinimum" { "minimum" } else { "maximum" };
                match (value, draft.sent.get(inclusive)) {
                    // As in draft 4.
                    (Value::Bool(false), _) | (Value::Bool(true), None) => return Ok(()),
                    (Value::Bool(true), Some(bound)) => bound.clone(),
                    _ => value.clone(),
                }
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                let whole = numbers::count(value).ok_or_else(|| {
                    place.problem(keyword, "it must be a whole number that is not negative")
                })?;
                whole.into()
            }
            // Everything else belongs to arrays or objects, or constrains nothing.
            _ => return Ok(()),
        };
        draft.out.insert(keyword.into(), rewritten);
        Ok(())
    }

    /// `if`, `then` and `else` as schemas that must hold.
    fn condition(
        &mut self,
        sent: &Map<String, Value>,
        condition: &Value,
        place: &Place,
    ) -> Result<Vec<Value>, String> {
        let (then, other) = (sent.get("then"), sent.get("else"));
        if then.is_none() && other.is_none() {
            return Ok(Vec::new());
        }
        let condition = self.exactly(condition, "if", place)?;
        let mut branch = |key: &str, value: Option<&Value>| match value {
            Some(value) => self.schema(value, &place.inside(key)),
            None => Ok(json!(true)),
        };
        let (then, other) = (branch("then", then)?, branch("else", other)?);
        let negated = self.negated(&condition, 0)?;
        if negated == json!(false) && condition != json!(true) && condition != json!({}) {
            return Err(place.problem("if", "what it says cannot be negated"));
        }
        Ok(vec![any_of(vec![both(condition, then), both(negated, other)])])
    }

    /// `oneOf` as `anyOf` of branches that exclude each other.
    fn one_of(&mut self, value: &Value, place: &Place) -> Result<Value, String> {
        let before = std::mem::replace(&mut self.narrowed, false);
        let branches = self.each(value, "oneOf", place)?;
        let mut known = Vec::with_capacity(branches.len());
        for branch in &branches {
            let target = branch.get("$ref").filter(|_| branch.as_object().is_some_and(|map| map.len() == 1));
            let target = target.map(|reference| self.resolved(reference)).transpose()?.flatten();
            known.push(target.unwrap_or_else(|| branch.clone()));
        }
        let narrowed = std::mem::replace(&mut self.narrowed, before);
        self.narrowed |= narrowed;
        let mut exclusive = Vec::with_capacity(branches.len());
        for (i, branch) in branches.iter().enumerate() {
            let mut parts = vec![branch.clone()];
            for (j, other) in known.iter().enumerate() {
                if i != j && !self.disjoint(&known[i], other, 0)? {
                    let negated = if narrowed { json!(false) } else { self.negated(other, 0)? };
                    self.spend(size(&negated))?;
                    if self.disjoint(&known[i], &negated, 0)? {
                        let problem = "its branches overlap in a way that cannot be ruled out: use anyOf";
                        return Err(place.problem("oneOf", problem));
                    }
                    parts.push(negated);
                }
            }
            exclusive.push(if parts.len() == 1 { branch.clone() } else { json!({"allOf": parts}) });
        }
        Ok(any_of(exclusive))
    }
}

impl Draft<'_> {
    fn finish(mut self) -> Value {
        self.also.retain(|schema| schema != &json!(true) && schema != &json!({}));
        if self.also.contains(&json!(false)) {
            return json!(false);
        }
        if self.out.is_empty() && self.also.len() == 1 {
            return self.also.remove(0);
        }
        if !self.also.is_empty() {
            self.out.insert("allOf".into(), self.also.into());
        }
        Value::Object(self.out)
    }
}

/// The formats that the compiler holds, besides those of dates and times. Any other format is an annotation.
const FORMATS: [&str; 7] = ["duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Number of values within a value.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(size).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

/// The schema for what follows any of these.
fn any_of(mut schemas: Vec<Value>) -> Value {
    schemas.retain(|schema| schema != &json!(false));
    match schemas.len() {
        0 => json!(false),
        1 => schemas.remove(0),
        _ if schemas.iter().any(|schema| schema == &json!(true) || schema == &json!({})) => json!(true),
        _ => json!({"anyOf": schemas}),
    }
}

/// The schema for what follows both of these.
fn both(one: Value, other: Value) -> Value {
    match (&one, &other) {
        (Value::Bool(false), _) | (_, Value::Bool(false)) => json!(false),
        (Value::Bool(true), _) => other,
        (_, Value::Bool(true)) => one,
        _ => json!({"allOf": [one, other]}),
    }
}
