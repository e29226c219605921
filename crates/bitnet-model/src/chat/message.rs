//! Conversations, and what a template gets in addition to them.

use super::jinja::{self, Error, Value};

/// A message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant`, `tool`, or another role that the template knows.
    pub role: String,
    /// The text; `None` leaves the field out, as for an assistant that only called tools.
    pub content: Option<String>,
    /// What an assistant thought before it answered or called tools.
    pub reasoning: Option<String>,
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
        Message { role: role.into(), content: Some(content.into()), ..Message::default() }
    }

    /// The text; empty if the message has none.
    pub fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }

    /// Adds to the text.
    pub fn push_text(&mut self, text: &str) {
        self.content.get_or_insert_default().push_str(text);
    }

    /// Total bytes of everything that a template can write.
    pub(super) fn bytes(&self) -> usize {
        let calls = self.tool_calls.iter().map(|call| call.id.len() + call.name.len() + call.arguments.len());
        let texts = [&self.content, &self.reasoning, &self.name, &self.tool_call_id];
        let texts = texts.into_iter().flatten().map(String::len);
        self.role.len() + calls.sum::<usize>() + texts.sum::<usize>()
    }

    /// The message in the form that templates read, as transformers gives it to them: missing fields are left out, and
    /// thoughts have two names.
    pub(super) fn value(&self) -> Result<Value, Error> {
        let text = |name: &'static str, text: &Option<String>| Some((name, text.as_deref()?.into()));
        let calls = match self.tool_calls[..] {
            [] => None,
            _ => Some(Value::list(self.tool_calls.iter().map(ToolCall::value).collect::<Result<_, _>>()?)?),
        };
        let fields = [
            text("thinking", &self.reasoning),
            Some(("role", self.role.as_str().into())),
            text("content", &self.content),
            text("name", &self.name),
            calls.map(|calls| ("tool_calls", calls)),
            text("tool_call_id", &self.tool_call_id),
            text("reasoning_content", &self.reasoning),
        ];
        jinja::object(fields.into_iter().flatten())
    }
}

impl ToolCall {
    /// The call in OpenAI's form. The arguments are an object, because templates convert them to JSON themselves; an
    /// empty text stands for none.
    fn value(&self) -> Result<Value, Error> {
        let json = if self.arguments.trim().is_empty() { "{}" } else { &self.arguments };
        let arguments = jinja::read_json(json).unwrap_or_else(|_| self.arguments.as_str().into());
        let function = jinja::object([("name", self.name.as_str().into()), ("arguments", arguments)])?;
        jinja::object([("id", self.id.as_str().into()), ("type", "function".into()), ("function", function)])
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
    pub(super) fn bytes(&self) -> usize {
        let variables = self.variables.iter().map(|(name, value)| name.len() + value.len());
        self.tools.iter().map(String::len).sum::<usize>() + variables.sum::<usize>()
    }
}
