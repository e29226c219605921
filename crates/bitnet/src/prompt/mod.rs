//! From a conversation to the text of a prompt: in one place for the server, the program, Rust and Python.
//! [`Conversation::render`] uses the model's chat template, or does without one.

mod plain;

use bitnet_model::{ChatTemplate, Message, ModelError, TemplateInput};

/// A conversation for a model to continue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conversation {
    /// The messages, the oldest first.
    pub messages: Vec<Message>,
    /// Tools and variables for the template.
    pub input: TemplateInput,
}

/// The text of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptText {
    /// The text, up to where the answer begins.
    pub text: String,
    /// Whether the tokenizer adds its special tokens, such as the one for the beginning: a template writes its own.
    pub add_special_tokens: bool,
}

impl Conversation {
    /// A conversation without tools.
    pub fn new(messages: impl IntoIterator<Item = Message>) -> Self {
        Conversation { messages: messages.into_iter().collect(), ..Conversation::default() }
    }

    /// Renders the conversation and opens the assistant's turn. Tools that the template does not know are described in
    /// the system message, and earlier calls and their results are written as text. Without a template, the contents
    /// of the messages are joined by blank lines.
    ///
    /// # Errors
    /// [`ModelError::Template`] if the template refuses the conversation.
    pub fn render(&self, template: Option<&ChatTemplate>) -> Result<PromptText, ModelError> {
        let plain;
        let (messages, input) = match template.is_some_and(writes_tools) {
            true => (&self.messages, &self.input),
            false => {
                plain = self.in_plain_text();
                (&plain.messages, &plain.input)
            }
        };
        Ok(match template {
            Some(template) => {
                let text = template.render_with(messages, true, input)?;
                PromptText { text, add_special_tokens: false }
            }
            None => {
                let contents: Vec<&str> = messages.iter().map(Message::text).collect();
                PromptText { text: contents.join("\n\n"), add_special_tokens: true }
            }
        })
    }

    /// The conversation with tools, calls and results as text.
    fn in_plain_text(&self) -> Conversation {
        let messages = plain::messages(&self.messages, &self.input.tools);
        let input = TemplateInput { tools: Vec::new(), ..self.input.clone() };
        Conversation { messages, input }
    }
}

/// Whether a template writes tools and calls itself.
pub fn writes_tools(template: &ChatTemplate) -> bool {
    // A template that a model has for tools alone is meant for them.
    let own = !std::ptr::eq(template.for_tools(true), template);
    own || template.conventions().calls.is_some()
}
