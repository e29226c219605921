//! The fields that ask for a format of the text: `response_format`, `guided_regex` and `guided_choice`.

use bitnet::schema::spaced;
use serde_json::{Value, json, value::RawValue};

use crate::http::{
    error::ApiError,
    fields::{Fields, check_size, plainly},
};

/// Maximum bytes of a format.
const MAX_SCHEMA: usize = 64 << 10;

/// Maximum number of texts to choose from.
const MAX_CHOICES: usize = 1024;

/// The format that a text must have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Format {
    /// JSON that follows a schema.
    Json(Value),
    /// A text that matches an expression in `llguidance`'s variant of Lark.
    Lark(String),
}

impl Format {
    /// Takes the fields, of which at most one may ask for a format. Returns the name of that field with the format.
    pub fn take(fields: &mut Fields<'_>) -> Result<Option<(&'static str, Format)>, ApiError> {
        let json = fields.object("response_format")?.map(|format| Format::read(format, false));
        let json = json.transpose()?.flatten();
        let formats = [
            ("response_format", json),
            (
                "guided_regex",
                fields.take::<String>("guided_regex")?.map(|regex| Format::regex(&regex)).transpose()?,
            ),
            ("guided_choice", Format::choice(fields.list("guided_choice", MAX_CHOICES)?)?),
        ];
        let mut formats = formats.into_iter().filter_map(|(field, format)| Some((field, format?)));
        match (formats.next(), formats.next()) {
            (Some((one, _)), Some((other, _))) => {
                Err(ApiError::field(other, format!("it cannot be combined with {one}")))
            }
            (one, _) => Ok(one),
        }
    }

    fn regex(regex: &str) -> Result<Format, ApiError> {
        check_size("guided_regex", regex.len(), MAX_SCHEMA)?;
        // Escape slashes, because the grammar delimits a regular expression by them.
        let (mut lark, mut escaped) = (String::from("/"), false);
        for c in regex.chars() {
            if c == '/' && !escaped {
                lark.push('\\');
            }
            lark.push(c);
            escaped = c == '\\' && !escaped;
        }
        match regex.is_empty() || escaped {
            true => Err(ApiError::field("guided_regex", "it must be a regular expression")),
            false => Ok(Format::Lark(lark + "/")),
        }
    }

    fn choice(texts: Vec<String>) -> Result<Option<Format>, ApiError> {
        check_size("guided_choice", texts.iter().map(String::len).sum(), MAX_SCHEMA)?;
        let each: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
        Ok((!each.is_empty()).then(|| Format::Lark(format!("({})", each.join(" | ")))))
    }

    /// The format as an expression of a grammar.
    pub fn lark(&self) -> String {
        match self {
            Format::Lark(expression) => expression.clone(),
            Format::Json(schema) => format!("%json {}", spaced(schema.clone())),
        }
    }

    /// Reads a format. If it is `flat`, the description of a schema is part of it, as in OpenAI's Responses API.
    pub fn read(mut fields: Fields<'_>, flat: bool) -> Result<Option<Format>, ApiError> {
        let kind: String = fields.need("type")?;
        let format = match kind.as_str() {
            "text" => None,
            "json_object" => Some(Format::any_object()),
            "json_schema" if flat => return Format::described(fields).map(Some),
            "json_schema" => Some(Format::described(fields.need_object("json_schema")?)?),
            other => return Err(ApiError::unsupported(fields.name("type"), format!("{other:.20?}"))),
        };
        fields.finish()?;
        Ok(format)
    }

    /// Reads a schema and its description.
    fn described(mut fields: Fields<'_>) -> Result<Format, ApiError> {
        // The name and the description are for people. The text always follows the schema, strict or not.
        fields.take::<String>("name")?;
        fields.take::<String>("description")?;
        fields.take::<bool>("strict")?;
        let schema = Format::schema(&fields.name("schema"), fields.need_raw("schema")?)?;
        fields.finish()?;
        Ok(schema)
    }

    /// The format of a JSON schema; `field` is its name in errors.
    pub fn schema(field: &str, schema: &RawValue) -> Result<Format, ApiError> {
        check_size(field, schema.get().len(), MAX_SCHEMA)?;
        let schema: Value =
            serde_json::from_str(schema.get()).map_err(|e| ApiError::field(field, plainly(&e)))?;
        match schema.is_object() || schema.is_boolean() {
            true => Ok(Format::Json(schema)),
            false => Err(ApiError::field(field, "it must be a JSON schema")),
        }
    }

    /// Any JSON object.
    pub fn any_object() -> Format {
        Format::Json(json!({"type": "object"}))
    }
}
