//! Submits requests to the engine, and turns its updates into pieces of text.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bitnet::inference::{
    End, FinishReason, Predicted, Priority, Request, RequestError, RequestHandle, SubmitError, TokenLogprobs,
    Update,
};
use bitnet::model::{DecodeStream, Tokenizer};

use super::{
    job::Job,
    round_robin::{ChoiceUpdate, RoundRobin},
    usage::Usage,
};
use crate::{
    http::{caller::Caller, error::ApiError},
    metrics::ServerMetrics,
    overload::Waiting,
    service::Service,
};

/// One event of a choice: a token, or its end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    /// Index among the choices of all prompts.
    pub choice: usize,
    /// Number of earlier events of the choice; for its end, the number of its tokens.
    pub index: usize,
    /// Number of characters of the choice before this piece.
    pub offset: usize,
    /// The text that the token completes; at the end, text that belongs to no token.
    pub text: String,
    /// The token and its log-probabilities; `None` at the end.
    pub token: Option<(u32, Option<TokenLogprobs>)>,
    /// In the first piece of a choice, the prompt, if it is echoed; `text` then begins with the prompt's text.
    pub echo: Option<Arc<Echo>>,
    /// At the end, why the choice ended.
    pub finish: Option<Finish>,
    /// At the end, the token that ended the choice, if one did and log-probabilities are requested.
    pub end_token: Option<EndToken>,
}

/// A token that ended a choice. The text does not show it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndToken {
    pub id: u32,
    /// Number of characters before it.
    pub offset: usize,
    pub logprobs: TokenLogprobs,
}

/// A prompt that is echoed before its choices.
#[derive(Debug, PartialEq)]
pub(crate) struct Echo {
    pub text: String,
    pub ids: Vec<u32>,
    /// Number of characters before each token.
    pub offsets: Vec<usize>,
    /// Log-probabilities of each token, if requested; the first token has none.
    pub logprobs: Vec<Option<TokenLogprobs>>,
}

impl Echo {
    fn new(ids: &[u32], scored: Vec<TokenLogprobs>, logprobs: bool, stream: Option<DecodeStream>) -> Self {
        let mut text = String::new();
        let mut stream = stream;
        let mut offsets = Vec::with_capacity(ids.len());
        let mut characters = 0;
        for &id in ids {
            offsets.push(characters);
            let more = stream.as_mut().map(|stream| stream.push(id)).unwrap_or_default();
            characters += more.chars().count();
            text += &more;
        }
        text += &stream.map(|mut stream| stream.finish()).unwrap_or_default();
        let logprobs = if logprobs {
            std::iter::once(None).chain(scored.into_iter().map(Some)).collect()
        } else {
            Vec::new()
        };
        Echo { text, ids: ids.to_vec(), offsets, logprobs }
    }
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    /// The text reached one of the request's stop strings, given by index.
    StopString(usize),
    Length,
    /// The time of the request ran out.
    Deadline,
}

/// The pieces of the answers to all prompts of a request, as they are generated. Dropping them cancels unfinished choices.
pub(crate) struct Pieces {
    /// Before the handles, so that a request that is dropped is counted before its memory is free.
    record: Record,
    handles: Vec<RequestHandle>,
    /// Choices for each prompt.
    n: usize,
    choices: Vec<Choice>,
    /// Number of choices whose end has not arrived.
    open: usize,
    /// Orders the updates of a stream with several choices.
    order: Option<RoundRobin>,
    /// Whether a choice ends at the deadline with the text so far. A stream fails instead, so that it can be resumed.
    keeps_text: bool,
    /// Counts the request as waiting until its first token.
    waiting: Option<Waiting>,
    /// The next piece, if it was waited for already.
    ahead: Option<Piece>,
    echoes: Option<Echoes>,
    /// Tokens at the beginning of the prompts that were in the prefix cache, for the choices that have ended.
    cached: usize,
    /// How well the ended choices were predicted.
    predicted: Option<Predicted>,
}

/// The prompts of a request that echoes them; `echoes` has their echoes once they are known.
struct Echoes {
    prompts: Vec<Vec<u32>>,
    logprobs: bool,
    echoes: Vec<Option<Arc<Echo>>>,
    tokenizer: Option<Tokenizer>,
}

struct Choice {
    text: Option<DecodeStream>,
    tokens: usize,
    offset: usize,
    /// Whether its first piece has been made.
    begun: bool,
}

impl Pieces {
    /// Submits a job that is expected to wait for `expected` seconds. All its prompts are accepted, or none.
    pub fn submit(service: &Service, job: &Job, expected: Option<f64>) -> Result<Pieces, ApiError> {
        Self::submit_within(service, job, Duration::ZERO, expected)
    }

    /// As [`Pieces::submit`], waiting for room in the queue.
    pub fn submit_waiting(service: &Service, job: &Job) -> Result<Pieces, ApiError> {
        Self::submit_within(service, job, Duration::MAX, None)
    }

    fn submit_within(
        service: &Service,
        job: &Job,
        wait: Duration,
        expected: Option<f64>,
    ) -> Result<Pieces, ApiError> {
        let record = Record {
            metrics: Arc::clone(&service.metrics),
            priority: job.priority(),
            prompt_tokens: job.prompt_tokens(),
            tokens: 0,
            first_ms: None,
            reason: None,
            caller: job.caller.clone(),
        };
        let waiting = service.overload.wait(job.priority(), expected);
        let handles = match service.engine.submit_together_timeout(job.requests.clone(), wait) {
            Ok(handles) => handles,
            Err(refused) => {
                record.forget();
                let never = matches!(refused, SubmitError::NeverFits { .. });
                let error = ApiError::from(refused);
                let what = if job.requests.len() > 1 { "prompt" } else { "n" };
                return Err(if never { error.about(what) } else { error });
            }
        };
        let tokenizer = service.model.tokenizer.as_ref();
        let choice = |request: &Request| {
            let text = tokenizer.map(|tokenizer| {
                let mut text = tokenizer.stream();
                // A character may have begun in them.
                for &token in &request.prompt[request.prompt.len() - request.generated..] {
                    text.push(token);
                }
                text
            });
            Choice { text, tokens: 0, offset: 0, begun: false }
        };
        let open = job.choices();
        Ok(Pieces {
            record,
            handles,
            n: job.n,
            choices: (0..open).map(|i| choice(&job.requests[i / job.n])).collect(),
            open,
            order: (job.stream && open > 1).then(|| RoundRobin::new(open)),
            keeps_text: !job.stream,
            waiting: Some(waiting),
            ahead: None,
            echoes: job.echo.then(|| Echoes {
                prompts: job.requests.iter().map(|request| request.prompt.clone()).collect(),
                logprobs: job.logprobs,
                echoes: vec![None; job.requests.len()],
                tokenizer: tokenizer.cloned(),
            }),
            cached: 0,
            predicted: None,
        })
    }

    /// Waits for the first piece, so that a request that fails immediately gets an error status. Does not wait so long
    /// that the client could think the server is dead.
    pub async fn wait_for_first(&mut self, limit: Duration) -> Result<(), ApiError> {
        if let Ok(first) = tokio::time::timeout(limit, self.next()).await {
            self.ahead = first.transpose()?;
        }
        Ok(())
    }

    /// The next piece, or `None` when all choices have ended.
    pub async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Pieces::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, ApiError>>> {
        if let Some(piece) = self.ahead.take() {
            return Poll::Ready(Some(Ok(piece)));
        }
        loop {
            if let Some((choice, update)) = self.order.as_mut().and_then(RoundRobin::take) {
                return Poll::Ready(Some(Ok(self.piece(choice, update))));
            }
            let Some((choice, update)) = ready!(self.poll_update(cx)) else { return Poll::Ready(None) };
            match (self.choice_update(update), &mut self.order) {
                (Err(error), _) => return Poll::Ready(Some(Err(error))),
                (Ok(update), Some(order)) => order.put(choice, update),
                (Ok(update), None) => return Poll::Ready(Some(Ok(self.piece(choice, update)))),
            }
        }
    }

    /// The counts of tokens so far, in all choices.
    pub fn usage(&self) -> Usage {
        Usage {
            prompt: self.record.prompt_tokens,
            cached: Some(self.cached),
            generated: self.record.tokens,
            thought: 0,
            predicted: self.predicted,
        }
    }

    fn poll_update(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Update)>> {
        let mut over = true;
        for (prompt, handle) in self.handles.iter_mut().enumerate() {
            match handle.poll_recv(cx) {
                Poll::Ready(Some(update)) => {
                    let (Update::Token { choice, .. } | Update::Ended { choice, .. }) = update;
                    return Poll::Ready(Some((prompt * self.n + choice as usize, update)));
                }
                Poll::Ready(None) => {}
                Poll::Pending => over = false,
            }
        }
        if over { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Counts an update, and turns a failure into an error.
    fn choice_update(&mut self, update: Update) -> Result<ChoiceUpdate, ApiError> {
        match update {
            Update::Token { token, logprobs, .. } => {
                if let Some(waiting) = self.waiting.take() {
                    waiting.over();
                }
                self.record.token();
                Ok(ChoiceUpdate::Token(token, logprobs.map(Box::new)))
            }
            Update::Ended { choice, end, .. } => {
                self.open -= 1;
                let end = match end {
                    Err(RequestError::Timeout) if self.keeps_text => None,
                    // A request is cancelled only when it is dropped, so here the engine has stopped.
                    Ok(End { finish: FinishReason::Cancelled | FinishReason::Error, .. }) => {
                        return Err(self.failed(RequestError::Stopped));
                    }
                    end => Some(Box::new(end.map_err(|error| self.failed(error))?)),
                };
                // The other choices of a request share the prompt of the first.
                self.cached += end.as_ref().filter(|_| choice == 0).map_or(0, |end| end.cached_tokens);
                if let Some(counts) = end.as_ref().and_then(|end| end.predicted) {
                    let all = self.predicted.get_or_insert_default();
                    all.accepted += counts.accepted;
                    all.rejected += counts.rejected;
                }
                if end.is_none() {
                    self.record.end("timeout");
                    if self.open == 0 && self.record.tokens == 0 {
                        return Err(self.failed(RequestError::Timeout));
                    }
                }
                if self.open == 0 {
                    // Count the end before the client can see it.
                    self.record.end("complete");
                }
                Ok(ChoiceUpdate::End(end))
            }
        }
    }

    /// The prompt of a choice, for its first piece.
    fn echo(&mut self, choice: usize) -> Option<Arc<Echo>> {
        let Echoes { prompts, logprobs, echoes, tokenizer } = self.echoes.as_mut()?;
        if std::mem::replace(&mut self.choices[choice].begun, true) {
            return None;
        }
        let prompt = choice / self.n;
        let echo = echoes[prompt].get_or_insert_with(|| {
            let stream = tokenizer.as_ref().map(Tokenizer::stream);
            let scored = self.handles.get(prompt).map(RequestHandle::scored).unwrap_or_default();
            Arc::new(Echo::new(&prompts[prompt], scored, *logprobs, stream))
        });
        Some(Arc::clone(echo))
    }

    fn piece(&mut self, choice: usize, update: ChoiceUpdate) -> Piece {
        let echo = self.echo(choice);
        let state = &mut self.choices[choice];
        state.offset += echo.as_ref().map_or(0, |echo| echo.text.chars().count());
        let (index, offset) = (state.tokens, state.offset);
        let mut piece = match update {
            ChoiceUpdate::Token(token, logprobs) => {
                state.tokens += 1;
                let text = state.text.as_mut().map(|stream| stream.push(token)).unwrap_or_default();
                let token = Some((token, logprobs.map(|logprobs| *logprobs)));
                Piece { choice, index, offset, text, token, echo, finish: None, end_token: None }
            }
            ChoiceUpdate::End(end) => {
                let finish = match end.as_ref().map(|end| end.finish) {
                    None => Finish::Deadline,
                    Some(FinishReason::Length | FinishReason::Context) => Finish::Length,
                    Some(FinishReason::StopString(index)) => Finish::StopString(index),
                    Some(_) => Finish::Stop,
                };
                let (tail, end_token) = end.map(|end| (end.tail, end.end_token)).unwrap_or_default();
                let text = state.text.as_mut().map(|stream| stream.push_bytes(&tail) + &stream.finish());
                let text = text.unwrap_or_default();
                let offset_of_end = offset + text.chars().count();
                let end_token = end_token.and_then(|(id, logprobs)| {
                    Some(EndToken { id, offset: offset_of_end, logprobs: logprobs? })
                });
                Piece { choice, index, offset, text, token: None, echo, finish: Some(finish), end_token }
            }
        };
        state.offset += piece.text.chars().count();
        if let Some(echo) = &piece.echo {
            piece.text.insert_str(0, &echo.text);
        }
        piece
    }

    /// Ends all choices because one has failed.
    fn failed(&mut self, error: RequestError) -> ApiError {
        self.record.end(match &error {
            RequestError::Timeout => "timeout",
            RequestError::SlowReader => "slow_reader",
            RequestError::Constraint { .. } => "format",
            RequestError::Stopped => "stopped",
            _ => "fault",
        });
        self.handles.clear();
        match error {
            // Without any token, the request never had a place: the server was too busy.
            RequestError::Timeout if self.record.tokens == 0 => {
                ApiError::busy("deadline", error, Duration::from_secs(1))
            }
            error => error.into(),
        }
    }
}

/// Counts a request once, when it ends or is dropped.
struct Record {
    metrics: Arc<ServerMetrics>,
    priority: Priority,
    prompt_tokens: usize,
    tokens: usize,
    /// Milliseconds from the request to its first token.
    first_ms: Option<f64>,
    reason: Option<&'static str>,
    caller: Caller,
}

impl Record {
    fn token(&mut self) {
        self.tokens += 1;
        self.first_ms.get_or_insert_with(|| self.caller.millis());
    }

    fn end(&mut self, reason: &'static str) {
        if self.reason.is_none() {
            self.reason = Some(reason);
            self.metrics.ended(self.priority, reason);
            let prompt = self.prompt_tokens;
            let tokens = self.tokens;
            let first_ms = self.first_ms;
            let Caller { id, address, .. } = &self.caller;
            let address = address.map(tracing::field::display);
            let ms = self.caller.millis();
            tracing::info!(
                target: "bitnet::generation",
                id = &**id, address, reason, prompt, tokens, first_ms, ms
            );
        }
    }

    /// Does not count a request that was refused; that is counted elsewhere.
    fn forget(mut self) {
        self.reason = Some("refused");
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.end("cancelled");
    }
}
