//! A submitted request in the hands of its caller, who reads its tokens as they come or waits for all.
//! Dropping it cancels the request.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use futures_core::Stream;

use super::mailbox::{Mailbox, Popped, Update};
use super::shared::Command;
use crate::request::{FinishReason, Request, RequestError, TokenLogprobs};

/// A complete choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The new tokens, preceded by the prompt if `echo` is set.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the new tokens, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Bytes before a stop string that belong to no returned token.
    pub tail: Vec<u8>,
    /// Number of tokens of the thought, markers included.
    pub thought_tokens: usize,
}

/// The complete result of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The choices, in order.
    pub choices: Vec<Choice>,
    /// The logits that follow the prompt, or its hidden state, as requested.
    pub logits: Option<Vec<f32>>,
    /// Log-probabilities of the prompt's tokens, from the second on, if requested.
    pub scored: Vec<TokenLogprobs>,
    /// Seed of the random numbers; the same seed gives the same tokens.
    pub seed: u64,
}

/// A submitted request, as a blocking iterator of its updates. [`RequestHandle::into_stream`] is the async form.
/// Dropping the handle cancels the request.
pub struct RequestHandle {
    pub(crate) id: u64,
    pub(crate) seed: u64,
    pub(crate) request: Arc<Request>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) control: Sender<Command>,
}

impl RequestHandle {
    /// The engine's id of the request.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Seed of the random numbers, including one that the engine chose.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Cancels the request. Updates already sent and the end can still be read.
    pub fn cancel(&self) {
        self.mailbox.cancel();
        let _ = self.control.send(Command::Cancel(self.id));
    }

    /// Waits for the next update; `None` when every choice has ended.
    pub fn recv(&mut self) -> Option<Update> {
        match self.mailbox.pop(None) {
            Popped::Update(update, resume) => Some(self.taken(update, resume)),
            Popped::Nothing | Popped::Over => None,
        }
    }

    /// Waits for the next update, for at most `timeout`.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Update>, Elapsed> {
        match self.mailbox.pop(Instant::now().checked_add(timeout)) {
            Popped::Update(update, resume) => Ok(Some(self.taken(update, resume))),
            Popped::Over => Ok(None),
            Popped::Nothing => Err(Elapsed),
        }
    }

    /// Polls for the next update; `None` when every choice has ended. Wakes the task when there is one.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        match self.mailbox.poll(cx.waker()) {
            Popped::Update(update, resume) => Poll::Ready(Some(self.taken(update, resume))),
            Popped::Over => Poll::Ready(None),
            Popped::Nothing => Poll::Pending,
        }
    }

    /// Turns the handle into a stream of updates.
    pub fn into_stream(self) -> Updates {
        Updates(self)
    }

    /// Waits for the end and returns the complete result, or the error of the first choice that failed.
    pub fn wait(mut self) -> Result<Completion, RequestError> {
        let mut all = Gather::new(&self);
        while let Some(update) = self.recv() {
            all.add(update)?;
        }
        Ok(Completion { scored: self.scored(), ..all.0 })
    }

    /// As [`RequestHandle::wait`], on any executor.
    pub async fn wait_async(mut self) -> Result<Completion, RequestError> {
        let mut all = Gather::new(&self);
        while let Some(update) = std::future::poll_fn(|cx| self.poll_recv(cx)).await {
            all.add(update)?;
        }
        Ok(Completion { scored: self.scored(), ..all.0 })
    }

    /// Takes the log-probabilities of the prompt's tokens, from the second on, if requested. They are complete once a
    /// token or the end of a choice has been received.
    pub fn scored(&self) -> Vec<TokenLogprobs> {
        self.mailbox.take_scored()
    }

    fn taken(&self, update: Update, resume: bool) -> Update {
        if resume {
            let _ = self.control.send(Command::Resume(self.id));
        }
        update
    }
}

impl Iterator for RequestHandle {
    type Item = Update;

    fn next(&mut self) -> Option<Update> {
        self.recv()
    }
}

/// A submitted request, as a [`Stream`] of its updates for any executor. Dropping it cancels the request.
#[derive(Debug)]
pub struct Updates(RequestHandle);

impl Updates {
    /// The handle of the request.
    pub fn handle(&self) -> &RequestHandle {
        &self.0
    }
}

impl Stream for Updates {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        self.0.poll_recv(cx)
    }
}

impl fmt::Debug for RequestHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHandle")
            .field("id", &self.id)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.mailbox.is_closed() {
            self.cancel();
        }
    }
}

/// No update arrived before the timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing arrived in time")]
pub struct Elapsed;

struct Gather(Completion);

impl Gather {
    fn new(handle: &RequestHandle) -> Self {
        let config = &handle.request.config;
        let tokens = if config.echo { handle.request.prompt.clone() } else { Vec::new() };
        let choice = Choice {
            tokens,
            logprobs: Vec::new(),
            finish: FinishReason::Error,
            tail: Vec::new(),
            thought_tokens: 0,
        };
        Gather(Completion {
            choices: vec![choice; config.n],
            logits: None,
            scored: Vec::new(),
            seed: handle.seed,
        })
    }

    fn add(&mut self, update: Update) -> Result<(), RequestError> {
        match update {
            Update::Token { choice, token, logprobs, .. } => {
                let choice = &mut self.0.choices[choice as usize];
                choice.tokens.push(token);
                choice.logprobs.extend(logprobs);
            }
            Update::Ended { choice, end, logits } => {
                let end = end?;
                self.0.logits = logits.or(self.0.logits.take());
                let choice = &mut self.0.choices[choice as usize];
                (choice.finish, choice.tail) = (end.finish, end.tail);
                choice.thought_tokens = end.thought_tokens;
            }
        }
        Ok(())
    }
}
