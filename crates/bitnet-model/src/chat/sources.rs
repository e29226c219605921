//! Which of a model's templates are used, as transformers chooses them.

use serde_json::Value;

use super::ChatTemplate;
use crate::ModelError;

/// What stands in GGUF files of BitNet models whose conversion knew no template of theirs.
const PLACEHOLDER: [&str; 2] = ["'Human: '", "BITNETAssistant: "];
/// The form of conversations that those models were trained on.
const BITNET: &str = "{% for message in messages %}\
    {{ message.role | capitalize + ': ' + message.content | trim + '<|eot_id|>' }}\
    {% endfor %}{{ 'Assistant: ' if add_generation_prompt }}";

/// The texts of a model's templates.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TemplateSources<'s> {
    /// The one for every conversation.
    pub default: Option<&'s str>,
    /// The one for conversations with tools (`tool_use`), if there is another for them.
    pub tools: Option<&'s str>,
}

impl<'s> TemplateSources<'s> {
    /// The templates in `tokenizer_config.json`: a text, or a list of texts with names.
    pub fn of_config(config: &'s Value) -> Self {
        let named = |list: &'s [Value], name: &str| {
            list.iter().find(|entry| entry["name"] == name).and_then(|entry| entry["template"].as_str())
        };
        match &config["chat_template"] {
            Value::String(text) => TemplateSources { default: Some(text), tools: None },
            Value::Array(list) => {
                TemplateSources { default: named(list, "default"), tools: named(list, "tool_use") }
            }
            _ => TemplateSources::default(),
        }
    }

    /// Replaces the placeholder in files of BitNet models by the models' own form; a warning tells of it.
    pub fn without_placeholder(self, architecture: &str, warnings: &mut Vec<String>) -> Self {
        let is_placeholder = |source: &str| PLACEHOLDER.iter().all(|part| source.contains(part));
        if !architecture.starts_with("bitnet") || !self.default.is_some_and(is_placeholder) {
            return self;
        }
        warnings.push(
            "the chat template in the file is a placeholder of its conversion ('BITNETAssistant: '); conversations \
             are written in the form that BitNet models were trained on"
                .into(),
        );
        TemplateSources { default: Some(BITNET), ..self }
    }

    /// Compiles the templates.
    pub fn compile(self, bos_token: &str, eos_token: &str) -> Option<Result<ChatTemplate, ModelError>> {
        let template = |source| ChatTemplate::new(source, bos_token, eos_token);
        Some(match self.tools {
            None => template(self.default?),
            Some(tools) => {
                template(self.default?).and_then(|default| Ok(default.with_tools_template(template(tools)?)))
            }
        })
    }
}
