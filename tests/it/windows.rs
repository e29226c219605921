//! Maple whose sliding layers have blocks of their own: every request gets the bits that it gets from a model that keeps
//! all tokens in all layers.

use std::{sync::Arc, time::Duration};

use bitnet_inference::{CacheFolder, Engine, EngineConfig, GenerationConfig, Request, TokenText};
use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{Checkpoint, Limits, Model, Transformer};
use bitnet_tests::fixture;

/// Forms of Maple: windows of 12 and 8 keys.
const FORMS: [&str; 2] = ["maple-tiny/model-TQ1_0-head-F16.gguf", "maple-unpacked/mlx"];

const LIMITS: Limits = Limits { max_tokens: 128, max_logit_rows: 8, kv_blocks: 64, state_slots: 0 };

struct Letters;

impl TokenText for Letters {
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
        out.extend([b'a' + (token / 26 % 26) as u8, b'a' + (token % 26) as u8]);
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        eos: Some(vec![3]),
        text: Some(Arc::new(Letters)),
        max_batch_size: 8,
        ..EngineConfig::default()
    }
}

fn start(form: &str, windows: bool, threads: usize, limits: Limits, config: EngineConfig) -> Engine {
    let Checkpoint { spec, tensors, .. } = Checkpoint::open(&fixture(form)).unwrap();
    let cpu = Cpu::new(Isa::best(), threads).unwrap();
    let load = if windows { Transformer::load_with_windows } else { Transformer::load };
    let model = load(&spec, &*tensors, cpu, limits, &mut |_, _| {}).unwrap();
    assert_eq!(model.window_blocks() > 0, windows);
    Engine::start(model, config).unwrap()
}

/// Texts of up to thirty windows; half begin alike, some repeat themselves, some have several choices.
fn requests(vocab: u32) -> Vec<Request> {
    let request = |i: usize| {
        let len = [3, 40, 64, 129, 200, 255, 320][i % 7] + i;
        let token = |p: usize| match i % 4 {
            0 | 1 if p < 150 => (p * p * 31 + 5) as u32,
            2 => (p % 9 * 7 + i) as u32,
            _ => (p * p * 13 + p * i * 7 + i) as u32,
        };
        let config = GenerationConfig {
            max_new_tokens: 20 + 7 * (i % 5),
            temperature: [0.0, 0.8][i % 2],
            logprobs: i.is_multiple_of(3).then_some(2),
            // Texts that repeat a token, so that drafts are right.
            logit_bias: if i % 4 == 2 { vec![(7, 100.0)] } else { Vec::new() },
            n: if i % 6 == 5 { 3 } else { 1 },
            seed: Some(i as u64),
            ignore_eos: true,
            ..GenerationConfig::default()
        };
        Request::new((0..len).map(|p| token(p) % vocab).collect::<Vec<_>>(), config)
    };
    (0..24).map(request).collect()
}

/// All tokens of a request's choices, and the bits of their log-probabilities.
type Answer = Vec<(Vec<u32>, Vec<u32>)>;

fn answers(engine: &Engine, requests: &[Request]) -> Vec<Answer> {
    let handles = engine.submit_all(requests.to_vec()).unwrap();
    let answer = |done: bitnet_inference::Completion| {
        let of = |choice: bitnet_inference::Choice| {
            (choice.tokens, choice.logprobs.iter().map(|l| l.logprob.to_bits()).collect())
        };
        done.choices.into_iter().map(of).collect()
    };
    handles.into_iter().map(|handle| answer(handle.wait().unwrap())).collect()
}

/// The answers alone, one after the other, in layers that keep all tokens.
fn alone(form: &str, requests: &[Request]) -> Vec<Answer> {
    let engine = start(form, false, 1, LIMITS, EngineConfig { max_batch_size: 1, ..config() });
    // Nothing comes from the prefix cache.
    let salted = (1..).zip(requests).map(|(salt, request)| Request { salt, ..request.clone() });
    answers(&engine, &salted.collect::<Vec<_>>())
}

fn vocab(form: &str) -> u32 {
    Checkpoint::open(&fixture(form)).unwrap().spec.vocab as u32
}

#[test]
fn every_request_gets_the_bits_that_it_gets_alone_from_layers_that_keep_all_tokens() {
    for form in FORMS {
        let requests = requests(vocab(form));
        let expected = alone(form, &requests);
        let (mut preempted, mut hits, mut accepted) = (0, 0, 0);
        for (max_tokens, kv_blocks, max_draft, threads) in
            [(128, 64, 0, 1), (17, 64, 4, 2), (128, 12, 4, 2), (512, 9, 0, 1), (64, 200, 2, 2)]
        {
            let limits = Limits { max_tokens, kv_blocks, ..LIMITS };
            let engine = start(form, true, threads, limits, EngineConfig { max_draft, ..config() });
            // The second time, beginnings come from the cache.
            for round in 0..2 {
                let what =
                    format!("{form}, steps of {max_tokens}, {kv_blocks} blocks, {max_draft}, round {round}");
                assert!(answers(&engine, &requests) == expected, "{what}");
            }
            let status = engine.status();
            assert_eq!((status.kv_used, status.windows_used), (0, 0));
            preempted += status.scheduler.preemptions;
            hits += status.scheduler.prefix_hits;
            accepted += status.scheduler.accepted;
        }
        assert!(preempted > 0 && hits > 0 && accepted > 0, "{form}: {preempted} {hits} {accepted}");
    }
}

#[test]
fn texts_go_on_from_a_folder_with_the_bits_that_they_get_alone() {
    let form = FORMS[0];
    let requests = requests(vocab(form));
    let expected = alone(form, &requests);
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("cache");
    let folder = CacheFolder { path, bytes: 1 << 30, identity: [7; 32], about: "maple".into() };
    let mut read = 0;
    for (round, kv_blocks) in [64, 12, 64, 10].into_iter().enumerate() {
        let limits = Limits { kv_blocks, ..LIMITS };
        let config = EngineConfig { folder: Some(folder.clone()), max_draft: 2, ..config() };
        let engine = start(form, true, 2, limits, config);
        assert!(answers(&engine, &requests) == expected, "round {round}");
        let tier = engine.status().tier.unwrap();
        assert_eq!(tier.shelf.damaged, 0, "{tier:?}");
        read += tier.hit_tokens;
        assert!(engine.shutdown(Duration::from_secs(60)).complete);
    }
    assert!(read > 1000, "{read} tokens were read");
}
