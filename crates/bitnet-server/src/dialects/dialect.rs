use super::turn::{Change, Turn};
use crate::{
    http::{error::ApiError, fields::Fields},
    openai::{job::Parsed, prompt::Encoder},
};

/// An API with its own form of requests and answers. Each value writes the answer to one request.
pub(crate) trait Dialect: Send + Unpin + Sized + 'static {
    /// The beginning of an answer's id.
    const ID: &'static str;
    /// The content type of a stream.
    const STREAM: &'static str;
    /// Sent after a silence in a stream; empty if the form has nothing for that.
    const KEEP_ALIVE: &'static str;

    fn read(fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<(Parsed, Self), ApiError>;

    /// Writes the beginning of a stream.
    fn begin(&mut self, turn: &Turn, out: &mut String);

    /// Writes a change of the turn's last item to a stream.
    fn change(&mut self, turn: &Turn, change: Change<'_>, out: &mut String);

    /// Writes the end of a stream.
    fn end(&mut self, turn: &Turn, out: &mut String);

    /// Writes the end of a stream that has failed.
    fn fail(&mut self, turn: &Turn, error: &ApiError, out: &mut String);

    /// The answer that is not streamed.
    fn whole(&self, turn: &Turn) -> String;
}
