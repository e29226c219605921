//! Reads what a chat says about thoughts: OpenAI's field, and those of vLLM, llama.cpp, SGLang and Qwen's cloud.

use bitnet::{Thinking, prompt::PromptEnd};

use crate::{
    generate::thinking::{effort, take_budget},
    http::{error::ApiError, fields::Fields},
    service::ServedModel,
};

/// Where the answer to a chat has its thoughts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Shown {
    /// In `reasoning_content`.
    #[default]
    Apart,
    /// In `content`, with their markers.
    InContent,
    /// In both.
    Both,
    /// Nowhere.
    Hidden,
}

/// How the answer to a chat shows its thoughts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Showing {
    pub shown: Shown,
    /// Whether a stream has each thought as one piece, when it is complete.
    pub at_once: bool,
}

impl Showing {
    /// Takes the fields that say where thoughts are shown.
    pub fn take(fields: &mut Fields<'_>) -> Result<Showing, ApiError> {
        let format: Option<String> = fields.take("reasoning_format")?;
        let format = match format.as_deref() {
            None | Some("auto" | "deepseek") => Shown::Apart,
            Some("none") => Shown::InContent,
            Some("deepseek-legacy") => Shown::Both,
            Some(other) => {
                let known = "auto, none, deepseek and deepseek-legacy are";
                let problem = format!("{other:.20?} is not supported; {known}");
                return Err(ApiError::field("reasoning_format", problem));
            }
        };
        let apart = fields.take("separate_reasoning")?.unwrap_or(true);
        let included = fields.take("include_reasoning")?.unwrap_or(true);
        let shown = match (included, apart) {
            (false, _) => Shown::Hidden,
            (true, false) => Shown::InContent,
            (true, true) => format,
        };
        let at_once = !fields.take("stream_reasoning")?.unwrap_or(true);
        Ok(Showing { shown, at_once })
    }
}

/// Maximum numbers of tokens of a thought: of vLLM, of llama.cpp (two) and of Qwen's cloud.
const BUDGETS: [&str; 4] =
    ["thinking_token_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "thinking_budget"];

/// Takes the fields that say whether and how much to think.
pub(super) fn thinking(fields: &mut Fields<'_>, model: &ServedModel) -> Result<Thinking, ApiError> {
    if !model.thinks() {
        fields.ignore(&[
            "enable_thinking",
            "preserve_thinking",
            "reasoning_budget_message",
            "reasoning_effort",
        ])?;
        return fields.ignore(&BUDGETS).map(|()| Thinking::default());
    }
    let mut thinking = Thinking {
        on: fields.take("enable_thinking")?,
        keep: fields.take("preserve_thinking")?,
        last_words: fields.take("reasoning_budget_message")?,
        effort: effort(fields, "reasoning_effort")?,
        ..Thinking::default()
    };
    BUDGETS.into_iter().try_for_each(|field| take_budget(&mut thinking, fields, field))?;
    Ok(thinking)
}

/// Takes the fields that say where the prompt ends.
pub(super) fn end(fields: &mut Fields<'_>) -> Result<PromptEnd, ApiError> {
    let opens: Option<bool> = fields.take("add_generation_prompt")?;
    match (fields.take("continue_final_message")?.unwrap_or(false), opens) {
        (true, Some(true)) => Err(ApiError::field(
            "continue_final_message",
            "a message that is continued opens no other: leave out add_generation_prompt",
        )),
        (true, _) => Ok(PromptEnd::Continued),
        (false, Some(false)) => Ok(PromptEnd::Messages),
        (false, _) => Ok(PromptEnd::Answer),
    }
}
