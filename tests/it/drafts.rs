//! Draft heads and draft models on real kernels: the same answers, and as many accepted drafts as an oracle says.

use std::{collections::HashMap, sync::Arc};

use bitnet::{Draft, Model, Request as Asked};
use bitnet_inference::{
    BatchSizing, Drafter, GenerationConfig, HeadDrafter, ModelDrafter, Request,
    scheduling::{Event, Reader, Scheduler, SchedulerConfig, Source, StepLoop, Stepper},
};
use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{Batch, Checkpoint, Limits, Model as _, Transformer};
use bitnet_tests::{Tensors, fixture};

const HEADS: [(&str, &str); 3] = [
    ("qwen35-mtp/model-PQ2_0.gguf", "qwen35-mtp"),
    ("qwen35-mtp-hadamard/mlx", "qwen35-mtp-hadamard"),
    ("qwen35-mtp-hadamard/model-PTQ1_0.gguf", "qwen35-mtp-hadamard"),
];
const BIG: &str = "qwen3-pair-big/model-PQ2_0.gguf";
const SMALL: &str = "qwen3-pair-small/model-PQ2_0.gguf";

fn load(path: &str, limits: Limits) -> Transformer<Cpu> {
    let checkpoint = Checkpoint::open(&fixture(path)).unwrap();
    let cpu = Cpu::new(Isa::best(), 1).unwrap();
    Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {}).unwrap()
}

#[derive(Default)]
struct Texts(HashMap<u64, Vec<u32>>);

impl Reader for Texts {
    fn deliver(&mut self, scheduler: &mut Scheduler, _: &mut Stepper<'_>) {
        while let Some(event) = scheduler.next_event() {
            if let Event::Token(id, token, _) = event {
                self.0.entry(id.request).or_default().push(token);
            }
        }
    }
}

/// The texts of requests that are computed together, and how many drafts of how many were accepted.
fn run(
    path: &str,
    limits: Limits,
    drafter: Option<Box<dyn Drafter>>,
    max_draft: usize,
    requests: &[Request],
) -> (Vec<Vec<u32>>, [u64; 2]) {
    let model = load(path, limits);
    let scheduler = Scheduler::new(SchedulerConfig {
        max_running: 4,
        max_tokens: limits.max_tokens,
        max_rows: limits.max_logit_rows,
        kv_blocks: limits.kv_blocks,
        state_slots: limits.state_slots,
        context: model.spec().context,
        max_draft,
        sizing: BatchSizing::Fixed(4),
        slow_reader: u64::MAX,
        eos: model.spec().eos.clone(),
        text: None,
    });
    let scheduler = scheduler.drafting_at_any_cost().drafting_without_text();
    let steps = StepLoop::new(scheduler, Stepper::new(Box::new(model))).drafting(drafter);
    let mut steps = steps.with_logs().unwrap();
    for (id, request) in (0..).zip(requests) {
        steps.scheduler.submit(0, id, Arc::new(request.clone()), request.config.seed.unwrap_or(0));
    }
    let mut texts = Texts::default();
    while steps.step(&mut texts) {}
    assert_eq!(steps.stepper.faults().drafter, 0);
    let counts = steps.scheduler.counts().sources[Source::Drafter as usize];
    ((0..requests.len() as u64).map(|id| texts.0.remove(&id).unwrap_or_default()).collect(), counts)
}

fn limits(state_slots: usize) -> Limits {
    Limits { max_tokens: 40, max_logit_rows: 24, kv_blocks: 24, state_slots }
}

fn greedy(prompt: Vec<u32>, tokens: usize) -> Request {
    let config = GenerationConfig { max_new_tokens: tokens, ..GenerationConfig::default() };
    Request::new(prompt, config)
}

fn endless(prompt: Vec<u32>, tokens: usize) -> Request {
    let mut request = greedy(prompt, tokens);
    request.config.ignore_eos = true;
    request
}

/// Requests of all kinds, with prompts from the fixture.
fn mixed(golden: &Tensors) -> Vec<Request> {
    let prompts: Vec<Vec<u32>> = (0..5).map(|j| golden.ids(&format!("ids_{j}"))).collect();
    let config = |i: usize| GenerationConfig {
        max_new_tokens: 25 + i,
        ignore_eos: true,
        temperature: [0.0, 0.8, 1.0][i % 3],
        top_p: [1.0, 0.9][i % 2],
        repetition_penalty: [1.0, 1.0, 1.2][i % 3],
        seed: Some(i as u64),
        ..GenerationConfig::default()
    };
    (0..12).map(|i| Request::new(prompts[i % 5].clone(), config(i))).collect()
}

#[test]
fn a_head_changes_no_text_and_is_right_as_often_as_the_oracle_says() {
    for (path, folder) in HEADS {
        let golden = Tensors::read(&fixture(folder).join("golden-mtp.safetensors"));
        let requests = mixed(&golden);
        let (plain, _) = run(path, limits(12), None, 0, &requests);
        for max_draft in [1, 3, 6] {
            let head: Box<dyn Drafter> = Box::new(HeadDrafter::new());
            let (texts, [drafted, accepted]) = run(path, limits(12), Some(head), max_draft, &requests);
            assert_eq!(texts, plain, "{path}, {max_draft} drafts");
            assert!(accepted > 0 && accepted < drafted, "{path}: {accepted} of {drafted}");
        }

        // One draft in every step, except at the end of a block.
        let (mut tried, mut right, mut expected_tried, mut expected_right) = (0, 0, 0, 0);
        for j in 0..5 {
            let ids = golden.ids(&format!("ids_{j}"));
            let chain = golden.ids(&format!("chain_ids_{j}"));
            let drafts = golden.ids(&format!("chain_drafts_{j}"));
            let head: Box<dyn Drafter> = Box::new(HeadDrafter::new());
            let asked = endless(ids.clone(), 40);
            let (texts, [drafted, accepted]) = run(path, limits(4), Some(head), 1, &[asked]);
            assert_eq!(texts[0], chain, "{path}, prompt {j}");
            (tried, right) = (tried + drafted, right + accepted);
            let mut at = 0;
            while at + 2 < chain.len() {
                let tries = !(ids.len() + at + 2).is_multiple_of(Batch::BLOCK_TOKENS);
                let good = tries && drafts[3 * at] == chain[at + 1];
                expected_tried += u64::from(tries);
                expected_right += u64::from(good);
                at += 1 + usize::from(good);
            }
        }
        let share = |right: u64, tried: u64| right as f64 / tried as f64;
        let (got, expected) = (share(right, tried), share(expected_right, expected_tried));
        assert!(
            (got - expected).abs() < 0.03,
            "{path}: {right} of {tried}, the oracle has {expected_right} of {expected_tried}"
        );
    }
}

#[test]
fn a_smaller_model_changes_no_text_and_agrees_as_often_as_its_fixture_says() {
    // Texts of the model itself, as the fixture's pair was made for.
    let sampled = |prompt: Vec<u32>, seed: usize, tokens: usize| {
        let config =
            GenerationConfig { temperature: 1.0, seed: Some(seed as u64), ..greedy(vec![1], tokens).config };
        Request::new(prompt, config)
    };
    let beginnings: Vec<Request> = (0..8).map(|i| sampled(vec![40 + 3 * i as u32], i, 20 + 5 * i)).collect();
    let (prompts, _) = run(BIG, limits(0), None, 0, &beginnings);
    let requests: Vec<Request> = prompts.iter().map(|prompt| greedy(prompt.clone(), 60)).collect();
    let sampled: Vec<Request> = (0..8).map(|i| sampled(prompts[i].clone(), 10 + i, 60)).collect();
    for (requests, least) in [(requests, 0.75), (sampled, 0.7)] {
        let (plain, _) = run(BIG, limits(0), None, 0, &requests);
        for max_draft in [1, 4] {
            let small = ModelDrafter::new(Box::new(load(SMALL, limits(0))), limits(0)).unwrap();
            let (texts, [drafted, accepted]) =
                run(BIG, limits(0), Some(Box::new(small)), max_draft, &requests);
            assert_eq!(texts, plain, "{max_draft} drafts");
            let share = accepted as f64 / drafted as f64;
            assert!(max_draft > 1 || share > least, "{max_draft} drafts: {accepted} of {drafted}");
        }
    }
}

#[test]
fn the_library_drafts_by_name_and_refuses_what_cannot_draft() {
    let open = |model: &str, draft: Draft| {
        let builder = Model::builder().device(bitnet::Device::Cpu).threads(1).drafts(3).draft(draft);
        builder.open(fixture(model).to_str().unwrap())
    };
    let named = |path: &str| Draft::Model(fixture(path).to_str().unwrap().into());
    let text = |model: Model| {
        let answer = model.complete(Asked::new("The river").max_tokens(40).temperature(0.8).seed(3)).unwrap();
        answer.text
    };
    for (model, drafts) in
        [(HEADS[0].0, vec![Draft::Head, Draft::Auto]), (BIG, vec![named(SMALL), Draft::Auto])]
    {
        let expected = text(open(model, Draft::None).unwrap());
        for draft in drafts.into_iter().chain([Draft::Ngram]) {
            let what = format!("{model}, {draft}");
            assert_eq!(text(open(model, draft).unwrap()), expected, "{what}");
        }
    }
    let refused = |model, draft| open(model, draft).unwrap_err().to_string();
    let told = refused(BIG, Draft::Head);
    assert!(told.contains("no head") && told.contains("nextn"), "{told}");
    let told = refused(BIG, named("qwen3-yarn/model-PQ2_0.gguf"));
    assert!(told.contains("token ") && told.contains("same vocabulary"), "{told}");
    let told = refused(HEADS[0].0, named(HEADS[0].0));
    assert!(told.contains("recurrent layers"), "{told}");
    let told = refused(BIG, named("nowhere.gguf"));
    assert!(told.contains("nowhere.gguf"), "{told}");
}
