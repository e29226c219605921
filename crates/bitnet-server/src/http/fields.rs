//! The fields of a JSON object, taken one by one, so that every error names its field and none is overlooked.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    marker::PhantomData,
};

use bitnet::schema::StringTracker;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};
use strsim::osa_distance;

use crate::http::error::ApiError;

/// Maximum number of fields of an object.
const MAX_FIELDS: usize = 256;

/// A JSON object whose fields are taken one by one, so that every error names its field. [`Fields::finish`] refuses
/// fields that were not taken. `null` counts as absent, as it does for OpenAI.
///
/// Values stay unparsed until they are taken, so a body never takes more memory than its bytes and what the limits of
/// its fields allow.
#[derive(Debug)]
pub(crate) struct Fields<'b> {
    map: BTreeMap<String, &'b RawValue>,
    /// Path of the object in the body, with a dot at the end; empty for the body itself.
    path: String,
    /// The names of all fields that were looked for, present or not.
    known: BTreeSet<&'static str>,
    /// Whether fields that change no token are refused too.
    strict: bool,
}

impl<'b> Fields<'b> {
    /// Reads a body.
    pub fn parse(body: &'b [u8]) -> Result<Fields<'b>, ApiError> {
        let text = std::str::from_utf8(body);
        let text = text.map_err(|e| ApiError::malformed(format!("the body is not UTF-8: {e}")))?;
        let malformed = |e| ApiError::malformed(format!("the body is not JSON: {e}"));
        let raw: &RawValue = serde_json::from_str(text).map_err(malformed)?;
        match raw.get().starts_with('{') {
            true => Fields::at(String::new(), raw, false)
                .map_err(|e| ApiError::malformed(format!("the body: {e}"))),
            false => Err(ApiError::malformed("the body is not a JSON object")),
        }
    }

    /// Sets whether fields that change no token are refused.
    pub fn strictly(self, strict: bool) -> Self {
        Fields { strict, ..self }
    }

    /// Whether fields that change no token are refused.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The fields of an object inside this one, at `path`, with the same strictness.
    pub fn inside(&self, path: &str, value: &'b RawValue) -> Result<Fields<'b>, ApiError> {
        match value.get().starts_with('{') {
            true => Fields::at(format!("{path}."), value, self.strict)
                .map_err(|problem| ApiError::field(path, problem)),
            false => Err(ApiError::field(path, "it must be an object")),
        }
    }

    fn at(path: String, object: &'b RawValue, strict: bool) -> Result<Fields<'b>, String> {
        let map = pairs(object, MAX_FIELDS, "fields")?.into_iter().collect();
        Ok(Fields { map, path, known: BTreeSet::new(), strict })
    }

    /// The full name of a field, with its path in the body.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// Hashes the object without one of its fields; the same for any order of its fields and any white space.
    pub fn digest_without(&self, field: &str) -> Sha256 {
        let mut digest = Sha256::new();
        for (name, value) in self.map.iter().filter(|(name, _)| *name != field) {
            digest.update(name);
            digest.update([0]);
            compact(value.get(), |part| digest.update(part));
            digest.update([0]);
        }
        digest
    }

    /// Takes a field as unparsed JSON.
    pub fn raw(&mut self, field: &'static str) -> Option<&'b RawValue> {
        self.known.insert(field);
        self.map.remove(field).filter(|value| !is_null(value))
    }

    /// Sets a field.
    pub fn set(&mut self, field: &str, value: &'b RawValue) {
        self.map.insert(field.to_owned(), value);
    }

    /// Returns a field as unparsed JSON without taking it.
    pub fn peek(&self, field: &str) -> Option<&'b RawValue> {
        self.map.get(field).copied().filter(|value| !is_null(value))
    }

    /// Takes a field and parses it. A whole number may be written `5.0` or `5e0`, because JSON has one kind of number.
    pub fn take<T: DeserializeOwned>(&mut self, field: &'static str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(field) else { return Ok(None) };
        let value = serde_json::from_str(raw.get());
        let value = value.or_else(|e| whole(raw).and_then(|text| serde_json::from_str(&text).ok()).ok_or(e));
        value.map(Some).map_err(|e| ApiError::field(self.name(field), plainly(&e)))
    }

    /// Takes a required field and parses it.
    pub fn need<T: DeserializeOwned>(&mut self, field: &'static str) -> Result<T, ApiError> {
        self.take(field)?.ok_or_else(|| self.missing(field))
    }

    /// Takes a required field as unparsed JSON.
    pub fn need_raw(&mut self, field: &'static str) -> Result<&'b RawValue, ApiError> {
        self.raw(field).ok_or_else(|| self.missing(field))
    }

    fn missing(&self, field: &str) -> ApiError {
        ApiError::field(self.name(field), "it is missing")
    }

    /// Takes a list of at most `max` entries; empty if absent.
    pub fn list<T: Deserialize<'b>>(&mut self, field: &'static str, max: usize) -> Result<Vec<T>, ApiError> {
        let listed = self.raw(field).map_or(Ok(Vec::new()), |raw| list(raw, max));
        listed.map_err(|problem| ApiError::field(self.name(field), problem))
    }

    /// Takes the entries of an object, at most `max` of them; empty if absent.
    pub fn pairs<T: Deserialize<'b>>(
        &mut self,
        field: &'static str,
        max: usize,
    ) -> Result<Vec<(String, T)>, ApiError> {
        let paired = self.raw(field).map_or(Ok(Vec::new()), |raw| pairs(raw, max, "entries"));
        paired.map_err(|problem| ApiError::field(self.name(field), problem))
    }

    /// Takes a field that is an object.
    pub fn object(&mut self, field: &'static str) -> Result<Option<Fields<'b>>, ApiError> {
        let name = self.name(field);
        self.raw(field).map(|value| self.inside(&name, value)).transpose()
    }

    /// Takes a required field that is an object.
    pub fn need_object(&mut self, field: &'static str) -> Result<Fields<'b>, ApiError> {
        self.object(field)?.ok_or_else(|| self.missing(field))
    }

    /// Takes a required field that is an object, as unparsed JSON.
    pub fn need_raw_object(&mut self, field: &'static str) -> Result<&'b RawValue, ApiError> {
        let raw = self.need_raw(field)?;
        match raw.get().starts_with('{') {
            true => Ok(raw),
            false => Err(ApiError::field(self.name(field), "it must be an object")),
        }
    }

    /// Takes a field that could change tokens and is supported only with `neutral` values, which ask for nothing.
    pub fn only(&mut self, field: &'static str, neutral: &[Value]) -> Result<(), ApiError> {
        let Some(raw) = self.raw(field) else { return Ok(()) };
        match serde_json::from_str::<Value>(raw.get()) {
            Ok(value) if neutral.contains(&value) => Ok(()),
            _ => {
                let shown: String = raw.get().chars().take(40).collect();
                Err(ApiError::unsupported(self.name(field), shown))
            }
        }
    }

    /// Takes a field that changes no token. It may have any value; in strict mode, only `neutral` ones.
    pub fn harmless(&mut self, field: &'static str, neutral: &[Value]) -> Result<(), ApiError> {
        if self.strict {
            self.only(field, neutral)
        } else {
            self.raw(field);
            Ok(())
        }
    }

    /// Takes fields that change no token. They may have any value; in strict mode, they must be absent.
    pub fn ignore(&mut self, fields: &[&'static str]) -> Result<(), ApiError> {
        fields.iter().try_for_each(|field| self.harmless(field, &[]))
    }

    /// Refuses fields that were not taken, and suggests the field that was probably meant.
    pub fn finish(self) -> Result<(), ApiError> {
        let Some((field, _)) = self.map.iter().find(|(_, value)| !is_null(value)) else { return Ok(()) };
        let error = ApiError::unsupported(self.name(field), "this field");
        Err(match nearest(field, &self.known) {
            Some(known) => error.advised(format!("did you mean `{}`?", self.name(known))),
            None => error,
        })
    }
}

/// Doubles represent every integer up to this magnitude exactly, and not all larger ones.
pub(crate) const EXACT: f64 = 9_007_199_254_740_992.0;

/// The digits of an integer that was written with a point or an exponent.
fn whole(raw: &RawValue) -> Option<String> {
    let number: f64 = raw.get().parse().ok()?;
    (number.fract() == 0.0 && number.abs() <= EXACT).then(|| (number as i64).to_string())
}

/// Maximum bytes of a name that is compared with known names.
const MAX_COMPARED: usize = 64;

/// The known name with the smallest distance to `name`, if that is small.
fn nearest<'k>(name: &str, known: &BTreeSet<&'k str>) -> Option<&'k str> {
    if name.len() > MAX_COMPARED {
        return None;
    }
    let near = known.iter().map(|known| (osa_distance(name, known), *known)).min()?;
    (near.0 <= 1 + name.len() / 4).then_some(near.1)
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// Passes JSON to `each` in parts, without the white space between its tokens.
fn compact(json: &str, mut each: impl FnMut(&[u8])) {
    let (bytes, mut from, mut strings) = (json.as_bytes(), 0, StringTracker::default());
    for (at, &byte) in bytes.iter().enumerate() {
        if strings.read(byte) && b" \n\r\t".contains(&byte) {
            each(&bytes[from..at]);
            from = at + 1;
        }
    }
    each(&bytes[from..]);
}

/// Refuses a value of too many bytes.
pub(crate) fn check_size(field: &str, bytes: usize, max: usize) -> Result<(), ApiError> {
    let problem = || format!("it has {bytes} bytes, and at most {max} are allowed");
    if bytes > max { Err(ApiError::field(field, problem())) } else { Ok(()) }
}

/// Parses a list of at most `max` entries; a longer one is refused.
pub(crate) fn list<'b, T: Deserialize<'b>>(raw: &'b RawValue, max: usize) -> Result<Vec<T>, String> {
    struct List<T>(usize, PhantomData<T>);

    impl<'b, T: Deserialize<'b>> Visitor<'b> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'b>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while all.len() < self.0 {
                match entries.next_element()? {
                    Some(entry) => all.push(entry),
                    None => return Ok(all),
                }
            }
            match entries.next_element::<IgnoredAny>()? {
                Some(_) => Err(A::Error::custom(format!("it has more than {} entries", self.0))),
                None => Ok(all),
            }
        }
    }

    let mut json = serde_json::Deserializer::from_str(raw.get());
    json.deserialize_seq(List(max, PhantomData)).map_err(|e| plainly(&e))
}

/// Parses an object of at most `max` entries; a longer one is refused.
fn pairs<'b, T: Deserialize<'b>>(
    raw: &'b RawValue,
    max: usize,
    entries: &str,
) -> Result<Vec<(String, T)>, String> {
    struct Pairs<'n, T>(usize, &'n str, PhantomData<T>);

    impl<'b, T: Deserialize<'b>> Visitor<'b> for Pairs<'_, T> {
        type Value = Vec<(String, T)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'b>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(entry) = entries.next_entry()? {
                if all.len() == self.0 {
                    return Err(A::Error::custom(format!("it has more than {} {}", self.0, self.1)));
                }
                all.push(entry);
            }
            Ok(all)
        }
    }

    let mut json = serde_json::Deserializer::from_str(raw.get());
    json.deserialize_map(Pairs(max, entries, PhantomData)).map_err(|e| plainly(&e))
}

/// Describes an error in a value in terms of JSON instead of this program's types.
pub(crate) fn plainly(error: &serde_json::Error) -> String {
    let integer = "an integer of 0 or more";
    let names = [("usize", integer), ("u32", integer), ("f32", "a number"), ("a sequence", "a list")];
    let text = error.to_string();
    // Drop the line and column: they count from the field's beginning, which does not help clients.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
    let plain_text = names.iter().find_map(|(name, plain)| {
        let problem = text.strip_suffix(name)?.strip_suffix("expected ")?;
        Some(format!("{problem}expected {plain}"))
    });
    plain_text.unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param<T: fmt::Debug>(result: Result<T, ApiError>) -> Option<String> {
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
    fn errors_about_values_use_the_words_of_json() {
        fn message<T: DeserializeOwned + fmt::Debug>(value: &str) -> String {
            let body = format!("{{\"x\": {value}}}");
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            fields.take::<T>("x").unwrap_err().body.message
        }
        assert_eq!(
            message::<usize>("-1"),
            "x: invalid value: integer `-1`, expected an integer of 0 or more"
        );
        assert!(message::<u32>("3.5").ends_with("expected an integer of 0 or more"));
        assert!(message::<f32>("\"hot\"").ends_with("expected a number"));
        assert!(message::<Vec<u32>>("1").ends_with("expected a list"));
        assert!(message::<bool>("1").ends_with("expected a boolean"));
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
        let without = |text: &str| Fields::parse(text.as_bytes()).unwrap().digest_without("seed").finalize();
        assert_eq!(without(r#"{"a": 1, "seed": 2, "b": "x"}"#), without(r#"{ "b":"x", "a":1 }"#));
        assert_eq!(without(r#"{"a": [1, {"b": "\\" }]}"#), without("{\"a\":[1,\n{\"b\":\"\\\\\"}]}"));
        assert_ne!(without(r#"{"a": 1}"#), without(r#"{"a": 2}"#));
        assert_ne!(without(r#"{"a": "x y"}"#), without(r#"{"a": "xy"}"#), "white space in a text counts");
        assert_ne!(without(r#"{"a": "\" "}"#), without(r#"{"a": "\""}"#), "behind an escaped quote too");
    }

    #[test]
    fn a_field_with_one_supported_value_takes_that_and_null() {
        let fields = |text: &'static str| Fields::parse(text.as_bytes()).unwrap();
        let neutral = [Value::Bool(false)];
        for text in ["{}", r#"{"echo": false}"#, r#"{"echo": null}"#] {
            assert_eq!(fields(text).only("echo", &neutral), Ok(()));
        }
        assert_eq!(param(fields(r#"{"echo": true}"#).only("echo", &neutral)).as_deref(), Some("echo"));
    }

    #[test]
    fn a_field_that_changes_nothing_is_accepted_unless_the_rule_is_strict() {
        for text in [r#"{"store": true}"#, r#"{"store": [1]}"#, r#"{"store": false}"#] {
            let fields = || Fields::parse(text.as_bytes()).unwrap();
            assert_eq!(fields().harmless("store", &[Value::Bool(false)]), Ok(()), "{text}");
            let strict = fields().strictly(true).harmless("store", &[Value::Bool(false)]);
            assert_eq!(strict.is_ok(), text.contains("false"), "{text}");
        }
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_nearest_name_that_was_asked_for() {
        for (sent, meant) in [
            ("temprature", Some("temperature")),
            ("max_token", Some("max_tokens")),
            ("Seed", Some("seed")),
            ("sede", Some("seed")),
            ("frequency", None),
            ("x", None),
        ] {
            let body = format!("{{\"{sent}\": 1}}");
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            for known in ["temperature", "max_tokens", "seed"] {
                fields.raw(known);
            }
            let message = fields.finish().unwrap_err().body.message;
            let suggested = message.split_once("did you mean `").map(|(_, rest)| rest.trim_end_matches("`?"));
            assert_eq!(suggested, meant, "{message}");
        }
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point_or_an_exponent() {
        fn read(text: &str) -> Result<Option<usize>, ApiError> {
            Fields::parse(format!("{{\"x\": {text}}}").as_bytes()).unwrap().take("x")
        }
        for (text, number) in [("5.0", 5), ("5e0", 5), ("1.5e1", 15), ("0.0", 0), ("-0.0", 0)] {
            assert_eq!(read(text), Ok(Some(number)), "{text}");
        }
        for text in ["5.5", "-5.0", "1e300", "\"5.0\"", "9007199254740993.0e3"] {
            assert_eq!(param(read(text)).as_deref(), Some("x"), "{text}");
        }
    }

    #[test]
    fn what_is_longer_than_its_bound_is_refused_with_the_bound() {
        let fields = |text: &'static str| Fields::parse(text.as_bytes()).unwrap();
        let body = r#"{"l": [1, 2, 3], "m": {"a": 1, "b": 2}}"#;
        assert_eq!(fields(body).list::<u32>("l", 3).unwrap(), [1, 2, 3]);
        let error = fields(body).list::<u32>("l", 2).unwrap_err().body;
        assert_eq!(
            (error.message.as_str(), error.param.as_deref()),
            ("l: it has more than 2 entries", Some("l"))
        );
        assert_eq!(fields(body).pairs::<u32>("m", 2).unwrap().len(), 2);
        let error = fields(body).pairs::<u32>("m", 1).unwrap_err().body;
        assert_eq!(error.message, "m: it has more than 1 entries");
        let wide: Vec<String> = (0..300).map(|i| format!("\"f{i}\": {i}")).collect();
        let error = Fields::parse(format!("{{{}}}", wide.join(",")).as_bytes()).unwrap_err();
        assert_eq!(error.body.message, "the body: it has more than 256 fields");
    }
}
