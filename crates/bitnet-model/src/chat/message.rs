//! Conversations, and what a template gets in addition to them.

use serde_json::{Map, Value, json};

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

    /// The message as JSON, in the form that templates read; missing fields are left out. Templates know thoughts as
    /// `reasoning_content` or as `thinking`.
    pub(super) fn json(&self) -> Value {
        let mut fields = Map::from_iter([("role".to_owned(), json!(self.role))]);
        let texts = [
            ("content", &self.content),
            ("reasoning_content", &self.reasoning),
            ("thinking", &self.reasoning),
            ("name", &self.name),
            ("tool_call_id", &self.tool_call_id),
        ];
        fields.extend(
            texts.into_iter().filter_map(|(field, text)| Some((field.to_owned(), json!(text.as_deref()?)))),
        );
        if !self.tool_calls.is_empty() {
            fields.insert("tool_calls".into(), self.tool_calls.iter().map(ToolCall::json).collect());
        }
        Value::Object(fields)
    }
}

impl ToolCall {
    /// The call in OpenAI's form. The arguments are an object, because templates convert them to JSON themselves.
    fn json(&self) -> Value {
        let arguments = serde_json::from_str(&self.arguments).unwrap_or_else(|_| json!(self.arguments));
        json!({"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}})
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
