//! The prompt of a chat in any API: renders its messages and tools, and encodes them.

use std::sync::Arc;

use bitnet::{
    Message, TemplateInput,
    model::CallForm,
    prompt,
    thought::{self, ThoughtRule},
};

use super::{
    prompt::{Encoder, tokenizer},
    tools::{Offer, form::form},
};
use crate::http::error::ApiError;

/// The prompt of a chat, up to the beginning of the assistant's turn.
pub(crate) struct Conversation {
    pub tokens: Vec<u32>,
    /// The tools that may be called, and how calls are written.
    pub offer: Option<(Offer, Arc<CallForm>)>,
    /// How a thought before the answer is written, if one may follow the prompt.
    pub thought: Option<Arc<ThoughtRule>>,
}

impl Conversation {
    /// Encodes the prompt of a chat. `field` has the messages, for errors.
    pub fn new(
        messages: Vec<Message>,
        offer: Option<Offer>,
        variables: Vec<(String, String)>,
        encoder: &Encoder<'_>,
        field: &str,
    ) -> Result<Conversation, ApiError> {
        let tokenizer = tokenizer(encoder.model, field)?;
        let template = encoder.model.chat.as_ref();
        let tools = offer.as_ref().map_or_else(Vec::new, |offer| offer.described.clone());
        let input = TemplateInput { tools, variables };
        let rendered = prompt::Conversation { messages, input }.render(template);
        let rendered = rendered.map_err(|e| ApiError::field(field, e))?;
        let offer = offer.map(|offer| (offer, form(template)));
        let written = template.and_then(|template| template.conventions().thought.as_ref());
        let rule = written.and_then(|form| thought::after_prompt(form, tokenizer, &rendered.text));
        let thought = rule.map(|rule| {
            // The tag of a call ends a thought, where it is a token.
            let tag = offer.as_ref().and_then(|(_, form)| tokenizer.token_id(form.open.trim()));
            Arc::new(ThoughtRule { calls: tag.into_iter().collect(), ..rule })
        });
        let tokens = encoder.text(&rendered.text, rendered.add_special_tokens, field)?;
        Ok(Conversation { tokens, offer, thought })
    }
}
