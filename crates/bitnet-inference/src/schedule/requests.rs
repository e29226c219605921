//! What happens to whole requests: they arrive, are cancelled, pause, resume, and run out of time.

use std::collections::VecDeque;
use std::sync::Arc;

use super::commit::spell;
use super::needed_logits;
use super::prediction::Prediction;
use super::sequence::{SeqId, Sequence};
use super::{Scheduler, seq, seq_mut};
use crate::request::{FinishReason, Output, Request, RequestError};
use crate::sample::StopMatcher;
use crate::thought::ThoughtReader;

impl Scheduler {
    /// Adds a validated request; each of its choices becomes a sequence.
    pub fn submit(&mut self, now: u64, id: u64, request: Arc<Request>, seed: u64) {
        let deadline =
            request.timeout.map(|t| now.saturating_add(t.as_micros().try_into().unwrap_or(u64::MAX)));
        self.due = self.due.min(deadline.unwrap_or(u64::MAX));
        // The first token of a prompt has no log-probability.
        let to_score = match request.output {
            Output::Scored => request.prompt.len() - 1,
            Output::MeanHidden => request.prompt.len(),
            _ => 0,
        };
        let thought = self.thought(&request);
        for choice in 0..request.config.n as u32 {
            let given = request.prompt.len() - request.generated;
            let wanted = given.saturating_add(request.config.max_new_tokens);
            let end = wanted.min(self.config.context);
            let sequence = Sequence {
                id: SeqId { request: id, choice },
                matcher: StopMatcher::new(&request.config.stop_strings),
                tokens: Vec::new(),
                table: Vec::new(),
                windows: Vec::new(),
                passed: 0,
                chains: Vec::new(),
                state: None,
                logged: 0,
                branch: 0,
                cached: None,
                suspect: 0,
                losses: 0,
                wanted: needed_logits::once_it_may_end(&request, seed, choice),
                may_end: given.saturating_add(request.config.min_new_tokens),
                draws: request.output.draws(),
                ends_at_eos: !request.config.ignore_eos,
                stops: !(request.config.stop_tokens.is_empty() && request.config.stop_strings.is_empty()),
                request: Arc::clone(&request),
                seed,
                drafted: 0,
                computed: 0,
                scored: 0,
                to_score: if choice == 0 { to_score } else { 0 },
                end,
                end_is_context: end < wanted,
                rank: self.next_rank,
                arrived: now,
                deadline,
                since: now,
                paused: None,
                aged: false,
                fetch: Default::default(),
                admitted: false,
                bypassed: 0,
                follows: choice > 0,
                running: false,
                held_logprobs: VecDeque::new(),
                end_token: None,
                thought: thought.clone(),
                rates: Default::default(),
                forced: Vec::new(),
                prediction: prediction(&request),
            };
            self.next_rank += 1;
            let full = request.output == Output::Tokens && request.prompt.len() >= end;
            let slot = self.insert(sequence);
            if full {
                self.end(slot, Ok(FinishReason::Length));
            }
        }
    }

    /// A reader of the request's thought that has read the tokens that count as generated.
    fn thought(&mut self, request: &Request) -> Option<ThoughtReader> {
        let mut reader = request.thought.as_ref()?.reader();
        for &token in &request.prompt[request.prompt.len() - request.generated..] {
            reader.place(token, spell(self.config.text.as_deref(), token, &mut self.spelled));
        }
        Some(reader)
    }

    /// Ends all choices of a request.
    pub fn cancel(&mut self, request: u64) {
        self.end_where(|s| s.id.request == request, Ok(FinishReason::Cancelled));
    }

    /// Ends all sequences with `error`.
    pub fn abort(&mut self, error: RequestError) {
        self.end_where(|_| true, Err(error));
    }

    /// Pauses a request that is not read. Its choices give up their places but keep their blocks and states until
    /// others need them.
    pub fn pause(&mut self, now: u64, request: u64) {
        self.pause_until(now.saturating_add(self.config.slow_reader), request);
    }

    /// Like [`Scheduler::pause`], without a limit on the time: until [`Scheduler::resume`].
    pub fn hold(&mut self, request: u64) {
        self.pause_until(u64::MAX, request);
    }

    fn pause_until(&mut self, fails: u64, request: u64) {
        self.due = self.due.min(fails);
        for slot in self.slots_of(request) {
            let s = seq_mut(&mut self.slots, slot);
            if s.paused.is_none() || fails == u64::MAX {
                s.paused = Some(fails);
            }
            if std::mem::take(&mut s.running) {
                let idle = s.table.is_empty();
                self.running.retain(|&other| other != slot);
                self.enqueue(slot);
                if idle {
                    self.release(slot);
                }
            }
        }
    }

    /// Resumes a paused request: those of its choices that had a place wait for one at their own rank.
    pub fn resume(&mut self, now: u64, request: u64) {
        for slot in self.slots_of(request) {
            let s = seq_mut(&mut self.slots, slot);
            if s.paused.take().is_some() && s.admitted {
                (s.since, s.aged) = (now, false);
                self.waiting.retain(|&other| other != slot);
                self.enqueue(slot);
            }
        }
    }

    fn slots_of(&self, request: u64) -> Vec<u32> {
        let of = |(slot, s): (u32, &Option<Sequence>)| {
            s.as_ref().is_some_and(|s| s.id.request == request).then_some(slot)
        };
        (0..).zip(&self.slots).filter_map(of).collect()
    }

    /// Ends sequences that have run out of time, and moves up those that have waited as long as their priority allows.
    pub fn tick(&mut self, now: u64) {
        if self.due <= now {
            self.end_where(|s| s.deadline.is_some_and(|d| d <= now), Err(RequestError::Timeout));
            self.end_where(|s| s.paused.is_some_and(|fails| fails <= now), Err(RequestError::SlowReader));
            self.due = self.next_deadline().unwrap_or(u64::MAX);
        }
        let mut moved = false;
        for &slot in &self.waiting {
            let s = seq_mut(&mut self.slots, slot);
            let aged =
                s.paused.is_none() && now.saturating_sub(s.since) >= self.pace.patience(s.request.priority);
            moved |= aged && !s.aged;
            s.aged |= aged;
        }
        if moved {
            let slots = &self.slots;
            self.waiting.sort_by_key(|&slot| seq(slots, slot).admission_key());
        }
    }

    /// The earliest time at which [`Scheduler::tick`] has something to end.
    pub fn next_deadline(&self) -> Option<u64> {
        let times = self.slots.iter().flatten().flat_map(|s| s.deadline.into_iter().chain(s.paused));
        times.min().filter(|&at| at != u64::MAX)
    }
}

/// Where the tokens that count as generated are in the request's prediction, if it has one.
fn prediction(request: &Request) -> Option<Prediction> {
    let mut prediction = (!request.prediction.is_empty()).then(Prediction::new)?;
    let generated = &request.prompt[request.prompt.len() - request.generated..];
    (1..=generated.len()).for_each(|end| prediction.follow(&request.prediction, &generated[..end]));
    Some(prediction)
}
