use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep};

use super::{
    dialect::Dialect,
    turn::{Change, Turn},
};
use crate::openai::{answers::Answers, stream};

/// The stream of an answer in a dialect. Dropping it cancels the answer.
pub(super) struct Stream<D> {
    turn: Turn,
    answers: Answers,
    dialect: D,
    begun: bool,
    over: bool,
    timer: Pin<Box<Sleep>>,
}

impl<D: Dialect> Stream<D> {
    pub fn new(turn: Turn, answers: Answers, dialect: D) -> Self {
        let timer = Box::pin(sleep(stream::KEEP_ALIVE));
        Stream { turn, answers, dialect, begun: false, over: false, timer }
    }

    /// Writes the next piece; returns whether there was one.
    fn write(&mut self, cx: &mut Context<'_>, out: &mut String) -> bool {
        let Stream { turn, answers, dialect, .. } = self;
        match answers.poll_next(cx) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(piece))) => {
                turn.add(&piece, &mut |turn, change: Change<'_>| dialect.change(turn, change, out));
            }
            Poll::Ready(Some(Err(error))) => {
                turn.tokens = answers.tokens();
                dialect.fail(turn, &error, out);
                self.over = true;
            }
            Poll::Ready(None) => {
                turn.tokens = answers.tokens();
                dialect.end(turn, out);
                self.over = true;
            }
        }
        true
    }
}

impl<D: Dialect> futures_core::Stream for Stream<D> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let mut out = String::new();
        if !std::mem::replace(&mut this.begun, true) {
            this.dialect.begin(&this.turn, &mut out);
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
        this.timer.as_mut().reset(Instant::now() + stream::KEEP_ALIVE);
        Poll::Ready(Some(Ok(Bytes::from(out))))
    }
}
