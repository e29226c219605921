use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::http::error::ApiError;

/// A JSON object that is taken apart field by field, so that every error names its field and nothing that was sent
/// is ignored. `null` counts as absent, as it does for OpenAI.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where the object is in the body, with a dot at the end; empty for the body itself.
    path: String,
}

impl Fields {
    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields { map, path: String::new() }),
            Ok(_) => Err(ApiError::malformed("the body is not a JSON object")),
            Err(e) => Err(ApiError::malformed(format!("the body is not JSON: {e}"))),
        }
    }

    /// An object that is the value of a field.
    pub fn inside(path: &str, value: Value) -> Result<Fields, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path: format!("{path}.") }),
            _ => Err(ApiError::field(path, "it must be an object")),
        }
    }

    /// The name of a field as a client would find it.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// The object as JSON, without one of its fields; the same for any order of its fields and any white space.
    pub fn without(&self, field: &str) -> Vec<u8> {
        let rest: BTreeMap<_, _> = self.map.iter().filter(|(name, _)| *name != field).collect();
        serde_json::to_vec(&rest).unwrap_or_default()
    }

    /// A field of any kind.
    pub fn value(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !value.is_null())
    }

    /// A field of a type.
    pub fn take<T: DeserializeOwned>(&mut self, field: &str) -> Result<Option<T>, ApiError> {
        let value = self.value(field).map(serde_json::from_value).transpose();
        value.map_err(|e| ApiError::field(self.name(field), plainly(&e)))
    }

    /// A field that must be there.
    pub fn need<T: DeserializeOwned>(&mut self, field: &str) -> Result<T, ApiError> {
        self.take(field)?.ok_or_else(|| ApiError::field(self.name(field), "it is missing"))
    }

    /// A field that is an object.
    pub fn object(&mut self, field: &str) -> Result<Option<Fields>, ApiError> {
        let name = self.name(field);
        self.value(field).map(|value| Fields::inside(&name, value)).transpose()
    }

    /// A field of which only one value is supported, that which changes nothing.
    pub fn only(&mut self, field: &str, neutral: &[Value]) -> Result<(), ApiError> {
        match self.value(field) {
            Some(value) if !neutral.contains(&value) => {
                let shown: String = value.to_string().chars().take(40).collect();
                Err(ApiError::unsupported(self.name(field), shown))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what has not been taken.
    pub fn finish(self) -> Result<(), ApiError> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            Some((field, _)) => Err(ApiError::unsupported(self.name(field), "this field")),
            None => Ok(()),
        }
    }
}

/// What is wrong with a value, in the words of JSON instead of this program's types.
fn plainly(error: &serde_json::Error) -> String {
    let integer = "an integer of 0 or more";
    let names = [("usize", integer), ("u32", integer), ("f32", "a number"), ("a sequence", "a list")];
    let said = error.to_string();
    let told = names.iter().find_map(|(name, plain)| {
        let problem = said.strip_suffix(name)?.strip_suffix("expected ")?;
        Some(format!("{problem}expected {plain}"))
    });
    told.unwrap_or(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param<T: std::fmt::Debug>(result: Result<T, ApiError>) -> Option<String> {
        let error = result.unwrap_err();
        assert_eq!(error.status, 400);
        error.body.param
    }

    #[test]
    fn every_error_names_its_field() {
        let body = br#"{"a": 1, "b": "x", "c": null, "d": {"e": 2}, "f": 3}"#;
        let mut fields = Fields::parse(body).unwrap();
        assert_eq!(fields.take::<usize>("a"), Ok(Some(1)));
        assert_eq!(param(fields.take::<usize>("b")).as_deref(), Some("b"));
        assert_eq!(fields.take::<usize>("c"), Ok(None));
        assert_eq!(param(fields.need::<usize>("c")).as_deref(), Some("c"));
        let inner = fields.object("d").unwrap().unwrap();
        assert_eq!(param(inner.finish()).as_deref(), Some("d.e"));
        assert_eq!(param(fields.finish()).as_deref(), Some("f"));
    }

    #[test]
    fn what_is_wrong_with_a_value_is_told_in_the_words_of_json() {
        fn told<T: DeserializeOwned + std::fmt::Debug>(value: &str) -> String {
            let mut fields = Fields::parse(format!("{{\"x\": {value}}}").as_bytes()).unwrap();
            fields.take::<T>("x").unwrap_err().body.message
        }
        assert_eq!(told::<usize>("-1"), "x: invalid value: integer `-1`, expected an integer of 0 or more");
        assert!(told::<u32>("3.5").ends_with("expected an integer of 0 or more"));
        assert!(told::<f32>("\"hot\"").ends_with("expected a number"));
        assert!(told::<Vec<u32>>("1").ends_with("expected a list"));
        assert!(told::<bool>("1").ends_with("expected a boolean"));
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        for body in ["", "[]", "1", "{", "{\"a\":1}x", "\u{feff}{}"] {
            assert_eq!(Fields::parse(body.as_bytes()).unwrap_err().status, 400, "{body:?}");
        }
        assert_eq!(Fields::parse(&[b'"', 0xFF, b'"']).unwrap_err().status, 400);
        assert_eq!(Fields::parse("[".repeat(100_000).as_bytes()).unwrap_err().status, 400);
    }

    #[test]
    fn what_a_body_says_is_the_same_in_any_order() {
        let without = |text: &str| Fields::parse(text.as_bytes()).unwrap().without("seed");
        assert_eq!(without(r#"{"a": 1, "seed": 2, "b": "x"}"#), without(r#"{ "b":"x", "a":1 }"#));
        assert_ne!(without(r#"{"a": 1}"#), without(r#"{"a": 2}"#));
    }

    #[test]
    fn a_field_with_one_supported_value_takes_that_and_null() {
        let fields = |text: &str| Fields::parse(text.as_bytes()).unwrap();
        let neutral = [Value::Bool(false)];
        for text in ["{}", r#"{"echo": false}"#, r#"{"echo": null}"#] {
            assert_eq!(fields(text).only("echo", &neutral), Ok(()));
        }
        assert_eq!(param(fields(r#"{"echo": true}"#).only("echo", &neutral)).as_deref(), Some("echo"));
    }
}
