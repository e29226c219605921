//! The tools that a request offers, whatever its API: which may be called, how they are written, and how calls are
//! read.

pub(crate) mod form;
pub(crate) mod reader;
mod values;
mod xml;
mod xml_reader;

use serde_json::{Value, json, value::RawValue};

use crate::http::{
    error::ApiError,
    fields::{Fields, check_size},
};

/// Maximum number of tools of a request, as with OpenAI.
pub(crate) const MAX_TOOLS: usize = 128;
/// Maximum bytes of a tool.
const MAX_TOOL: usize = 64 << 10;
/// Maximum characters of a tool's name, as with OpenAI.
const MAX_NAME: usize = 64;

/// The tools that a request offers to the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Offer {
    /// The tools that the prompt describes, as JSON in the form of OpenAI's chats.
    pub described: Vec<String>,
    /// The tools that the model may call.
    pub tools: Vec<Tool>,
    /// Whether the answer must be a call and nothing else.
    pub required: bool,
    /// Whether the answer may contain several calls.
    pub parallel: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub name: String,
    /// The JSON schema of its arguments, which are an object.
    pub arguments: Value,
}

/// Takes the list of tools. `read` returns a tool with its description in OpenAI's form; `name` is the path of its name.
pub(crate) fn listed(
    fields: &mut Fields<'_>,
    name: &str,
    read: impl Fn(Fields<'_>, &RawValue) -> Result<(Tool, String), ApiError>,
) -> Result<Offer, ApiError> {
    let mut offer = Offer { described: Vec::new(), tools: Vec::new(), required: false, parallel: true };
    for (i, raw) in fields.list::<&RawValue>("tools", MAX_TOOLS)?.into_iter().enumerate() {
        let path = format!("tools[{i}]");
        check_size(&path, raw.get().len(), MAX_TOOL)?;
        let (tool, description) = read(fields.inside(&path, raw)?, raw)?;
        if offer.tools.iter().any(|known| known.name == tool.name) {
            let problem = format!("there are two tools of the name {:?}", tool.name);
            return Err(ApiError::field(format!("{path}.{name}"), problem));
        }
        offer.tools.push(tool);
        offer.described.push(description);
    }
    Ok(offer)
}

impl Offer {
    /// The offer that is called as `mode` says: `auto` or `required`.
    pub fn with_mode(self, mode: &str, field: &str) -> Result<Offer, ApiError> {
        match mode {
            "auto" => Ok(self),
            "required" => self.required(field),
            other => Err(ApiError::unsupported(field, format!("{other:.20?}"))),
        }
    }

    /// The offer of which some tool must be called; `field` asks for that.
    pub fn required(self, field: &str) -> Result<Offer, ApiError> {
        if self.tools.is_empty() {
            Err(ApiError::field(field, "it needs tools"))
        } else {
            Ok(Offer { required: true, ..self })
        }
    }

    /// The offer of one tool, which is called exactly once.
    pub fn named(self, name: String, field: &str) -> Result<Offer, ApiError> {
        Ok(Offer { required: true, parallel: false, ..self.only(&[name], field)? })
    }

    /// The offer with only the tools of these names.
    pub fn only(self, names: &[String], field: &str) -> Result<Offer, ApiError> {
        if let Some(unknown) = names.iter().find(|&name| self.tools.iter().all(|tool| tool.name != *name)) {
            return Err(ApiError::field(field, format!("there is no tool of the name {unknown:.64?}")));
        }
        let tools = self.tools.into_iter().filter(|tool| names.contains(&tool.name)).collect();
        Ok(Offer { tools, ..self })
    }
}

/// Reads a function and returns it with its description in OpenAI's form. The field `parameters` has the schema of the
/// function's arguments.
pub(crate) fn function(mut fields: Fields<'_>, parameters: &'static str) -> Result<(Tool, String), ApiError> {
    let name: String = fields.need("name")?;
    let sound = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(sound) {
        let problem = format!("it must be 1 to {MAX_NAME} letters, digits, `_`, `-` and `.`");
        return Err(ApiError::field(fields.name("name"), problem));
    }
    let description: Option<String> = fields.take("description")?;
    // Arguments always follow the schema, strict or not.
    let strict: Option<bool> = fields.take("strict")?;
    let raw = fields.peek(parameters);
    let (field, schema) = (fields.name(parameters), fields.take::<Value>(parameters)?);
    let arguments = arguments(schema).map_err(|problem| ApiError::field(field, problem))?;
    fields.finish()?;
    let parts = [
        Some(format!("\"name\":{}", json!(name))),
        description.map(|text| format!("\"description\":{}", json!(text))),
        raw.map(|raw| format!("\"parameters\":{}", raw.get())),
        strict.map(|strict| format!("\"strict\":{strict}")),
    ];
    let described = parts.into_iter().flatten().collect::<Vec<_>>().join(",");
    Ok((Tool { name, arguments }, format!("{{\"type\":\"function\",\"function\":{{{described}}}}}")))
}

/// The schema that arguments follow; without `parameters`, there are no arguments. Properties that a schema does not
/// list are allowed only if it says so, because a model would invent some.
fn arguments(parameters: Option<Value>) -> Result<Value, &'static str> {
    let Some(parameters) = parameters else { return arguments(Some(json!({"properties": {}}))) };
    let Value::Object(mut schema) = parameters else { return Err("it must be a JSON schema") };
    match schema.get("type") {
        None => drop(schema.insert("type".into(), json!("object"))),
        Some(kind) if kind == "object" => {}
        Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "object") => {
            drop(schema.insert("type".into(), json!("object")));
        }
        Some(_) => return Err("its `type` must be `object`"),
    }
    let says = [
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
    ];
    let named = schema.contains_key("properties") && says.iter().all(|word| !schema.contains_key(*word));
    if named {
        schema.insert("additionalProperties".into(), json!(false));
    }
    // Models have seen calls with this white space in training.
    let spaced = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    schema.insert("x-guidance".into(), spaced);
    Ok(Value::Object(schema))
}
