//! From a conversation to the text of a prompt: in one place for the server, the program, Rust and Python.
//! [`Conversation::render`] uses the model's chat template, or does without one.

mod ending;
mod plain;

use std::borrow::Cow;

use bitnet_model::{ChatTemplate, Conventions, Message, ModelError, TemplateInput, ThoughtState};

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

/// Why a conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The template refuses the conversation.
    #[error(transparent)]
    Template(#[from] ModelError),
    /// A message cannot be rendered where it is.
    #[error("message {index}: {problem}: {cure}")]
    Message {
        /// Index of the message.
        index: usize,
        /// What is wrong.
        problem: &'static str,
        /// What to do about it.
        cure: &'static str,
    },
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
    /// [`PromptError::Template`] if the template refuses the conversation, and [`PromptError::Message`] if it would
    /// refuse a message where it is.
    pub fn render(&self, template: Option<&ChatTemplate>) -> Result<PromptText, PromptError> {
        let Some(template) = template else {
            let messages = plain::messages(&self.messages, &self.input.tools);
            let contents: Vec<&str> = messages.iter().map(Message::text).collect();
            return Ok(PromptText { text: contents.join("\n\n"), add_special_tokens: true, thought: None });
        };
        let conventions = template.conventions();
        let mut messages = fitted(&self.messages, conventions)?;
        let mut input = Cow::Borrowed(&self.input);
        if !writes_tools(template) {
            messages = Cow::Owned(plain::messages(&messages, &input.tools));
            input.to_mut().tools.clear();
        }
        let text = match self.end {
            PromptEnd::Answer => template.render_with(&messages, true, &input)?,
            PromptEnd::Messages => template.render_with(&messages, false, &input)?,
            PromptEnd::Continued => ending::continued(template, messages.into_owned(), &input)?,
        };
        let form = conventions.thought.as_ref();
        let thought = form.map(|form| match self.end {
            PromptEnd::Continued => ending::state(form, &text),
            _ => form.state(&text),
        });
        Ok(PromptText { text, add_special_tokens: false, thought })
    }
}

/// The messages in a form that the template takes, which may have one system message only.
fn fitted<'m>(messages: &'m [Message], conventions: &Conventions) -> Result<Cow<'m, [Message]>, PromptError> {
    let mut messages = Cow::Borrowed(messages);
    let is_system = |message: &Message| message.role == "system";
    let leading = messages.iter().take_while(|message| is_system(message)).count();
    let roles = &conventions.roles;
    if let Some(later) = messages.iter().skip(leading).position(is_system).filter(|_| !roles.later_system) {
        let problem = "the model takes system messages at the beginning only";
        let cure = "move it there, or send it as a message of the user";
        return Err(PromptError::Message { index: leading + later, problem, cure });
    }
    if leading > 1 && !roles.several_systems {
        let texts: Vec<&str> = messages[..leading].iter().map(Message::text).collect();
        let merged = Message::new("system", texts.join("\n\n"));
        messages.to_mut().splice(..leading, [merged]);
    }
    Ok(messages)
}

/// Whether a template writes tools and calls itself.
pub fn writes_tools(template: &ChatTemplate) -> bool {
    let conventions = template.conventions();
    conventions.tools || conventions.calls.is_some()
}
