//! The constraint on the text of an answer: tool calls, a format, or either.

use bitnet::schema::Schema;

use super::{grammar::Format, job::Parsed, tools::form::Rule};
use crate::{http::error::ApiError, service::Service};

/// Compiles the constraint. The text ends where the constraint does, so fields that
/// ask for a longer text are refused.
pub(super) fn constraint(parsed: &Parsed, service: &Service) -> Result<Option<Schema>, ApiError> {
    let Parsed { offer, format, config, .. } = parsed;
    let what = match (offer, format) {
        (None, None) => return Ok(None),
        (Some(_), _) => "tools",
        (None, Some((field, _))) => *field,
    };
    for (field, given) in [("ignore_eos", config.ignore_eos), ("min_tokens", config.min_new_tokens > 0)] {
        if given {
            let problem = format!("it cannot be combined with {what}: a finished text must end");
            return Err(ApiError::field(field, problem));
        }
    }
    let refused = |error| match error {
        bitnet::Error::Schema { problem } => ApiError::format(what, problem),
        other => ApiError::format(what, other),
    };
    let Some((offer, form, thoughts)) = offer else {
        let compiled = format.as_ref().map(|(_, format)| match format {
            Format::Json(schema) => service.schemas().json(schema.clone()),
            Format::Lark(expression) => service.schemas().grammar(&format!("start: {expression}")),
        });
        return compiled.transpose().map_err(refused);
    };
    let Rule { lark, within } = Rule::new(offer, *form, *thoughts, format.as_ref().map(|(_, format)| format));
    let schema = service.schemas().grammar(&lark).map_err(refused)?;
    Ok(Some(match within {
        Some(within) => schema.within(within),
        None => schema,
    }))
}
