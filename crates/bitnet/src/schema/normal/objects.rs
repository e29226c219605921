//! Keywords of objects: properties, patterns, names and counts, as one list of properties and a rule for the others.

use serde_json::{Map, Value, json};

use super::{Draft, Normaliser, Place, any_of, both, disjoint::values, names, size};

/// Maximum number of optional properties whose combinations are listed.
const MAX_OPTIONAL: usize = 6;

/// Maximum number of patterns for the names of an object's properties.
const MAX_PATTERNS: usize = 32;

impl Normaliser<'_> {
    /// Rewrites the keywords of objects.
    pub(super) fn objects(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        self.properties(draft, place)?;
        self.required(draft, place)?;
        self.dependent(draft, place)?;
        self.unevaluated(draft, place)?;
        self.named(draft, place)?;
        covered(draft, place)?;
        let options = counted(draft, place)?;
        self.spend(options.iter().map(size).sum())?;
        if !options.is_empty() {
            draft.also.push(any_of(options));
        }
        Ok(())
    }

    fn properties(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        for keyword in ["properties", "patternProperties"] {
            let Some(value) = draft.sent.get(keyword) else { continue };
            let sent =
                value.as_object().ok_or_else(|| place.problem(keyword, "it must be an object of schemas"))?;
            let mut properties = Map::new();
            for (name, value) in sent {
                let place = place.inside(keyword);
                if keyword == "patternProperties" {
                    names::sound(name).map_err(|problem| place.problem(name, problem))?;
                }
                properties.insert(name.clone(), self.schema(value, &place.inside(name))?);
            }
            if !properties.is_empty() {
                draft.out.insert(keyword.into(), properties.into());
            }
        }
        if let Some(value) = draft.sent.get("additionalProperties") {
            let other = self.schema(value, &place.inside("additionalProperties"))?;
            draft.out.insert("additionalProperties".into(), other);
        }
        Ok(())
    }

    /// Rewrites `required`, which in old drafts is a property of each property.
    fn required(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        let mut required = match draft.sent.get("required") {
            Some(Value::Array(names)) if names.iter().all(Value::is_string) => names.clone(),
            None | Some(Value::Bool(_)) => Vec::new(),
            Some(_) => return Err(place.problem("required", "it must be a list of names")),
        };
        for (name, property) in draft.sent.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            if property.get("required") == Some(&json!(true)) && !required.contains(&json!(name)) {
                required.push(json!(name));
            }
        }
        if !required.is_empty() {
            draft.out.insert("required".into(), required.into());
        }
        Ok(())
    }

    /// Rewrites what the presence of one property asks of the others.
    fn dependent(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let Some(value) = draft.sent.get(keyword) else { continue };
            let sent = value.as_object().ok_or_else(|| place.problem(keyword, "it must be an object"))?;
            for (name, value) in sent {
                let asked = match value {
                    Value::Array(names) if names.is_empty() => continue,
                    Value::Array(names) if names.iter().all(Value::is_string) => json!({"required": names}),
                    Value::String(name) => json!({"required": [name]}),
                    schema => self.schema(schema, &place.inside(keyword).inside(name))?,
                };
                draft.also.push(any_of(vec![json!({"properties": {name: false}}), asked]));
            }
        }
        Ok(())
    }

    /// Rewrites `unevaluatedProperties`, if it is plain which properties are evaluated.
    fn unevaluated(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        let keyword = "unevaluatedProperties";
        let Some(value) = draft.sent.get(keyword).filter(|_| !draft.out.contains_key("additionalProperties"))
        else {
            return Ok(());
        };
        let other = self.schema(value, &place.inside(keyword))?;
        if other == json!(true) || other == json!({}) {
            return Ok(());
        }
        let unclear = ["$dynamicRef", "$recursiveRef", "not", "dependentSchemas", "dependencies"];
        if let Some(met) = unclear.into_iter().find(|keyword| draft.sent.contains_key(*keyword)) {
            let problem = format!("it cannot be combined with {met}: use additionalProperties");
            return Err(place.problem(keyword, problem));
        }
        let mut evaluated: Vec<String> = Vec::new();
        let schemas =
            draft.also.iter().chain(draft.out.get("anyOf").and_then(Value::as_array).into_iter().flatten());
        let mut open: Vec<Value> = schemas.cloned().collect();
        open.extend(draft.out.get("$ref").map(|reference| json!({"$ref": reference})));
        let mut visited = 0;
        while let Some(schema) = open.pop() {
            visited += 1;
            let conditional = ["patternProperties", "additionalProperties"];
            if visited > 256 || conditional.iter().any(|keyword| schema.get(keyword).is_some()) {
                let problem = "what is evaluated is not plain to see: use additionalProperties";
                return Err(place.problem(keyword, problem));
            }
            let properties = schema.get("properties").and_then(Value::as_object);
            evaluated.extend(properties.into_iter().flatten().map(|(name, _)| name.clone()));
            for keyword in ["allOf", "anyOf"] {
                // In a branch that does not hold, nothing is evaluated.
                if keyword == "anyOf" && schema.get(keyword).is_some() {
                    let problem = "it cannot be combined with branches: use additionalProperties";
                    return Err(place.problem("unevaluatedProperties", problem));
                }
                open.extend(schema.get(keyword).and_then(Value::as_array).into_iter().flatten().cloned());
            }
            if let Some(reference) = schema.get("$ref") {
                open.extend(self.resolved(reference)?);
            }
        }
        if draft.out.contains_key("anyOf") {
            return Err(place.problem(keyword, "it cannot be combined with anyOf: use additionalProperties"));
        }
        let properties = draft.out.entry("properties").or_insert_with(|| json!({}));
        for name in evaluated {
            if let Some(properties) = properties.as_object_mut() {
                properties.entry(name).or_insert(json!(true));
            }
        }
        draft.out.insert("additionalProperties".into(), other);
        Ok(())
    }

    /// Rewrites `propertyNames`.
    fn named(&mut self, draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
        let keyword = "propertyNames";
        let Some(value) = draft.sent.get(keyword) else { return Ok(()) };
        let unsupported = |problem: &str| Err(place.problem(keyword, problem));
        let schema = self.schema(value, &place.inside(keyword))?;
        let schema = match schema.get("$ref") {
            Some(reference) => self.resolved(reference)?.unwrap_or(schema),
            None => schema,
        };
        let texts = match schema.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
            Some(kind) => kind == "string",
            None => schema != json!(false),
        };
        let rest: Vec<(&str, &Value)> = schema
            .as_object()
            .into_iter()
            .flatten()
            .map(|(keyword, value)| (keyword.as_str(), value))
            .filter(|(keyword, _)| *keyword != "type")
            .collect();
        let listed =
            values(&schema).map(|values| values.iter().filter_map(Value::as_str).collect::<Vec<_>>());
        match (&rest[..], listed) {
            _ if !texts => only(draft, &[], place),
            ([], _) => Ok(()),
            ([_], Some(names)) => only(draft, &names, place),
            ([("pattern", pattern)], _) => matching(draft, pattern.as_str().unwrap_or_default(), place),
            (bounds, _)
                if bounds.iter().all(|(keyword, _)| matches!(*keyword, "minLength" | "maxLength")) =>
            {
                let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
                let most = bound("maxLength").map_or(String::new(), |most| most.to_string());
                let least = bound("minLength").unwrap_or(0);
                matching(draft, &format!(r"^[\s\S]{{{least},{most}}}$"), place)
            }
            _ => unsupported("it is supported with enum, const, pattern, minLength and maxLength"),
        }
    }
}

/// Allows only these names.
fn only(draft: &mut Draft<'_>, allowed: &[&str], place: &Place) -> Result<(), String> {
    let other = draft.out.get("additionalProperties").cloned().unwrap_or(json!(true));
    let patterns = draft.out.shift_remove("patternProperties");
    let patterns = patterns.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
    let properties = draft.out.entry("properties").or_insert_with(|| json!({}));
    let Some(properties) = properties.as_object_mut() else { return Ok(()) };
    for (name, property) in properties.iter_mut() {
        if !allowed.contains(&name.as_str()) {
            *property = json!(false);
        }
    }
    for &name in allowed {
        let mut matched = false;
        let mut property = properties.get(name).cloned().unwrap_or(json!(true));
        for (pattern, schema) in &patterns {
            if matches(pattern, name, place)? {
                matched = true;
                property = both(property, schema.clone());
            }
        }
        if !matched && !properties.contains_key(name) {
            property = other.clone();
        }
        properties.insert(name.to_owned(), property);
    }
    draft.out.insert("additionalProperties".into(), json!(false));
    Ok(())
}

/// Allows only names that match a pattern.
fn matching(draft: &mut Draft<'_>, pattern: &str, place: &Place) -> Result<(), String> {
    if let Some(Value::Object(properties)) = draft.out.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            if !matches(pattern, name, place)? {
                *property = json!(false);
            }
        }
    }
    if draft.out.get("additionalProperties") == Some(&json!(false))
        && !draft.out.contains_key("patternProperties")
    {
        return Ok(());
    }
    if draft.out.contains_key("patternProperties") {
        return Err(place.problem("propertyNames", "it cannot be combined with patternProperties"));
    }
    let other = draft.out.insert("additionalProperties".into(), json!(false)).unwrap_or(json!(true));
    // The compiler applies the pattern to declared properties too, where the schema for the others does not apply.
    match draft.out.contains_key("properties") && other != json!(true) && other != json!({}) {
        true => {
            let both = json!({"patternProperties": {pattern: true}, "additionalProperties": false});
            draft.also.push(both);
            draft.out.insert("additionalProperties".into(), other);
        }
        false => drop(draft.out.insert("patternProperties".into(), json!({pattern: other}))),
    }
    Ok(())
}

/// Applies patterns to the declared properties that they match, and drops those that match no other name: the compiler
/// takes a pattern without names for an error.
fn covered(draft: &mut Draft<'_>, place: &Place) -> Result<(), String> {
    let Some(Value::Object(mut patterns)) = draft.out.shift_remove("patternProperties") else {
        return Ok(());
    };
    let mut properties = match draft.out.get("properties") {
        Some(Value::Object(properties)) => properties.clone(),
        _ => Map::new(),
    };
    if patterns.len() > MAX_PATTERNS {
        let problem = format!("it has more than {MAX_PATTERNS} patterns");
        return Err(place.problem("patternProperties", problem));
    }
    let declared: Vec<String> = properties.keys().cloned().collect();
    let declared: Vec<&str> = declared.iter().map(String::as_str).collect();
    let too_complex = || place.problem("patternProperties", "its patterns are too complex");
    for pattern in patterns.keys().cloned().collect::<Vec<_>>() {
        if !names::only(&pattern, &declared).ok_or_else(too_complex)? {
            continue;
        }
        let schema = patterns.shift_remove(&pattern).unwrap_or(json!(true));
        for (name, property) in &mut properties {
            if matches(&pattern, name, place)? {
                *property = both(property.take(), schema.clone());
            }
        }
    }
    if !properties.is_empty() {
        draft.out.insert("properties".into(), properties.into());
    }
    if !patterns.is_empty() {
        let all: Vec<&str> = patterns.keys().map(String::as_str).collect();
        if names::all(&all, &declared).ok_or_else(too_complex)? {
            draft.out.insert("additionalProperties".into(), json!(false));
        }
        draft.out.insert("patternProperties".into(), patterns.into());
    }
    Ok(())
}

/// Rewrites limits on the number of properties by listing which of the optional ones are there.
fn counted(draft: &mut Draft<'_>, place: &Place) -> Result<Vec<Value>, String> {
    let number = |keyword: &str| draft.out.get(keyword).and_then(Value::as_u64);
    let (least, most) = (number("minProperties").unwrap_or(0), number("maxProperties"));
    let names = |keyword: &str| -> Vec<String> {
        match draft.out.get(keyword) {
            Some(Value::Object(properties)) => properties.keys().cloned().collect(),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    };
    let required = names("required");
    let optional: Vec<String> =
        names("properties").into_iter().filter(|name| !required.contains(name)).collect();
    if least <= required.len() as u64 {
        draft.out.shift_remove("minProperties");
    }
    let closed = draft.out.get("additionalProperties") == Some(&json!(false))
        && !draft.out.contains_key("patternProperties");
    if closed && most.is_some_and(|most| most >= (required.len() + optional.len()) as u64) {
        draft.out.shift_remove("maxProperties");
    }
    let bounded = draft.out.contains_key("minProperties") || draft.out.contains_key("maxProperties");
    if !bounded || optional.is_empty() {
        return Ok(Vec::new());
    }
    let keyword = if draft.out.contains_key("minProperties") { "minProperties" } else { "maxProperties" };
    if optional.len() > MAX_OPTIONAL {
        let problem = format!("it is supported with up to {MAX_OPTIONAL} optional properties");
        return Err(place.problem(keyword, problem));
    }
    let base = Value::Object(std::mem::take(&mut draft.out));
    let mut options = Vec::new();
    for present in 0..1_u32 << optional.len() {
        let mut option = base.clone();
        for (i, name) in optional.iter().enumerate() {
            match present >> i & 1 {
                1 => match option.get_mut("required").and_then(Value::as_array_mut) {
                    Some(required) => required.push(json!(name)),
                    None => option["required"] = json!([name]),
                },
                _ => option["properties"][name] = json!(false),
            }
        }
        let count = required.len() as u64 + u64::from(present.count_ones());
        if most.is_none_or(|most| count <= most) && (!closed || count >= least) {
            options.push(option);
        }
    }
    if options.is_empty() {
        Err(place.problem(keyword, "no number of properties follows it"))
    } else {
        Ok(options)
    }
}

fn matches(pattern: &str, name: &str, place: &Place) -> Result<bool, String> {
    names::matches(pattern, name).ok_or_else(|| place.problem(pattern, "it is too complex"))
}
