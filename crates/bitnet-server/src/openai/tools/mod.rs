//! The tools that a chat offers: `tools`, `tool_choice` and `parallel_tool_calls`.

pub(crate) mod form;
pub(crate) mod reader;

use serde_json::{Value, json, value::RawValue};

use crate::http::{
    error::ApiError,
    fields::{Fields, check_size, plainly},
};

/// Maximum number of tools of a request, as with OpenAI.
const MAX_TOOLS: usize = 128;
/// Maximum bytes of a tool.
const MAX_TOOL: usize = 64 << 10;
/// Maximum characters of a tool's name, as with OpenAI.
const MAX_NAME: usize = 64;

/// The tools that a request offers to the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Offer {
    /// The tools that the prompt describes, as JSON in OpenAI's form, unchanged.
    pub described: Vec<String>,
    /// The tools that the model may call.
    pub tools: Vec<Tool>,
    /// Whether the answer must be a call and nothing else.
    pub required: bool,
    /// Whether the answer may contain several calls.
    pub parallel: bool,
}

/// A tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub name: String,
    /// The JSON schema of its arguments, which are an object.
    pub arguments: Value,
}

/// Takes the fields. Returns `None` if there are no tools, or `tool_choice` is `none`.
pub(crate) fn offer(fields: &mut Fields<'_>) -> Result<Option<Offer>, ApiError> {
    // These fields came before `tools`.
    fields.only("functions", &[json!([])]).map_err(|e| e.advised("send them as `tools`"))?;
    fields
        .only("function_call", &[json!("none"), json!("auto")])
        .map_err(|e| e.advised("send `tool_choice`"))?;
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let listed: Vec<&RawValue> = fields.list("tools", MAX_TOOLS)?;
    let read = |(i, raw)| Ok((tool(fields, &format!("tools[{i}]"), raw)?, raw.get().to_owned()));
    let listed: Result<Vec<(Tool, String)>, ApiError> = listed.into_iter().enumerate().map(read).collect();
    let (tools, described): (Vec<Tool>, Vec<String>) = listed?.into_iter().unzip();
    let twice = tools.iter().enumerate().find(|(i, tool)| tools[..*i].iter().any(|t| t.name == tool.name));
    if let Some((i, tool)) = twice {
        let problem = format!("there are two tools of the name {:?}", tool.name);
        return Err(ApiError::field(format!("tools[{i}].function.name"), problem));
    }
    let offer = Offer { described, tools, required: false, parallel };
    let offer = match fields.raw("tool_choice") {
        Some(choice) => offer.chosen(fields, choice)?,
        None => Some(offer),
    };
    Ok(offer.filter(|offer| !offer.tools.is_empty()))
}

impl Offer {
    /// The offer, restricted by `tool_choice`.
    fn chosen(self, fields: &Fields<'_>, choice: &RawValue) -> Result<Option<Offer>, ApiError> {
        if choice.get().starts_with('{') {
            return self.named(fields.inside("tool_choice", choice)?).map(Some);
        }
        let mode: String =
            serde_json::from_str(choice.get()).map_err(|e| ApiError::field("tool_choice", plainly(&e)))?;
        match mode.as_str() {
            "none" => Ok(None),
            mode => self.with_mode(mode, "tool_choice").map(Some),
        }
    }

    fn with_mode(self, mode: &str, field: &str) -> Result<Offer, ApiError> {
        match mode {
            "auto" => Ok(self),
            "required" if self.tools.is_empty() => Err(ApiError::field(field, "it needs tools")),
            "required" => Ok(Offer { required: true, ..self }),
            other => Err(ApiError::unsupported(field, format!("{other:.20?}"))),
        }
    }

    /// The offer, restricted to one function, or to some of the tools.
    fn named(self, mut fields: Fields<'_>) -> Result<Offer, ApiError> {
        let kind: String = fields.need("type")?;
        let offer = match kind.as_str() {
            "function" => {
                let mut function = fields.need_object("function")?;
                let name: String = function.need("name")?;
                let field = function.name("name");
                function.finish()?;
                // A named function is called exactly once.
                Offer { required: true, parallel: false, ..self.only(&[name], &field)? }
            }
            "allowed_tools" => {
                let mut allowed = fields.need_object("allowed_tools")?;
                let mode: String = allowed.need("mode")?;
                let tools: Vec<&RawValue> = allowed.list("tools", MAX_TOOLS)?;
                let field = allowed.name("tools");
                let name = |(i, raw)| reference(allowed.inside(&format!("{field}[{i}]"), raw)?);
                let names = tools.into_iter().enumerate().map(name).collect::<Result<Vec<_>, _>>()?;
                let (mode_field, offer) = (allowed.name("mode"), self.only(&names, &field)?);
                allowed.finish()?;
                offer.with_mode(&mode, &mode_field)?
            }
            other => return Err(ApiError::unsupported(fields.name("type"), format!("{other:.20?}"))),
        };
        fields.finish()?;
        Ok(offer)
    }

    /// The offer with only the tools of these names.
    fn only(self, names: &[String], field: &str) -> Result<Offer, ApiError> {
        if let Some(unknown) = names.iter().find(|&name| self.tools.iter().all(|tool| tool.name != *name)) {
            return Err(ApiError::field(field, format!("there is no tool of the name {unknown:.64?}")));
        }
        let tools = self.tools.into_iter().filter(|tool| names.contains(&tool.name)).collect();
        Ok(Offer { tools, ..self })
    }
}

/// Reads `{"type": "function", "function": {"name": ...}}` and returns the name.
fn reference(mut fields: Fields<'_>) -> Result<String, ApiError> {
    fields.only("type", &[json!("function")])?;
    let mut function = fields.need_object("function")?;
    let name = function.need("name")?;
    function.finish()?;
    fields.finish()?;
    Ok(name)
}

fn tool(parent: &Fields<'_>, path: &str, raw: &RawValue) -> Result<Tool, ApiError> {
    check_size(path, raw.get().len(), MAX_TOOL)?;
    let mut fields = parent.inside(path, raw)?;
    let kind: String = fields.need("type")?;
    if kind != "function" {
        return Err(ApiError::unsupported(fields.name("type"), format!("{kind:.20?}")));
    }
    let mut function = fields.need_object("function")?;
    let name: String = function.need("name")?;
    let sound = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(sound) {
        let problem = format!("it must be 1 to {MAX_NAME} letters, digits, `_`, `-` and `.`");
        return Err(ApiError::field(function.name("name"), problem));
    }
    function.take::<String>("description")?;
    // Arguments always follow the schema, strict or not.
    function.take::<bool>("strict")?;
    let (field, parameters) = (function.name("parameters"), function.take::<Value>("parameters")?);
    let arguments = arguments(parameters).map_err(|problem| ApiError::field(field, problem))?;
    function.finish()?;
    fields.finish()?;
    Ok(Tool { name, arguments })
}

/// The schema that arguments follow; without `parameters`, there are no arguments. Properties that a schema does not
/// list are allowed only if it says so, because a model would invent some.
fn arguments(parameters: Option<Value>) -> Result<Value, &'static str> {
    let Some(parameters) = parameters else { return arguments(Some(json!({"properties": {}}))) };
    let Value::Object(mut schema) = parameters else { return Err("it must be a JSON schema") };
    match schema.get("type") {
        None => drop(schema.insert("type".into(), json!("object"))),
        Some(kind) if kind == "object" => {}
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

/// The calls in an assistant's message that a client sends back.
pub(super) fn past_calls(fields: &mut Fields<'_>) -> Result<Vec<bitnet::model::ToolCall>, ApiError> {
    let name = fields.name("tool_calls");
    let listed: Vec<&RawValue> = fields.list("tool_calls", MAX_TOOLS)?;
    let call = |(i, raw)| {
        let mut call = fields.inside(&format!("{name}[{i}]"), raw)?;
        call.only("type", &[json!("function")])?;
        call.harmless("index", &[])?;
        let id = call.need("id")?;
        let mut function = call.need_object("function")?;
        let (name, arguments) = (function.need("name")?, function.need("arguments")?);
        function.finish()?;
        call.finish()?;
        Ok(bitnet::model::ToolCall { id, name, arguments })
    };
    listed.into_iter().enumerate().map(call).collect()
}

/// The entries of an object as a template's variables.
pub(super) fn variables(fields: &mut Fields<'_>) -> Result<Vec<(String, String)>, ApiError> {
    let entries: Vec<(String, &RawValue)> = fields.pairs("chat_template_kwargs", MAX_TOOLS)?;
    let own = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
    if let Some((name, _)) = entries.iter().find(|(name, _)| own.contains(&name.as_str())) {
        return Err(ApiError::field(
            format!("chat_template_kwargs.{name}"),
            "it is not a variable to be set",
        ));
    }
    Ok(entries.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect())
}
