//! A submitted request in the hands of its caller, who reads its tokens as they come or waits for all.
//! Dropping it cancels the request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use futures_core::Stream;

use super::mailbox::{Mailbox, Update};
use super::park;
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
    /// The logits that follow the prompt, or its hidden state or the mean of them, as requested.
    pub logits: Option<Vec<f32>>,
    /// Log-probabilities of the prompt's tokens, from the second on, if requested.
    pub scored: Vec<TokenLogprobs>,
    /// Seed of the random numbers; the same seed gives the same tokens.
    pub seed: u64,
}

/// A submitted request: a blocking iterator of its updates, and a [`Stream`] of them for any executor. Dropping the
/// handle cancels the request.
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
        park::block_until(None, |cx| self.poll_recv(cx)).flatten()
    }

    /// Waits for the next update, for at most `timeout`.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Update>, Elapsed> {
        let deadline = Instant::now().checked_add(timeout);
        park::block_until(deadline, |cx| self.poll_recv(cx)).ok_or(Elapsed)
    }

    /// Like [`RequestHandle::recv`], on any executor.
    pub async fn recv_async(&mut self) -> Option<Update> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Polls for the next update; `None` when every choice has ended. Wakes the task when there is one.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        self.mailbox.poll(cx.waker()).map(|taken| {
            let (update, resume) = taken?;
            if resume {
                let _ = self.control.send(Command::Resume(self.id));
            }
            Some(update)
        })
    }

    /// Waits for the end and returns the complete result, or the error of the first choice that failed.
    pub fn wait(self) -> Result<Completion, RequestError> {
        park::block_on(self.wait_async())
    }

    /// Like [`RequestHandle::wait`], on any executor.
    pub async fn wait_async(mut self) -> Result<Completion, RequestError> {
        let mut all = Completion::begun(&self);
        while let Some(update) = self.recv_async().await {
            all.add(update)?;
        }
        all.scored = self.scored();
        Ok(all)
    }

    /// Takes the log-probabilities of the prompt's tokens, from the second on, if requested. They are complete once a
    /// token or the end of a choice has been received.
    pub fn scored(&self) -> Vec<TokenLogprobs> {
        self.mailbox.take_scored()
    }
}

impl Iterator for RequestHandle {
    type Item = Update;

    fn next(&mut self) -> Option<Update> {
        self.recv()
    }
}

impl Stream for RequestHandle {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        self.poll_recv(cx)
    }
}

bitnet_tensor::opaque_debug!(RequestHandle { id, seed });

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if self.mailbox.open_choices() > 0 {
            self.cancel();
        }
    }
}

/// No update arrived before the timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing arrived in time")]
pub struct Elapsed;

impl Completion {
    /// The result of a request before its first token.
    fn begun(handle: &RequestHandle) -> Self {
        let config = &handle.request.config;
        let tokens = if config.echo { handle.request.prompt.clone() } else { Vec::new() };
        let choice = Choice {
            tokens,
            logprobs: Vec::new(),
            finish: FinishReason::Error,
            tail: Vec::new(),
            thought_tokens: 0,
        };
        Completion { choices: vec![choice; config.n], logits: None, scored: Vec::new(), seed: handle.seed }
    }

    fn add(&mut self, update: Update) -> Result<(), RequestError> {
        match update {
            Update::Token { choice, token, logprobs, .. } => {
                let choice = &mut self.choices[choice as usize];
                choice.tokens.push(token);
                choice.logprobs.extend(logprobs);
            }
            Update::Ended { choice, end, logits } => {
                let end = end?;
                self.logits = logits.or(self.logits.take());
                let choice = &mut self.choices[choice as usize];
                choice.finish = end.finish;
                choice.tail = end.tail;
                choice.thought_tokens = end.thought_tokens;
            }
        }
        Ok(())
    }
}
