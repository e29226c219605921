//! Chat templates: renders the model's own Jinja text as Hugging Face's `apply_chat_template` does.

mod compile;
mod conventions;
mod date;
mod environment;
mod markers;
mod message;
mod meter;
mod probe;

use minijinja::{AutoEscape, Error, ErrorKind, machinery, value::Value};

use crate::{ModelError, error::one_line};
pub use conventions::{
    CallForm, CallSyntax, Conventions, Effort, Efforts, Literals, Memory, Roles, Switch, ThoughtForm,
    ThoughtState,
};
pub use date::date;
pub use message::{Message, TemplateInput, ToolCall};
use probe::Probe;

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
/// Budget of a probe's rendering, in bytes of text.
const PROBE_TEXT: usize = 1 << 20;

fn parsed(json: &str) -> Result<Value, Error> {
    serde_json::from_str(json).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

fn of_json(value: serde_json::Value) -> Value {
    serde_json::from_value(value).unwrap_or(Value::UNDEFINED)
}

/// A model's chat template: how a conversation becomes the text of a prompt.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos_token: String,
    eos_token: String,
    thinking: Option<bool>,
    conventions: Conventions,
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
            conventions: Conventions::default(),
        };
        let cure = "give a template that Jinja accepts, or run with --raw";
        let conventions = template.on_deep_stack(cure, || {
            compile::compile(source)?;
            Ok(probe::conventions(&|probe| template.evaluate(probe.into(), PROBE_TEXT).ok(), source))
        })?;
        Ok(ChatTemplate { conventions, ..template })
    }

    /// What the template does.
    pub fn conventions(&self) -> &Conventions {
        &self.conventions
    }

    /// Sets whether the assistant should think before it answers (`enable_thinking` in Qwen3's templates). By default
    /// `enable_thinking` is undefined.
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
        self.source.split(|c| !word(c)).any(|name| name == variable)
    }

    /// Renders a conversation; `add_generation_prompt` opens the assistant's turn.
    ///
    /// # Errors
    /// [`ModelError::Template`] with the error that the template raised, or why it could not be rendered.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ModelError> {
        self.render_with(messages, add_generation_prompt, &TemplateInput::default())
    }

    /// As [`ChatTemplate::render`], with tools and variables for the template.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and if a value in `input` is not JSON.
    pub fn render_with(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        input: &TemplateInput,
    ) -> Result<String, ModelError> {
        let cure = "check the roles and their order, or run with --raw";
        let given = messages.iter().map(Message::bytes).sum::<usize>() + input.bytes();
        let budget = MIN_TEXT + given * (TIMES + TIMES_PER_MESSAGE * messages.len());
        self.on_deep_stack(cure, || {
            let mut variables = vec![("add_generation_prompt".to_owned(), add_generation_prompt.into())];
            variables.extend(self.thinking.map(|thinking| ("enable_thinking".to_owned(), thinking.into())));
            for (name, json) in &input.variables {
                variables.push((name.clone(), parsed(json)?));
            }
            let tools = match input.tools[..] {
                [] => Value::UNDEFINED,
                _ => input.tools.iter().map(|json| parsed(json)).collect::<Result<_, _>>()?,
            };
            let messages = of_json(messages.iter().map(Message::json).collect());
            self.evaluate(Context { messages, add_generation_prompt, tools, variables }, budget)
        })
    }

    /// Renders on this thread.
    fn evaluate(&self, context: Context, budget: usize) -> Result<String, Error> {
        // The template's standard variables come last: no other can replace them.
        let standard = [
            ("messages", context.messages),
            ("add_generation_prompt", context.add_generation_prompt.into()),
            ("bos_token", self.bos_token.as_str().into()),
            ("eos_token", self.eos_token.as_str().into()),
            // Templates test whether it is defined before they read it.
            ("tools", context.tools),
        ];
        let all = context.variables.into_iter().chain(standard.map(|(name, value)| (name.to_owned(), value)));
        let context = Value::from_pairs(all);
        let compiled = compile::compile(&self.source)?;
        meter::allow(budget);
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let (main, blocks) = (&compiled.main, &compiled.blocks);
        machinery::eval(environment::shared(), main, context, blocks, &mut output, AutoEscape::None)?;
        Ok(text)
    }

    /// The Jinja text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Runs `work` on a new thread, with enough stack for any allowed template and its own meter.
    fn on_deep_stack<T: Send>(
        &self,
        cure: &'static str,
        work: impl FnOnce() -> Result<T, Error> + Send,
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

/// What a template can read.
struct Context {
    messages: Value,
    add_generation_prompt: bool,
    tools: Value,
    variables: Vec<(String, Value)>,
}

impl From<Probe> for Context {
    fn from(probe: Probe) -> Context {
        let variable = |(name, value): (&str, serde_json::Value)| (name.to_owned(), of_json(value));
        Context {
            messages: of_json(probe.messages.into()),
            add_generation_prompt: probe.prompt,
            tools: if probe.tools.is_empty() { Value::UNDEFINED } else { of_json(probe.tools.into()) },
            variables: probe.variables.into_iter().map(variable).collect(),
        }
    }
}
