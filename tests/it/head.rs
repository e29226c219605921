//! The output head with bounds gives the same tokens as with all logits computed.

use bitnet_inference::{
    GenerationConfig,
    sampling::{Draw, Sampler},
};
use bitnet_kernels::{Cpu, Isa, Wanted};
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
