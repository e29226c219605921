//! References: what each one refers to, and under which name the rewritten schema holds it.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::Place;
use crate::schema::unescaped;

/// Finds what references of a schema refer to, and names it.
pub(super) struct References<'s> {
    root: &'s Value,
    /// Whether the draft is one in which an `$id` beside `$ref` has no meaning.
    old: bool,
    /// The keyword that gives a schema its URI.
    id: &'static str,
    /// Schemas with an `$id` of their own, and the root first.
    resources: Vec<Resource>,
    /// Schemas with a name, by their resource and name.
    anchors: HashMap<(usize, String), String>,
    /// Names of schemas that depend on who refers to them, and how many have each.
    dynamic: HashMap<String, usize>,
    /// The names that have been given, by pointer.
    names: HashMap<String, String>,
    /// What has been named and not yet returned.
    pending: Vec<(String, &'s Value, Place)>,
}

struct Resource {
    pointer: String,
    uri: String,
}

/// Keywords whose value is a schema, or a list of schemas.
const SCHEMAS: [&str; 20] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
    "extends",
    "disallow",
    "type",
    "x-guidance",
];

/// Keywords whose value is an object of schemas.
const MAPS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

impl<'s> References<'s> {
    pub fn new(root: &'s Value) -> Self {
        let draft = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let old = ["draft-03", "draft-04", "draft-06", "draft-07"].iter().any(|name| draft.contains(name));
        let id = if draft.contains("draft-03") || draft.contains("draft-04") { "id" } else { "$id" };
        let uri = root.get(id).and_then(Value::as_str).unwrap_or_default();
        let uri = uri.split('#').next().unwrap_or_default().to_owned();
        let mut references = References {
            root,
            old,
            id,
            resources: vec![Resource { pointer: String::new(), uri }],
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
            names: HashMap::new(),
            pending: Vec::new(),
        };
        references.index(root, &Place::root());
        references
    }

    /// Notes the names of a schema and of those within it.
    fn index(&mut self, schema: &Value, place: &Place) {
        match schema {
            Value::Object(map) => self.index_object(map, place),
            Value::Array(list) => {
                for (i, value) in list.iter().enumerate() {
                    self.index(value, &place.inside(&i.to_string()));
                }
            }
            _ => {}
        }
    }

    fn index_object(&mut self, map: &Map<String, Value>, place: &Place) {
        let mut place = place.clone();
        let counts = !(place.pointer.is_empty() || self.old && map.contains_key("$ref"));
        if let Some(id) = map.get(self.id).and_then(Value::as_str).filter(|_| counts) {
            let (uri, name) = id.split_once('#').unwrap_or((id, ""));
            if !uri.is_empty() {
                let uri = joined(&self.resources[place.resource].uri, uri);
                self.resources.push(Resource { pointer: place.pointer.clone(), uri });
                place.resource = self.resources.len() - 1;
            }
            // A name, in drafts before 2019-09.
            if !name.is_empty() && !name.starts_with('/') {
                self.anchors.insert((place.resource, name.to_owned()), place.pointer.clone());
            }
        }
        for keyword in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = map.get(keyword).and_then(Value::as_str) {
                self.anchors.insert((place.resource, name.to_owned()), place.pointer.clone());
                if keyword == "$dynamicAnchor" {
                    *self.dynamic.entry(name.to_owned()).or_default() += 1;
                }
            }
        }
        if map.get("$recursiveAnchor") == Some(&Value::Bool(true)) {
            *self.dynamic.entry(String::new()).or_default() += 1;
        }
        for (keyword, value) in map {
            let inside = place.inside(keyword);
            match value {
                Value::Object(entries) if MAPS.contains(&keyword.as_str()) => {
                    entries.iter().for_each(|(name, value)| self.index(value, &inside.inside(name)));
                }
                _ if SCHEMAS.contains(&keyword.as_str()) => self.index(value, &inside),
                _ => {}
            }
        }
    }

    /// The same place, with the resource that begins there if one does.
    pub fn enter(&self, place: &Place) -> Place {
        let begins = self.resources.iter().position(|resource| resource.pointer == place.pointer);
        Place { resource: begins.unwrap_or(place.resource), ..place.clone() }
    }

    /// The reference, within the rewritten schema, to what a reference in the sent one refers to.
    pub fn name(&mut self, keyword: &str, reference: &Value, place: &Place) -> Result<String, String> {
        let reference = reference.as_str().ok_or("it must be a text")?;
        let pointer = self.find(reference, place)?;
        let name = pointer.rsplit('/').next().unwrap_or_default();
        let dynamic = match keyword {
            "$ref" => 0,
            "$recursiveRef" => self.dynamic.get("").copied().unwrap_or(0),
            _ => reference.split_once('#').and_then(|(_, name)| self.dynamic.get(name)).copied().unwrap_or(0),
        };
        if dynamic > 1 {
            return Err("what it refers to depends on who refers to it: use $ref".into());
        }
        if pointer.is_empty() {
            return Ok("#".into());
        }
        if let Some(name) = self.names.get(&pointer) {
            return Ok(format!("#/$defs/{name}"));
        }
        let value = self.root.pointer(&pointer).ok_or("there is nothing at this place")?;
        let readable: String = name.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        let name = format!("{}_{readable}", self.names.len());
        self.names.insert(pointer.clone(), name.clone());
        let resource = self.resource_of(&pointer);
        self.pending.push((name.clone(), value, Place { pointer, resource }));
        Ok(format!("#/$defs/{name}"))
    }

    /// What a reference of the rewritten schema refers to in the sent one.
    pub fn sent(&self, reference: &str) -> Option<(&'s Value, Place)> {
        let Some(name) = reference.strip_prefix("#/$defs/") else { return Some((self.root, Place::root())) };
        let (pointer, _) = self.names.iter().find(|(_, known)| *known == name)?;
        let place = Place { pointer: pointer.clone(), resource: self.resource_of(pointer) };
        Some((self.root.pointer(pointer)?, place))
    }

    pub fn next_pending(&mut self) -> Option<(String, &'s Value, Place)> {
        self.pending.pop()
    }

    /// The innermost resource that contains a place.
    fn resource_of(&self, pointer: &str) -> usize {
        let contains = |resource: &Resource| {
            pointer
                .strip_prefix(&*resource.pointer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let containing = self.resources.iter().enumerate().filter(|(_, resource)| contains(resource));
        containing.max_by_key(|(_, resource)| resource.pointer.len()).map_or(0, |(i, _)| i)
    }

    /// The pointer, from the root, to what a reference at a place refers to.
    fn find(&self, reference: &str, place: &Place) -> Result<String, String> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = match uri {
            "" => place.resource,
            uri => {
                let uri = joined(&self.resources[place.resource].uri, uri);
                let same = |resource: &Resource| resource.uri == uri;
                self.resources.iter().position(same).ok_or_else(|| {
                    format!(
                        "{reference:.100?} is not in this schema, and nothing is fetched: put it under $defs"
                    )
                })?
            }
        };
        let fragment = unescaped(fragment).ok_or("its percent escapes are not a text")?;
        let start = &self.resources[resource].pointer;
        let pointer = match fragment.as_str() {
            "" => return Ok(start.clone()),
            fragment if fragment.starts_with('/') => format!("{start}{fragment}"),
            name => {
                let anchor = self.anchors.get(&(resource, name.to_owned()));
                return anchor.cloned().ok_or_else(|| format!("there is no $anchor {name:.100?}"));
            }
        };
        match self.root.pointer(&pointer) {
            Some(_) => Ok(pointer),
            None => Err(format!("there is nothing at {reference:.100?}")),
        }
    }
}

/// A URI relative to another.
fn joined(base: &str, uri: &str) -> String {
    let scheme = |uri: &str| uri.find(':').filter(|&end| !uri[..end].contains('/'));
    match scheme(base) {
        _ if scheme(uri).is_some() => uri.to_owned(),
        Some(end) if base[end..].starts_with("://") => {
            let host = base[end + 3..].find('/').map_or(base.len(), |at| end + 3 + at);
            match uri.strip_prefix('/') {
                Some(_) => format!("{}{uri}", &base[..host]),
                None if host == base.len() => format!("{base}/{uri}"),
                None => format!("{}/{uri}", &base[..base.rfind('/').unwrap_or(host)]),
            }
        }
        _ if uri.starts_with('/') => uri.to_owned(),
        _ => match base.rfind('/') {
            Some(at) => format!("{}/{uri}", &base[..at]),
            None => uri.to_owned(),
        },
    }
}
