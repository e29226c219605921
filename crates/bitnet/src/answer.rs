//! Answers: whole, or in pieces as they are generated, with thoughts apart from the text.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bitnet_inference::{FinishReason, Request, RequestHandle, TokenLogprobs, Update, block_on};
use bitnet_model::DecodeStream;
use futures_core::Stream;

use crate::{
    Error,
    thought::{Split, ThoughtSplitter},
};

/// A complete answer. Its `Display` is the text, without what the model thought.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The new text, without the prompt and the thought; empty for a model without a tokenizer.
    pub text: String,
    /// What the model thought before its answer, without markers; empty if it did not think. Several thoughts are
    /// joined by blank lines.
    pub thought: String,
    /// The new tokens, those of the thought included, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the new tokens; empty unless [`Request::logprobs`](crate::Request::logprobs) asks for them.
    pub logprobs: Vec<TokenLogprobs>,
    /// Number of tokens in the prompt.
    pub prompt_tokens: usize,
    /// Number of tokens of the thought, markers included.
    pub thought_tokens: usize,
    /// Why the answer ended.
    pub finish: FinishReason,
    /// The seed, which gives the same text again.
    pub seed: u64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A part of an answer as it is generated. Its `Display` is its text: nothing for a part of a thought.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// More of what the model thinks.
    Thought(String),
    /// More of the answer.
    Text(String),
}

impl Piece {
    /// The part of the answer; empty for a part of a thought.
    pub fn text(&self) -> &str {
        if let Piece::Text(text) = self { text } else { "" }
    }

    /// The part of a thought; empty for a part of the answer.
    pub fn thought(&self) -> &str {
        if let Piece::Thought(thought) = self { thought } else { "" }
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The pieces of an answer as it is generated: a blocking iterator, and a [`Stream`] for any executor. Dropping it cancels
/// the request.
#[derive(Debug)]
pub struct Pieces {
    handle: RequestHandle,
    partial: PartialAnswer,
    /// Text that came together with the end of a thought.
    ahead: Option<Piece>,
}

/// What a request says about its answer.
pub(crate) struct Parts {
    prompt_tokens: usize,
    splitter: ThoughtSplitter,
}

impl Parts {
    pub fn of(request: &Request) -> Parts {
        let splitter = ThoughtSplitter::new(request.thought.as_ref());
        Parts { prompt_tokens: request.prompt.len(), splitter }
    }
}

/// The part of an answer that has been generated so far.
#[derive(Debug)]
struct PartialAnswer {
    decoder: Option<DecodeStream>,
    splitter: ThoughtSplitter,
    answer: Answer,
}

impl Pieces {
    pub(crate) fn new(handle: RequestHandle, parts: Parts, decoder: Option<DecodeStream>) -> Pieces {
        let Parts { prompt_tokens, splitter } = parts;
        let answer = Answer {
            text: String::new(),
            thought: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_tokens,
            thought_tokens: 0,
            finish: FinishReason::Error,
            seed: handle.seed(),
        };
        let partial = PartialAnswer { decoder, splitter, answer };
        Pieces { handle, partial, ahead: None }
    }

    /// Waits for the end and returns the whole answer, including pieces already taken.
    ///
    /// # Errors
    /// If the request fails.
    pub fn answer(self) -> Result<Answer, Error> {
        block_on(self.answer_async())
    }

    /// As [`Pieces::answer`], on any executor.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn answer_async(mut self) -> Result<Answer, Error> {
        while let Some(piece) = poll_fn(|cx| self.poll_piece(cx)).await {
            piece?;
        }
        Ok(self.partial.answer)
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        loop {
            if let Some(piece) = self.ahead.take() {
                return Poll::Ready(Some(Ok(piece)));
            }
            let Some(update) = ready!(self.handle.poll_recv(cx)) else { return Poll::Ready(None) };
            let Split { thought, answer } = match self.partial.add(update) {
                Ok(split) => split,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            self.ahead = (!answer.is_empty()).then_some(Piece::Text(answer));
            if !thought.is_empty() {
                return Poll::Ready(Some(Ok(Piece::Thought(thought))));
            }
        }
    }
}

impl Iterator for Pieces {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Result<Piece, Error>> {
        block_on(poll_fn(|cx| self.poll_piece(cx)))
    }
}

impl Stream for Pieces {
    type Item = Result<Piece, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_piece(cx)
    }
}

impl PartialAnswer {
    /// Adds an update and returns the text that it adds, which may be empty.
    fn add(&mut self, update: Update) -> Result<Split, Error> {
        let mut split = Split::default();
        match update {
            Update::Token { token, logprobs, .. } => {
                self.answer.tokens.push(token);
                self.answer.logprobs.extend(logprobs);
                let text = self.decoder.as_mut().map(|decoder| decoder.push(token)).unwrap_or_default();
                split = self.splitter.push(Some(token), &text);
            }
            Update::Ended { end, .. } => {
                let end = end?;
                self.answer.finish = end.finish;
                if let Some(decoder) = &mut self.decoder {
                    let rest = decoder.finish() + &String::from_utf8_lossy(&end.tail);
                    split = self.splitter.push(None, &rest);
                    split.extend(&self.splitter.finish());
                }
            }
        }
        self.answer.thought += &split.thought;
        self.answer.text += &split.answer;
        self.answer.thought_tokens = self.splitter.tokens();
        Ok(split)
    }
}
