//! What a request says about thoughts, in the words of no API: whether and how much to think, what becomes of earlier
//! thoughts, and when a thought must end.

use std::sync::Arc;

use bitnet::{
    model::{Conventions, Effort, ThoughtState},
    thought::{ThoughtBudget, ThoughtRule},
};

use super::prompt::{Encoder, tokenizer};
use crate::http::{error::ApiError, fields::Fields};

/// What a request says about thoughts. Whatever it leaves out is as the model's template does it, except that earlier
/// thoughts are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    /// Whether to think at all.
    pub on: Option<bool>,
    /// How much to think.
    pub effort: Option<Effort>,
    /// Whether the thoughts of earlier turns stay in the prompt.
    pub keep: Option<bool>,
    /// Maximum number of tokens of a thought.
    pub budget: Option<usize>,
    /// Text that ends a thought whose budget is used up, before the end marker.
    pub last_words: Option<String>,
}

impl Thinking {
    /// The variables of the template that say so, each with its value as JSON.
    /// `keeps` says whether earlier thoughts are kept if the request does not say it.
    pub fn variables(&self, conventions: &Conventions, keeps: bool) -> Vec<(String, String)> {
        let keep = self.keep.or(keeps.then_some(true));
        let mut variables: Vec<_> =
            keep.and_then(|keep| conventions.keep_thoughts(keep)).into_iter().collect();
        let off = self.on == Some(false) || self.effort == Some(Effort::None) || self.budget == Some(0);
        match (off, self.effort) {
            (true, _) => variables.extend(conventions.effort(Effort::None)),
            (false, Some(effort)) => variables.extend(conventions.effort(effort)),
            (false, None) if self.on == Some(true) => {
                let form = conventions.thought.as_ref();
                let switch = form.and_then(|form| form.switch.as_ref());
                variables.extend(switch.map(|switch| (switch.variable.clone(), "true".to_owned())));
            }
            (false, None) => {}
        }
        variables
    }

    /// Takes an effort in the names of OpenAI's and Anthropic's APIs.
    pub fn take_effort(&mut self, fields: &mut Fields<'_>, field: &'static str) -> Result<(), ApiError> {
        let Some(name) = fields.take::<String>(field)? else { return Ok(()) };
        let names = Effort::ALL.map(Effort::name).join(", ");
        let unknown = || ApiError::field(fields.name(field), format!("{name:.20?} is not one of {names}"));
        self.effort = Some(Effort::named(&name).ok_or_else(unknown)?);
        Ok(())
    }

    /// Takes a maximum number of tokens; a negative one stands for no maximum.
    pub fn take_budget(&mut self, fields: &mut Fields<'_>, field: &'static str) -> Result<(), ApiError> {
        let Some(budget) = fields.take::<i64>(field)? else { return Ok(()) };
        match (usize::try_from(budget).ok(), self.budget) {
            (Some(budget), Some(other)) if budget != other => {
                Err(ApiError::field(fields.name(field), "it contradicts another budget of this request"))
            }
            (budget, other) => {
                self.budget = budget.or(other);
                Ok(())
            }
        }
    }

    /// How thoughts are written after a prompt that leaves them like this; `None` if the whole text is the answer. The
    /// token `call` ends a thought, because it begins a call.
    pub fn rule(
        &self,
        state: Option<ThoughtState>,
        call: Option<u32>,
        encoder: &Encoder<'_>,
    ) -> Result<Option<Arc<ThoughtRule>>, ApiError> {
        let conventions = encoder.model.chat.as_ref().map(|template| template.conventions());
        let form = conventions.and_then(|conventions| conventions.thought.as_ref());
        let (Some(form), Some(state)) = (form, state.filter(|state| *state != ThoughtState::Closed)) else {
            return Ok(None);
        };
        let tokenizer = tokenizer(encoder.model, "messages")?;
        let budget = self.budget.or(encoder.model.thinking_budget);
        let budget = budget.map(|tokens| {
            let last_words = self.last_words.as_deref().or(encoder.model.thinking_last_words.as_deref());
            let last_words = last_words.unwrap_or_else(|| bitnet::thought::last_words(form));
            let ending = bitnet::thought::ending(form, last_words);
            bitnet::thought::budget(tokenizer, tokens, &ending)
        });
        let budget: Option<ThoughtBudget> = budget.transpose().map_err(ApiError::fault)?;
        Ok(Some(Arc::new(ThoughtRule {
            calls: call.into_iter().collect(),
            budget,
            ..bitnet::thought::rule(form, state, tokenizer)
        })))
    }
}
