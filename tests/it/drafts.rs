//! Draft heads and draft models on real kernels: the same answers, and as many accepted drafts as an oracle says.

use std::{collections::HashMap, ops::Range, path::Path, sync::Arc};

use bitnet::{Draft, Model, Request as Asked};
use bitnet_inference::{
    BatchSizing, Drafter, GenerationConfig, HeadDrafter, ModelDrafter, Request,
    scheduling::{Event, Reader, Scheduler, SchedulerConfig, Source, StepLoop, Stepper},
};
use bitnet_kernels::{Backend, Cpu, Isa, Reference, gpu::Gpu};
use bitnet_model::{Batch, Checkpoint, HiddenRows, Limits, Logits, Model as _, Transformer};
use bitnet_tests::{Form, HEAD_FORMS, Simulator, Tensors, distances, fixture};

const BIG: &str = "qwen3-pair-big/model-PQ2_0.gguf";
const SMALL: &str = "qwen3-pair-small/model-PQ2_0.gguf";

fn load_on<B: Backend>(path: &Path, backend: B, limits: Limits) -> Transformer<B> {
    let checkpoint = Checkpoint::open(path).unwrap();
    Transformer::load(&checkpoint.spec, &*checkpoint.tensors, backend, limits, &mut |_, _| {}).unwrap()
}

fn load(path: &Path, limits: Limits) -> Transformer<Cpu> {
    load_on(path, Cpu::new(Isa::best(), 1).unwrap(), limits)
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
    path: &Path,
    limits: Limits,
    drafter: Option<Box<dyn Drafter>>,
    max_draft: usize,
    requests: &[Request],
) -> (Vec<Vec<u32>>, [u64; 2]) {
    run_on(Box::new(load(path, limits)), drafter, max_draft, requests)
}

/// The same with a model that is loaded.
fn run_on(
    model: Box<dyn bitnet_model::Model>,
    drafter: Option<Box<dyn Drafter>>,
    max_draft: usize,
    requests: &[Request],
) -> (Vec<Vec<u32>>, [u64; 2]) {
    let limits = model.limits();
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
    let steps = StepLoop::new(scheduler, Stepper::new(model)).drafting(drafter);
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
    for form in HEAD_FORMS {
        let (path, golden) = (&form.path(), form.golden());
        let requests = mixed(&golden);
        let (plain, _) = run(path, limits(12), None, 0, &requests);
        for max_draft in [1, 3, 6] {
            let head: Box<dyn Drafter> = Box::new(HeadDrafter::new());
            let (texts, [drafted, accepted]) = run(path, limits(12), Some(head), max_draft, &requests);
            assert_eq!(texts, plain, "{form:?}, {max_draft} drafts");
            assert!(accepted > 0 && accepted < drafted, "{form:?}: {accepted} of {drafted}");
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
            assert_eq!(texts[0], chain, "{form:?}, prompt {j}");
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
            "{form:?}: {right} of {tried}, the oracle has {expected_right} of {expected_tried}"
        );
    }
}

/// The logits of the head for a prompt's pairs, for drafts that follow and for the pairs of more tokens.
fn head_logits<B: Backend>(form: &Form, backend: B, prompts: Range<usize>) -> [Vec<f32>; 2] {
    let (mut model, golden) = (load_on(&form.path(), backend, limits(1)), form.golden());
    let (vocab, table) = (model.spec().vocab, [2, 0, 3, 1]);
    let mut logits = Logits::default();
    let mut pass = |tokens: &[u32], start: usize, rows: usize, hidden: Option<HiddenRows<'_>>| {
        let mut batch = Batch::new();
        batch.push(tokens, start, &table, tokens.len() - rows..tokens.len());
        match hidden {
            None => model.forward(&batch, &mut logits).unwrap(),
            Some(hidden) => model.draft(&batch, hidden, &mut logits).unwrap(),
        }
        (0..rows).flat_map(|row| logits.row(row).to_vec()).collect::<Vec<f32>>()
    };
    let (mut actual, mut expected) = (Vec::new(), Vec::new());
    for j in prompts {
        let name = |what: &str| format!("{what}_{j}");
        let (ids, next, more) =
            (golden.ids(&name("ids")), golden.ids(&name("next"))[0], golden.ids(&name("more_ids")));
        let (n, rows) = (ids.len(), golden.floats(&name("head_logits")).len() / vocab);
        pass(&ids, 0, 1, None);
        let pairs: Vec<u32> = ids[1..].iter().copied().chain([next]).collect();
        actual.extend(pass(&pairs, 0, rows, Some(HiddenRows::Forward(&(0..n).collect::<Vec<_>>()))));
        expected.extend(golden.floats(&name("head_logits")));
        let (drafts, mut row) = (golden.ids(&name("draft_ids")), n.min(rows) - 1);
        for (i, &draft) in drafts[..drafts.len() - 1].iter().enumerate() {
            actual.extend(pass(&[draft], n + i, 1, Some(HiddenRows::Drafted(&[row]))));
            row = 0;
        }
        expected.extend(&golden.floats(&name("draft_logits"))[vocab..]);
        // What drafts wrote is overwritten.
        pass(&more[..4], n, 1, None);
        actual.extend(pass(&more[1..], n, 4, Some(HiddenRows::Forward(&[0, 1, 2, 3]))));
        expected.extend(golden.floats(&name("more_head_logits")));
    }
    [actual, expected]
}

/// As the model itself, within what bf16 between operations costs; nearer to the reference that rounds where a GPU does.
#[test]
fn a_head_on_a_gpu_is_near_the_oracle() {
    for form in HEAD_FORMS {
        let vocab = Checkpoint::open(&form.path()).unwrap().spec.vocab;
        let [actual, expected] = head_logits(&form, Gpu::new(Simulator::default()).unwrap(), 0..3);
        let [rounded, _] = head_logits(&form, Reference::bf16(), 0..3);
        let check = |other: &[f32], median: f64, worst: f64| {
            let mut all = distances(&actual, other, vocab);
            all.sort_by(f64::total_cmp);
            let (m, w) = (all[all.len() / 2], all[all.len() - 1]);
            assert!(m < median && w < worst, "{form:?}: median {m:.1e}, worst {w:.1e}");
        };
        check(&expected, 0.08, 0.3);
        check(&rounded, 1e-2, 0.1);
    }
}

#[test]
fn a_head_on_a_gpu_changes_no_text_alone_and_in_a_batch() {
    for form in [HEAD_FORMS[0], HEAD_FORMS[2]] {
        let mut requests = mixed(&form.golden());
        requests.truncate(3);
        requests.iter_mut().for_each(|request| request.config.max_new_tokens = 10);
        let on_gpu = |max_draft: usize, requests: &[Request]| {
            let gpu = Gpu::new(Simulator::default()).unwrap();
            let head = (max_draft > 0).then(|| Box::new(HeadDrafter::new()) as Box<dyn Drafter>);
            run_on(Box::new(load_on(&form.path(), gpu, limits(8))), head, max_draft, requests)
        };
        let (plain, _) = on_gpu(0, &requests);
        let (texts, [drafted, accepted]) = on_gpu(2, &requests);
        assert_eq!(texts, plain, "{form:?}");
        assert!(accepted > 0 && accepted < drafted, "{form:?}: {accepted} of {drafted}");
        for (request, text) in requests.iter().zip(&plain) {
            let (alone, _) = on_gpu(2, std::slice::from_ref(request));
            assert_eq!(&alone[0], text, "{form:?} alone");
        }
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
    let big = fixture(BIG);
    let beginnings: Vec<Request> = (0..8).map(|i| sampled(vec![40 + 3 * i as u32], i, 20 + 5 * i)).collect();
    let (prompts, _) = run(&big, limits(0), None, 0, &beginnings);
    let requests: Vec<Request> = prompts.iter().map(|prompt| greedy(prompt.clone(), 60)).collect();
    let sampled: Vec<Request> = (0..8).map(|i| sampled(prompts[i].clone(), 10 + i, 60)).collect();
    for (requests, least) in [(requests, 0.75), (sampled, 0.7)] {
        let (plain, _) = run(&big, limits(0), None, 0, &requests);
        for max_draft in [1, 4] {
            let small = ModelDrafter::new(Box::new(load(&fixture(SMALL), limits(0))), limits(0)).unwrap();
            let (texts, [drafted, accepted]) =
                run(&big, limits(0), Some(Box::new(small)), max_draft, &requests);
            assert_eq!(texts, plain, "{max_draft} drafts");
            let share = accepted as f64 / drafted as f64;
            assert!(max_draft > 1 || share > least, "{max_draft} drafts: {accepted} of {drafted}");
        }
    }
}

#[test]
fn the_library_drafts_by_name_and_refuses_what_cannot_draft() {
    let head = HEAD_FORMS[0].path();
    let head = head.to_str().unwrap();
    let open = |model: &str, draft: Draft| {
        let builder = Model::builder().device(bitnet::Device::Cpu).threads(1).drafts(3).draft(draft);
        builder.open(fixture(model).to_str().unwrap())
    };
    let named = |path: &str| Draft::Model(fixture(path).to_str().unwrap().into());
    let text = |model: Model| {
        let answer = model.complete(Asked::new("The river").max_tokens(40).temperature(0.8).seed(3)).unwrap();
        answer.text
    };
    for (model, drafts) in [(head, vec![Draft::Head, Draft::Auto]), (BIG, vec![named(SMALL), Draft::Auto])] {
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
    let told = refused(head, named(head));
    assert!(told.contains("recurrent layers"), "{told}");
    let told = refused(BIG, named("nowhere.gguf"));
    assert!(told.contains("nowhere.gguf"), "{told}");
}
