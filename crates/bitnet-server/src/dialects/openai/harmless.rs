//! Fields that change no token: clients send them for OpenAI's own bookkeeping, or out of habit.

use bitnet::model::ChatTemplate;
use serde_json::json;

use crate::http::{error::ApiError, fields::Fields};

/// Takes those that both endpoints have.
pub(crate) fn of_both(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.ignore(&[
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "safety_identifier",
        "cache_prompt",
    ])?;
    fields.harmless("store", &[json!(false)])?;
    fields.harmless("metadata", &[json!({})])?;
    fields.harmless("service_tier", &[json!("auto"), json!("default")])
}

/// Takes those of chats, and refuses fields that could change tokens and are not supported.
pub(super) fn of_chat(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    of_both(fields)?;
    // A prediction could only make the same tokens come sooner.
    fields.harmless("prediction", &[])?;
    fields.only("modalities", &[json!(["text"])])?;
    ["audio", "web_search_options", "moderation"].into_iter().try_for_each(|field| fields.only(field, &[]))
}

/// Takes the fields that say how much to reason and to write.
pub(super) fn efforts(
    fields: &mut Fields<'_>,
    template: Option<&ChatTemplate>,
) -> Result<Vec<(String, String)>, ApiError> {
    let taken = ["reasoning_effort", "verbosity"].map(|field| effort(fields, field, field, template));
    taken.into_iter().filter_map(Result::transpose).collect()
}

/// Takes a field that says how much to reason or to write. It is returned as this variable for a template that uses it;
/// without such a template, it changes no token.
pub(crate) fn effort(
    fields: &mut Fields<'_>,
    field: &'static str,
    variable: &str,
    template: Option<&ChatTemplate>,
) -> Result<Option<(String, String)>, ApiError> {
    if !template.is_some_and(|template| template.asks_for(variable)) {
        return fields.harmless(field, &[]).map(|()| None);
    }
    let effort: Option<String> = fields.take(field)?;
    Ok(effort.map(|effort| (variable.to_owned(), json!(effort).to_string())))
}
