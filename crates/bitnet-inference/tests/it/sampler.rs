//! The sampler: which tokens its rules leave, and how often each is drawn.

use bitnet_inference::{
    GenerationConfig, SampleError,
    sampling::{Draw, Sampler, random_u64},
};
use bitnet_kernels::{
    SamplingParams,
    draw::{self, Arrivals, GROUP},
};
use proptest::prelude::*;

fn config() -> GenerationConfig {
    GenerationConfig { temperature: 1.0, ..GenerationConfig::default() }
}

fn draw(logits: &[f32], config: &GenerationConfig, position: usize) -> Result<u32, SampleError> {
    draw_after(logits, config, &vec![0; position], position)
}

fn draw_after(
    logits: &[f32],
    config: &GenerationConfig,
    tokens: &[u32],
    prompt_len: usize,
) -> Result<u32, SampleError> {
    let at = Draw { config, tokens, prompt_len, banned: &[], allowed: None, seed: 1, choice: 0 };
    Sampler::new(logits.len()).draw(logits, &at)
}

/// How often each token occurs in 4,000 draws.
fn histogram(logits: &[f32], config: &GenerationConfig) -> Vec<usize> {
    let mut counts = vec![0; logits.len()];
    for position in 0..4000 {
        counts[draw(logits, config, position).unwrap() as usize] += 1;
    }
    counts
}

#[test]
fn zero_temperature_and_top_k_one_take_the_first_of_equal_maxima() {
    // `max_by` would keep the last of equal values.
    let row = [1.0, 3.0, -0.0, 3.0, 3.0];
    assert_eq!(draw(&row, &GenerationConfig { temperature: 0.0, ..config() }, 0), Ok(1));
    assert_eq!(draw(&row, &GenerationConfig { top_k: 1, temperature: 5.0, ..config() }, 0), Ok(1));
    assert_eq!(draw(&[-0.0, 0.0], &GenerationConfig::default(), 0), Ok(0));
}

#[test]
fn a_nan_anywhere_is_an_error_that_names_its_token() {
    // With `partial_cmp().unwrap_or(Equal)`, a NaN would win or lose without an error.
    for len in [1, 5, 16, 17, 40] {
        for bad in 0..len {
            let mut row = vec![0.5; len];
            row[bad] = f32::NAN;
            for config in [GenerationConfig::default(), config()] {
                assert_eq!(draw(&row, &config, 0), Err(SampleError::NotANumber { token: bad as u32 }));
            }
        }
    }
}

#[test]
fn infinite_logits_have_their_limits() {
    let inf = f32::INFINITY;
    assert_eq!(draw(&[0.0, inf, 5.0], &GenerationConfig::default(), 0), Ok(1));
    let counts = histogram(&[0.0, inf, 50.0, inf], &config());
    assert_eq!(counts[1] + counts[3], 4000);
    assert!(counts[1].abs_diff(counts[3]) < 300, "{counts:?}");
    assert_eq!(histogram(&[0.0, -inf], &config()), [4000, 0]);
    assert_eq!(draw(&[-inf, -inf], &config(), 0), Err(SampleError::NothingAllowed));
    assert_eq!(draw(&[-inf, -inf], &GenerationConfig::default(), 0), Err(SampleError::NothingAllowed));
}

#[test]
fn temperature_sharpens_and_flattens() {
    let row = [2.0, 1.0, 0.0];
    for (temperature, want) in [(1.0, [0.665, 0.245, 0.090]), (2.0, [0.506, 0.307, 0.186])] {
        let counts = histogram(&row, &GenerationConfig { temperature, ..config() });
        for (count, want) in counts.iter().zip(want) {
            assert!((*count as f64 / 4000.0 - want).abs() < 0.025, "{temperature}: {counts:?}");
        }
    }
}

#[test]
fn top_k_breaks_ties_by_token_id() {
    let counts = histogram(&[1.0, 2.0, 1.0, 1.0], &GenerationConfig { top_k: 2, ..config() });
    assert!(counts[0] > 0 && counts[1] > 0);
    assert_eq!(counts[2] + counts[3], 0);
}

#[test]
fn top_p_keeps_the_token_that_crosses_the_mass_and_no_more() {
    // Probabilities 0.5, 0.25, 0.125, 0.125.
    let row = [4.0f32.ln(), 2.0f32.ln(), 0.0, 0.0];
    let kept = |top_p| {
        let counts = histogram(&row, &GenerationConfig { top_p, ..config() });
        counts.iter().filter(|&&c| c > 0).count()
    };
    assert_eq!((kept(0.4), kept(0.6), kept(0.8), kept(0.9)), (1, 2, 3, 4));
    let counts = histogram(&row, &GenerationConfig { top_p: 0.8, ..config() });
    assert_eq!(counts[3], 0, "of equal tokens the later one is cut");
}

#[test]
fn top_p_counts_only_what_top_k_left() {
    let row = [4.0f32.ln(), 2.0f32.ln(), 0.0, 0.0];
    // Two tokens remain, with 2/3 and 1/3.
    let counts = histogram(&row, &GenerationConfig { top_k: 2, top_p: 0.66, ..config() });
    assert_eq!(counts, [4000, 0, 0, 0]);
}

#[test]
fn a_min_p_of_1_keeps_the_most_likely_tokens() {
    let counts = histogram(&[2.0, 1.0, 2.0], &GenerationConfig { min_p: 1.0, ..config() });
    assert!(counts[0] > 0 && counts[1] == 0 && counts[2] > 0, "{counts:?}");
}

#[test]
fn both_zeros_are_equal_and_ordered_by_id() {
    let at = Sampler::new(2).logprobs(&[-0.0, 0.0], 0, 1).unwrap();
    assert_eq!(at.top[0].0, 0);
}

#[test]
fn min_p_is_relative_to_the_most_likely() {
    let row = [4.0f32.ln(), 2.0f32.ln(), 0.0];
    let counts = histogram(&row, &GenerationConfig { min_p: 0.4, ..config() });
    assert!(counts[0] > 0 && counts[1] > 0);
    assert_eq!(counts[2], 0);
}

#[test]
fn penalties_act_on_the_tokens_they_are_defined_for() {
    let greedy = GenerationConfig::default;
    let repetition = GenerationConfig { repetition_penalty: 2.0, ..greedy() };
    assert_eq!(draw_after(&[3.0, 2.0], &repetition, &[0], 1), Ok(1), "a prompt token, positive: divided");
    assert_eq!(draw_after(&[-1.0, -1.5], &repetition, &[0], 1), Ok(1), "negative: multiplied");
    assert_eq!(
        draw_after(&[3.0, 1.6], &repetition, &[0, 0], 1),
        Ok(1),
        "occurring twice is not dividing twice: 1.5"
    );
    assert_eq!(draw_after(&[3.0, 1.4], &repetition, &[0, 0], 1), Ok(0));
    let presence = GenerationConfig { presence_penalty: 1.0, ..greedy() };
    assert_eq!(draw_after(&[1.5, 1.0], &presence, &[0], 1), Ok(0), "prompt tokens are not present");
    assert_eq!(draw_after(&[1.5, 1.0], &presence, &[0], 0), Ok(1));
    let frequency = GenerationConfig { frequency_penalty: 0.3, ..greedy() };
    assert_eq!(draw_after(&[1.5, 1.0], &frequency, &[0], 0), Ok(0));
    assert_eq!(draw_after(&[1.5, 1.0], &frequency, &[0, 0], 0), Ok(1));
    let bias = GenerationConfig { logit_bias: vec![(1, 1.0)], ..greedy() };
    assert_eq!(draw_after(&[1.5, 1.0], &bias, &[], 0), Ok(1));
}

#[test]
fn nothing_is_remembered_from_one_draw_to_the_next() {
    let config = GenerationConfig { repetition_penalty: 3.0, frequency_penalty: 0.5, top_p: 0.9, ..config() };
    let row: Vec<f32> = (0..100).map(|i| (random_u64(2, 0, i) % 100) as f32 / 20.0).collect();
    let tokens: Vec<u32> = (0..40).map(|i| (random_u64(3, 0, i) % 100) as u32).collect();
    let mut used = Sampler::new(100);
    for end in 1..40 {
        let at = Draw {
            config: &config,
            tokens: &tokens[..end],
            prompt_len: 5.min(end),
            banned: &[],
            allowed: None,
            seed: 9,
            choice: 2,
        };
        assert_eq!(used.draw(&row, &at), Sampler::new(100).draw(&row, &at));
    }
}

#[test]
fn logprobs_are_of_the_models_own_distribution() {
    let row = [4.0f32.ln(), 2.0f32.ln(), 0.0, 0.0];
    let at = Sampler::new(4).logprobs(&row, 1, 3).unwrap();
    assert!((at.logprob - 0.25f32.ln()).abs() < 1e-6);
    assert_eq!(at.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert!((at.top[2].1 - 0.125f32.ln()).abs() < 1e-6);
}

/// The probability of each token of a row, from f64.
fn probabilities(row: &[f32], temperature: f64) -> Vec<f64> {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let weights: Vec<f64> = row.iter().map(|&l| ((f64::from(l) - max) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// A million draws from a peaked and a flat row of several groups, over positions, choices and seeds. Tokens with fewer
/// than 20 expected draws count together.
#[test]
fn tokens_are_drawn_as_often_as_their_probabilities_say() {
    let peaked: Vec<f32> = (0..150).map(|i| 6.0 - 1.2 * ((i * 37 % 150 + 1) as f32).ln()).collect();
    let flat: Vec<f32> = (0..150).map(|i| (i * 53 % 150) as f32 / 150.0).collect();
    for (row, temperature) in [(&peaked, 0.8), (&flat, 1.0)] {
        let config = GenerationConfig { temperature, ..config() };
        let mut sampler = Sampler::new(row.len());
        let mut counts = vec![0.0; row.len()];
        let draws = 500_000;
        let tokens = vec![0; 1000];
        for i in 0..draws {
            let tokens = &tokens[..i % 1000];
            let choice = (i / 1000 % 10) as u32;
            let seed = (i / 10_000) as u64;
            let at =
                Draw { config: &config, tokens, prompt_len: 0, banned: &[], allowed: None, seed, choice };
            counts[sampler.draw(row, &at).unwrap() as usize] += 1.0;
        }
        let (mut chi, mut bins, mut rare) = (0.0, 0, (0.0, 0.0));
        let mut add = |count: f64, expected: f64| {
            chi += (count - expected) * (count - expected) / expected;
            bins += 1;
        };
        for (count, p) in counts.iter().zip(probabilities(row, f64::from(temperature))) {
            let expected = p * draws as f64;
            if expected < 20.0 {
                rare = (rare.0 + count, rare.1 + expected);
            } else {
                add(*count, expected);
            }
        }
        if rare.1 > 20.0 {
            add(rare.0, rare.1);
        }
        // Five standard deviations.
        let freedom = f64::from(bins - 1);
        let most = freedom + 5.0 * (2.0 * freedom).sqrt();
        assert!(chi < most, "chi-square {chi} with {freedom} degrees of freedom");
    }
}

/// More than f32 rounds of a weight, relative to it.
const ROUNDINGS: f64 = 1e-5;

/// The filters as documented: everything sorted, every filter a loop; and the earliest arrival of what is kept. With f64
/// for f32, so that a token that is nearly the first may be the first; `nudge` moves the limits of top-p and min-p.
fn naive(row: &[f32], config: &GenerationConfig, arrivals: &Arrivals, nudge: f64) -> Vec<u32> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    if config.is_greedy() {
        return vec![order[0] as u32];
    }
    let max = f64::from(row[order[0]]);
    let weight = |i: usize| ((f64::from(row[i]) - max) / f64::from(config.temperature)).exp();
    if config.top_k > 0 {
        order.truncate(config.top_k);
    }
    let mass: f64 = order.iter().map(|&i| weight(i)).sum();
    let (mut sum, mut kept) = (0.0, 0);
    while kept < order.len() && (kept == 0 || sum < f64::from(config.top_p) * (1.0 + nudge) * mass) {
        sum += weight(order[kept]);
        kept += 1;
    }
    order.truncate(kept);
    order.retain(|&i| weight(i) >= f64::from(config.min_p) * (1.0 + nudge));
    let late = |id: usize| {
        let group = id / GROUP;
        let first = arrivals.firsts(group / 4)[group % 4];
        f64::from(arrivals.of(id, first, arrivals.member(group))) / weight(id)
    };
    let earliest = order.iter().map(|&id| late(id)).fold(f64::INFINITY, f64::min);
    order.retain(|&id| late(id) <= earliest * (1.0 + ROUNDINGS));
    order.into_iter().map(|id| id as u32).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_sampler_draws_what_a_sorted_row_would_give(
        row in proptest::collection::vec(-6i32..6, 1..300),
        noise in any::<u64>(),
        temperature in 0.2f32..3.0,
        top_k in prop_oneof![Just(0usize), 1usize..50],
        top_p in prop_oneof![Just(1.0f32), 0.05f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..0.5],
        seed in any::<u64>(),
    ) {
        // Integers tie often; half of the rows get distinct values.
        let row: Vec<f32> = row.iter().enumerate().map(|(i, &l)| {
            l as f32 + if noise & 1 == 0 { 0.0 } else { (random_u64(noise, 0, i as u64) >> 40) as f32 * 1e-8 }
        }).collect();
        let config = GenerationConfig { temperature, top_k, top_p, min_p, ..config() };
        let at = Draw { config: &config, tokens: &[0; 7], prompt_len: 7, banned: &[], allowed: None, seed, choice: 0 };
        let got = Sampler::new(row.len()).draw(&row, &at).unwrap();
        let arrivals = Arrivals::new(seed, 0, 7);
        let draws = |nudge| naive(&row, &config, &arrivals, nudge).contains(&got);
        prop_assert!([0.0, ROUNDINGS, -ROUNDINGS].into_iter().any(draws), "{} was drawn", got);
        let position = 7;
        let params = SamplingParams { temperature, top_k: top_k as u32, top_p, min_p, seed, choice: 0, position };
        prop_assert_eq!(bitnet_kernels::Drawn::Token(got), draw::drawn(&row, &params));
    }
}
