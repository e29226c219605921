//! Writes the answers of chats and completions: one object, or an event for each piece.

use std::fmt::Write;

use serde_json::json;

use super::{
    chat, completions, format,
    shape::{Added, AddedCall, Shape},
    thoughts::{Showing, Shown},
};
use crate::{
    generate::{
        answer::About,
        dialect::Dialect,
        parsed::Parsed,
        pieces::Piece,
        prompt::Encoder,
        read::{priority, user_salt},
        turn::{BETWEEN_THOUGHTS, Change, Item, Tokens, Turn},
    },
    http::{
        error::{ApiError, Names, Wrapped},
        fields::Fields,
    },
};

/// The answer to a chat, or else to completions.
#[derive(Default)]
pub(crate) struct OpenAi<const CHAT: bool> {
    /// Whether a stream ends with the token counts.
    include_usage: bool,
    showing: Showing,
    /// The text before a thought and after it, where thoughts are part of the content.
    around: (String, String),
    /// The text and the calls that the next event adds.
    added: Added,
}

impl<const CHAT: bool> OpenAi<CHAT> {
    fn shape<'a>(&self, about: &'a About) -> Shape<'a> {
        Shape {
            about,
            chat: CHAT,
            id: format!("{}{}", Self::ID, about.name),
            include_usage: self.include_usage,
        }
    }
}

impl<const CHAT: bool> OpenAi<CHAT> {
    /// Adds a change of a thought to the next event.
    fn think(&mut self, turn: &Turn, change: Change<'_>, thought: &str) {
        let Showing { shown, at_once } = self.showing;
        let begins = if at_once { Change::Closed } else { Change::Opened };
        if change == begins && turn.thinks_again() && matches!(shown, Shown::Apart | Shown::Both) {
            self.added.thought += BETWEEN_THOUGHTS;
        }
        let more = match change {
            Change::More(more) if !at_once => more,
            Change::Closed if at_once => thought,
            _ => "",
        };
        if matches!(shown, Shown::Apart | Shown::Both) {
            self.added.thought += more;
        }
        if matches!(shown, Shown::InContent | Shown::Both) {
            let (before, after) = &self.around;
            match change {
                Change::Opened => self.added.text += before,
                Change::More(_) => self.added.text += more,
                Change::Closed if turn.thinks() => self.added.text += more,
                Change::Closed => self.added.text.extend([more, after]),
            }
        }
    }

    /// The thought of a turn and its content, as a whole.
    fn contents(&self, turn: &Turn) -> (String, String) {
        let (thought, text) = (turn.thought(), turn.text());
        let in_content = || {
            let (before, after) = &self.around;
            let last = turn.items.len().saturating_sub(1);
            let item = |(i, item): (usize, &Item)| match item {
                Item::Thought(thought) if i == last && turn.thinks() => format!("{before}{thought}"),
                Item::Thought(thought) => format!("{before}{thought}{after}"),
                Item::Text(text) => text.clone(),
                Item::Call { .. } => String::new(),
            };
            turn.items.iter().enumerate().map(item).collect::<String>()
        };
        match self.showing.shown {
            Shown::Apart => (thought, text),
            Shown::Hidden => (String::new(), text),
            Shown::InContent => (String::new(), in_content()),
            Shown::Both => (thought.clone(), in_content()),
        }
    }
}

/// The text before a thought and after it, as the model's template writes them.
fn around_thoughts(encoder: &Encoder<'_>) -> (String, String) {
    let conventions = encoder.model.chat.as_ref().map(|template| template.conventions());
    match conventions.and_then(|conventions| conventions.thought.as_ref()) {
        Some(form) => {
            (format!("{}{}", form.open, form.lead), format!("{}{}{}", form.tail, form.close, form.gap))
        }
        None => Default::default(),
    }
}

fn event(id: Option<&str>, data: &str, out: &mut String) {
    if let Some(id) = id {
        let _ = writeln!(out, "id: {id}");
    }
    let _ = write!(out, "data: {data}\n\n");
}

/// Takes what both kinds of requests have in the same form.
fn read_common(fields: &mut Fields<'_>, encoder: &Encoder<'_>, parsed: Parsed) -> Result<Parsed, ApiError> {
    Ok(Parsed {
        format: format::take(fields)?,
        priority: priority(fields)?,
        salt: user_salt(fields)?,
        token_ids: fields.take("return_token_ids")?.unwrap_or(false) || encoder.model.tokenizer.is_none(),
        ..parsed
    })
}

/// What a client calls the fields, by those that it has sent.
fn names(chat: bool, fields: &Fields<'_>) -> Names {
    let mut renamed = Vec::new();
    if chat {
        renamed.extend([("prompt", "messages"), ("logprobs", "top_logprobs")]);
    }
    for (engines, other) in [("max_tokens", "max_completion_tokens"), ("n", "best_of")] {
        if fields.peek(engines).is_none() && fields.peek(other).is_some() {
            renamed.push((engines, other));
        }
    }
    Names::new(renamed)
}

/// Takes `stream_options`; returns whether a stream ends with the token counts.
fn include_usage(fields: &mut Fields<'_>, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    let include_usage = options.take("include_usage")?.unwrap_or(false);
    if include_usage && !stream {
        return Err(ApiError::field("stream_options", "it needs stream to be true"));
    }
    options.harmless("include_obfuscation", &[json!(false)])?;
    options.harmless("continuous_usage_stats", &[json!(false)])?;
    options.finish()?;
    Ok(include_usage)
}

impl<const CHAT: bool> Dialect for OpenAi<CHAT> {
    const ID: &'static str = if CHAT { "chatcmpl-" } else { "cmpl-" };
    const STREAM: &'static str = "text/event-stream";
    const KEEP_ALIVE: &'static str = ":\n\n";
    const OF_EVENTS: bool = true;

    fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<(Parsed, Self), ApiError> {
        let stream = fields.take("stream")?.unwrap_or(false);
        let names = names(CHAT, fields);
        let parsed =
            if CHAT { chat::read(fields, encoder)? } else { completions::read(fields, encoder, stream)? };
        let parsed = Parsed { stream, names, ..read_common(fields, encoder, parsed)? };
        let answer = OpenAi {
            include_usage: include_usage(fields, stream)?,
            showing: if CHAT { Showing::take(fields)? } else { Showing::default() },
            around: around_thoughts(encoder),
            added: Added::default(),
        };
        Ok((parsed, answer))
    }

    fn begin(&mut self, _: &About, _: &[Turn], _: &mut String) {}

    fn change(&mut self, _: &About, turn: &Turn, change: Change<'_>, _: &mut String) {
        match (change, turn.last().1) {
            (change, Item::Thought(thought)) => self.think(turn, change, thought),
            (Change::More(text), Item::Text(_)) => self.added.text += text,
            (Change::Opened, Item::Call { name, .. }) => {
                let (index, name) = (turn.calls().count() - 1, Some(name.clone()));
                self.added.calls.push(AddedCall { index, name, arguments: String::new() });
            }
            (Change::More(more), Item::Call { .. }) => {
                let index = turn.calls().count() - 1;
                match self.added.calls.last_mut() {
                    Some(call) if call.index == index => call.arguments += more,
                    _ => self.added.calls.push(AddedCall { index, name: None, arguments: more.to_owned() }),
                }
            }
            _ => {}
        }
    }

    fn piece(&mut self, about: &About, turn: &Turn, piece: Piece, out: &mut String) {
        let (first, over) = (piece.index == 0, piece.finish.is_some());
        let mut tokens = Tokens::default();
        tokens.add(piece);
        let chunk = self.shape(about).chunk(turn, &tokens, std::mem::take(&mut self.added), first, over);
        event(Some(&about.event_id()), &chunk, out);
    }

    fn end(&mut self, about: &About, _: &[Turn], out: &mut String) {
        if let Some(id) = about.counts_id().filter(|_| self.include_usage) {
            event(Some(&id), &self.shape(about).counts(), out);
        }
        event(None, "[DONE]", out);
    }

    fn fail(&mut self, _: &About, _: &[Turn], error: &ApiError, out: &mut String) {
        let error = json!(Wrapped { error: &error.body });
        event(None, &error.to_string(), out);
    }

    fn whole(&self, about: &About, turns: &[Turn]) -> String {
        self.shape(about).whole(turns, |turn| self.contents(turn))
    }
}
