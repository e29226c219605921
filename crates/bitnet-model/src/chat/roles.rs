//! Makes a conversation acceptable to a template: which roles it knows, and where system messages may stand.

use std::borrow::Cow;

use super::{Message, Roles};
use crate::ModelError;

/// The messages in roles, an order and a form that the template accepts. The role `developer` becomes `system` unless the
/// template has a form for it, a missing text becomes an empty one if the template needs one, and the system messages at the beginning become one if the template takes only one.
pub(super) fn accepted<'m>(messages: &'m [Message], roles: &Roles) -> Result<Cow<'m, [Message]>, ModelError> {
    let mut messages = Cow::Borrowed(messages);
    if !roles.developer && messages.iter().any(|message| message.role == "developer") {
        for message in messages.to_mut().iter_mut().filter(|message| message.role == "developer") {
            message.role = "system".into();
        }
    }
    if !roles.no_content && messages.iter().any(|message| message.content.is_none()) {
        for message in messages.to_mut().iter_mut() {
            message.content.get_or_insert_default();
        }
    }
    let leading = messages.iter().take_while(|message| message.role == "system").count();
    if !roles.later_system
        && let Some(later) = messages[leading..].iter().position(|message| message.role == "system")
    {
        return Err(ModelError::Message {
            index: leading + later,
            problem: "the model's template takes system messages at the beginning only".into(),
            cure: "move it to the beginning, or send it as a message of the user",
        });
    }
    if leading > 1 && !roles.several_systems {
        let texts: Vec<&str> = messages[..leading].iter().map(Message::text).collect();
        let merged = Message { content: Some(texts.join("\n\n")), ..messages[0].clone() };
        messages.to_mut().splice(..leading, [merged]);
    }
    Ok(messages)
}
