//! From a conversation to the text of a prompt: in one place for the server, the program, Rust and Python.
//! [`Conversation::render`] uses the model's chat template, or does without one.

mod plain;

use std::borrow::Cow;

use bitnet_model::{ChatTemplate, Message, ModelError, TemplateInput, ThoughtState};

/// A conversation for a model to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// The messages, the oldest first.
    pub messages: Vec<Message>,
    /// Tools and variables for the template.
    pub input: TemplateInput,
    /// What the prompt ends with.
    pub end: PromptEnd,
}

/// What a prompt ends with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PromptEnd {
    /// The beginning of the assistant's turn.
    #[default]
    Answer,
    /// The end of the last message; the model begins the next turn itself.
    Messages,
    /// The text of the last message, which the model continues.
    Continued,
}

/// The text of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptText {
    /// The text, up to where the answer begins.
    pub text: String,
    /// Whether the tokenizer adds its special tokens, such as the one for the beginning: a template writes its own.
    pub add_special_tokens: bool,
    /// Whether the text ends within a thought, if the template knows thoughts.
    pub thought: Option<ThoughtState>,
}

impl Conversation {
    /// A conversation without tools, for the model to answer.
    pub fn new(messages: impl IntoIterator<Item = Message>) -> Self {
        Conversation {
            messages: messages.into_iter().collect(),
            input: TemplateInput::default(),
            end: PromptEnd::Answer,
        }
    }

    /// Renders the conversation. Tools that the template does not know are described in the system message, and earlier
    /// calls and their results are written as text. System messages at the beginning are merged if the template takes
    /// only one. Without a template, the contents of the messages are joined by blank lines.
    ///
    /// # Errors
    /// [`ModelError::Template`] if the template refuses the conversation, and [`ModelError::Message`] if it would refuse a
    /// message where it is.
    pub fn render(&self, template: Option<&ChatTemplate>) -> Result<PromptText, ModelError> {
        let Some(template) = template else {
            let messages = plain::messages(&self.messages, &self.input.tools);
            let contents: Vec<&str> = messages.iter().map(Message::text).collect();
            return Ok(PromptText { text: contents.join("\n\n"), add_special_tokens: true, thought: None });
        };
        let mut messages = Cow::Borrowed(&self.messages[..]);
        let mut input = Cow::Borrowed(&self.input);
        if !writes_tools(template) {
            // Before messages are joined, so that an error names the message that was given.
            let accepted = template.accepted(&self.messages)?;
            messages = Cow::Owned(plain::messages(&accepted, &input.tools));
            input.to_mut().tools.clear();
        }
        let text = match self.end {
            PromptEnd::Answer => template.render_with(&messages, true, &input)?,
            PromptEnd::Messages => template.render_with(&messages, false, &input)?,
            PromptEnd::Continued => template.continue_final_message(&messages, &input)?,
        };
        let form = template.conventions().thought.as_ref();
        let thought = form.map(|form| match self.end {
            PromptEnd::Continued => form.state_within(&text),
            _ => form.state(&text),
        });
        Ok(PromptText { text, add_special_tokens: false, thought })
    }
}

/// Whether a template writes tools and calls itself.
pub fn writes_tools(template: &ChatTemplate) -> bool {
    let conventions = template.conventions();
    conventions.tools || conventions.calls.is_some()
}
