//! Streams an answer in its dialect, as its pieces come.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep};

use super::{
    answer::About,
    dialect::Dialect,
    pieces::{Piece, Pieces},
    turn::{Change, Turn},
};

/// Maximum time between parts of a stream; then a comment keeps the connection alive.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The stream of an answer in a dialect. Dropping it cancels the answer.
pub(super) struct Stream<D> {
    about: About,
    turns: Vec<Turn>,
    pieces: Pieces,
    dialect: D,
    begun: bool,
    over: bool,
    timer: Pin<Box<Sleep>>,
}

impl<D: Dialect> Stream<D> {
    pub fn new(about: About, turns: Vec<Turn>, pieces: Pieces, dialect: D) -> Self {
        let timer = Box::pin(sleep(KEEP_ALIVE));
        Stream { about, turns, pieces, dialect, begun: false, over: false, timer }
    }

    /// Writes the next piece; returns whether there was one.
    fn write(&mut self, cx: &mut Context<'_>, out: &mut String) -> bool {
        match self.pieces.poll_next(cx) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(piece))) => self.add(piece, out),
            Poll::Ready(Some(Err(error))) => {
                self.finish();
                self.dialect.fail(&self.about, &self.turns, &error, out);
            }
            Poll::Ready(None) => {
                self.finish();
                self.dialect.end(&self.about, &self.turns, out);
            }
        }
        true
    }

    fn add(&mut self, piece: Piece, out: &mut String) {
        let Stream { about, turns, dialect, .. } = self;
        let written = out.len();
        let new = about.arrived(&piece);
        let turn = &mut turns[piece.choice];
        turn.add(&piece, &mut |turn, change: Change<'_>| dialect.change(about, turn, change, out));
        dialect.piece(about, turn, piece, out);
        if !new {
            // The dialect must see what the client already has, because later events depend on it.
            out.truncate(written);
        }
    }

    fn finish(&mut self) {
        self.about.count(self.pieces.usage(), &self.turns);
        self.over = true;
    }
}

impl<D: Dialect> futures_core::Stream for Stream<D> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let mut out = String::new();
        if !std::mem::replace(&mut this.begun, true) {
            this.dialect.begin(&this.about, &this.turns, &mut out);
        }
        // Some tokens complete no text.
        while out.is_empty() && !this.over && this.write(cx, &mut out) {}
        if out.is_empty() && this.over {
            return Poll::Ready(None);
        }
        if out.is_empty() && !D::KEEP_ALIVE.is_empty() && this.timer.as_mut().poll(cx).is_ready() {
            out.push_str(D::KEEP_ALIVE);
        }
        if out.is_empty() {
            return Poll::Pending;
        }
        this.timer.as_mut().reset(Instant::now() + KEEP_ALIVE);
        Poll::Ready(Some(Ok(Bytes::from(out))))
    }
}
