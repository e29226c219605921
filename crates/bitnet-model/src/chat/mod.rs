//! Chat templates: renders the model's own Jinja text as Hugging Face's `apply_chat_template` does.

mod compile;
mod date;
mod environment;
mod meter;

use std::collections::BTreeMap;

use minijinja::{
    AutoEscape, Error, ErrorKind, context, machinery,
    value::{Value, merge_maps},
};

use crate::{ModelError, error::one_line};
pub use date::date;

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role that the template knows.
    pub role: String,
    /// The text; empty if an assistant only called tools.
    pub content: String,
    /// Name of the speaker, for templates that use it.
    pub name: Option<String>,
    /// The tool calls of an assistant.
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call that a message of role `tool` answers.
    pub tool_call_id: Option<String>,
}

/// A call of a tool by an assistant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Id, to which the answer refers.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments, as JSON.
    pub arguments: String,
}

impl Message {
    /// A message with text only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into(), ..Message::default() }
    }

    /// Total bytes of everything that a template can write.
    fn bytes(&self) -> usize {
        let calls = self.tool_calls.iter().map(|call| call.id.len() + call.name.len() + call.arguments.len());
        let names = [&self.name, &self.tool_call_id].into_iter().flatten().map(String::len);
        self.role.len() + self.content.len() + calls.sum::<usize>() + names.sum::<usize>()
    }

    /// The message in the form that templates read; missing fields are undefined.
    fn value(&self) -> Value {
        let mut fields = BTreeMap::from([
            ("role", Value::from(self.role.as_str())),
            ("content", Value::from(self.content.as_str())),
        ]);
        let names = [("name", &self.name), ("tool_call_id", &self.tool_call_id)];
        fields.extend(names.into_iter().filter_map(|(field, text)| Some((field, text.as_deref()?.into()))));
        if !self.tool_calls.is_empty() {
            fields.insert("tool_calls", self.tool_calls.iter().map(ToolCall::value).collect());
        }
        Value::from(fields)
    }
}

impl ToolCall {
    /// The call in OpenAI's form. The arguments are an object, because templates convert them to JSON themselves.
    fn value(&self) -> Value {
        let arguments = serde_json::from_str(&self.arguments);
        let arguments = arguments.unwrap_or_else(|_| Value::from(self.arguments.as_str()));
        let function = context! { name => self.name.as_str(), arguments };
        context! { id => self.id.as_str(), type => "function", function }
    }
}

/// Input of a template in addition to the messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateInput {
    /// Tool descriptions in OpenAI's form, each a JSON object.
    pub tools: Vec<String>,
    /// Variables by name, each as JSON; Hugging Face calls them `chat_template_kwargs`. They cannot replace the
    /// template's standard variables.
    pub variables: Vec<(String, String)>,
}

impl TemplateInput {
    fn bytes(&self) -> usize {
        let variables = self.variables.iter().map(|(name, value)| name.len() + value.len());
        self.tools.iter().map(String::len).sum::<usize>() + variables.sum::<usize>()
    }

    fn variables(&self) -> Result<Value, Error> {
        let read = |(name, json): &(String, String)| Ok((name.clone(), parsed(json)?));
        let variables: Result<BTreeMap<String, Value>, Error> = self.variables.iter().map(read).collect();
        variables.map(Value::from)
    }

    fn tools(&self) -> Result<Value, Error> {
        match self.tools[..] {
            [] => Ok(Value::UNDEFINED),
            _ => self.tools.iter().map(|json| parsed(json)).collect(),
        }
    }
}

fn parsed(json: &str) -> Result<Value, Error> {
    serde_json::from_str(json).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// A model's chat template: how a conversation becomes the text of a prompt.
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
            let messages: Vec<Value> = messages.iter().map(Message::value).collect();
            let context = context! {
                messages,
                add_generation_prompt,
                bos_token => self.bos_token.as_str(),
                eos_token => self.eos_token.as_str(),
                // Templates test whether these are defined before they read them.
                tools => input.tools()?,
                ..merge_maps([
                    context! { enable_thinking => self.thinking.map_or(Value::UNDEFINED, Value::from) },
                    input.variables()?,
                ]),
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
