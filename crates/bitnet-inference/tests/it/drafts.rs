//! Drafters change nothing but the speed: random mixes of requests with drafters of every quality.

use std::collections::HashMap;
use std::sync::Arc;

use bitnet_inference::sim::{HashModel, mix};
use bitnet_inference::{
    BatchSizing, Constraint, ConstraintError, DraftModelError, Drafter, End, GenerationConfig, HeadDrafter,
    ModelDrafter, Output, Priority, Request, RequestError, TokenLogprobs, TokenSet,
    scheduling::{
        Drafting, Event, Reader, Scheduler, SchedulerConfig, SchedulerCounts, SeqId, Source, StepLoop,
        Stepper,
    },
};
use bitnet_model::{Batch, ForwardError, Limits, Model};

use crate::support::*;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 += 1;
        (mix(self.0, 77) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Of every five tokens, the second and the third follow from the one before, and so they are forced.
#[derive(Debug)]
struct Halting;

impl Halting {
    fn only(generated: &[u32]) -> Option<u32> {
        let last = *generated.last()?;
        matches!(generated.len() % 5, 1 | 2).then(|| (last * 7 + 3) % 47)
    }
}

impl Constraint for Halting {
    fn allow(&self, _: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        match Self::only(generated) {
            Some(token) => allowed.insert(token),
            None => (0..VOCAB as u32).filter(|token| token % 3 > 0).for_each(|token| allowed.insert(token)),
        }
        Ok(())
    }

    fn forced(&self, _: u32, generated: &[u32]) -> Option<u32> {
        Self::only(generated)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<Option<TokenLogprobs>>,
    end: Option<Result<End, RequestError>>,
}

#[derive(Default)]
struct Answers(HashMap<SeqId, Answer>);

impl Reader for Answers {
    fn deliver(&mut self, scheduler: &mut Scheduler, _: &mut Stepper<'_>) {
        while let Some(event) = scheduler.next_event() {
            match event {
                Event::Admitted(..) => {}
                Event::Token(id, token, logprobs) => {
                    let answer = self.0.entry(id).or_default();
                    answer.tokens.push(token);
                    answer.logprobs.push(logprobs);
                }
                Event::Ended(id, end) => {
                    // What depends on the cache and on the prediction is not part of the answer.
                    let end = end.map(|end| End { cached_tokens: 0, predicted: None, ..end });
                    self.0.entry(id).or_default().end = Some(end);
                }
            }
        }
    }
}

fn scheduler(limits: Limits, max_running: usize, max_draft: usize) -> Scheduler {
    Scheduler::new(SchedulerConfig {
        max_running,
        max_tokens: limits.max_tokens,
        max_rows: limits.max_logit_rows,
        kv_blocks: limits.kv_blocks,
        state_slots: limits.state_slots,
        context: CONTEXT.min(limits.kv_blocks * Batch::BLOCK_TOKENS),
        max_draft,
        sizing: BatchSizing::Fixed(max_running),
        slow_reader: u64::MAX,
        eos: vec![EOS],
        text: Some(Arc::new(Letters)),
    })
    .drafting_at_any_cost()
}

/// A sequence's answer alone, without drafts, in a cache of its own.
fn answer_alone(request: &Request, states: bool) -> HashMap<SeqId, Answer> {
    let limits =
        Limits { max_tokens: 600, max_logit_rows: 600, kv_blocks: 64, state_slots: 8 * usize::from(states) };
    let request = Request { prediction: Vec::new(), ..request.clone() };
    run(limits, 4, 0, None, &[(request, 0)]).0
}

/// Runs requests, each submitted before the step with its number.
fn run(
    limits: Limits,
    max_running: usize,
    max_draft: usize,
    drafter: Option<Box<dyn Drafter>>,
    requests: &[(Request, usize)],
) -> (HashMap<SeqId, Answer>, SchedulerCounts, u64) {
    let context = CONTEXT.min(limits.kv_blocks * Batch::BLOCK_TOKENS);
    let model = HashModel::new(VOCAB, context, limits).with_draft_head();
    let scheduler = scheduler(limits, max_running, max_draft);
    let mut steps = StepLoop::new(scheduler, Stepper::new(Box::new(model))).drafting(drafter);
    let mut answers = Answers::default();
    let (mut at, mut next) = (0, 0);
    loop {
        while let Some((request, _)) = requests.get(next).filter(|(_, when)| *when <= at) {
            let seed = request.config.seed.unwrap();
            steps.scheduler.submit(steps.now(), next as u64, Arc::new(request.clone()), seed);
            next += 1;
        }
        let more = steps.step(&mut answers);
        steps.scheduler.check().unwrap();
        answers.deliver(&mut steps.scheduler, &mut steps.stepper);
        at += 1;
        if !more && next == requests.len() {
            break;
        }
        assert!(at < 100_000, "the requests do not end");
    }
    assert!(steps.scheduler.is_empty());
    (answers.0, steps.scheduler.counts(), steps.stepper.faults().drafter)
}

fn request(rng: &mut Rng, prompts: &mut Vec<Vec<u32>>) -> Request {
    let mut prompt = match rng.below(3) {
        0 => Vec::new(),
        _ => prompts.get(rng.below(4)).cloned().unwrap_or_default(),
    };
    let more = if rng.one_in(5) { rng.below(120) } else { rng.below(12) };
    prompt.extend((0..=more).map(|_| rng.below(48) as u32));
    if rng.one_in(4) && prompt.len() >= Batch::BLOCK_TOKENS {
        prompt.truncate(prompt.len() / Batch::BLOCK_TOKENS * Batch::BLOCK_TOKENS);
    }
    prompts.push(prompt.clone());
    let max_new_tokens = rng.below(30);
    let text = |rng: &mut Rng| [b'a' + rng.below(5) as u8, b'a' + rng.below(10) as u8].map(char::from);
    let config = GenerationConfig {
        max_new_tokens,
        min_new_tokens: rng.below(max_new_tokens / 2 + 1),
        temperature: [0.0, 0.7, 1.0][rng.below(3)],
        top_k: [0, 1, 7][rng.below(3)],
        top_p: [1.0, 0.9][rng.below(2)],
        repetition_penalty: [1.0, 1.3][rng.below(2)],
        frequency_penalty: [0.0, 0.4, -3.0][rng.below(3)],
        logit_bias: if rng.one_in(4) { (1..4).map(|token| (token, 30.0)).collect() } else { Vec::new() },
        stop_tokens: if rng.one_in(4) { vec![rng.below(48) as u32] } else { Vec::new() },
        stop_strings: if rng.one_in(4) { vec![text(rng).iter().collect(), "aab".into()] } else { Vec::new() },
        ignore_eos: rng.one_in(2),
        logprobs: rng.one_in(5).then_some(2),
        n: if rng.one_in(6) { 3 } else { 1 },
        seed: Some(rng.below(1000) as u64),
        ..GenerationConfig::default()
    };
    Request {
        output: if rng.one_in(20) { Output::Scored } else { Output::Tokens },
        constraint: rng.one_in(4).then(|| Arc::new(Halting) as Arc<dyn Constraint>),
        priority: [Priority::Interactive, Priority::Normal, Priority::Background][rng.below(3)],
        ..Request::new(prompt, config)
    }
}

/// Drafters that no one should use.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Quality {
    Wrong,
    Right,
    /// Right for a while, then wrong; sometimes outside the vocabulary, sometimes fewer than asked for.
    Mixed,
    Failing,
    Panicking,
}

struct Planted {
    quality: Quality,
    /// The text of each sequence.
    texts: HashMap<SeqId, Vec<u32>>,
    rng: Rng,
}

impl Drafter for Planted {
    fn draft(&mut self, _: &mut dyn Model, asked: &mut Drafting<'_>) -> Result<(), ForwardError> {
        for at in 0..asked.runs().len() {
            let run = asked.runs()[at];
            assert_eq!(asked.text(at).len(), run.len);
            for place in 0..run.depth {
                let right = self.texts.get(&run.id).and_then(|text| text.get(run.len + place)).copied();
                let wrong = right.map_or(0, |token| (token + 1) % VOCAB as u32);
                let token = match self.quality {
                    Quality::Right => right.unwrap_or(0),
                    Quality::Wrong => wrong,
                    _ if self.rng.one_in(9) => return Ok(()),
                    _ if self.rng.one_in(9) => VOCAB as u32 + 5,
                    _ if self.rng.one_in(4) => wrong,
                    _ => right.unwrap_or(0),
                };
                asked.push(at, token);
            }
            if self.rng.one_in(3) {
                match self.quality {
                    // Without the message that a panic prints.
                    Quality::Panicking => std::panic::resume_unwind(Box::new("planted")),
                    Quality::Failing => return Err(ForwardError::NoDraftHead),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn mixes(first: u64, count: u64) -> (SchedulerCounts, u64) {
    let (mut all, mut failures) = (SchedulerCounts::default(), 0);
    for seed in first..first + count {
        let mut rng = Rng(mix(seed, 3) >> 1);
        let states = rng.one_in(3);
        let max_running = 1 + rng.below(5);
        let limits = Limits {
            max_tokens: 6 + rng.below(60),
            max_logit_rows: 6 + rng.below(24),
            kv_blocks: 4 + rng.below(20),
            state_slots: if states { max_running + rng.below(4) } else { 0 },
        };
        let mut prompts = Vec::new();
        let mut requests: Vec<(Request, usize)> = Vec::new();
        let mut expected = HashMap::new();
        let mut texts = HashMap::new();
        let mut when = 0;
        for id in 0..1 + rng.below(5) as u64 {
            let mut request = request(&mut rng, &mut prompts);
            request.prompt.truncate(150);
            for (alone, answer) in answer_alone(&request, states) {
                let text = [&request.prompt[..], &answer.tokens].concat();
                texts.insert(SeqId { request: id, ..alone }, text);
                expected.insert(SeqId { request: id, ..alone }, answer);
            }
            if rng.one_in(4) {
                // A prediction that is right here and there.
                let text = texts.get(&SeqId { request: id, choice: 0 }).cloned().unwrap_or_default();
                let generated = text.get(request.prompt.len()..).unwrap_or_default();
                request.prediction =
                    generated.iter().map(|&t| if rng.one_in(6) { rng.below(50) as u32 } else { t }).collect();
            }
            when += rng.below(5);
            requests.push((request, when));
        }
        let quality = [Quality::Wrong, Quality::Right, Quality::Mixed, Quality::Failing, Quality::Panicking];
        let drafter: Option<Box<dyn Drafter>> = match rng.below(8) {
            0 => None,
            1 => Some(Box::new(HeadDrafter::new())),
            2 => {
                let model = HashModel::new(VOCAB, CONTEXT, Limits { state_slots: 0, ..limits });
                Some(Box::new(ModelDrafter::new(Box::new(model), limits).unwrap()))
            }
            n => {
                let rng = Rng(seed);
                Some(Box::new(Planted { quality: quality[n - 3], texts: texts.clone(), rng }))
            }
        };
        let max_draft = rng.below(17).min(limits.max_logit_rows);
        let (got, counts, failed) = run(limits, max_running, max_draft, drafter, &requests);
        assert_eq!(got.len(), expected.len(), "seed {seed}");
        for (id, answer) in &expected {
            assert_eq!(got.get(id), Some(answer), "seed {seed}, {id:?}, drafts of {max_draft}");
        }
        failures += failed;
        all.preemptions += counts.preemptions;
        all.prefix_hits += counts.prefix_hits;
        for (all, counts) in all.sources.iter_mut().zip(counts.sources) {
            all[0] += counts[0];
            all[1] += counts[1];
        }
    }
    (all, failures)
}

#[test]
fn no_drafter_changes_an_answer_in_any_batch() {
    let count = std::env::var("BITNET_SIM_SEEDS").map_or(2000, |n| n.parse().unwrap());
    let (counts, failures) = mixes(0, count);
    assert!(
        counts.preemptions > 0 && counts.prefix_hits > 0 && failures > 0,
        "{counts:?}, {failures} failures"
    );
    for source in Source::ALL {
        let [drafted, accepted] = counts.sources[source as usize];
        let rejected = drafted - accepted;
        // A text that ends among forced tokens drops the others.
        assert!(accepted > 100 && (rejected > 100 || source == Source::Forced), "{source:?}: {counts:?}");
    }
}

/// Different prompts of several lengths, with seeds.
fn plain(count: usize) -> Vec<(Request, usize)> {
    let one = |i: usize| {
        let prompt: Vec<u32> = (0..5 + 23 * i).map(|p| (mix(i as u64, p as u64) % 48) as u32).collect();
        let config = GenerationConfig { temperature: 0.9, seed: Some(i as u64), ..greedy(70) };
        (Request::new(prompt, config), i)
    };
    (0..count).map(one).collect()
}

#[test]
fn a_drafter_that_computes_what_the_model_computes_is_always_right() {
    for max_draft in [1, 2, 3, 7] {
        for states in [0, 12] {
            let limits = Limits { max_tokens: 40, max_logit_rows: 64, kv_blocks: 64, state_slots: states };
            let model = HashModel::new(VOCAB, CONTEXT, Limits { state_slots: 0, ..limits });
            let head: Box<dyn Drafter> = Box::new(HeadDrafter::new());
            let smaller: Box<dyn Drafter> = Box::new(ModelDrafter::new(Box::new(model), limits).unwrap());
            for (name, drafter) in [("head", head), ("model", smaller)] {
                // A model without a recurrent state is another one.
                if name == "model" && states > 0 {
                    continue;
                }
                let (_, counts, failures) = run(limits, 6, max_draft, Some(drafter), &plain(6));
                let [drafted, accepted] = counts.sources[Source::Drafter as usize];
                let what = format!("{name}, {max_draft} drafts, {states} states: {counts:?}");
                assert_eq!((accepted, failures), (drafted, 0), "{what}");
                assert!(drafted > 150, "{what}");
            }
        }
    }
}

#[test]
fn tokens_that_a_constraint_forces_are_computed_together_and_without_logits() {
    let limits = limits();
    let model = HashModel::new(VOCAB, CONTEXT, limits);
    let counts = model.counts();
    let mut steps = StepLoop::new(scheduler(limits, 4, 0), Stepper::new(Box::new(model)));
    let request = Request {
        constraint: Some(Arc::new(Halting)),
        ..Request::new([1, 2, 3], GenerationConfig { seed: Some(1), ..greedy(51) })
    };
    steps.scheduler.submit(0, 0, Arc::new(request.clone()), 1);
    let mut answers = Answers::default();
    while steps.step(&mut answers) {}
    assert_eq!(answers.0.values().next().unwrap().tokens.len(), 51);
    // Of five tokens, two are forced: three steps and three rows. The 51st is another free one.
    let [forwards, rows] =
        [&counts.forwards, &counts.rows].map(|n| n.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!((forwards, rows), (31, 31));
    let [forced, accepted] = steps.scheduler.counts().sources[Source::Forced as usize];
    assert_eq!((forced, accepted, steps.scheduler.counts().drafted), (20, 20, 0));
    assert_eq!(answers.0, answer_alone(&request, false));
}

#[test]
fn a_drafter_that_keeps_failing_is_not_asked_for_ever() {
    struct Broken;

    impl Drafter for Broken {
        fn draft(&mut self, _: &mut dyn Model, _: &mut Drafting<'_>) -> Result<(), ForwardError> {
            Err(ForwardError::NoDraftHead)
        }
    }

    let (answers, _, failures) = run(limits(), 6, 3, Some(Box::new(Broken)), &plain(6));
    assert_eq!(failures, 16);
    assert!(answers.values().all(|answer| answer.tokens.len() == 70));
}

#[test]
fn a_drafter_of_other_sizes_is_refused() {
    let small = HashModel::new(VOCAB, CONTEXT, Limits { kv_blocks: 9, ..limits() });
    let refused = ModelDrafter::new(Box::new(small), limits()).unwrap_err();
    assert_eq!(refused, DraftModelError::Limits { what: "blocks", has: 9, needs: 64 });
    let recurrent = HashModel::new(VOCAB, CONTEXT, Limits { state_slots: 2, ..limits() });
    assert_eq!(ModelDrafter::new(Box::new(recurrent), limits()).unwrap_err(), DraftModelError::Recurrent);
}

#[test]
fn a_prediction_is_drafted_from_and_counted_whatever_is_drafted() {
    let prompt: Vec<u32> = (1..9).collect();
    let config = GenerationConfig { seed: Some(3), ..greedy(60) };
    let text = alone(&prompt, &config);
    let mut prediction = text.clone();
    prediction[20] = (prediction[20] + 1) % 48;
    let request = Request { prediction, ..Request::new(prompt, config) };
    let mut ends = Vec::new();
    for max_draft in [0, 4] {
        let model = HashModel::new(VOCAB, CONTEXT, limits());
        let mut steps = StepLoop::new(scheduler(limits(), 4, max_draft), Stepper::new(Box::new(model)));
        steps.scheduler.submit(0, 0, Arc::new(request.clone()), 3);
        struct Last(Option<End>, Vec<u32>);
        impl Reader for Last {
            fn deliver(&mut self, scheduler: &mut Scheduler, _: &mut Stepper<'_>) {
                while let Some(event) = scheduler.next_event() {
                    match event {
                        Event::Ended(_, end) => self.0 = end.ok(),
                        Event::Token(_, token, _) => self.1.push(token),
                        Event::Admitted(..) => {}
                    }
                }
            }
        }
        let mut last = Last(None, Vec::new());
        while steps.step(&mut last) {}
        assert_eq!(last.1, text);
        assert_eq!(steps.steps() < 30, max_draft > 0, "{} steps", steps.steps());
        ends.push(last.0.unwrap().predicted.unwrap());
    }
    assert_eq!(ends[0], ends[1]);
    // One token is wrong, and the three after it tell where the text is again.
    assert_eq!((ends[0].accepted, ends[0].rejected), (60 - 1 - 3, 1));
}
