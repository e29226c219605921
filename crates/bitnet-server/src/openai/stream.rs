//! Streams an answer as server-sent events.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::response::{
    Sse,
    sse::{Event, KeepAlive, KeepAliveStream},
};
use futures_core::Stream;

use crate::{
    http::error::Wrapped,
    openai::{
        answers::{Answers, Piece},
        position::{Name, Position},
        shape::{Shape, Usage},
        tools::reader::Reader,
    },
};

/// Maximum time between events; then a comment keeps the connection alive.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The events of an answer: one for each token and one for the end of each choice, then the token counts if requested,
/// then `[DONE]`.
pub(crate) struct Events {
    pub answers: Answers,
    pub shape: Shape,
    /// A reader of tool calls for each choice.
    pub readers: Vec<Reader>,
    pub prompt_tokens: usize,
    /// The position of the last event.
    pub position: Position,
    pub name: Name,
    /// The client already has the events up to this position.
    pub after: Position,
    pub phase: Phase,
}

/// What a stream sends next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Pieces,
    Counts,
    Done,
    Nothing,
}

impl Events {
    /// The response body.
    pub fn into_sse(self) -> Sse<KeepAliveStream<Self>> {
        Sse::new(self).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
    }

    /// The id of the event at a position. It contains all that a server needs to continue after that event, or to
    /// refuse to.
    fn id(&self, position: &Position) -> String {
        format!("{position};{};{}", self.name, self.shape.fingerprint)
    }

    /// The event of a piece, or `None` if the client already has it.
    fn event(&mut self, piece: Piece) -> Option<Event> {
        let (choice, index) = (piece.choice, piece.index);
        self.position.advance(choice, index);
        let new = self.after.is_before(choice, index);
        // Events that the client already has must pass the reader too, because later ones depend on them.
        let chunk = self.shape.chunk(piece, &mut self.readers[choice]);
        new.then(|| Event::default().id(self.id(&self.position)).data(chunk))
    }

    /// The event with the token counts, one position after the end of every choice; `None` if it was not requested.
    fn counts(&mut self) -> Option<Event> {
        let id = self.position.after_all();
        let new = self.shape.include_usage && self.after != id;
        let usage = Usage::new(self.prompt_tokens, self.answers.tokens());
        new.then(|| Event::default().id(self.id(&id)).data(self.shape.counts(usage)))
    }
}

impl Stream for Events {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let event = match self.phase {
                Phase::Pieces => match ready!(self.answers.poll_next(cx)) {
                    Some(Ok(piece)) => self.event(piece),
                    Some(Err(error)) => {
                        self.phase = Phase::Nothing;
                        let wrapped = Wrapped { error: &error.body };
                        Some(Event::default().json_data(wrapped).expect("text makes JSON"))
                    }
                    None => {
                        self.phase = Phase::Counts;
                        None
                    }
                },
                Phase::Counts => {
                    self.phase = Phase::Done;
                    self.counts()
                }
                Phase::Done => {
                    self.phase = Phase::Nothing;
                    Some(Event::default().data("[DONE]"))
                }
                Phase::Nothing => return Poll::Ready(None),
            };
            if let Some(event) = event {
                return Poll::Ready(Some(Ok(event)));
            }
        }
    }
}
