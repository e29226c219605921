//! Continues one prompt with a borrowed model, on the calling thread.
//! The steps are the engine's own; only the thread and the queue are missing.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bitnet_model::{Batch, Model};

use super::config::EngineConfig;
use super::stepper::Stepper;
use crate::request::{End, FinishReason, GenerationConfig, GenerationError, Request};
use crate::sample::fresh_seed;
use crate::schedule::{BatchSizing, Event, Plan, Scheduler, SchedulerConfig, SchedulerCounts, StepOutcome};

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
    /// Time from the first drawn token to the last; `None` if fewer than two were drawn.
    pub decode: Option<Duration>,
    /// Number of drafted tokens.
    pub drafted: u64,
    /// Number of drafted tokens that the sampler then drew.
    pub accepted: u64,
}

/// Continues a prompt with a borrowed model on the calling thread, with the engine's scheduler and steps but not its
/// thread. Of `engine`, only `eos`, `text` and `max_draft` apply. `on_token` is called with each token as soon as it is
/// final, and can end the text; later tokens are dropped.
pub fn generate(
    model: &mut dyn Model,
    prompt: &[u32],
    config: &GenerationConfig,
    engine: &EngineConfig,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, GenerationError> {
    let mut clock = Clock::start();
    let context = model.spec().context.min(model.limits().kv_blocks * Batch::BLOCK_TOKENS);
    let request = Request::new(prompt, GenerationConfig { n: 1, ..config.clone() });
    request.validate(model.spec().vocab, context, engine.text.is_some())?;
    let seed = config.seed.unwrap_or_else(fresh_seed);
    let mut scheduler = Scheduler::new(for_one(model, context, engine));
    let mut stepper = Stepper::new(Box::new(model));
    let (mut plan, mut outcome) = (Plan::default(), StepOutcome::default());
    let (mut tokens, mut stopped) = (Vec::new(), false);
    scheduler.submit(0, 0, Arc::new(request), seed);
    loop {
        while let Some(event) = scheduler.next_event() {
            match event {
                Event::Admitted(..) => {}
                // The step at which the caller stopped the text may have drawn or released more tokens.
                Event::Token(..) if stopped => {}
                Event::Token(_, token, _) => {
                    tokens.push(token);
                    if on_token(token).is_break() {
                        stopped = true;
                        scheduler.cancel(0);
                    }
                }
                Event::Ended(_, end) => {
                    let cancelled = End {
                        finish: FinishReason::Cancelled,
                        tail: Vec::new(),
                        end_token: None,
                        thought_tokens: 0,
                    };
                    let End { finish, tail, .. } = if stopped { cancelled } else { end? };
                    let SchedulerCounts { drafted, accepted, .. } = scheduler.counts();
                    let (Clock { first_token, drawn, .. }, decode) = (clock, clock.decode());
                    return Ok(Generated {
                        tokens,
                        finish,
                        tail,
                        seed,
                        first_token,
                        drawn,
                        decode,
                        drafted,
                        accepted,
                    });
                }
            }
        }
        let start = Instant::now();
        assert!(scheduler.plan(0, &mut plan), "a lone sequence always has a step to run");
        stepper.run(&scheduler, &plan, &mut outcome);
        outcome.micros = start.elapsed().as_micros() as u64;
        clock.saw(outcome.drawn.len());
        scheduler.commit(0, &plan, &mut outcome);
    }
}

/// The scheduler's configuration for a single sequence.
fn for_one(model: &dyn Model, context: usize, engine: &EngineConfig) -> SchedulerConfig {
    let limits = model.limits();
    SchedulerConfig {
        max_running: 1,
        max_tokens: limits.max_tokens,
        max_rows: limits.max_logit_rows,
        kv_blocks: limits.kv_blocks,
        state_slots: limits.state_slots,
        context,
        max_draft: engine.max_draft.min(limits.max_logit_rows),
        sizing: BatchSizing::Fixed(1),
        slow_reader: u64::MAX,
        eos: engine.eos.clone().unwrap_or_else(|| model.spec().eos.clone()),
        text: engine.text.clone(),
    }
}

/// When tokens were drawn.
#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    drawn: usize,
    /// Times from the start to the first and the last token.
    first_token: Option<Duration>,
    last_token: Option<Duration>,
}

impl Clock {
    fn start() -> Self {
        Clock { began: Instant::now(), drawn: 0, first_token: None, last_token: None }
    }

    /// Counts tokens that were drawn just now.
    fn saw(&mut self, tokens: usize) {
        if tokens > 0 {
            self.drawn += tokens;
            self.last_token = Some(self.began.elapsed());
            self.first_token = self.first_token.or(self.last_token);
        }
    }

    /// Time from the first drawn token to the last; `None` if fewer than two were drawn.
    fn decode(&self) -> Option<Duration> {
        let times = self.last_token.zip(self.first_token).filter(|_| self.drawn > 1);
        times.map(|(last, first)| last - first)
    }
}
