//! Tools, calls and their results as text, for a template that does not know them.

use bitnet_model::{Message, ToolCall};

/// The beginning of a call.
pub(super) const OPEN: &str = "<tool_call>";
/// The end of a call.
const CLOSE: &str = "</tool_call>";

/// Writes the tools, calls and results of a conversation as text.
pub(super) fn messages(messages: &[Message], tools: &[String]) -> Vec<Message> {
    let mut plain: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    if !tools.is_empty() && messages.first().is_none_or(|first| first.role != "system") {
        plain.push(Message::new("system", explained(tools)));
    }
    for (i, message) in messages.iter().enumerate() {
        match message.role.as_str() {
            "system" if i == 0 && !tools.is_empty() => {
                plain.push(Message::new("system", format!("{}\n\n{}", message.text(), explained(tools))));
            }
            "tool" => answer(&mut plain, message.text()),
            _ if !message.tool_calls.is_empty() => plain.push(called(message)),
            _ => plain.push(message.clone()),
        }
    }
    plain
}

fn explained(tools: &[String]) -> String {
    format!(
        "You may call functions to help with what is asked. These are the functions, each as JSON:\n<tools>\n{}\n\
         </tools>\nTo call one, write its name and its arguments as JSON between tags:\n{OPEN}\n\
         {{\"name\": NAME, \"arguments\": ARGUMENTS}}\n{CLOSE}",
        tools.join("\n")
    )
}

/// Adds the result of a call. The results of several calls become one message, because templates expect the roles to
/// alternate.
fn answer(plain: &mut Vec<Message>, content: &str) {
    let text = format!("<tool_response>\n{content}\n</tool_response>");
    match plain.last_mut() {
        Some(last) if last.role == "user" && last.text().ends_with("</tool_response>") => {
            last.push_text("\n");
            last.push_text(&text);
        }
        _ => plain.push(Message::new("user", text)),
    }
}

fn called(message: &Message) -> Message {
    let call = |ToolCall { name, arguments, .. }: &ToolCall| {
        let name = serde_json::Value::from(name.as_str());
        // Clients send an empty text for no arguments.
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        format!("{OPEN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{CLOSE}")
    };
    let text = message.content.clone().filter(|text| !text.is_empty());
    let parts: Vec<String> = text.into_iter().chain(message.tool_calls.iter().map(call)).collect();
    Message { content: Some(parts.join("\n")), tool_calls: Vec::new(), ..message.clone() }
}
