//! What drafters are right about, and how requests run with one. `mixes.rs` runs random requests with drafters of every
//! quality.

use std::collections::HashMap;
use std::sync::Arc;

use bitnet_hash_model::{HashModel, mix};
use bitnet_inference::{
    BatchSizing, Constraint, ConstraintError, DraftModelError, Drafter, End, GenerationConfig, HeadDrafter,
    ModelDrafter, Output, Request, RequestError, TokenLogprobs, TokenSet,
    scheduling::{
        Drafting, Event, Reader, Scheduler, SchedulerConfig, SchedulerCounts, SeqId, Source, StepLoop,
        Stepper,
    },
};
use bitnet_kernels::BackendInfo;
use bitnet_model::{Batch, ForwardError, HiddenRows, Limits, Logits, Model, ModelSpec};

use crate::{constraint::Climbing, support::*};

/// Of every five tokens, the second and the third follow from the one before, and so they are forced.
#[derive(Debug)]
pub struct Halting;

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
pub struct Answer {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<Option<TokenLogprobs>>,
    pub end: Option<Result<End, RequestError>>,
}

#[derive(Default)]
pub struct Answers(pub HashMap<SeqId, Answer>);

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

pub fn scheduler(limits: Limits, max_running: usize, max_draft: usize) -> Scheduler {
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
pub fn answer_alone(request: &Request, states: bool) -> HashMap<SeqId, Answer> {
    let limits =
        Limits { max_tokens: 600, max_logit_rows: 600, kv_blocks: 64, state_slots: 8 * usize::from(states) };
    let request = Request { prediction: Vec::new(), ..request.clone() };
    run(&Setting::of(limits, 4, 0), None, &[(request, 0)]).0
}

/// Where requests run.
pub struct Setting {
    pub limits: Limits,
    pub max_running: usize,
    pub max_draft: usize,
    /// The step before which the scheduler starts again on an empty cache, if any. Requests that have not ended are then
    /// submitted again, and go on after what they have told if that is possible.
    pub restart: Option<usize>,
}

impl Setting {
    pub fn of(limits: Limits, max_running: usize, max_draft: usize) -> Self {
        Setting { limits, max_running, max_draft, restart: None }
    }
}

/// What is added to the id of a request that is submitted again.
pub const AGAIN: u64 = 1 << 20;

/// Whether a request can go on after the tokens that it has told: others hold some back, or have several choices.
pub fn resumable(request: &Request) -> bool {
    let config = &request.config;
    config.n == 1 && config.stop_strings.is_empty() && request.output == Output::Tokens
}

/// A request that goes on after these tokens.
pub fn resumed(request: &Request, told: &[u32]) -> Request {
    let prompt = [&request.prompt[..], told].concat();
    Request { prompt, generated: request.generated + told.len(), ..request.clone() }
}

/// Starts again, and submits the requests that have not ended.
fn restart(steps: &mut StepLoop<'_>, answers: &mut Answers, requests: &[(Request, usize)]) {
    steps.scheduler = steps.scheduler.restarted();
    for (id, (request, _)) in (0..).zip(requests) {
        let choices = || (0..request.config.n as u32).map(move |choice| SeqId { request: id, choice });
        if choices().all(|id| answers.0.get(&id).is_some_and(|answer| answer.end.is_some())) {
            continue;
        }
        let again = if resumable(request) {
            let told = answers.0.get(&SeqId { request: id, choice: 0 });
            resumed(request, told.map_or(&[], |answer| &answer.tokens))
        } else {
            choices().for_each(|id| drop(answers.0.remove(&id)));
            request.clone()
        };
        let seed = request.config.seed.unwrap();
        steps.scheduler.submit(steps.now(), id + AGAIN, Arc::new(again), seed);
    }
}

/// Runs requests, each submitted before the step with its number. Returns the answers, and counts of the scheduler and of
/// failures of the drafter.
pub fn run(
    setting: &Setting,
    drafter: Option<Box<dyn Drafter>>,
    requests: &[(Request, usize)],
) -> (HashMap<SeqId, Answer>, SchedulerCounts, u64) {
    let &Setting { limits, max_running, max_draft, restart: restarts } = setting;
    let context = CONTEXT.min(limits.kv_blocks * Batch::BLOCK_TOKENS);
    let model = HashModel::new(VOCAB, context, limits).with_draft_head();
    run_on(Box::new(model), scheduler(limits, max_running, max_draft), restarts, drafter, requests)
}

/// The same on a model with a scheduler.
fn run_on(
    model: Box<dyn Model>,
    scheduler: Scheduler,
    restarts: Option<usize>,
    drafter: Option<Box<dyn Drafter>>,
    requests: &[(Request, usize)],
) -> (HashMap<SeqId, Answer>, SchedulerCounts, u64) {
    let steps = StepLoop::new(scheduler, Stepper::new(model)).drafting(drafter);
    let mut steps = steps.with_logs().unwrap();
    let mut answers = Answers::default();
    let (mut at, mut next) = (0, 0);
    loop {
        while let Some((request, _)) = requests.get(next).filter(|(_, when)| *when <= at) {
            let seed = request.config.seed.unwrap();
            steps.scheduler.submit(steps.now(), next as u64, Arc::new(request.clone()), seed);
            next += 1;
        }
        if restarts == Some(at) {
            restart(&mut steps, &mut answers, &requests[..next]);
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
    let again: Vec<SeqId> = answers.0.keys().copied().filter(|id| id.request >= AGAIN).collect();
    for id in again {
        let rest = answers.0.remove(&id).expect("it is a key");
        let whole = answers.0.entry(SeqId { request: id.request - AGAIN, ..id }).or_default();
        whole.tokens.extend(rest.tokens);
        whole.logprobs.extend(rest.logprobs);
        whole.end = rest.end;
    }
    (answers.0, steps.scheduler.counts(), steps.stepper.faults().drafter)
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
                let setting = Setting::of(limits, 6, max_draft);
                let (_, counts, failures) = run(&setting, Some(drafter), &plain(6));
                let [drafted, accepted] = counts.sources[Source::Drafter as usize];
                let what = format!("{name}, {max_draft} drafts, {states} states: {counts:?}");
                assert_eq!((accepted, failures), (drafted, 0), "{what}");
                assert!(drafted > 150, "{what}");
            }
        }
    }
}

#[test]
fn every_draft_keeps_to_the_constraint_and_the_penalties_of_its_place() {
    let limits = Limits { max_tokens: 40, max_logit_rows: 64, kv_blocks: 64, state_slots: 0 };
    let mut requests = plain(6);
    // Half of the texts end where the model ends them, and no draft follows that.
    for (i, (request, _)) in requests.iter_mut().enumerate() {
        request.constraint = Some(Arc::new(Climbing));
        let ignore_eos = i % 2 == 0;
        request.config = GenerationConfig { frequency_penalty: 0.8, ignore_eos, ..request.config.clone() };
    }
    let (answers, counts, failures) =
        run(&Setting::of(limits, 6, 3), Some(Box::new(HeadDrafter::new())), &requests);
    let [drafted, accepted] = counts.sources[Source::Drafter as usize];
    assert_eq!((accepted, failures), (drafted, 0), "{counts:?}");
    assert!(drafted > 150, "{counts:?}");
    for (i, (request, _)) in requests.iter().enumerate() {
        let alone = answer_alone(request, false);
        assert!(alone.values().all(|answer| answers.values().any(|one| one == answer)), "request {i}");
    }
}

/// Mistakes of a head about hidden states.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mistake {
    /// It reads the state before the one that it should, as if the row carried from one step to the next were stale.
    StaleRow,
    /// It reads those of the sequences in reverse order.
    SwappedSequences,
}

/// A model whose head is mistaken.
struct Mistaken(HashModel, Option<Mistake>);

impl Model for Mistaken {
    fn spec(&self) -> &ModelSpec {
        self.0.spec()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn backend(&self) -> BackendInfo {
        self.0.backend()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.0.forward(batch, logits)
    }

    fn has_draft_head(&self) -> bool {
        true
    }

    fn draft(
        &mut self,
        batch: &Batch,
        hidden: HiddenRows<'_>,
        logits: &mut Logits,
    ) -> Result<(), ForwardError> {
        let mut rows = hidden.rows().to_vec();
        match self.1 {
            Some(Mistake::StaleRow) => rows.iter_mut().for_each(|row| *row = row.saturating_sub(1)),
            Some(Mistake::SwappedSequences) => rows.reverse(),
            None => {}
        }
        let hidden = match hidden {
            HiddenRows::Forward(_) => HiddenRows::Forward(&rows),
            HiddenRows::Drafted(_) => HiddenRows::Drafted(&rows),
        };
        self.0.draft(batch, hidden, logits)
    }

    fn reserve_log(&mut self, drafts: usize) -> Result<usize, ForwardError> {
        self.0.reserve_log(drafts)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.0.copy_block(from, to)
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.0.copy_state(from, to)
    }
}

#[test]
fn a_head_that_reads_another_rows_hidden_state_is_wrong_and_changes_no_text() {
    for states in [0, 12] {
        let limits = Limits { max_tokens: 40, max_logit_rows: 64, kv_blocks: 64, state_slots: states };
        let run = |mistake| {
            let model = Mistaken(HashModel::new(VOCAB, CONTEXT, limits).with_draft_head(), mistake);
            let head: Option<Box<dyn Drafter>> = Some(Box::new(HeadDrafter::new()));
            let scheduler = scheduler(limits, 6, 3);
            let (answers, counts, failures) = run_on(Box::new(model), scheduler, None, head, &plain(6));
            assert_eq!(failures, 0);
            (answers, counts.sources[Source::Drafter as usize])
        };
        let (expected, [drafted, accepted]) = run(None);
        assert_eq!(accepted, drafted, "without a mistake it is always right");
        for mistake in [Mistake::StaleRow, Mistake::SwappedSequences] {
            let (answers, [drafted, accepted]) = run(Some(mistake));
            assert!(answers == expected, "{mistake:?}");
            assert!(accepted * 2 < drafted, "{mistake:?}: {accepted} of {drafted}");
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

    let (answers, _, failures) = run(&Setting::of(limits(), 6, 3), Some(Box::new(Broken)), &plain(6));
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
