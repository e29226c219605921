//! Chat templates: renders the model's own Jinja text as Hugging Face's `apply_chat_template` does.

mod compile;
mod date;
mod environment;
mod meter;

use minijinja::{AutoEscape, context, machinery, value::Value};
use serde::Serialize;

use crate::{ModelError, error::one_line};

/// Maximum size in bytes of a template; the largest real ones have about 30 KB.
const MAX_TEMPLATE: usize = 64 << 10;
/// Stack for compiling: the compiler recurses once, about a kilobyte, for each link of chains such as `a.b.c.d` or
/// `elif`. Only the stack that a template really needs is ever touched.
const MIN_STACK: usize = 16 << 20;
const STACK_PER_BYTE: usize = 2 << 10;
/// Budget of a rendering in bytes of text: a fixed part, plus a multiple of the conversation's bytes that grows with
/// the messages, because a template that gathers its text in a variable copies all of it at every message.
const MIN_TEXT: usize = 16 << 20;
const TIMES: usize = 64;
const TIMES_PER_MESSAGE: usize = 4;

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// How a model wants a conversation to be written.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos_token: String,
    eos_token: String,
    thinking: Option<bool>,
}

impl ChatTemplate {
    /// Compiles a template to check it. `bos_token` and `eos_token` are the texts that it may insert.
    ///
    /// # Errors
    /// [`ModelError::Template`] if it does not parse.
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
        };
        let cure = "give a template that Jinja accepts, or run with --raw";
        template.on_deep_stack(cure, || compile::compile(source).map(drop))?;
        Ok(template)
    }

    /// Sets whether the assistant should think before it answers (`enable_thinking` in Qwen3's templates). By default
    /// `enable_thinking` is undefined.
    #[must_use]
    pub fn with_thinking(self, thinking: bool) -> Self {
        ChatTemplate { thinking: Some(thinking), ..self }
    }

    /// Whether the template reads `enable_thinking`.
    pub fn asks_for_thinking(&self) -> bool {
        self.source.contains("enable_thinking")
    }

    /// The text of a conversation; `add_generation_prompt` opens the assistant's turn.
    ///
    /// # Errors
    /// [`ModelError::Template`] with what the template itself raised, or why it could not be rendered.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ModelError> {
        let cure = "check the roles and their order, or run with --raw";
        let given: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let budget = MIN_TEXT + given * (TIMES + TIMES_PER_MESSAGE * messages.len());
        self.on_deep_stack(cure, || {
            let messages: Vec<Value> = messages
                .iter()
                .map(|m| context! { role => m.role.as_str(), content => m.content.as_str() })
                .collect();
            let context = context! {
                messages,
                add_generation_prompt,
                bos_token => self.bos_token.as_str(),
                eos_token => self.eos_token.as_str(),
                // Templates ask whether it is defined before they ask what it says.
                enable_thinking => self.thinking.map_or(Value::UNDEFINED, Value::from),
            };
            let compiled = compile::compile(&self.source)?;
            meter::allow(budget);
            let mut text = String::new();
            let mut output = machinery::make_string_output(&mut text);
            let (main, blocks) = (&compiled.main, &compiled.blocks);
            machinery::eval(environment::shared(), main, context, blocks, &mut output, AutoEscape::None)?;
            Ok(text)
        })
    }

    /// The Jinja text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Runs `work` on a new thread, with enough stack for any allowed template and its own meter.
    fn on_deep_stack<T: Send>(
        &self,
        cure: &'static str,
        work: impl FnOnce() -> Result<T, minijinja::Error> + Send,
    ) -> Result<T, ModelError> {
        let fail = |problem: String| ModelError::Template { problem, cure };
        let stack = MIN_STACK + STACK_PER_BYTE * self.source.len();
        std::thread::scope(|scope| {
            // Send the message instead of the error, which may hold values of the template.
            let work = || work().map_err(one_line);
            let thread = std::thread::Builder::new().stack_size(stack).spawn_scoped(scope, work);
            let thread = thread.map_err(|e| fail(one_line(e)))?;
            let done = thread.join().map_err(|_| fail("its engine panicked".into()))?;
            done.map_err(fail)
        })
    }
}
