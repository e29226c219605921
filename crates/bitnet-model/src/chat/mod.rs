//! Chat templates: renders the model's own Jinja text as Hugging Face's `apply_chat_template` does.

mod compiled;
mod conventions;
mod date;
mod jinja;
mod markers;
mod message;
mod probe;
mod roles;
mod sources;

use std::{borrow::Cow, sync::Arc};

use crate::ModelError;
use compiled::{Compiled, Given};
pub use conventions::{
    CallForm, CallSyntax, Conventions, Effort, Efforts, Literals, Memory, Roles, Switch, ThoughtForm,
    ThoughtState,
};
pub use date::date;
pub use message::{Message, TemplateInput, ToolCall};
pub(crate) use sources::TemplateSources;

/// Maximum size in bytes of a template; the largest real ones have about 30 KB.
const MAX_TEMPLATE: usize = 64 << 10;
/// Budget of a rendering in bytes of text: a fixed part, plus a multiple of the conversation's bytes that grows with
/// the messages, because a template that gathers its text in a variable copies all of it at every message.
const MIN_TEXT: usize = 16 << 20;
const TIMES: usize = 64;
const TIMES_PER_MESSAGE: usize = 4;
/// Budget of a rendering in statements and expressions: a fixed part, and one that grows with the conversation. A
/// hundred messages take about twenty thousand.
const MIN_STEPS: usize = 500_000;
const STEPS_PER_BYTE: usize = 8;
const STEPS_PER_MESSAGE: usize = 2_000;
/// Stands behind the text that is continued, as a tag of transformers does; no conversation contains it.
const CONTINUED: &str = "\u{2}end-of-the-text-to-continue\u{3} ";

/// A model's chat template: how a conversation becomes the text of a prompt.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    compiled: Arc<Compiled>,
    conventions: Arc<Conventions>,
    /// The template for conversations with tools, if the model has one of its own.
    for_tools: Option<Box<ChatTemplate>>,
}

impl ChatTemplate {
    /// Compiles a template to check it, and finds out what it does. `bos_token` and `eos_token` are the texts that it
    /// may insert; they are undefined in the template if they are empty.
    ///
    /// # Errors
    /// [`ModelError::Template`] if it does not parse, and [`ModelError::Memory`] if the system refuses the stack for it.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, ModelError> {
        if source.len() > MAX_TEMPLATE {
            let size = source.len() as u64;
            let limit = MAX_TEMPLATE as u64;
            return Err(ModelError::TooLarge { file: "chat_template".into(), size, limit });
        }
        let probe = |compiled: &Compiled| probe::conventions(&|probe| compiled.probed(probe), source);
        let (compiled, conventions) = Compiled::new(source, [bos_token, eos_token], probe)?;
        Ok(ChatTemplate { compiled: Arc::new(compiled), conventions: Arc::new(conventions), for_tools: None })
    }

    /// Adds the template that the model has for conversations with tools (`tool_use`).
    #[must_use]
    pub fn with_tools_template(self, template: ChatTemplate) -> Self {
        let calls = template.conventions.calls.clone();
        // A template that a model has for tools alone is meant for them.
        let conventions = Arc::new(Conventions { tools: true, calls, ..(*self.conventions).clone() });
        ChatTemplate { for_tools: Some(Box::new(template)), conventions, ..self }
    }

    /// What the template does; if the model has a template of its own for tools, the calls are that one's.
    pub fn conventions(&self) -> &Conventions {
        &self.conventions
    }

    /// The template for a conversation with or without tools.
    pub fn for_tools(&self, tools: bool) -> &ChatTemplate {
        self.for_tools.as_deref().filter(|_| tools).unwrap_or(self)
    }

    /// Whether the template reads a variable of this name.
    pub fn asks_for(&self, variable: &str) -> bool {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let reads = |source: &str| source.split(|c| !word(c)).any(|name| name == variable);
        reads(self.source()) || self.for_tools.as_ref().is_some_and(|template| reads(template.source()))
    }

    /// Renders a conversation; `add_generation_prompt` opens the assistant's turn.
    ///
    /// # Errors
    /// [`ModelError::Template`] with the error that the template raised, or why it could not be rendered, and
    /// [`ModelError::Memory`] if the system refuses the stack for it.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ModelError> {
        self.render_with(messages, add_generation_prompt, &TemplateInput::default())
    }

    /// As [`ChatTemplate::render`], with tools and variables for the template.
    ///
    /// Leading system messages become one, and the role `developer` becomes `system`, where the template would refuse
    /// or lose them.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; if a value in `input` is not JSON; and [`ModelError::Message`] for a system message
    /// behind others that the template refuses.
    pub fn render_with(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        input: &TemplateInput,
    ) -> Result<String, ModelError> {
        let template = self.for_tools(!input.tools.is_empty());
        let messages = template.accepted(messages)?;
        let given = messages.iter().map(Message::bytes).sum::<usize>() + input.bytes();
        let bytes = MIN_TEXT + given * (TIMES + TIMES_PER_MESSAGE * messages.len());
        let steps = MIN_STEPS + given * STEPS_PER_BYTE + messages.len() * STEPS_PER_MESSAGE;
        template.compiled.render(bytes, steps, || {
            let variable = |(name, json): &(String, String)| Ok((name.clone(), jinja::read_json(json)?));
            Ok(Given {
                messages: messages.iter().map(Message::value).collect::<Result<_, _>>()?,
                tools: input.tools.iter().map(|json| jinja::read_json(json)).collect::<Result<_, _>>()?,
                variables: input.variables.iter().map(variable).collect::<Result<_, _>>()?,
                add_generation_prompt,
            })
        })
    }

    /// Renders a conversation whose last message is to be continued: its text is the end of the prompt. Without a text, the
    /// assistant's thought is continued.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_with`], and [`ModelError::Message`] if the last message is not the assistant's, has nothing
    /// to continue, or is not shown by the template.
    pub fn continue_final_message(
        &self,
        messages: &[Message],
        input: &TemplateInput,
    ) -> Result<String, ModelError> {
        let index = messages.len().saturating_sub(1);
        let refused = |problem: &str| ModelError::Message {
            index,
            problem: problem.into(),
            cure: "end with a text of the assistant, or ask for a new answer",
        };
        let mut messages = messages.to_vec();
        let last = messages.last_mut().ok_or_else(|| refused("there is no message to continue"))?;
        if last.role != "assistant" {
            return Err(refused("only a message of the assistant can be continued"));
        }
        let continued = match (&mut last.content, &mut last.reasoning) {
            (Some(content), _) if !content.is_empty() => content,
            (_, Some(thought)) => thought,
            _ => return Err(refused("it has no text to continue")),
        };
        // A template that trims texts must trim this one too, though it goes on.
        continued.push_str(CONTINUED);
        let text = self.render_with(&messages, false, input)?;
        let lost = || refused("the chat template leaves its text out, so that it cannot be continued");
        let (before, after) = text.rsplit_once(CONTINUED.trim_end()).ok_or_else(lost)?;
        Ok(if after.starts_with(' ') { before } else { before.trim_end() }.to_owned())
    }

    /// The messages in roles, an order and a form that the template accepts. Rendering does this by itself.
    ///
    /// # Errors
    /// [`ModelError::Message`] for a system message behind others that the template refuses.
    pub fn accepted<'m>(&self, messages: &'m [Message]) -> Result<Cow<'m, [Message]>, ModelError> {
        roles::accepted(messages, &self.conventions.roles)
    }

    /// The Jinja text.
    pub fn source(&self) -> &str {
        &self.compiled.source
    }
}
