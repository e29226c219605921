//! Prompts that end within the last message, for the model to continue it.

use bitnet_model::{ChatTemplate, Message, TemplateInput, ThoughtForm, ThoughtState};

use super::PromptError;

/// Marks the end of the last message's text; no conversation contains it.
const MARK: &str = "\u{2}end-of-the-text-to-continue\u{3}";

/// Renders the messages up to the end of the last one's text, as transformers does with `continue_final_message`.
pub(super) fn continued(
    template: &ChatTemplate,
    mut messages: Vec<Message>,
    input: &TemplateInput,
) -> Result<String, PromptError> {
    let index = messages.len().saturating_sub(1);
    let refused = |problem| {
        let cure = "end with a text of the assistant, or ask for a new answer";
        PromptError::Message { index, problem, cure }
    };
    let last = messages.last_mut().ok_or_else(|| refused("there is no message to continue"))?;
    if last.role != "assistant" {
        return Err(refused("only a message of the assistant can be continued"));
    }
    // Without any text, the thought is continued.
    let continued = match (&mut last.content, &mut last.reasoning) {
        (Some(content), _) if !content.is_empty() => content,
        (_, Some(thought)) => thought,
        _ => return Err(refused("it has no text to continue")),
    };
    // A template that trims texts must trim this one too, though it goes on.
    continued.push_str(MARK);
    continued.push(' ');
    let text = template.render_with(&messages, false, input)?;
    let lost = || refused("the chat template leaves its text out, so that it cannot be continued");
    let (before, after) = text.rsplit_once(MARK).ok_or_else(lost)?;
    Ok(if after.starts_with(' ') { before } else { before.trim_end() }.to_owned())
}

/// Whether a text that ends within a message ends within a thought.
pub(super) fn state(form: &ThoughtForm, text: &str) -> ThoughtState {
    match (text.rfind(&form.open), text.rfind(&form.close)) {
        (Some(open), close) if close.is_none_or(|close| close < open) => ThoughtState::Open,
        _ => ThoughtState::Closed,
    }
}
