//! The output head with bounds gives the same tokens as with all logits computed.

use std::ops::ControlFlow;

use bitnet_inference::{
    EngineConfig, GenerationConfig, Request, generate,
    sampling::{Draw, Sampler},
};
use bitnet_kernels::{Change, Cpu, Drawn, Isa, SamplingParams, Wanted, draw};
use bitnet_model::{Batch, Limits, Logits, Model, ModelSpec, Synthetic, Transformer};

const LIMITS: Limits = Limits { max_tokens: 64, max_logit_rows: 64, kv_blocks: 16, state_slots: 0 };

/// Runs several sequences with the logits of some of their tokens, of which only these are needed.
fn forward(model: &mut dyn Model, sequences: usize, wanted: Wanted) -> Logits {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    for s in 0..sequences {
        let tokens: Vec<u32> = (0..=s % 4).map(|i| (i * 911 + s * 37) as u32).collect();
        batch.push(&tokens, 0, &[s as u32], tokens.len().min(2) - 1..tokens.len());
        batch.want(|_| wanted);
    }
    model.forward(&batch, &mut logits).unwrap();
    logits
}

#[test]
fn logits_ruled_out_by_bounds_change_no_draw_on_any_isa() {
    let tiny = Synthetic::named("tiny").unwrap();
    let source = Synthetic::of(ModelSpec { vocab: 32_000, ..tiny.spec().clone() });
    let mut sampler = Sampler::new(32_000);
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2).unwrap();
        let mut model = Transformer::load(source.spec(), &source, cpu, LIMITS, &mut |_, _| {}).unwrap();
        for sequences in [1, 2, 7, 16] {
            let all = forward(&mut model, sequences, Wanted::All);
            for top in [1, 3, 40] {
                let before = model.backend_ref().head_counts();
                let some = forward(&mut model, sequences, Wanted::Top(top));
                let work = model.backend_ref().head_counts();
                assert_eq!(some.rows(), all.rows());
                assert_eq!(work.shortlisted - before.shortlisted, all.rows() as u64, "{isa:?} top {top}");
                let rescored = (work.rescored - before.rescored) as usize / all.rows();
                assert!((top..8000).contains(&rescored), "{isa:?} top {top}: {rescored} of a row computed");
                for row in 0..all.rows() {
                    let (all, some) = (all.row(row), some.row(row));
                    let same = all.iter().zip(some).all(|(a, s)| a == s || *s == f32::NEG_INFINITY);
                    assert!(same, "{isa:?} top {top}: a logit differs");
                    let (none, best): (&[u32], _) = (&[], [first(all)]);
                    for (config, banned) in [
                        (GenerationConfig { temperature: 0.0, ..Default::default() }, none),
                        (GenerationConfig { temperature: 0.8, top_k: top, ..Default::default() }, none),
                        (
                            GenerationConfig {
                                temperature: 1.0,
                                top_k: top,
                                top_p: 0.7,
                                ..Default::default()
                            },
                            none,
                        ),
                        // One more than these suffices if the first is banned.
                        (GenerationConfig { temperature: 1.0, top_k: top - 1, ..Default::default() }, &best),
                    ] {
                        if top == 1 && !banned.is_empty() {
                            continue;
                        }
                        for choice in 0..3 {
                            let (seed, tokens) = (5, &[1, 2, 3][..]);
                            let config = &config;
                            let at =
                                Draw { config, tokens, prompt_len: 3, banned, allowed: None, seed, choice };
                            let drawn = (sampler.draw(all, &at).unwrap(), sampler.draw(some, &at).unwrap());
                            assert_eq!(drawn.0, drawn.1, "{isa:?} top {top} {config:?}");
                        }
                    }
                }
            }
        }
    }
}

fn first(row: &[f32]) -> u32 {
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&x| x == highest).unwrap() as u32
}

/// Draws that depend on the whole row. The model's logits are as flat as random weights make them; a low temperature
/// makes them peaked.
#[test]
fn tokens_drawn_from_bounds_are_those_drawn_from_all_logits_on_any_isa() {
    let tiny = Synthetic::named("tiny").unwrap();
    let source = Synthetic::of(ModelSpec { vocab: 32_001, ..tiny.spec().clone() });
    let open = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };
    let asks = [
        SamplingParams::GREEDY,
        open,
        SamplingParams { temperature: 0.05, ..open },
        SamplingParams { temperature: 5.0, ..open },
        SamplingParams { temperature: 0.7, top_p: 0.9, ..open },
        SamplingParams { temperature: 0.1, top_p: 0.9, ..open },
        SamplingParams { temperature: 1.0, top_p: 0.05, ..open },
        SamplingParams { temperature: 1.0, min_p: 0.05, ..open },
        SamplingParams { temperature: 0.2, min_p: 0.3, top_p: 0.5, ..open },
        SamplingParams { temperature: 100.0, min_p: 1.0, ..open },
    ];
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2).unwrap();
        let mut model = Transformer::load(source.spec(), &source, cpu, LIMITS, &mut |_, _| {}).unwrap();
        for sequences in [1, 7] {
            let all = forward(&mut model, sequences, Wanted::All);
            for ask in asks {
                for (seed, choice) in [(1, 0), (2, 3), (3, 0), (1 << 40, 1)] {
                    let ask = SamplingParams { seed, choice, position: 9 + seed as u32, ..ask };
                    let before = model.backend_ref().head_counts();
                    let some = forward(&mut model, sequences, Wanted::Token(ask));
                    let work = model.backend_ref().head_counts();
                    assert_eq!(
                        work.drawn + work.undecided - before.drawn - before.undecided,
                        all.rows() as u64
                    );
                    for row in 0..all.rows() {
                        let expected = draw::drawn(all.row(row), &ask);
                        match some.drawn(row) {
                            Some(drawn) => assert_eq!(drawn, expected, "{isa:?} row {row} {ask:?}"),
                            None => assert_eq!(some.row(row), all.row(row), "{isa:?} row {row} {ask:?}"),
                        }
                        assert!(matches!(expected, Drawn::Token(_)));
                    }
                    let undecided = work.undecided - before.undecided;
                    assert!(ask.top_p < 1.0 || undecided == 0, "{isa:?} {ask:?}: {undecided} rows");
                    // A row that may be cut can need the logits before it; others need a few.
                    let rescored = (work.rescored - before.rescored) as usize / all.rows();
                    assert!(ask.top_p < 1.0 || rescored < 500, "{isa:?} {ask:?}: {rescored} of a row");
                }
            }
        }
    }
}

/// Flat logits, of which bounds alone rarely say whether top-p keeps a token. All tokens are drawn without most logits.
#[test]
fn a_token_that_top_p_may_cut_needs_few_logits_on_any_isa() {
    const VOCAB: usize = 32_001;
    let tiny = Synthetic::named("tiny").unwrap();
    let source = Synthetic::of(ModelSpec { vocab: VOCAB, ..tiny.spec().clone() });
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2).unwrap();
        let mut model = Transformer::load(source.spec(), &source, cpu, LIMITS, &mut |_, _| {}).unwrap();
        let all = forward(&mut model, 1, Wanted::All);
        let before = model.backend_ref().head_counts();
        let draws = 60;
        for position in 0..draws {
            let ask =
                SamplingParams { temperature: 0.2, top_p: 0.9, seed: 1, position, ..SamplingParams::GREEDY };
            let some = forward(&mut model, 1, Wanted::Token(ask));
            assert_eq!(some.drawn(0), Some(draw::drawn(all.row(0), &ask)), "{isa:?} position {position}");
        }
        let work = model.backend_ref().head_counts() - before;
        let computed = work.rescored as f64 / (f64::from(draws) * VOCAB as f64);
        assert!(work.undecided == 0 && computed < 0.03, "{isa:?}: {computed} of a row computed, {work:?}");
    }
}

/// A vocabulary so small that the best of each panel are fewer than top-k needs.
#[test]
fn top_k_of_a_small_vocabulary_is_drawn_by_bounds_on_any_isa() {
    let tiny = Synthetic::named("tiny").unwrap();
    let source = Synthetic::of(ModelSpec { vocab: 2047, ..tiny.spec().clone() });
    let open = SamplingParams { temperature: 0.3, top_k: 40, seed: 4, ..SamplingParams::GREEDY };
    let changed = |token: u32| Change { repetition: 1.2, less: 0.1, ..Change::none(token * 9) };
    let (none, many): (Vec<Change>, Vec<Change>) = (Vec::new(), (0..200).map(changed).collect());
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2).unwrap();
        let mut model = Transformer::load(source.spec(), &source, cpu, LIMITS, &mut |_, _| {}).unwrap();
        let all = forward(&mut model, 1, Wanted::All);
        for changes in [&none, &many] {
            let mut row = all.row(0).to_vec();
            for change in changes {
                let logit = &mut row[change.token as usize];
                *logit = change.apply(*logit);
            }
            for position in 0..20 {
                for top_p in [1.0, 0.6] {
                    let ask = SamplingParams { position, top_p, ..open };
                    let (mut batch, mut logits) = (Batch::new(), Logits::default());
                    batch.push(&[0], 0, &[0], 0..1);
                    batch.want_changed(0, ask, changes, None);
                    let before = model.backend_ref().head_counts();
                    model.forward(&batch, &mut logits).unwrap();
                    let work = model.backend_ref().head_counts() - before;
                    assert_eq!(logits.drawn(0), Some(draw::drawn(&row, &ask)), "{isa:?} {ask:?}");
                    assert!(work.drawn == 1 && (40..120).contains(&work.rescored), "{isa:?} {work:?}");
                }
            }
        }
    }
}

/// Penalties, biases and bans, of likely and of other tokens, few and many, after which a token is drawn.
#[test]
fn tokens_drawn_after_changes_of_logits_are_those_drawn_from_all_of_them_on_any_isa() {
    let tiny = Synthetic::named("tiny").unwrap();
    let source = Synthetic::of(ModelSpec { vocab: 32_001, ..tiny.spec().clone() });
    let open = SamplingParams { temperature: 1.0, seed: 4, position: 3, ..SamplingParams::GREEDY };
    let asks = [
        SamplingParams::GREEDY,
        open,
        SamplingParams { temperature: 0.1, ..open },
        SamplingParams { top_k: 20, top_p: 0.8, ..open },
        SamplingParams { temperature: 0.05, top_k: 40, ..open },
        SamplingParams { temperature: 0.3, top_p: 0.9, ..open },
        SamplingParams { min_p: 0.1, ..open },
    ];
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 2).unwrap();
        let mut model = Transformer::load(source.spec(), &source, cpu, LIMITS, &mut |_, _| {}).unwrap();
        let all = forward(&mut model, 1, Wanted::All);
        let row = all.row(0);
        let mut likely: Vec<u32> = (0..row.len() as u32).collect();
        likely.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        let change = |token: &u32, more: f32| Change { repetition: 1.3, less: 0.1, more, token: *token };
        let lists = [
            // The most likely tokens become less so, or forbidden; an unlikely one becomes the most likely.
            likely[..30].iter().map(|token| change(token, 0.0)).collect::<Vec<_>>(),
            likely[..5].iter().map(|token| change(token, f32::NEG_INFINITY)).collect(),
            vec![change(&likely[20_000], 30.0)],
            vec![change(&likely[9_000], row[likely[0] as usize] - row[likely[9_000] as usize] + 0.2)],
            likely.iter().step_by(80).map(|token| change(token, -0.5)).collect(),
        ];
        for changes in &lists {
            let mut changed = row.to_vec();
            for change in changes {
                let logit = &mut changed[change.token as usize];
                *logit = change.apply(*logit);
            }
            for ask in asks {
                let (mut batch, mut logits) = (Batch::new(), Logits::default());
                batch.push(&[0], 0, &[0], 0..1);
                batch.want_changed(0, ask, changes, None);
                let before = model.backend_ref().head_counts();
                model.forward(&batch, &mut logits).unwrap();
                let expected = draw::drawn(&changed, &ask);
                assert!(ask.top_p < 1.0 || logits.drawn(0).is_some(), "{isa:?} {ask:?}: not drawn");
                let computed = (model.backend_ref().head_counts() - before).rescored;
                assert!(ask.top_p < 1.0 || computed < 300, "{isa:?} {ask:?}: {computed} logits");
                match logits.drawn(0) {
                    Some(drawn) => assert_eq!(drawn, expected, "{isa:?} {} changes {ask:?}", changes.len()),
                    None => assert_eq!(logits.row(0), row, "{isa:?} {ask:?}"),
                }
            }
        }
    }
}

/// Texts of requests that sample, penalise and ban, with drafts, from a model with bounds and from one that computes all
/// logits.
#[test]
fn a_text_is_the_same_with_bounds_and_with_all_logits() {
    let tiny = Synthetic::named("tiny").unwrap();
    let source = Synthetic::of(ModelSpec { vocab: 9000, ..tiny.spec().clone() });
    let load = |cpu| Transformer::load(source.spec(), &source, cpu, LIMITS, &mut |_, _| {}).unwrap();
    let mut bounded = load(Cpu::new(Isa::best(), 2).unwrap());
    let mut whole = load(Cpu::new(Isa::best(), 2).unwrap().for_all_logits());
    let warm = GenerationConfig {
        max_new_tokens: 24,
        temperature: 0.6,
        seed: Some(3),
        ..GenerationConfig::default()
    };
    let configs = [
        warm.clone(),
        GenerationConfig { top_p: 0.9, ..warm.clone() },
        GenerationConfig { min_p: 0.1, temperature: 1.5, ..warm.clone() },
        GenerationConfig { top_k: 10, repetition_penalty: 1.2, ..warm.clone() },
        GenerationConfig { temperature: 0.0, repetition_penalty: 1.5, ..warm.clone() },
        GenerationConfig { frequency_penalty: 0.7, presence_penalty: 0.2, ..warm.clone() },
        GenerationConfig { logit_bias: vec![(5, 3.0), (6, -100.0), (5, 0.5)], ..warm.clone() },
        GenerationConfig { min_new_tokens: 20, stop_tokens: vec![1, 2, 3], ..warm.clone() },
    ];
    for config in configs {
        let before = bounded.backend_ref().head_counts();
        let text = |model: &mut dyn Model| {
            let request = Request::new(&[1, 2, 3, 2, 3][..], config.clone());
            let every = |_| ControlFlow::Continue(());
            generate(model, request, &EngineConfig::default(), every).unwrap().tokens
        };
        assert_eq!(text(&mut bounded), text(&mut whole), "{config:?}");
        let work = bounded.backend_ref().head_counts();
        assert!(work.drawn - before.drawn > 12, "{config:?}: {work:?}");
    }
}
