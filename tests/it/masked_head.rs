//! Tokens drawn under masks, like those of a grammar, are those drawn from all logits, though few of them are computed.

use std::sync::Arc;

use bitnet_inference::{
    Completion, Constraint, ConstraintError, Engine, EngineConfig, GenerationConfig, Request, TokenSet,
};
use bitnet_kernels::{
    Backend as _, Change, Cpu, Drawn, Edits, HeadCounts, Inspect as _, Isa, RowsKind, SamplingParams, Wanted,
    draw,
};
use bitnet_model::{Batch, Limits, Logits, Model, ModelSpec, Synthetic, Transformer};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes};

const VOCAB: usize = 9001;
const LIMITS: Limits = Limits { max_tokens: 64, max_logit_rows: 64, kv_blocks: 64, state_slots: 0 };

fn source() -> Synthetic {
    let tiny = Synthetic::named("tiny").unwrap();
    Synthetic::of(ModelSpec { vocab: VOCAB, ..tiny.spec().clone() })
}

fn load(source: &Synthetic, cpu: Cpu) -> Transformer<Cpu> {
    Transformer::load(source.spec(), source, cpu, LIMITS, &mut |_, _| {}).unwrap()
}

/// A set of tokens as the backend takes it.
fn mask(tokens: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut words = vec![0; VOCAB.div_ceil(32)];
    tokens.into_iter().for_each(|token| words[token as usize / 32] |= 1 << (token % 32));
    words
}

/// A row of a step: how to draw, what to change and what to allow.
struct Asked {
    params: SamplingParams,
    changes: Vec<Change>,
    mask: Option<Vec<u32>>,
}

/// Steps in which rows with every kind of mask are neighbours of rows without.
#[test]
fn tokens_drawn_under_masks_are_those_drawn_from_all_logits_on_any_isa() {
    let source = source();
    let warm = SamplingParams { temperature: 1.0, seed: 4, position: 3, ..SamplingParams::GREEDY };
    let ways = [
        SamplingParams::GREEDY,
        warm,
        SamplingParams { temperature: 0.1, ..warm },
        SamplingParams { top_k: 20, top_p: 0.8, ..warm },
        SamplingParams { temperature: 0.3, top_p: 0.6, seed: 9, ..warm },
        SamplingParams { min_p: 0.1, choice: 2, ..warm },
    ];
    for isa in Isa::available() {
        let mut model = load(&source, Cpu::new(isa, 2).unwrap());
        let all = forward(&mut model, 3, |_, _| {});
        let row = |i: usize| all.row(i % 3);
        let change = |token: u32, more: f32| Change { repetition: 1.3, less: 0.1, more, token };
        let none = Vec::new;
        // Without the most likely tokens, whose bounds are the highest.
        let best = [0, 1, 2].map(|i| argmax(row(i)));
        for (round, params) in ways.into_iter().enumerate() {
            let few = mask((0..VOCAB as u32).skip(round).step_by(97));
            let many = mask((0..VOCAB as u32).filter(|token| token % 5 > 0 && !best.contains(token)));
            let asked = |changes, mask| Asked { params, changes, mask: Some(mask) };
            let step = [
                asked(none(), few.clone()),
                asked(none(), many.clone()),
                Asked { params, changes: none(), mask: None },
                // The last token, and a set of one.
                asked(none(), mask([7, VOCAB as u32 - 1])),
                asked(none(), mask([4321])),
                asked(none(), mask(0..VOCAB as u32)),
                // Each changed token is one of the set.
                asked(vec![change(round as u32 + 97, 0.5), change(round as u32, -1.0)], few.clone()),
                asked(vec![change(2, f32::NEG_INFINITY), change(6, 3.0)], many.clone()),
                asked(vec![change(4321, f32::NEG_INFINITY)], mask([4321])),
                asked(none(), mask([])),
            ];
            let before = model.backend_ref().head_counts();
            let got = forward(&mut model, step.len(), |i, batch| {
                let Asked { params, changes, mask } = &step[i];
                batch.want_changed(0, *params, changes, mask.as_deref());
            });
            let work = model.backend_ref().head_counts();
            for (i, Asked { params, changes, mask }) in step.iter().enumerate() {
                let expected = draw::drawn(&edited(row(i), changes, mask.as_deref()), params);
                match got.drawn(i) {
                    Some(drawn) => assert_eq!(drawn, expected, "{isa:?} row {i} {params:?}"),
                    None => assert_eq!(got.row(i), row(i), "{isa:?} row {i} {params:?}"),
                }
                let open = params.top_p < 1.0 || expected == Drawn::NothingAllowed;
                assert!(open || got.drawn(i).is_some(), "{isa:?} row {i} {params:?}: not drawn");
            }
            let allowed = work.allowed - before.allowed;
            assert_eq!(allowed, 4, "{isa:?}: few and changed few, two, and one");
            assert!(work.whole - before.whole >= 2, "nothing was allowed in two rows");
        }
    }
}

#[test]
fn a_mask_of_few_tokens_reads_their_rows_of_the_head_and_a_mask_of_one_reads_none() {
    let mut model = load(&source(), Cpu::new(Isa::best(), 2).unwrap());
    let warm = SamplingParams { temperature: 1.0, seed: 4, ..SamplingParams::GREEDY };
    let work = |model: &mut Transformer<Cpu>, mask: &[u32]| {
        let before = model.backend_ref().head_counts();
        forward(model, 1, |_, batch| batch.want_changed(0, warm, &[], Some(mask)));
        let HeadCounts { allowed, drawn, whole, rescored, .. } = model.backend_ref().head_counts();
        [allowed - before.allowed, drawn - before.drawn, whole - before.whole, rescored - before.rescored]
    };
    assert_eq!(work(&mut model, &mask([5, 6, 900])), [1, 0, 0, 3]);
    assert_eq!(work(&mut model, &mask([900])), [1, 0, 0, 0]);
    let [allowed, drawn, whole, rescored] = work(&mut model, &mask(0..VOCAB as u32 - 1));
    assert_eq!([allowed, drawn, whole], [0, 1, 0]);
    assert!(rescored < 300, "{rescored} logits");
}

/// A head with rows that are not numbers gives no token, even if none of those rows may be drawn: the rule is that of all logits.
#[test]
fn what_is_not_a_number_is_noticed_where_it_may_not_be_drawn_on_any_isa() {
    const COLS: usize = 64;
    let one = |value: f32| (value.to_bits() >> 16) as u16;
    let mut weights: Vec<u16> =
        (0..VOCAB * COLS).map(|i| one(((i * 37 % 101) as f32 - 50.0) / 50.0)).collect();
    let sick = [70, 4000, VOCAB as u32 - 1];
    for (at, value) in sick.into_iter().zip([f32::NAN, f32::INFINITY, f32::NAN]) {
        weights[at as usize * COLS + 5] = one(value);
    }
    let bytes: Vec<u8> = weights.into_iter().flat_map(u16::to_le_bytes).collect();
    let weights = BitNetTensor::new(DType::BF16, [VOCAB, COLS], SharedBytes::new(bytes)).unwrap();
    // The product with an infinite weight is not a number either.
    let values: Vec<f32> = (0..COLS).map(|i| if i == 5 { 0.0 } else { (i as f32 * 0.3).sin() }).collect();
    let warm = SamplingParams { temperature: 1.0, seed: 4, ..SamplingParams::GREEDY };
    let most = mask((0..VOCAB as u32).filter(|token| !sick.contains(token)));
    let banned = sick.map(|token| Change { more: f32::NEG_INFINITY, ..Change::none(token) });
    for isa in Isa::available() {
        let mut cpu = Cpu::new(isa, 2).unwrap();
        let mut table = cpu.table(&weights).unwrap();
        cpu.prepare_shortlist(&mut table, None).unwrap();
        let mut x = cpu.rows(1, COLS, RowsKind::Intermediate).unwrap();
        cpu.write(&mut x, &values).unwrap();
        for params in [SamplingParams::GREEDY, warm, SamplingParams { top_p: 0.5, ..warm }] {
            for (changes, masks) in [(&[][..], &[][..]), (&[], &most), (&banned, &[])] {
                let mask = (!masks.is_empty()).then_some(0);
                let wanted = match (changes.len() as u32, mask) {
                    (0, None) => Wanted::Token(params),
                    (to, mask) => Wanted::Changed { params, from: 0, to, mask },
                };
                let (mut logits, mut drawn) = (vec![0.0; VOCAB], [None]);
                let edits = Edits { changes, masks };
                cpu.logits(&x, &table, &[wanted], edits, &mut logits, &mut drawn).unwrap();
                let [drawn] = drawn;
                let drawn =
                    drawn.unwrap_or_else(|| draw::drawn(&draw::edited(&logits, &wanted, edits), &params));
                assert_eq!(drawn, Drawn::NotANumber(70), "{isa:?} {params:?} {wanted:?}");
            }
        }
    }
}

/// Rows after a single token each, row `i` after token `i % 3`; `ask` says what is wanted of each, all logits by default.
fn forward(model: &mut dyn Model, rows: usize, ask: impl Fn(usize, &mut Batch)) -> Logits {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    for row in 0..rows {
        batch.push(&[row as u32 % 3], 0, &[row as u32], 0..1);
        batch.want(|_| Wanted::All);
        ask(row, &mut batch);
    }
    model.forward(&batch, &mut logits).unwrap();
    logits
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap() as u32
}

/// A row of logits after the changes, without the tokens that are not in `mask`.
fn edited(row: &[f32], changes: &[Change], mask: Option<&[u32]>) -> Vec<f32> {
    let mut row = row.to_vec();
    for change in changes {
        let logit = &mut row[change.token as usize];
        *logit = change.apply(*logit);
    }
    for (token, logit) in row.iter_mut().enumerate() {
        if mask.is_some_and(|mask| mask[token / 32] >> (token % 32) & 1 == 0) {
            *logit = f32::NEG_INFINITY;
        }
    }
    row
}

/// Allows few tokens, most or one, by turns; the text so far decides which, and which way comes next.
#[derive(Debug)]
struct Turning;

impl Constraint for Turning {
    fn allow(&self, choice: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        let last = generated.last().copied().unwrap_or(choice);
        let some = |step: u32| (0..VOCAB as u32).skip(last as usize % 7).step_by(step as usize);
        match generated.len() % 5 {
            0 => some(1000).for_each(|token| allowed.insert(token)),
            1 => allowed.insert(last * 7 % 50),
            2 => {
                allowed.insert_all();
                some(3).for_each(|token| allowed.remove(token));
            }
            3 => [3, 4].into_iter().for_each(|token| allowed.insert(token)),
            _ => some(500).for_each(|token| allowed.insert(token)),
        }
        Ok(())
    }

    fn forced(&self, _: u32, generated: &[u32]) -> Option<u32> {
        // Sometimes known in advance, sometimes not.
        let last = *generated.last()?;
        (generated.len() % 10 == 1).then(|| last * 7 % 50)
    }
}

fn requests() -> Vec<Request> {
    let warm = GenerationConfig { max_new_tokens: 30, temperature: 1.0, seed: Some(3), ..Default::default() };
    let configs = [
        GenerationConfig { temperature: 0.0, ..warm.clone() },
        warm.clone(),
        GenerationConfig { top_p: 0.7, n: 2, ..warm.clone() },
        GenerationConfig { top_k: 5, repetition_penalty: 1.3, ..warm.clone() },
        GenerationConfig { min_p: 0.1, frequency_penalty: 0.5, logit_bias: vec![(3, 1.0)], ..warm.clone() },
        GenerationConfig { min_new_tokens: 20, stop_tokens: vec![3, 500], ..warm.clone() },
        GenerationConfig { logprobs: Some(2), top_p: 0.9, ..warm.clone() },
    ];
    let requests = configs.into_iter().flat_map(|config| {
        // A prompt that repeats itself has drafts.
        let plain = Request::new([3, 4, 3, 4, 3, 4], config);
        let constrained = Request { constraint: Some(Arc::new(Turning)), ..plain.clone() };
        let predicted = Request { prediction: vec![3, 21, 5, 4, 7, 3, 21, 8], ..constrained.clone() };
        [plain, constrained, predicted]
    });
    requests.collect()
}

/// Requests under a constraint beside others, with choices, penalties, log-probabilities and drafts.
#[test]
fn answers_under_a_constraint_are_the_same_with_few_logits_and_with_all_on_any_isa() {
    let source = source();
    let answers = |cpu, max_draft| {
        let config = EngineConfig { max_draft, ..EngineConfig::default() };
        let engine = Engine::start(load(&source, cpu), config).unwrap();
        let handles = engine.submit_all(requests()).unwrap();
        let answers: Vec<Completion> = handles.into_iter().map(|handle| handle.wait().unwrap()).collect();
        (answers, engine.status().head.unwrap())
    };
    let (expected, work) = answers(Cpu::new(Isa::best(), 2).unwrap().for_all_logits(), 0);
    assert_eq!((work.allowed, work.drawn), (0, 0));
    for isa in Isa::available() {
        for max_draft in [0, 4] {
            let (got, work) = answers(Cpu::new(isa, 2).unwrap(), max_draft);
            assert_eq!(got, expected, "{isa:?}, {max_draft} drafts");
            assert!(work.allowed > 200 && work.drawn > 100, "{isa:?}: {work:?}");
        }
    }
}
