//! The prompt of a request: its tokens for a model, and how thoughts are written after it.

use std::sync::Arc;

use bitnet_model::{Checkpoint, TemplateInput};

use crate::{Error, Request, prompt::Conversation, request::Prompt, thought::ThoughtRule};

/// The prompt of a request in a model's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prompted {
    /// The tokens, including special ones.
    pub tokens: Vec<u32>,
    /// How thoughts are written in the text that follows; `None` if all of it is the answer.
    pub thought: Option<Arc<ThoughtRule>>,
}

impl Request {
    /// The request's prompt for the model of these files. Only the answer to a conversation can have thoughts apart from
    /// it; earlier thoughts in the conversation are kept where the chat template can keep them.
    ///
    /// # Errors
    /// If the model has no tokenizer for the text, or its chat template refuses the conversation.
    pub fn prompted(&self, checkpoint: &Checkpoint) -> Result<Prompted, Error> {
        let Checkpoint { name, tokenizer, chat, .. } = checkpoint;
        let tokenizer = || tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer { model: name.clone() });
        let messages = match &self.prompt {
            Prompt::Tokens(ids) => return Ok(Prompted { tokens: ids.clone(), thought: None }),
            Prompt::Text(text) => {
                return Ok(Prompted { tokens: tokenizer()?.encode(text, true)?, thought: None });
            }
            Prompt::Chat(messages) => messages.clone(),
        };
        let conventions = chat.as_ref().map(|template| template.conventions());
        let TemplateInput { tools, variables } = self.template_input.clone();
        let known = conventions.map_or_else(Vec::new, |all| self.thinking.variables(all, true));
        // Of two values, the template gets the last.
        let input = TemplateInput { tools, variables: known.into_iter().chain(variables).collect() };
        let conversation = Conversation { input, ..Conversation::new(messages) };
        let text = conversation.render(chat.as_ref())?;
        let tokens = tokenizer()?.encode(&text.text, text.add_special_tokens)?;
        let form = conventions.and_then(|all| all.thought.as_ref());
        let calls = conventions.and_then(|all| all.calls.as_ref());
        let calls = calls.filter(|_| !conversation.input.tools.is_empty());
        let rule = self.thinking.rule(form, text.thought, calls, tokenizer()?)?;
        Ok(Prompted { tokens, thought: rule.map(Arc::new) })
    }
}
