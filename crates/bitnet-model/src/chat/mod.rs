//! Chat templates: renders the model's own Jinja text as Hugging Face's `apply_chat_template` does.

mod conventions;
mod date;
mod jinja;
mod markers;
mod message;
mod probe;
mod roles;
mod sources;

use std::sync::Arc;

use jinja::{Error, Limits, Value};

use crate::{ModelError, error::one_line};
pub use conventions::{
    CallForm, CallSyntax, Conventions, Effort, Efforts, Literals, Memory, Roles, Switch, ThoughtForm,
    ThoughtState,
};
pub use date::date;
pub use message::{Message, TemplateInput, ToolCall};
use probe::Probe;
pub(crate) use sources::TemplateSources;

/// Maximum size in bytes of a template; the largest real ones have about 30 KB.
const MAX_TEMPLATE: usize = 64 << 10;
/// Stack for rendering. Only the stack that a template really needs is ever touched.
const STACK: usize = 128 << 20;
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
/// Budget of a probe.
const PROBE: Limits = Limits { bytes: 1 << 20, steps: 40_000 };
/// Stands behind the message that is continued, as in transformers.
const CONTINUED: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A model's chat template: how a conversation becomes the text of a prompt.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: Arc<str>,
    bos_token: String,
    eos_token: String,
    thinking: Option<bool>,
    conventions: Arc<Conventions>,
    /// The template for conversations with tools, if the model has one of its own.
    for_tools: Option<Box<ChatTemplate>>,
}

/// How a prompt ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Closed,
    /// The assistant's turn is opened.
    Prompt,
    /// The last message is left open.
    Continued,
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
        let template = ChatTemplate {
            source: source.into(),
            bos_token: bos_token.into(),
            eos_token: eos_token.into(),
            thinking: None,
            conventions: Arc::default(),
            for_tools: None,
        };
        let cure = "give a template that Jinja accepts, or run with --raw";
        let conventions = on_deep_stack(cure, || {
            let parsed = jinja::Template::parse(source)?;
            Ok(probe::conventions(&|probe| template.probed(&parsed, probe), source))
        })?;
        Ok(ChatTemplate { conventions: Arc::new(conventions), ..template })
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

    /// Sets whether the assistant should think before it answers, by the variable that the template has for it. By
    /// default the variable is undefined.
    #[must_use]
    pub fn with_thinking(self, thinking: bool) -> Self {
        ChatTemplate { thinking: Some(thinking), ..self }
    }

    /// Whether the template reads `enable_thinking`.
    pub fn asks_for_thinking(&self) -> bool {
        self.asks_for("enable_thinking")
    }

    /// Whether the template reads a variable of this name.
    pub fn asks_for(&self, variable: &str) -> bool {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let reads = |source: &str| source.split(|c| !word(c)).any(|name| name == variable);
        reads(&self.source) || self.for_tools.as_ref().is_some_and(|template| reads(&template.source))
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
        let ending = if add_generation_prompt { Ending::Prompt } else { Ending::Closed };
        self.for_tools(!input.tools.is_empty()).rendered(messages, ending, input)
    }

    /// Renders a conversation whose last message is to be continued: its text is the end of the prompt.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_with`], and [`ModelError::Message`] if the last message has no text, or if the template
    /// does not show it.
    pub fn continue_final_message(
        &self,
        messages: &[Message],
        input: &TemplateInput,
    ) -> Result<String, ModelError> {
        self.for_tools(!input.tools.is_empty()).rendered(messages, Ending::Continued, input)
    }

    fn rendered(
        &self,
        messages: &[Message],
        ending: Ending,
        input: &TemplateInput,
    ) -> Result<String, ModelError> {
        let last = messages.len().saturating_sub(1);
        let refused = |problem: &str| ModelError::Message {
            index: last,
            problem: problem.into(),
            cure: "continue a message with text that the template shows, or open a new turn",
        };
        let continued = messages.last().and_then(|message| message.content.as_deref()).map(str::trim);
        if ending == Ending::Continued && continued.is_none() {
            return Err(refused("there is no text to continue"));
        }
        let mut messages = roles::accepted(messages, &self.conventions.roles)?;
        if ending == Ending::Continued {
            messages.to_mut().last_mut().into_iter().for_each(|message| message.push_text(CONTINUED));
        }
        let given = messages.iter().map(Message::bytes).sum::<usize>() + input.bytes();
        let limits = Limits {
            bytes: MIN_TEXT + given * (TIMES + TIMES_PER_MESSAGE * messages.len()),
            steps: MIN_STEPS + given * STEPS_PER_BYTE + messages.len() * STEPS_PER_MESSAGE,
        };
        let cure = "check the roles and their order, or run with --raw";
        let text = on_deep_stack(cure, || {
            let mut variables = Vec::new();
            let switch = self.conventions.thought.as_ref().and_then(|thought| thought.switch.as_ref());
            let switch = switch.map_or("enable_thinking", |switch| switch.variable.as_str());
            variables.extend(self.thinking.map(|thinking| (switch.to_owned(), thinking.into())));
            for (name, json) in &input.variables {
                variables.push((name.clone(), jinja::read_json(json)?));
            }
            let tools: Result<Vec<Value>, Error> =
                input.tools.iter().map(|json| jinja::read_json(json)).collect();
            let messages: Result<Vec<Value>, Error> = messages.iter().map(Message::value).collect();
            let parsed = jinja::Template::parse(&self.source)?;
            self.evaluate(&parsed, messages?, ending == Ending::Prompt, tools?, variables, limits)
        })?;
        if ending != Ending::Continued {
            return Ok(text);
        }
        // The template may have trimmed the text, with the space at the end of the tag.
        let at = text.rfind(CONTINUED.trim_end()).filter(|_| text.contains(continued.unwrap_or_default()));
        let at = at.ok_or_else(|| refused("the template does not show it"))?;
        let cut = &text[..at];
        Ok(if text[at..].starts_with(CONTINUED) { cut } else { cut.trim_end() }.to_owned())
    }

    /// Renders a probe; `None` if the template refuses it.
    fn probed(&self, parsed: &jinja::Template, probe: Probe) -> Option<String> {
        let read = |value: &serde_json::Value| jinja::read_json(&value.to_string()).ok();
        let messages: Option<Vec<Value>> = probe.messages.iter().map(read).collect();
        let tools: Option<Vec<Value>> = probe.tools.iter().map(read).collect();
        let variables = probe.variables.iter().map(|(name, value)| Some(((*name).to_owned(), read(value)?)));
        let variables: Option<Vec<(String, Value)>> = variables.collect();
        self.evaluate(parsed, messages?, probe.prompt, tools?, variables?, PROBE).ok()
    }

    /// Renders on this thread.
    fn evaluate(
        &self,
        parsed: &jinja::Template,
        messages: Vec<Value>,
        add_generation_prompt: bool,
        tools: Vec<Value>,
        variables: Vec<(String, Value)>,
        limits: Limits,
    ) -> Result<String, Error> {
        let tokens = [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)];
        let tokens = tokens.into_iter().filter(|(_, text)| !text.is_empty());
        let tools = if tools.is_empty() { Value::None } else { Value::list(tools)? };
        let standard = [
            ("messages", Value::list(messages)?),
            ("add_generation_prompt", add_generation_prompt.into()),
            ("tools", tools),
            ("documents", Value::None),
        ];
        let standard = standard.into_iter().chain(tokens.map(|(name, text)| (name, text.as_str().into())));
        // The template's standard variables come last: no other can replace them.
        let all = variables.into_iter().chain(standard.map(|(name, value)| (name.to_owned(), value)));
        parsed.render(all, limits, date::now)
    }

    /// The Jinja text.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// Runs `work` on a new thread, with enough stack for any allowed template.
fn on_deep_stack<T: Send>(
    cure: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, ModelError> {
    let fail = |problem: String| ModelError::Template { problem, cure };
    std::thread::scope(|scope| {
        let work = || work().map_err(one_line);
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let memory = |_| ModelError::Memory { what: "the stack of chat templates", bytes: STACK };
        let thread = thread.map_err(memory)?;
        let done = thread.join().map_err(|_| fail("its engine panicked".into()))?;
        done.map_err(fail)
    })
}
