//! What a chat template does, as far as callers must know it. `probe.rs` finds it out.

use serde::Serialize;

/// What a chat template does, found by rendering short conversations when the template is compiled.
///
/// A template that fails in every probe has none of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Conventions {
    /// How the model writes thoughts before its answer; `None` if the template knows no thoughts.
    pub thought: Option<ThoughtForm>,
    /// The reasoning efforts that the template tells apart.
    pub efforts: Efforts,
    /// Whether the template describes tools in the prompt.
    pub tools: bool,
    /// How the template writes tool calls; `None` if it writes none, or in a form that is not known here.
    pub calls: Option<CallForm>,
    /// Which roles and messages the template accepts.
    pub roles: Roles,
}

/// How a model writes its thoughts: `open lead THOUGHT tail close gap ANSWER`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThoughtForm {
    /// The marker before a thought: `<think>`.
    pub open: String,
    /// Text between the marker and the thought: `\n`.
    pub lead: String,
    /// Text between the thought and the end marker: `\n`.
    pub tail: String,
    /// The marker after a thought: `</think>`.
    pub close: String,
    /// Text between the end marker and the answer: `\n\n`.
    pub gap: String,
    /// The variable that turns thoughts on and off, if there is one.
    pub switch: Option<Switch>,
    /// What becomes of the thoughts of earlier turns.
    pub memory: Memory,
    /// Whether the template itself finds a thought in an assistant's text, by its end marker.
    pub splits_content: bool,
}

/// A variable of a template that turns thoughts on (`true`) and off (`false`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Switch {
    /// `enable_thinking` or `thinking`.
    pub variable: String,
    /// Whether the model thinks if the variable is not given.
    pub default: bool,
}

/// What becomes of the thoughts of earlier turns when the next turn is rendered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Whether they are rendered if no variable is given.
    pub kept: bool,
    /// A variable that decides it, and the value with which thoughts are kept: `preserve_thinking`, `true`.
    pub switch: Option<(String, bool)>,
}

/// Whether a prompt has opened a thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThoughtState {
    /// The prompt ends with an open marker: the answer begins with the thought.
    Open,
    /// The prompt ends with an empty thought: the answer has none.
    Closed,
    /// The prompt has no marker at its end: the model writes one if it wants to think.
    Absent,
}

impl ThoughtForm {
    /// Whether the end of a rendered prompt opens a thought, closes one, or does neither.
    pub fn state(&self, prompt: &str) -> ThoughtState {
        let prompt = prompt.trim_end();
        match () {
            () if prompt.ends_with(&self.open) => ThoughtState::Open,
            () if prompt.ends_with(&self.close) => ThoughtState::Closed,
            () => ThoughtState::Absent,
        }
    }

    /// Whether a prompt that ends within a message ends within a thought.
    pub fn state_within(&self, prompt: &str) -> ThoughtState {
        match (prompt.rfind(&self.open), prompt.rfind(&self.close)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => ThoughtState::Open,
            _ => ThoughtState::Closed,
        }
    }
}

/// An effort to reason, in the names of the APIs, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// No thoughts.
    None,
    /// As few thoughts as possible.
    Minimal,
    /// Few thoughts.
    Low,
    /// The middle.
    Medium,
    /// Many thoughts.
    High,
    /// More than many.
    XHigh,
    /// As many thoughts as possible.
    Max,
}

impl Effort {
    /// All efforts, ascending.
    pub const ALL: [Effort; 7] = [
        Effort::None,
        Effort::Minimal,
        Effort::Low,
        Effort::Medium,
        Effort::High,
        Effort::XHigh,
        Effort::Max,
    ];

    /// The name that the APIs use.
    pub fn name(self) -> &'static str {
        ["none", "minimal", "low", "medium", "high", "xhigh", "max"][self as usize]
    }

    /// The effort of this name.
    pub fn named(name: &str) -> Option<Effort> {
        Effort::ALL.into_iter().find(|effort| effort.name() == name)
    }
}

/// The values of `reasoning_effort` that a template tells apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Efforts {
    /// Ascending; empty if the variable changes nothing.
    pub accepted: Vec<Effort>,
    /// The one that equals leaving the variable out.
    pub default: Option<Effort>,
}

impl Efforts {
    /// The accepted effort nearest to `wanted`, the higher of two; `None` if there are none.
    pub fn nearest(&self, wanted: Effort) -> Option<Effort> {
        let distance = |effort: &Effort| (*effort as isize - wanted as isize).abs();
        self.accepted.iter().copied().rev().min_by_key(distance)
    }
}

impl Conventions {
    /// The template's variables, with their values as JSON, for an effort in the APIs' names. Each name is mapped to
    /// what the template accepts; with a template that knows neither efforts nor a switch, there are none.
    pub fn effort(&self, wanted: Effort) -> Vec<(String, String)> {
        let switch = self.thought.as_ref().and_then(|thought| thought.switch.as_ref());
        let variable = |name: &str, value: String| (name.to_owned(), value);
        let mut variables: Vec<_> = switch
            .map(|switch| variable(&switch.variable, (wanted != Effort::None).to_string()))
            .into_iter()
            .collect();
        if wanted != Effort::None || switch.is_none() {
            let effort = self.efforts.nearest(wanted);
            variables.extend(effort.map(|e| variable("reasoning_effort", format!("\"{}\"", e.name()))));
        }
        variables
    }

    /// The template's variable, with its value as JSON, that keeps or drops the thoughts of earlier turns; `None` if
    /// the template has none.
    pub fn keep_thoughts(&self, keep: bool) -> Option<(String, String)> {
        let (variable, keeps) = self.thought.as_ref()?.memory.switch.as_ref()?;
        Some((variable.clone(), (*keeps == keep).to_string()))
    }
}

/// How a template writes the calls of a turn:
/// `(after_text | after_thought) open CALL close (between open CALL close)* after`.
/// In an array, `open` and `close` are around the array, and there is no `between`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallForm {
    /// How each call is written.
    pub syntax: CallSyntax,
    /// Text before a call, without white space at its beginning: `<tool_call>\n`; empty for a bare object.
    pub open: String,
    /// Text after a call, without white space at its end: `\n</tool_call>`.
    pub close: String,
    /// Text between the answer's text and its first call: `\n` or `\n\n`. `None` if the template leaves out the text of
    /// an answer with calls.
    pub after_text: Option<String>,
    /// Text between the thought's end marker and the first call of an answer without text: `\n\n`. Empty if the
    /// template knows no thoughts.
    pub after_thought: String,
    /// Text between two calls: `\n`.
    pub between: String,
    /// Text between the last call and the end of the turn.
    pub after: String,
    /// Whether a turn can have several calls.
    pub parallel: bool,
}

/// How a call is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallSyntax {
    /// A JSON object for each call, with these fields for its name and its arguments:
    /// `{"name": "f", "arguments": {"k": "v"}}`.
    Json {
        /// The name's field.
        name: String,
        /// The arguments' field: `arguments` or `parameters`.
        arguments: String,
    },
    /// One JSON array with such an object for each call.
    Array {
        /// The name's field.
        name: String,
        /// The arguments' field.
        arguments: String,
    },
    /// `<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>`. Texts are raw, other values are JSON.
    Xml {
        /// How `true`, `false` and null are written.
        literals: Literals,
    },
}

/// How `true`, `false` and null are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Literals {
    /// `true`, `false`, `null`.
    Json,
    /// `True`, `False`, `None`.
    Python,
}

/// Which roles and messages a template accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Roles {
    /// A system message at the beginning is rendered.
    pub system: bool,
    /// A second system message right after the first is rendered; otherwise, leading ones must be merged.
    pub several_systems: bool,
    /// A system message after other messages is rendered.
    pub later_system: bool,
    /// The template has a form for the role `developer`; otherwise, it is rendered as `system`.
    pub developer: bool,
    /// Content as a list of parts is rendered as their text.
    pub parts: bool,
    /// An assistant's message with calls may leave its content out; otherwise, it gets an empty one.
    pub no_content: bool,
}

impl Default for Roles {
    /// What is assumed of a template that no probe can render.
    fn default() -> Self {
        Roles {
            system: true,
            several_systems: true,
            later_system: true,
            developer: false,
            parts: false,
            no_content: true,
        }
    }
}
