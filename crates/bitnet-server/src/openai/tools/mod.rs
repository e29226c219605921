//! The tools that a chat offers: `tools`, `tool_choice` and `parallel_tool_calls`.

pub(crate) mod form;
pub(crate) mod reader;

use serde_json::{Value, json, value::RawValue};

use crate::http::{
    error::ApiError,
    fields::{Fields, check_size, plainly},
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

/// Takes the fields. Returns `None` if there are no tools, or `tool_choice` is `none`. If the tools are `flat`, names
/// are next to `type`, as in OpenAI's Responses API.
pub(crate) fn offer(fields: &mut Fields<'_>, flat: bool) -> Result<Option<Offer>, ApiError> {
    // These fields came before `tools`.
    fields.only("functions", &[json!([])]).map_err(|e| e.advised("send them as `tools`"))?;
    fields
        .only("function_call", &[json!("none"), json!("auto")])
        .map_err(|e| e.advised("send `tool_choice`"))?;
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let name = if flat { "name" } else { "function.name" };
    let offer = Offer { parallel, ..listed(fields, name, |fields, raw| tool(fields, raw, flat))? };
    let offer = match fields.raw("tool_choice") {
        Some(choice) => offer.chosen(fields, choice, flat)?,
        None => Some(offer),
    };
    Ok(offer.filter(|offer| !offer.tools.is_empty()))
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
    /// The offer, restricted by `tool_choice`.
    fn chosen(self, fields: &Fields<'_>, choice: &RawValue, flat: bool) -> Result<Option<Offer>, ApiError> {
        if choice.get().starts_with('{') {
            return self.restricted(fields.inside("tool_choice", choice)?, flat).map(Some);
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
            "required" => self.required(field),
            other => Err(ApiError::unsupported(field, format!("{other:.20?}"))),
        }
    }

    /// The offer of which some tool must be called; `field` asks for that.
    pub fn required(self, field: &str) -> Result<Offer, ApiError> {
        match self.tools.is_empty() {
            true => Err(ApiError::field(field, "it needs tools")),
            false => Ok(Offer { required: true, ..self }),
        }
    }

    /// The offer, restricted to one function, or to some of the tools.
    fn restricted(self, mut fields: Fields<'_>, flat: bool) -> Result<Offer, ApiError> {
        let kind: String = fields.need("type")?;
        match kind.as_str() {
            "function" => {
                let (name, field) = reference(fields, flat)?;
                self.named(name, &field)
            }
            "allowed_tools" if flat => self.allowed(fields, flat),
            "allowed_tools" => {
                let offer = self.allowed(fields.need_object("allowed_tools")?, flat)?;
                fields.finish()?;
                Ok(offer)
            }
            other => Err(ApiError::unsupported(fields.name("type"), format!("{other:.20?}"))),
        }
    }

    /// The offer of one tool, which is called exactly once.
    pub fn named(self, name: String, field: &str) -> Result<Offer, ApiError> {
        Ok(Offer { required: true, parallel: false, ..self.only(&[name], field)? })
    }

    fn allowed(self, mut fields: Fields<'_>, flat: bool) -> Result<Offer, ApiError> {
        let mode: String = fields.need("mode")?;
        let tools: Vec<&RawValue> = fields.list("tools", MAX_TOOLS)?;
        let (mode_field, field) = (fields.name("mode"), fields.name("tools"));
        let name = |(i, raw)| Ok(reference(fields.inside(&format!("{field}[{i}]"), raw)?, flat)?.0);
        let names = tools.into_iter().enumerate().map(name).collect::<Result<Vec<_>, ApiError>>()?;
        fields.finish()?;
        self.only(&names, &field)?.with_mode(&mode, &mode_field)
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

/// Reads `{"type": "function", "function": {"name": ...}}` or, if it is flat, `{"type": "function", "name": ...}`. Returns
/// the name, and the name of its field.
fn reference(mut fields: Fields<'_>, flat: bool) -> Result<(String, String), ApiError> {
    fields.only("type", &[json!("function")])?;
    if !flat {
        let function = fields.need_object("function")?;
        fields.finish()?;
        return reference(function, true);
    }
    let name = fields.need("name")?;
    let field = fields.name("name");
    fields.finish()?;
    Ok((name, field))
}

fn tool(mut fields: Fields<'_>, raw: &RawValue, flat: bool) -> Result<(Tool, String), ApiError> {
    let kind: String = fields.need("type")?;
    if kind != "function" {
        return Err(ApiError::unsupported(fields.name("type"), format!("{kind:.20?}")));
    }
    if flat {
        return function(fields, "parameters");
    }
    let (tool, _) = function(fields.need_object("function")?, "parameters")?;
    fields.finish()?;
    Ok((tool, raw.get().to_owned()))
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
pub(crate) fn variables(fields: &mut Fields<'_>) -> Result<Vec<(String, String)>, ApiError> {
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
