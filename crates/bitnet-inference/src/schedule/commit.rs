//! Applies what a step computed to its sequences: new tokens, ends, and what the prefix cache keeps.
//! Failed runs end their sequence or send it back to the queue.

use std::ops::Range;

use super::blocks::Chain;
use super::draft::Source;
use super::event::Event;
use super::plan::{BLOCK, Plan, PlannedRun};
use super::{Scheduler, SchedulerConfig, report_released, seq, seq_mut};
use crate::request::{FinishReason, RequestError, SampleError, TokenLogprobs};
use crate::sample::{Scan, StopMatcher, TokenText};
use crate::thought::Place;

/// A token that the sampler drew.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub token: u32,
    /// Its log-probabilities, if requested.
    pub logprobs: Option<TokenLogprobs>,
    /// The tokens that close a thought before a call, if this is the first of them; the others are written next.
    pub closing: Vec<u32>,
}

impl From<u32> for SampledToken {
    fn from(token: u32) -> Self {
        SampledToken { token, ..SampledToken::default() }
    }
}

/// The outcome of a planned run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunOutcome {
    /// The run was computed, and these tokens were drawn, in order: one, and one more for each accepted draft.
    Done(Range<usize>),
    /// The run failed, and so does its sequence.
    Failed(RequestError),
    /// The run failed and left the recurrent state of its sequence undefined. The sequence is computed again, from a
    /// snapshot or from its start.
    RolledBack,
}

/// The outcome of a plan.
#[derive(Debug, Clone, Default)]
pub struct StepOutcome {
    /// The outcome of each of the plan's runs, in order.
    pub runs: Vec<RunOutcome>,
    /// All tokens drawn in the step.
    pub drawn: Vec<SampledToken>,
    /// The only tokens that a constraint allows after those drawn for a run, which is given by its index.
    pub forced: Vec<(usize, Vec<u32>)>,
    /// State slots whose copy failed, other than those of the plan's runs.
    pub failed_copies: Vec<u32>,
    /// Time of the step in microseconds.
    pub micros: u64,
    /// Whether a device was given work for the first or second time, which takes it longer than when it comes again.
    pub unrecorded: bool,
}

impl Scheduler {
    /// Applies the results of a step. The scheduler must not be changed between [`Scheduler::plan`] and this.
    pub fn commit(&mut self, now: u64, plan: &Plan, outcome: &mut StepOutcome) {
        assert_eq!(plan.runs.len(), outcome.runs.len(), "every planned run has an outcome");
        outcome.failed_copies.drain(..).for_each(|state| self.drop_failed_copy(state));
        for (run, result) in plan.runs.iter().zip(outcome.runs.drain(..)) {
            match result {
                RunOutcome::Done(drawn) => self.advance(run, &mut outcome.drawn[drawn]),
                RunOutcome::Failed(error) => {
                    if matches!(error, RequestError::Sample(SampleError::NotANumber { .. })) {
                        self.unpublish(run.slot);
                    }
                    self.end(run.slot, Err(error));
                }
                RunOutcome::RolledBack => self.roll_back(run),
            }
        }
        outcome.drawn.clear();
        for (run, forced) in outcome.forced.drain(..) {
            let PlannedRun { slot, id, .. } = plan.runs[run];
            if let Some(s) = self.slots[slot as usize].as_mut().filter(|s| s.id == id) {
                s.forced = forced;
            }
        }
        // Paused sequences wait for their readers, not for a place.
        let wait = self.waiting.iter().map(|&slot| seq(&self.slots, slot)).filter(|s| s.paused.is_none());
        let (waiting, oldest) = wait.fold((0, now), |(n, oldest), s| (n + 1, oldest.min(s.since)));
        // Prompts are hardly ever recorded.
        if !outcome.unrecorded || plan.load.prefill > 0 {
            self.pace.after_step(plan.load, outcome.micros, waiting, now - oldest);
        }
    }

    /// Drops a snapshot that was not copied, or recomputes the sequence whose state it was to become.
    pub(crate) fn drop_failed_copy(&mut self, state: u32) {
        let owner = self.running.iter().find(|&&slot| seq(&self.slots, slot).state == Some(state));
        match owner.copied() {
            Some(slot) if seq(&self.slots, slot).computed > 0 => self.preempt(slot),
            _ => self.states.drop_slot(state),
        }
    }

    /// Sends a sequence whose state is lost back to the queue. Until it gets past the tokens of this run, it is
    /// computed alone, in separate passes. So a sequence at fault is found and cannot make others fail again.
    fn roll_back(&mut self, run: &PlannedRun) {
        let s = seq_mut(&mut self.slots, run.slot);
        s.losses += 1;
        s.suspect = s.suspect.max(run.start + run.len - run.drafts);
        self.preempt(run.slot);
    }

    /// Applies a computed run to its sequence.
    fn advance(&mut self, run: &PlannedRun, drawn: &mut [SampledToken]) {
        let in_log = self.log(run).drafts;
        let s = seq_mut(&mut self.slots, run.slot);
        s.computed = run.start + run.len - run.drafts;
        s.logged = 0;
        s.tokens.truncate(s.confirmed());
        s.drafted = 0;
        if s.computed >= s.suspect {
            (s.suspect, s.losses) = (0, 0);
        }
        if s.scores() {
            s.scored = s.scored.max(s.computed.min(s.to_score));
        }
        if s.pending() > 0 {
            self.counts.split_prompts += u64::from(run.start == 0);
            let computed = s.computed;
            self.publish(run.slot);
            self.save_state(run.slot, computed);
            return;
        }
        if !s.draws || s.tokens.len() >= s.end {
            let computed = s.computed;
            self.publish(run.slot);
            self.save_state(run.slot, computed);
            self.end(run.slot, Ok(FinishReason::Length));
            return;
        }
        // Each drawn token before the last was drafted correctly, so it is already in the cache.
        let accepted = drawn.len() - 1;
        s.computed += accepted;
        s.logged = if in_log > 0 { accepted } else { 0 };
        // The state stops before drafts that are in its log.
        let state_at = s.computed - s.logged;
        s.forced.clear();
        let source = run.source as usize;
        self.counts.sources[source][1] += accepted as u64;
        if run.drafts > 0 && run.source != Source::Forced {
            self.counts.accepted += accepted as u64;
            self.counts.drafted_runs += 1;
            (0..accepted).for_each(|at| self.counts.accepted_at[at.min(3)] += 1);
            s.rates[source].learn(run.drafts, accepted);
            self.rates[source].learn_of_any(run.drafts, accepted);
        }
        let mut finish = None;
        for drawn in drawn {
            finish = self.append(run.slot, drawn);
            if finish.is_some() {
                break;
            }
        }
        let s = seq_mut(&mut self.slots, run.slot);
        s.computed = s.computed.min(s.tokens.len());
        let exact = state_at <= s.computed;
        self.publish(run.slot);
        // A text that ends at a draft is shorter than what its state has seen.
        if exact {
            self.save_state(run.slot, state_at);
        }
        if let Some(finish) = finish {
            self.end(run.slot, Ok(finish));
        }
    }

    /// Appends a drawn token, unless it ends the text.
    fn append(&mut self, slot: u32, drawn: &mut SampledToken) -> Option<FinishReason> {
        let Scheduler { slots, config: SchedulerConfig { eos, text, .. }, events, released, spelled, .. } =
            self;
        let s = seq_mut(slots, slot);
        let config = &s.request.config;
        let token = drawn.token;
        let mut finish = None;
        if s.ends_at_eos && eos.contains(&token) {
            finish = Some(FinishReason::Eos);
        } else if s.stops && config.stop_tokens.contains(&token) {
            finish = Some(FinishReason::StopToken(token));
        }
        if finish.is_some() {
            s.end_token = Some((token, drawn.logprobs.take()));
        } else {
            let place = match &mut s.thought {
                Some(thought) => {
                    if !drawn.closing.is_empty() {
                        thought.close_with(std::mem::take(&mut drawn.closing));
                    }
                    thought.place(token, spell(text.as_deref(), token, spelled))
                }
                None => Place::Answer { before: 0 },
            };
            let watched = s.stops && !config.stop_strings.is_empty() && s.tokens.len() >= s.may_end;
            match text.as_deref().filter(|_| watched) {
                Some(text) => {
                    s.held_logprobs.extend(drawn.logprobs.take());
                    if let Scan::Stop(index) = watch(&mut s.matcher, place, token, text, released) {
                        finish = Some(FinishReason::StopString(index));
                    }
                }
                None => events.push_back(Event::Token(s.id, token, drawn.logprobs.take())),
            }
            report_released(events, released, s);
            s.tokens.push(token);
            if let Some(prediction) = &mut s.prediction {
                let generated = &s.tokens[s.request.prompt.len() - s.request.generated..];
                prediction.follow(&s.request.prediction, generated);
            }
            if finish.is_none() && s.tokens.len() >= s.end {
                finish = Some(if s.end_is_context { FinishReason::Context } else { FinishReason::Length });
            }
        }
        finish
    }

    /// Drops everything this sequence cached: one of its blocks may hold the NaN that failed it.
    fn unpublish(&mut self, slot: u32) {
        self.suspect_parts(slot);
        let s = seq(&self.slots, slot);
        s.table.iter().for_each(|&block| self.pool.unpublish(block));
        s.windows[s.passed..].iter().for_each(|&block| self.windows.unpublish(block));
        s.chains.iter().for_each(|&chain| self.states.drop_saved(chain));
        if self.window.is_some() {
            let befores = std::iter::once(Chain::Root(s.request.salt)).chain(s.chains.iter().copied());
            for (before, tokens) in befores.zip(s.tokens.chunks_exact(BLOCK)) {
                let found = self.windows.find(before, tokens);
                found.into_iter().for_each(|(block, _)| self.windows.unpublish(block));
            }
        }
    }

    /// Takes a snapshot of a sequence's state, which is that after `len` tokens, if these fill whole blocks: always where
    /// a snapshot is planned, elsewhere only if the other running sequences can keep one too. An unplanned snapshot
    /// replaces the previous unplanned one, so the latest is near the end of the text.
    fn save_state(&mut self, slot: u32, len: usize) {
        if !len.is_multiple_of(BLOCK) || !self.takes_snapshots() {
            return;
        }
        let s = seq(&self.slots, slot);
        let chain = |back: usize| (len / BLOCK).checked_sub(back).and_then(|at| s.chains.get(at)).copied();
        let (Some(state), Some(after)) = (s.state, chain(1)) else { return };
        let planned = len == s.branch || len == s.boundary();
        if planned || self.states.available() > self.running.len() {
            let before = chain(2);
            self.states.save(state, after, before, !planned);
        }
    }

    /// Publishes the full, computed blocks of a sequence in the prefix cache, and gives back those that no later token
    /// reads.
    fn publish(&mut self, slot: u32) {
        let s = seq_mut(&mut self.slots, slot);
        for i in s.chains.len()..s.computed / BLOCK {
            let chain = s.chains.last().copied().unwrap_or(Chain::Root(s.request.salt));
            let tokens = &s.tokens[i * BLOCK..][..BLOCK];
            s.chains.push(self.pool.publish(s.table[i], chain, tokens));
            if let Some(&block) = s.windows.get(i) {
                self.windows.publish(block, chain, tokens);
            }
        }
        self.pass(slot);
    }
}

/// Looks for stop strings in a new token. They apply to the answer only: a token of the thought releases all tokens.
fn watch(
    matcher: &mut StopMatcher,
    place: Place,
    token: u32,
    text: &dyn TokenText,
    released: &mut Vec<u32>,
) -> Scan {
    match place {
        Place::Answer { before } => return matcher.push_after(before, token, text, released),
        Place::Undecided => matcher.hold(token, text),
        Place::Thought => {
            matcher.flush(released);
            released.push(token);
        }
    }
    Scan::Open
}

/// The bytes of a token, in reused memory; none if the engine does not know them.
pub(crate) fn spell<'a>(text: Option<&dyn TokenText>, token: u32, spelled: &'a mut Vec<u8>) -> &'a [u8] {
    spelled.clear();
    text.into_iter().for_each(|text| text.append_bytes(token, spelled));
    spelled
}
