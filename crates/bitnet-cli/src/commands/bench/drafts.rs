//! `bench --draft-acceptance P`: what drafts gain that are right with a known chance, made by a drafter that knows the
//! text, and how long steps of several tokens take.

use std::{sync::Arc, time::Instant};

use bitnet::{
    inference::{
        BatchSizing, Drafter, EngineConfig, GenerationConfig, Request,
        sampling::random_u64,
        scheduling::{Drafting, Event, Reader, Scheduler, SchedulerCounts, StepLoop, Stepper},
    },
    kernels::{SamplingParams, Wanted},
    model::{Batch, ForwardError, Logits, Model},
};
use serde::Serialize;

use super::{
    runs::{REPEATS, repeated},
    speed::Speed,
};
use crate::error::CliError;

/// The time of a step with several tokens of one sequence, each with its logits.
#[derive(Serialize)]
pub struct Rows {
    pub tokens: usize,
    /// Median.
    pub ms: f64,
    /// That of one token over this, times the tokens: how much faster tokens would be if all drafts were right and free.
    pub most: f64,
}

/// One sequence decoded with drafts of a known quality.
#[derive(Serialize)]
pub struct Known {
    /// Chance of each draft to be right, if those before it are.
    pub acceptance: f64,
    /// Maximum number of drafts in a step.
    pub most: usize,
    #[serde(flatten)]
    pub speed: Speed,
    /// The same without drafts, in turns.
    pub plain: Speed,
    /// The speed over that.
    pub gain: f64,
    /// Drafts made and accepted in a run, and the steps that it took.
    pub drafted: u64,
    pub accepted: u64,
    pub steps: u64,
}

/// Drafts the next tokens of a known text, with mistakes at random places that are the same in every run.
struct Knowing<'a> {
    text: &'a [u32],
    acceptance: f64,
    vocab: u32,
}

impl Knowing<'_> {
    fn errs(&self, place: usize) -> bool {
        random_u64(1, 0, place as u64) as f64 / 2f64.powi(64) >= self.acceptance
    }
}

impl Drafter for Knowing<'_> {
    fn draft(&mut self, _: &mut dyn Model, asked: &mut Drafting<'_>) -> Result<(), ForwardError> {
        for at in 0..asked.runs().len() {
            let run = asked.runs()[at];
            for place in run.len..run.len + run.depth {
                let Some(&token) = self.text.get(place) else { break };
                asked.push(at, if self.errs(place) { (token + 1) % self.vocab } else { token });
            }
        }
        Ok(())
    }
}

/// The tokens of a text, and when the first and the last were drawn.
#[derive(Default)]
struct Text {
    tokens: Vec<u32>,
    drawn: Option<(Instant, Instant)>,
    failed: Option<String>,
}

impl Reader for Text {
    fn committed(&mut self, steps: &StepLoop<'_>) {
        if steps.drawn() > 0 {
            let now = Instant::now();
            self.drawn = Some((self.drawn.map_or(now, |(first, _)| first), now));
        }
    }

    fn deliver(&mut self, scheduler: &mut Scheduler, _: &mut Stepper<'_>) {
        while let Some(event) = scheduler.next_event() {
            match event {
                Event::Token(_, token, _) => self.tokens.push(token),
                Event::Ended(_, Err(error)) => self.failed = Some(error.to_string()),
                _ => {}
            }
        }
    }
}

/// Measures drafts for one sequence after a prompt.
pub struct Bench<'a> {
    pub model: &'a mut dyn Model,
    pub prompt: Vec<u32>,
    /// Tokens to decode.
    pub tokens: usize,
    /// Maximum number of drafts in a step.
    pub most: usize,
}

impl Bench<'_> {
    /// The times of steps of one token and more.
    pub fn rows(&mut self) -> Result<Vec<Rows>, CliError> {
        let (mut batch, mut logits) = (Batch::new(), Logits::default());
        let table: Vec<u32> =
            (0..(self.prompt.len() + self.most + 1).div_ceil(Batch::BLOCK_TOKENS) as u32).collect();
        let mut all: Vec<Rows> = Vec::new();
        for tokens in 1..=1 + self.most {
            batch.clear();
            batch.push(&vec![1; tokens], self.prompt.len(), &table, 0..tokens);
            batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
            let mut times = repeated(2 * REPEATS, || {
                let begun = Instant::now();
                self.model.forward(&batch, &mut logits)?;
                Ok(begun.elapsed())
            })?;
            times.sort_by(f64::total_cmp);
            let ms = 1e3 * times[times.len() / 2];
            let one = all.first().map_or(ms, |rows| rows.ms);
            all.push(Rows { tokens, ms, most: tokens as f64 * one / ms });
        }
        Ok(all)
    }

    /// Decodes the text with drafts of each quality, in turns with plain decoding.
    pub fn known(&mut self, acceptance: &[f64]) -> Result<Vec<Known>, CliError> {
        let (text, ..) = self.decode(None, &[])?;
        let text = [&self.prompt[..], &text].concat();
        let mut rows = Vec::new();
        for &acceptance in acceptance {
            let (mut times, mut counts) = ([const { Vec::new() }; 2], (SchedulerCounts::default(), 0));
            for _ in 0..REPEATS {
                for (times, drafts) in times.iter_mut().zip([None, Some(acceptance)]) {
                    let (tokens, seconds, counted, steps) = self.decode(drafts, &text)?;
                    if tokens[..] != text[self.prompt.len()..] {
                        let what = format!("drafts that are right with chance {acceptance} change the text");
                        return Err(CliError::Wrong { what, place: "bench".into() });
                    }
                    times.push(seconds);
                    counts = (counted, steps);
                }
            }
            let [plain, speed] = times.map(|times| Speed::of(self.tokens - 1, times));
            let (SchedulerCounts { drafted, accepted, .. }, steps) = counts;
            let gain = speed.tok_s / plain.tok_s;
            rows.push(Known { acceptance, most: self.most, speed, plain, gain, drafted, accepted, steps });
        }
        Ok(rows)
    }

    /// Decodes greedily, with drafts that are right with this chance, if any; returns the tokens, the seconds between the
    /// first and the last, and what was counted.
    fn decode(
        &mut self,
        drafts: Option<f64>,
        text: &[u32],
    ) -> Result<(Vec<u32>, f64, SchedulerCounts, u64), CliError> {
        let (vocab, rows) = (self.model.spec().vocab as u32, self.model.limits().max_logit_rows);
        let engine = EngineConfig {
            max_batch_size: 1,
            sizing: BatchSizing::Fixed(1),
            max_draft: drafts.map_or(0, |_| self.most.min(rows - 1)),
            ..EngineConfig::default()
        };
        let scheduler = Scheduler::new(engine.scheduler(&*self.model));
        let knowing = |acceptance| Box::new(Knowing { text, acceptance, vocab }) as Box<dyn Drafter + '_>;
        let drafter = drafts.map(knowing);
        let stepper = Stepper::borrowing(self.model);
        let steps = StepLoop::new(scheduler.drafting_without_text(), stepper).drafting(drafter);
        let mut steps = steps.with_logs()?;
        let StepLoop { scheduler, stepper, .. } = &mut steps;
        stepper.calibrate(1 + self.most, |load, micros| scheduler.learn(load, micros));
        let config = GenerationConfig { max_new_tokens: self.tokens, ..GenerationConfig::default() };
        let request = Request::new(self.prompt.clone(), GenerationConfig { ignore_eos: true, ..config });
        steps.scheduler.submit(steps.now(), 0, Arc::new(request), 0);
        let mut read = Text::default();
        let mut count = 0;
        while steps.step(&mut read) {
            count += 1;
        }
        if let Some(failed) = read.failed {
            return Err(CliError::refused(failed, "bench", "report this"));
        }
        let Some((first, last)) = read.drawn.filter(|(first, last)| first < last) else {
            return Err(CliError::usage("one token is not decoded", "-n", "give at least 2"));
        };
        Ok((read.tokens, (last - first).as_secs_f64(), steps.scheduler.counts(), count))
    }
}
