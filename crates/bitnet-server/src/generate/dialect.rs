//! What an API must provide: how its requests are read and its answers written. Everything in between is the same for
//! all of them.

use axum::http::HeaderMap;
use serde_json::Value;

use super::{
    answer::About,
    parsed::Parsed,
    pieces::Piece,
    prompt::Encoder,
    turn::{Change, Turn},
};
use crate::{
    http::{error::ApiError, fields::Fields, reading::Reading},
    service::Service,
};

/// An API with its own form of requests and answers. Each value writes the answer to one request.
pub(crate) trait Dialect: Send + Unpin + Sized + 'static {
    /// The beginning of an answer's id.
    const ID: &'static str;
    /// The content type of a stream.
    const STREAM: &'static str;
    /// Sent after a silence in a stream; empty if the form has nothing for that.
    const KEEP_ALIVE: &'static str;
    /// Whether requests may ask for several choices, and events have ids after which a stream can be resumed.
    const OF_EVENTS: bool = false;

    /// Answers a body that asks for no text, if it is one.
    fn at_once(_: &Service, _: &HeaderMap, _: &[u8], _: &Reading) -> Result<Option<Value>, ApiError> {
        Ok(None)
    }

    /// Takes all fields of a body except the model's name.
    fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<(Parsed, Self), ApiError>;

    /// Writes the beginning of a stream.
    fn begin(&mut self, about: &About, turns: &[Turn], out: &mut String);

    /// Writes a change of a turn's last item to a stream.
    fn change(&mut self, about: &About, turn: &Turn, change: Change<'_>, out: &mut String);

    /// Writes a piece to a stream, after the changes that it made.
    fn piece(&mut self, _about: &About, _turn: &Turn, _piece: Piece, _out: &mut String) {}

    /// Writes the end of a stream.
    fn end(&mut self, about: &About, turns: &[Turn], out: &mut String);

    /// Writes the end of a stream that has failed.
    fn fail(&mut self, about: &About, turns: &[Turn], error: &ApiError, out: &mut String);

    /// The answer that is not streamed.
    fn whole(&self, about: &About, turns: &[Turn]) -> String;
}
