//! The prompt of a chat in any API: renders its messages and tools, and encodes them.

use bitnet::{Message, TemplateInput, prompt};

use super::{
    prompt::{Encoder, tokenizer},
    tools::{
        Offer,
        form::{Form, Thoughts},
    },
};
use crate::http::error::ApiError;

/// The prompt of a chat, up to the beginning of the assistant's turn.
pub(crate) struct Conversation {
    pub tokens: Vec<u32>,
    /// The tools that may be called, how calls are written, and what may precede them.
    pub offer: Option<(Offer, Form, Thoughts)>,
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
        tokenizer(encoder.model, field)?;
        let template = encoder.model.chat.as_ref();
        let tools = offer.as_ref().map_or_else(Vec::new, |offer| offer.described.clone());
        let input = TemplateInput { tools, variables };
        let rendered = prompt::Conversation { messages, input }.render(template);
        let rendered = rendered.map_err(|e| ApiError::field(field, e))?;
        let thoughts = Thoughts::of(template, &rendered.text);
        let tokens = encoder.text(&rendered.text, rendered.add_special_tokens, field)?;
        Ok(Conversation { tokens, offer: offer.map(|offer| (offer, Form::of(template), thoughts)) })
    }
}
