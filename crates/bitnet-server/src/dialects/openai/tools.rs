//! Reads the tools of chats and responses: `tools`, `tool_choice`, `parallel_tool_calls`, and earlier calls.

use bitnet::model::ToolCall;
use serde_json::{json, value::RawValue};

use crate::{
    generate::tools::{MAX_TOOLS, Offer, Tool, function, listed},
    http::{
        error::ApiError,
        fields::{Fields, plainly},
    },
};

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
        Some(choice) => chosen(offer, fields, choice, flat)?,
        None => Some(offer),
    };
    Ok(offer.filter(|offer| !offer.tools.is_empty()))
}

/// The offer, restricted by `tool_choice`.
fn chosen(
    offer: Offer,
    fields: &Fields<'_>,
    choice: &RawValue,
    flat: bool,
) -> Result<Option<Offer>, ApiError> {
    if choice.get().starts_with('{') {
        return restricted(offer, fields.inside("tool_choice", choice)?, flat).map(Some);
    }
    let mode: String =
        serde_json::from_str(choice.get()).map_err(|e| ApiError::field("tool_choice", plainly(&e)))?;
    match mode.as_str() {
        "none" => Ok(None),
        mode => offer.with_mode(mode, "tool_choice").map(Some),
    }
}

/// The offer, restricted to one function, or to some of the tools.
fn restricted(offer: Offer, mut fields: Fields<'_>, flat: bool) -> Result<Offer, ApiError> {
    let kind: String = fields.need("type")?;
    match kind.as_str() {
        "function" => {
            let (name, field) = reference(fields, flat)?;
            offer.named(name, &field)
        }
        "allowed_tools" if flat => allowed(offer, fields, flat),
        "allowed_tools" => {
            let offer = allowed(offer, fields.need_object("allowed_tools")?, flat)?;
            fields.finish()?;
            Ok(offer)
        }
        other => Err(ApiError::unsupported(fields.name("type"), format!("{other:.20?}"))),
    }
}

fn allowed(offer: Offer, mut fields: Fields<'_>, flat: bool) -> Result<Offer, ApiError> {
    let mode: String = fields.need("mode")?;
    let tools: Vec<&RawValue> = fields.list("tools", MAX_TOOLS)?;
    let (mode_field, field) = (fields.name("mode"), fields.name("tools"));
    let name = |(i, raw)| Ok(reference(fields.inside(&format!("{field}[{i}]"), raw)?, flat)?.0);
    let names = tools.into_iter().enumerate().map(name).collect::<Result<Vec<_>, ApiError>>()?;
    fields.finish()?;
    offer.only(&names, &field)?.with_mode(&mode, &mode_field)
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

/// The calls in an assistant's message that a client sends back.
pub(super) fn past_calls(fields: &mut Fields<'_>) -> Result<Vec<ToolCall>, ApiError> {
    let name = fields.name("tool_calls");
    let listed: Vec<&RawValue> = fields.list("tool_calls", MAX_TOOLS)?;
    let call = |(i, raw)| {
        let mut call = fields.inside(&format!("{name}[{i}]"), raw)?;
        call.only("type", &[json!("function")])?;
        call.harmless("index", &[])?;
        let id = call.need("id")?;
        let mut function = call.need_object("function")?;
        let (name, arguments): (_, String) = (function.need("name")?, function.need("arguments")?);
        function.finish()?;
        call.finish()?;
        // Some clients send back no text where there were no arguments.
        let arguments = if arguments.trim().is_empty() { "{}".into() } else { arguments };
        Ok(ToolCall { id, name, arguments })
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
