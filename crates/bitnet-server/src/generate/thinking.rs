//! Takes what a request says about thoughts, in the fields that several APIs share.

use bitnet::{Thinking, model::Effort};

use crate::http::{error::ApiError, fields::Fields};

/// Takes an effort in the names of OpenAI's and Anthropic's APIs.
pub(crate) fn effort(fields: &mut Fields<'_>, field: &'static str) -> Result<Option<Effort>, ApiError> {
    let Some(name) = fields.take::<String>(field)? else { return Ok(None) };
    let names = Effort::ALL.map(Effort::name).join(", ");
    let unknown = || ApiError::field(fields.name(field), format!("{name:.20?} is not one of {names}"));
    Effort::named(&name).ok_or_else(unknown).map(Some)
}

/// Takes a maximum number of tokens of a thought; a negative one stands for no maximum.
pub(crate) fn take_budget(
    thinking: &mut Thinking,
    fields: &mut Fields<'_>,
    field: &'static str,
) -> Result<(), ApiError> {
    let Some(budget) = fields.take::<i64>(field)? else { return Ok(()) };
    match (usize::try_from(budget).ok(), thinking.budget) {
        (Some(budget), Some(other)) if budget != other => {
            Err(ApiError::field(fields.name(field), "it contradicts another budget of this request"))
        }
        (budget, other) => {
            thinking.budget = budget.or(other);
            Ok(())
        }
    }
}
