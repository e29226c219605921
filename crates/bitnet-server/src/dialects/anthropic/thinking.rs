//! Reads what a request says about thoughts: `thinking`, `output_config.effort` and `context_management`.

use bitnet::Thinking;
use serde_json::{Value, json, value::RawValue};

use crate::{
    generate::thinking::take_budget,
    http::{error::ApiError, fields::Fields},
    service::ServedModel,
};

/// Maximum number of edits of the context.
const MAX_EDITS: usize = 64;

/// Takes `thinking` and `context_management`. Returns also whether the answer shows its thoughts.
pub(super) fn take(fields: &mut Fields<'_>, model: &ServedModel) -> Result<(Thinking, bool), ApiError> {
    let mut thinking = Thinking::default();
    let mut shown = true;
    if !model.thinks() {
        fields.harmless("thinking", &[json!({"type": "disabled"})])?;
    } else if let Some(object) = fields.object("thinking")? {
        shown = mode(object, &mut thinking)?;
    }
    if let Some(mut management) = fields.object("context_management")? {
        let edits: Vec<&RawValue> = management.list("edits", MAX_EDITS)?;
        for (i, raw) in edits.into_iter().enumerate() {
            edit(fields.inside(&format!("context_management.edits[{i}]"), raw)?, &mut thinking)?;
        }
        management.finish()?;
    }
    Ok((thinking, shown))
}

/// Reads `thinking`; returns whether the answer shows its thoughts.
fn mode(mut fields: Fields<'_>, thinking: &mut Thinking) -> Result<bool, ApiError> {
    let kind: String = fields.need("type")?;
    thinking.on = match kind.as_str() {
        "enabled" | "adaptive" | "between_tools" => Some(true),
        "disabled" => Some(false),
        other => return Err(ApiError::unsupported(fields.name("type"), format!("{other:.20?}"))),
    };
    take_budget(thinking, &mut fields, "budget_tokens")?;
    let display: Option<String> = fields.take("display")?;
    let shown = match display.as_deref() {
        None | Some("summarized") => true,
        Some("omitted") => false,
        Some(other) => return Err(ApiError::unsupported(fields.name("display"), format!("{other:.20?}"))),
    };
    fields.finish()?;
    Ok(shown)
}

/// Reads an edit of the context. Only thoughts are ever left out; the answer says that no other edit was applied.
fn edit(mut fields: Fields<'_>, thinking: &mut Thinking) -> Result<(), ApiError> {
    let kind: String = fields.need("type")?;
    if !kind.starts_with("clear_thinking_") {
        return fields.ignore(&["trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"]);
    }
    let keep: Option<Value> = fields.take("keep")?;
    let all = |keep: &Value| *keep == "all" || keep["type"] == "all";
    thinking.keep = Some(match keep {
        Some(keep) if all(&keep) => true,
        // Templates keep the thoughts of all turns or of the current one.
        Some(keep) if keep["type"] == "thinking_turns" && keep["value"].is_u64() => false,
        None => false,
        Some(_) => {
            let problem = "it must be \"all\" or {\"type\": \"thinking_turns\", \"value\": NUMBER}";
            return Err(ApiError::field(fields.name("keep"), problem));
        }
    });
    fields.finish()
}

/// What an answer says about edits of the context.
pub(super) fn applied() -> Value {
    json!({"applied_edits": []})
}
