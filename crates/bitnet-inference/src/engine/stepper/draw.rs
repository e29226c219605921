//! Draws the tokens of computed runs: takes those that the device has drawn, and draws the others from rows of logits.
//! A run that fails here ends its own sequence and no other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use bitnet_kernels::Drawn;
use bitnet_model::ForwardError;

use super::{Stepper, panic_message};
use crate::request::{Output, RequestError, SampleError};
use crate::sample::{Draw, Sampler};
use crate::schedule::{PlannedRun, RunOutcome, SampledToken, Scheduler, Sequence, StepOutcome, bans, spell};
use crate::thought::ThoughtReader;

/// Maximum number of tokens that a constraint is asked to force at once.
const MAX_FORCED: usize = 64;

impl Stepper<'_> {
    pub(super) fn draw(&mut self, scheduler: &Scheduler, runs: &[PlannedRun], outcome: &mut StepOutcome) {
        let begun = Instant::now();
        let mut row = 0;
        for run in runs {
            let first = outcome.drawn.len();
            let drawn =
                catch_unwind(AssertUnwindSafe(|| self.draw_run(scheduler, run, row, &mut outcome.drawn)));
            outcome.runs.push(match drawn {
                Ok(Ok(forced)) => {
                    if !forced.is_empty() {
                        outcome.forced.push((outcome.runs.len(), forced));
                    }
                    RunOutcome::Done(first..outcome.drawn.len())
                }
                failed => {
                    let error = match failed {
                        Ok(failed) => failed.expect_err("the other case comes first"),
                        Err(panic) => {
                            // The sampler's scratch memory may be inconsistent.
                            self.sampler = Sampler::new(self.model.spec().vocab);
                            RequestError::Panic { message: panic_message(panic.as_ref()) }
                        }
                    };
                    // Without drafts, the tokens before would have been delivered: the next step fails in their place.
                    if outcome.drawn.len() > first {
                        RunOutcome::Done(first..outcome.drawn.len())
                    } else {
                        self.failed(error)
                    }
                }
            });
            row += run.rows;
        }
        self.times.sample += begun.elapsed();
    }

    /// Draws the token after a run's last one, and the next one as long as the drawn token equals the draft. Drafts that
    /// a constraint forces are drawn without a row. Returns the tokens that it forces after those drawn.
    fn draw_run(
        &mut self,
        scheduler: &Scheduler,
        run: &PlannedRun,
        row: usize,
        drawn: &mut Vec<SampledToken>,
    ) -> Result<Vec<u32>, RequestError> {
        let s = scheduler.sequence(run);
        if run.rows > 0 && !s.draws {
            let wanted = match s.request.output {
                Output::Hidden => self.hidden(row)?,
                Output::MeanHidden => {
                    for i in 0..run.rows {
                        let state = self.hidden(row + i)?.to_vec();
                        self.pooled.push((s.id.request, run.start + i, state));
                    }
                    return Ok(Vec::new());
                }
                _ => self.logits.row(row),
            }
            .to_vec();
            self.wanted_logits.push((s.id, wanted));
            return Ok(Vec::new());
        }
        let end = run.start + run.len;
        let first = if s.scores() { self.score(s, run, row)? } else { 0 };
        if s.tokens.len() >= s.end {
            // Only the scores are needed.
            return Ok(Vec::new());
        }
        let (before, confirmed) = (drawn.len(), s.confirmed());
        let certain = if run.drafts > 0 { 1 + run.drafts - run.rows } else { 0 };
        // With drafts or a constraint, the reader of the thought has to follow the drawn tokens.
        let constrained = s.request.constraint.is_some();
        let mut ahead = s.thought.clone().filter(|_| certain > 0 || run.rows > first + 1 || constrained);
        let place = |ahead: &mut Option<ThoughtReader>, token: u32, spelled: &mut Vec<u8>| {
            if let Some(thought) = ahead {
                thought.place(token, spell(scheduler.config().text.as_deref(), token, spelled));
            }
        };
        for &token in &s.tokens[confirmed..confirmed + certain] {
            drawn.push(token.into());
            place(&mut ahead, token, &mut self.spelled);
        }
        for i in first..run.rows {
            let tokens = &s.tokens[..end + 1 + i - run.rows];
            let thought = ahead.as_ref().or(s.thought.as_ref());
            let ending = thought.and_then(ThoughtReader::forced);
            let forced = ending.or_else(|| s.forced.get(tokens.len() - confirmed).copied());
            let mut next = match (forced, self.logits.drawn(row + i)) {
                (Some(token), _) => self.with_logprobs(s, token, row + i)?,
                (None, Some(token)) => {
                    self.draws.device += 1;
                    token_of(token)?.into()
                }
                (None, None) => {
                    self.draws.host += 1;
                    self.draw_on_host(scheduler, s, tokens, row + i)?
                }
            };
            if let Some(closing) = thought.and_then(|thought| thought.closed_before(next.token)) {
                next = self.with_logprobs(s, closing[0], row + i)?;
                next.closing.clone_from(&closing);
                ahead.as_mut().into_iter().for_each(|ahead| ahead.close_with(closing.clone()));
            }
            let token = next.token;
            drawn.push(next);
            place(&mut ahead, token, &mut self.spelled);
            if s.tokens.get(tokens.len()) != Some(&token) {
                break;
            }
        }
        let answers = ahead.as_ref().is_none_or(|thought| !thought.thinks() && thought.forced().is_none());
        if !constrained || run.rows == 0 || !answers {
            return Ok(Vec::new());
        }
        Ok(self.forced_after(scheduler, s, &drawn[before..]))
    }

    /// The tokens that the constraint of a sequence forces after those drawn, up to an end token or the maximum length.
    fn forced_after(&mut self, scheduler: &Scheduler, s: &Sequence, drawn: &[SampledToken]) -> Vec<u32> {
        let mut forced = Vec::new();
        let ends = |token: &u32| scheduler.ends(s, *token);
        let Some(constraint) = &s.request.constraint else { return forced };
        if drawn.iter().any(|drawn| ends(&drawn.token)) {
            return forced;
        }
        self.generated.clear();
        self.generated.extend(s.generated().iter().copied().chain(drawn.iter().map(|drawn| drawn.token)));
        while forced.len() < MAX_FORCED && s.prompt_len() + self.generated.len() < s.end {
            let next = constraint.forced(s.id.choice, &self.generated).filter(|token| !ends(token));
            let Some(token) = next.filter(|&token| (token as usize) < self.model.spec().vocab) else { break };
            forced.push(token);
            self.generated.push(token);
        }
        forced
    }

    /// The hidden state of a row, whose values are all finite.
    fn hidden(&self, row: usize) -> Result<&[f32], RequestError> {
        let hidden = self.logits.hidden(row).ok_or(ForwardError::NoHiddenState)?;
        match hidden.iter().position(|value| !value.is_finite()) {
            Some(index) => Err(RequestError::NotFinite { index }),
            None => Ok(hidden),
        }
    }

    /// Computes the log-probability of each prompt token that follows one of a run. Returns the first row to draw from.
    fn score(&mut self, s: &Sequence, run: &PlannedRun, row: usize) -> Result<usize, RequestError> {
        let prompt = &s.request.prompt;
        let top = s.request.config.logprobs.unwrap_or(0);
        for (i, position) in (run.start..run.start + run.len).enumerate() {
            if let Some(&next) = prompt.get(position + 1) {
                let logprobs = self.sampler.logprobs(self.logits.row(row + i), next, top)?;
                self.scored.push((s.id.request, position, logprobs));
            }
        }
        // Nothing is drawn within the prompt.
        Ok(run.rows - usize::from(run.start + run.len == s.tokens.len()))
    }

    /// Draws the token after `tokens` of a sequence, from a row of logits on the host.
    fn draw_on_host(
        &mut self,
        scheduler: &Scheduler,
        s: &Sequence,
        tokens: &[u32],
        row: usize,
    ) -> Result<SampledToken, RequestError> {
        let config = &s.request.config;
        self.ban(scheduler, s, tokens.len());
        let constraint = s.request.constraint.as_ref();
        if let Some(constraint) = constraint {
            self.allowed.clear();
            match self.batch.mask(row, self.model.spec().vocab) {
                Some(mask) => self.allowed.insert_words(mask),
                None => constraint.allow(s.id.choice, &tokens[s.prompt_len()..], &mut self.allowed)?,
            }
        }
        let at = Draw {
            config,
            tokens,
            prompt_len: s.prompt_len(),
            banned: &self.banned,
            allowed: constraint.map(|_| &self.allowed),
            seed: s.seed,
            choice: s.id.choice,
        };
        let token = self.sampler.draw(self.logits.row(row), &at)?;
        self.with_logprobs(s, token, row)
    }

    /// Lists the [`bans`] after the first `len` tokens of a sequence.
    pub(super) fn ban(&mut self, scheduler: &Scheduler, s: &Sequence, len: usize) {
        self.banned.clear();
        self.banned.extend(bans(s, len, scheduler.eos()));
    }

    /// A token with its log-probabilities in a row of logits, if the request wants them.
    fn with_logprobs(&mut self, s: &Sequence, token: u32, row: usize) -> Result<SampledToken, RequestError> {
        let logprobs = match s.request.config.logprobs {
            Some(top) => Some(self.sampler.logprobs(self.logits.row(row), token, top)?),
            None => None,
        };
        Ok(SampledToken { token, logprobs, closing: Vec::new() })
    }
}

/// The token that a device drew.
fn token_of(drawn: Drawn) -> Result<u32, SampleError> {
    match drawn {
        Drawn::Token(token) => Ok(token),
        Drawn::NotANumber(token) => Err(SampleError::NotANumber { token }),
        Drawn::NothingAllowed => Err(SampleError::NothingAllowed),
    }
}
