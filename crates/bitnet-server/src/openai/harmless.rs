//! Fields that change no token: clients send them for OpenAI's own bookkeeping, or out of habit.

use bitnet::model::ChatTemplate;
use serde_json::json;

use crate::http::{error::ApiError, fields::Fields};

/// Takes those that both endpoints have.
pub(super) fn of_both(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for field in [
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "safety_identifier",
        "cache_prompt",
    ] {
        fields.harmless(field, &[])?;
    }
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

/// Takes those of completions, and refuses fields that could change tokens and are not supported.
pub(super) fn of_completions(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    of_both(fields)?;
    fields.only("suffix", &[json!("")])
}

/// Takes the fields that say how much to reason and to write. They are returned as variables for a template that uses
/// them; without one, they change no token.
pub(super) fn efforts(
    fields: &mut Fields<'_>,
    template: Option<&ChatTemplate>,
) -> Result<Vec<(String, String)>, ApiError> {
    let mut variables = Vec::new();
    for field in ["reasoning_effort", "verbosity"] {
        match template.is_some_and(|template| template.asks_for(field)) {
            true => {
                let effort: Option<String> = fields.take(field)?;
                variables.extend(effort.map(|effort| (field.to_owned(), json!(effort).to_string())));
            }
            false => fields.harmless(field, &[])?,
        }
    }
    Ok(variables)
}
