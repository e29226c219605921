//! Writes the answers of chats and completions: one object, or an event for each piece.

use std::fmt::Write;

use serde_json::json;

use super::{
    chat, completions, format,
    shape::{Added, AddedCall, Shape},
};
use crate::{
    generate::{
        answer::About,
        dialect::Dialect,
        job::Parsed,
        pieces::Piece,
        prompt::Encoder,
        read::{priority, salt},
        turn::{Change, Item, Tokens, Turn},
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
        salt: salt(fields.take("user")?),
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
        let (stream, names) = (fields.take("stream")?.unwrap_or(false), names(CHAT, fields));
        let parsed = match CHAT {
            true => chat::read(fields, encoder)?,
            false => completions::read(fields, encoder, stream)?,
        };
        let parsed = Parsed { stream, names, ..read_common(fields, encoder, parsed)? };
        let answer = OpenAi { include_usage: include_usage(fields, stream)?, added: Added::default() };
        Ok((parsed, answer))
    }

    fn begin(&mut self, _: &About, _: &[Turn], _: &mut String) {}

    fn change(&mut self, _: &About, turn: &Turn, change: Change<'_>, _: &mut String) {
        match (change, turn.last().1) {
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
        self.shape(about).whole(turns)
    }
}
