//! Draws the tokens of computed runs: takes those that the device has drawn, and draws the others from rows of logits.
//! A run that fails here ends its own sequence and no other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use bitnet_kernels::Drawn;
use bitnet_model::ForwardError;

use super::{Stepper, panic_message};
use crate::request::{Output, RequestError, SampleError};
use crate::sample::{Draw, Sampler};
use crate::schedule::{PlannedRun, RunOutcome, SampledToken, Scheduler, Sequence, StepOutcome, spell};
use crate::thought::ThoughtReader;

impl Stepper<'_> {
    pub(super) fn draw(&mut self, scheduler: &Scheduler, runs: &[PlannedRun], outcome: &mut StepOutcome) {
        let begun = Instant::now();
        let mut row = 0;
        for run in runs {
            let first = outcome.drawn.len();
            let drawn =
                catch_unwind(AssertUnwindSafe(|| self.draw_run(scheduler, run, row, &mut outcome.drawn)));
            outcome.runs.push(match drawn {
                Ok(Ok(())) => RunOutcome::Done(first..outcome.drawn.len()),
                Ok(Err(error)) => self.failed(error),
                Err(panic) => {
                    // The sampler's scratch memory may be inconsistent.
                    self.sampler = Sampler::new(self.model.spec().vocab);
                    self.failed(RequestError::Panic { message: panic_message(panic.as_ref()) })
                }
            });
            row += run.rows;
        }
        self.times.sample += begun.elapsed();
    }

    /// Draws the token after a run's last one, and the next one as long as the drawn token equals the draft.
    fn draw_run(
        &mut self,
        scheduler: &Scheduler,
        run: &PlannedRun,
        row: usize,
        drawn: &mut Vec<SampledToken>,
    ) -> Result<(), RequestError> {
        let s = scheduler.sequence(run);
        if run.rows > 0 && !s.draws {
            let wanted = match s.request.output {
                Output::Hidden => self.hidden(row)?,
                Output::MeanHidden => {
                    for i in 0..run.rows {
                        let state = self.hidden(row + i)?.to_vec();
                        self.pooled.push((s.id.request, run.start + i, state));
                    }
                    return Ok(());
                }
                _ => self.logits.row(row),
            }
            .to_vec();
            self.wanted_logits.push((s.id, wanted));
            return Ok(());
        }
        let end = run.start + run.len;
        let first = if s.scores() { self.score(s, run, row)? } else { 0 };
        if s.tokens.len() >= s.end {
            // Only the scores are needed.
            return Ok(());
        }
        // With drafts, the reader of the thought has to follow the drawn tokens.
        let mut ahead = s.thought.clone().filter(|_| run.rows > first + 1);
        for i in first..run.rows {
            let tokens = &s.tokens[..end + 1 + i - run.rows];
            let thought = ahead.as_ref().or(s.thought.as_ref());
            let forced = thought.and_then(ThoughtReader::forced);
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
            if s.tokens.get(tokens.len()) != Some(&token) {
                break;
            }
            if let Some(thought) = &mut ahead {
                thought.place(token, spell(scheduler.config().text.as_deref(), token, &mut self.spelled));
            }
        }
        Ok(())
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
        self.banned.clear();
        if tokens.len() - s.prompt_len() < config.min_new_tokens {
            let eos = if config.ignore_eos { &[] } else { scheduler.eos() };
            self.banned.extend(eos.iter().chain(&config.stop_tokens));
        }
        let constraint = s.request.constraint.as_ref();
        if let Some(constraint) = constraint {
            self.allowed.clear();
            constraint.allow(s.id.choice, &tokens[s.prompt_len()..], &mut self.allowed)?;
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
