use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bitnet_inference::{FinishReason, RequestHandle, TokenLogprobs, Update, block_on};
use bitnet_model::DecodeStream;
use futures_core::Stream;

use crate::Error;

/// A complete answer. Its `Display` is the text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The new text, without the prompt; empty for a model without a tokenizer.
    pub text: String,
    /// The new tokens, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the new tokens; empty unless [`Request::logprobs`](crate::Request::logprobs) asks for them.
    pub logprobs: Vec<TokenLogprobs>,
    /// Number of tokens in the prompt.
    pub prompt_tokens: usize,
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

/// The pieces of an answer as it is generated: a blocking iterator, and a [`Stream`] for any executor. Dropping it cancels
/// the request.
#[derive(Debug)]
pub struct Pieces {
    handle: RequestHandle,
    partial: PartialAnswer,
}

/// The part of an answer that has been generated so far.
#[derive(Debug)]
struct PartialAnswer {
    decoder: Option<DecodeStream>,
    answer: Answer,
}

impl Pieces {
    pub(crate) fn new(handle: RequestHandle, prompt_tokens: usize, decoder: Option<DecodeStream>) -> Pieces {
        let answer = Answer {
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_tokens,
            finish: FinishReason::Error,
            seed: handle.seed(),
        };
        Pieces { handle, partial: PartialAnswer { decoder, answer } }
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

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<String, Error>>> {
        loop {
            let Some(update) = ready!(self.handle.poll_recv(cx)) else { return Poll::Ready(None) };
            let piece = self.partial.add(update);
            if piece.as_ref().map_or(true, |piece| !piece.is_empty()) {
                return Poll::Ready(Some(piece));
            }
        }
    }
}

impl Iterator for Pieces {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Result<String, Error>> {
        block_on(poll_fn(|cx| self.poll_piece(cx)))
    }
}

impl Stream for Pieces {
    type Item = Result<String, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_piece(cx)
    }
}

impl PartialAnswer {
    /// Adds an update and returns the text it adds, which may be empty.
    fn add(&mut self, update: Update) -> Result<String, Error> {
        let mut piece = String::new();
        match update {
            Update::Token { token, logprobs, .. } => {
                self.answer.tokens.push(token);
                self.answer.logprobs.extend(logprobs);
                if let Some(decoder) = &mut self.decoder {
                    piece = decoder.push(token);
                }
            }
            Update::Ended { end, .. } => {
                let end = end?;
                self.answer.finish = end.finish;
                if let Some(decoder) = &mut self.decoder {
                    piece = decoder.finish();
                }
                piece.push_str(&String::from_utf8_lossy(&end.tail));
            }
        }
        self.answer.text.push_str(&piece);
        Ok(piece)
    }
}
