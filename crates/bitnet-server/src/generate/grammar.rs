//! The format that a text must have: JSON that follows a schema, a regular expression, or one of some texts.

use bitnet::schema::spaced;
use serde_json::{Value, json, value::RawValue};

use crate::http::{
    error::ApiError,
    fields::{check_size, plainly},
};

/// Maximum bytes of a format.
const MAX_SCHEMA: usize = 64 << 10;

/// The format that a text must have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Format {
    /// JSON that follows a schema.
    Json(Value),
    /// A text that matches an expression in `llguidance`'s variant of Lark.
    Lark(String),
}

impl Format {
    /// The format of a regular expression.
    pub fn regex(regex: &str) -> Result<Format, ApiError> {
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
        if regex.is_empty() || escaped {
            Err(ApiError::field("guided_regex", "it must be a regular expression"))
        } else {
            Ok(Format::Lark(lark + "/"))
        }
    }

    /// One of these texts; none without texts.
    pub fn choice(texts: Vec<String>) -> Result<Option<Format>, ApiError> {
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

    /// The format of a JSON schema; `field` is its name in errors.
    pub fn schema(field: &str, schema: &RawValue) -> Result<Format, ApiError> {
        check_size(field, schema.get().len(), MAX_SCHEMA)?;
        let schema: Value =
            serde_json::from_str(schema.get()).map_err(|e| ApiError::field(field, plainly(&e)))?;
        if schema.is_object() || schema.is_boolean() {
            Ok(Format::Json(schema))
        } else {
            Err(ApiError::field(field, "it must be a JSON schema"))
        }
    }

    /// Any JSON object.
    pub fn any_object() -> Format {
        Format::Json(json!({"type": "object"}))
    }
}
