//! The constraint on the text of an answer: tool calls, a format, or either. It applies after the thought.

use bitnet::model::CallForm;
use bitnet::schema::Schema;
use serde_json::json;

use super::{
    grammar::Format,
    parsed::Parsed,
    tools::{Offer, Tool, form::Rule},
};
use crate::{http::error::ApiError, service::Service};

/// The constraint of a request.
#[derive(Default)]
pub(super) struct Constrained {
    pub schema: Option<Schema>,
    /// The tools whose arguments can be any object, because a grammar cannot hold their schemas.
    pub relaxed: Vec<String>,
}

/// Compiles the constraint. The text ends where the constraint does, so fields that ask for a longer text are refused.
pub(super) fn constraint(parsed: &mut Parsed, service: &Service) -> Result<Constrained, ApiError> {
    let what = match (&parsed.offer, &parsed.format) {
        (None, None) => return Ok(Constrained::default()),
        (Some(_), _) => "tools",
        (None, Some((field, _))) => *field,
    };
    let config = &parsed.config;
    for (field, given) in [("ignore_eos", config.ignore_eos), ("min_tokens", config.min_new_tokens > 0)] {
        if given {
            let problem = format!("it cannot be combined with {what}: a finished text must end");
            return Err(ApiError::field(field, problem));
        }
    }
    let format = parsed.format.as_ref().map(|(_, format)| format);
    let (schema, relaxed) = match (&mut parsed.offer, format) {
        (Some((offer, form)), format) => with_tools(offer, form, format, service)?,
        (None, Some(Format::Json(schema))) => {
            (service.schemas().json(schema.clone()).map_err(|e| refused(what, e))?, Vec::new())
        }
        (None, Some(Format::Lark(expression))) => {
            let grammar = service.schemas().grammar(&format!("start: {expression}"));
            (grammar.map_err(|e| refused(what, e))?, Vec::new())
        }
        (None, None) => return Ok(Constrained::default()),
    };
    let schema = parsed.thought.iter_mut().fold(schema, Schema::after_thought);
    Ok(Constrained { schema: Some(schema), relaxed })
}

/// The constraint of an offer. A tool that may be called, with a schema that no grammar can hold, takes any arguments;
/// one that must be called is refused.
fn with_tools(
    offer: &mut Offer,
    form: &CallForm,
    format: Option<&Format>,
    service: &Service,
) -> Result<(Schema, Vec<String>), ApiError> {
    let compiled = |offer: &Offer, format| -> Result<Schema, ApiError> {
        let rule = Rule::new(offer, form, format).map_err(|problem| ApiError::format("tools", problem))?;
        let schema = service.schemas().grammar(&rule.lark).map_err(|e| refused("tools", e))?;
        Ok(match rule.within {
            Some(within) => schema.within(within),
            None => schema,
        })
    };
    let error = match compiled(offer, format) {
        Ok(schema) => return Ok((schema, Vec::new())),
        Err(error) => error,
    };
    let mut relaxed = Vec::new();
    for i in 0..offer.tools.len() {
        let tool = offer.tools[i].clone();
        let alone = Offer { tools: vec![tool.clone()], required: true, described: Vec::new(), ..*offer };
        if let Err(error) = compiled(&alone, None) {
            if offer.required {
                let problem = format!("the schema of {:?}: {}", tool.name, error.body.message);
                return Err(ApiError::format("tools", problem));
            }
            let arguments = json!({"type": "object", "x-guidance": tool.arguments["x-guidance"]});
            relaxed.push(tool.name.clone());
            offer.tools[i] = Tool { arguments, ..tool };
        }
    }
    if relaxed.is_empty() {
        // Each fits alone, but not all together.
        return Err(error);
    }
    Ok((compiled(offer, format)?, relaxed))
}

fn refused(what: &str, error: bitnet::Error) -> ApiError {
    match error {
        bitnet::Error::Schema { problem } => ApiError::format(what, problem),
        other => ApiError::format(what, other),
    }
}
