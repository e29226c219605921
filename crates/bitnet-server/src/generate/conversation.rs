//! The prompt of a chat in any API: renders its messages and tools, and encodes them.

use std::sync::Arc;

use bitnet::{
    Message, TemplateInput, Thinking,
    model::{CallForm, ModelError},
    prompt::{self, PromptEnd},
    thought::ThoughtRule,
};

use super::{
    prompt::{Encoder, tokenizer},
    tools::{Offer, form::form},
};
use crate::http::error::ApiError;

/// What a request says about its conversation.
#[derive(Default)]
pub(crate) struct Talk {
    pub messages: Vec<Message>,
    /// The name of each message in the body, for errors; the same for all where it is short.
    pub names: Vec<String>,
    pub offer: Option<Offer>,
    pub thinking: Thinking,
    /// Variables of the template, each as JSON. They replace those that follow from the rest.
    pub variables: Vec<(String, String)>,
    pub end: PromptEnd,
    /// Whether the prompt is as the template alone makes it: earlier thoughts are then kept only if the template does.
    pub plain: bool,
}

/// The prompt of a chat, up to where the answer begins.
pub(crate) struct Conversation {
    pub tokens: Vec<u32>,
    /// The tools that may be called, and how calls are written.
    pub offer: Option<(Offer, Arc<CallForm>)>,
    /// How a thought before the answer is written, if one may follow the prompt.
    pub thought: Option<Arc<ThoughtRule>>,
}

impl Conversation {
    /// Encodes the prompt of a chat. `field` has the messages, for errors.
    pub fn new(talk: Talk, encoder: &Encoder<'_>, field: &str) -> Result<Conversation, ApiError> {
        let tokenizer = tokenizer(encoder.model, field)?;
        let template = encoder.model.chat.as_ref();
        let Talk { messages, names, offer, thinking, variables, end, plain } = talk;
        let tools = offer.as_ref().map_or_else(Vec::new, |offer| offer.described.clone());
        let known =
            template.map_or_else(Vec::new, |template| thinking.variables(template.conventions(), !plain));
        // Of two values, the template gets the last.
        let input = TemplateInput { tools, variables: known.into_iter().chain(variables).collect() };
        let rendered = prompt::Conversation { messages, input, end }.render(template);
        let rendered = rendered.map_err(|error| match error {
            ModelError::Message { index, problem, cure } => {
                let name = names.get(index).map_or(field, String::as_str);
                ApiError::field(name, format!("{problem}: {cure}"))
            }
            other => ApiError::field(field, other),
        })?;
        let offer = offer.map(|offer| (offer, form(template)));
        let form = template.and_then(|template| template.conventions().thought.as_ref());
        let thinking = Thinking {
            budget: thinking.budget.or(encoder.model.thinking_budget),
            last_words: thinking.last_words.or_else(|| encoder.model.thinking_last_words.clone()),
            ..thinking
        };
        let calls = offer.as_ref().map(|(_, form)| &**form);
        let thought = thinking.rule(form, rendered.thought, calls, tokenizer).map_err(ApiError::fault)?;
        let thought = thought.map(Arc::new);
        let tokens = encoder.text(&rendered.text, rendered.add_special_tokens, field)?;
        Ok(Conversation { tokens, offer, thought })
    }
}
