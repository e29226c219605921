//! Continues one prompt with a borrowed model, on the calling thread.
//! The steps are the engine's own; only the thread and the queue are missing.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bitnet_model::Model;
use crossbeam_channel::{Receiver, bounded};

use super::config::{EngineConfig, StartError};
use super::drafter::Drafter;
use super::step::{Reader, StepLoop};
use super::stepper::Stepper;
use crate::request::{
    End, FinishReason, GenerationConfig, InvalidRequest, Request, RequestError, SubmitError,
};
use crate::sample::fresh_seed;
use crate::schedule::{BatchSizing, Event, Scheduler, SchedulerConfig, SchedulerCounts, WindowCache};

/// The result of [`generate`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The new tokens, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Bytes before a stop string that belong to no returned token.
    pub tail: Vec<u8>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Time from the start to the first drawn token, even if it did not become part of the text.
    pub first_token: Option<Duration>,
    /// Number of drawn tokens, including the one that ended the text.
    pub drawn: usize,
    /// Number of tokens of thoughts, markers included.
    pub thought_tokens: usize,
    /// Number of prompt tokens that a folder held, so that they were not computed.
    pub cached_tokens: usize,
    /// Time from the first drawn token to the last; `None` if fewer than two were drawn.
    pub decode: Option<Duration>,
    /// Number of drafted tokens.
    pub drafted: u64,
    /// Number of drafted tokens that the sampler then drew.
    pub accepted: u64,
}

/// Why a request has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerationError {
    /// The request was refused.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The request failed after it was accepted.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The cache cannot be kept as configured.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<InvalidRequest> for GenerationError {
    fn from(error: InvalidRequest) -> Self {
        GenerationError::Submit(error.into())
    }
}

/// Runs a request for one choice with a borrowed model on the calling thread, with the engine's scheduler and steps but not
/// its thread. Of `engine`, only `eos`, `text`, `max_draft`, `folder` and `host_cache` apply. `on_token` is called with each
/// token as soon as it is final, and can end the text; later tokens are dropped.
pub fn generate(
    model: &mut dyn Model,
    request: Request,
    engine: &EngineConfig,
    on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, GenerationError> {
    generate_drafting(model, None, request, engine, on_token)
}

/// As [`generate`], with a drafter.
pub fn generate_drafting(
    model: &mut dyn Model,
    drafter: Option<Box<dyn Drafter>>,
    request: Request,
    engine: &EngineConfig,
    on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, GenerationError> {
    let limits = SchedulerConfig {
        max_running: 1,
        sizing: BatchSizing::Fixed(1),
        slow_reader: u64::MAX,
        ..engine.scheduler(model)
    };
    let config = GenerationConfig { n: 1, ..request.config };
    let request = Request { config, ..request };
    request.validate(model.spec().vocab, limits.context, engine.text.is_some())?;
    let seed = request.config.seed.unwrap_or_else(fresh_seed);
    let scheduler = Scheduler::new(limits).with_windows(WindowCache::of(model));
    let steps = StepLoop::new(scheduler, Stepper::borrowing(model)).drafting(drafter.map(|d| d as _));
    let mut steps = steps.with_logs().map_err(RequestError::Forward)?;
    let (wake, woken) = bounded(1);
    let wake = move || {
        let _ = wake.try_send(());
    };
    steps.keep_cache(engine, Arc::new(wake))?;
    let mut text =
        Text { on_token, tokens: Vec::new(), stopped: false, end: None, drawn: 0, first: None, last: None };
    steps.scheduler.submit(0, 0, Arc::new(request), seed);
    text.deliver(&mut steps.scheduler, &mut steps.stepper);
    while text.end.is_none() {
        let goes_on = steps.step(&mut text) || wait_for_tier(&steps, &woken);
        assert!(goes_on, "a lone sequence has a step to run, or waits for its cache");
    }
    steps.drain_tier(Instant::now());
    let Text { tokens, stopped, end, drawn, first, last, .. } = text;
    let cancelled = End {
        finish: FinishReason::Cancelled,
        tail: Vec::new(),
        end_token: None,
        thought_tokens: 0,
        cached_tokens: 0,
        predicted: None,
    };
    let end = if stopped { cancelled } else { end.expect("the loop ends with the text")? };
    let SchedulerCounts { drafted, accepted, .. } = steps.scheduler.counts();
    Ok(Generated {
        tokens,
        finish: end.finish,
        tail: end.tail,
        seed,
        first_token: first.map(|first| first - steps.start()),
        drawn,
        thought_tokens: end.thought_tokens,
        cached_tokens: end.cached_tokens,
        decode: first.zip(last).filter(|_| drawn > 1).map(|(first, last)| last - first),
        drafted,
        accepted,
    })
}

/// Waits until the tier below memory can go on; returns false if it has nothing to wait for.
fn wait_for_tier(steps: &StepLoop<'_>, woken: &Receiver<()>) -> bool {
    let Some(tier) = &steps.tier else { return false };
    let deadline = tier.deadline().filter(|_| !tier.is_busy());
    if let Some(at) = deadline {
        let _ = woken.recv_timeout(Duration::from_micros(at.saturating_sub(steps.now())));
    }
    tier.is_busy() || deadline.is_some()
}

/// The text so far, and when its tokens were drawn.
struct Text<F> {
    on_token: F,
    tokens: Vec<u32>,
    /// Whether the caller has ended the text.
    stopped: bool,
    end: Option<Result<End, RequestError>>,
    /// Number of drawn tokens.
    drawn: usize,
    /// When the first and the last token were drawn.
    first: Option<Instant>,
    last: Option<Instant>,
}

impl<F: FnMut(u32) -> ControlFlow<()>> Reader for Text<F> {
    fn committed(&mut self, steps: &StepLoop<'_>) {
        if steps.drawn() > 0 {
            self.drawn += steps.drawn();
            self.last = Some(Instant::now());
            self.first = self.first.or(self.last);
        }
    }

    fn deliver(&mut self, scheduler: &mut Scheduler, _: &mut Stepper<'_>) {
        while let Some(event) = scheduler.next_event() {
            match event {
                Event::Admitted(..) => {}
                // The step at which the caller stopped the text may have drawn or released more tokens.
                Event::Token(..) if self.stopped => {}
                Event::Token(_, token, _) => {
                    self.tokens.push(token);
                    if (self.on_token)(token).is_break() {
                        self.stopped = true;
                        scheduler.cancel(0);
                    }
                }
                Event::Ended(_, end) => self.end = Some(end),
            }
        }
    }
}
