//! One text without an engine: [`generate`](bitnet_inference::generate).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bitnet_model::Limits;

use bitnet_hash_model::HashModel;
use bitnet_inference::{
    CacheFolder, EngineConfig, FinishReason, Generated, GenerationConfig, GenerationError, InvalidRequest,
    Request, TokenText, generate,
};

fn model(max_tokens: usize) -> HashModel {
    HashModel::new(50, 300, Limits { max_tokens, max_logit_rows: 1, kv_blocks: 8, state_slots: 0 })
}

fn engine(eos: &[u32]) -> EngineConfig {
    EngineConfig { eos: Some(eos.to_vec()), ..EngineConfig::default() }
}

fn spelled() -> EngineConfig {
    EngineConfig { text: Some(Arc::new(Digits)), ..EngineConfig::default() }
}

fn run(max_tokens: usize, prompt: &[u32], config: &GenerationConfig) -> Result<Generated, GenerationError> {
    let request = Request::new(prompt, config.clone());
    generate(&mut model(max_tokens), request, &engine(&[7]), |_| ControlFlow::Continue(()))
}

#[test]
fn a_prompt_in_chunks_gives_what_it_gives_in_one() {
    let prompt: Vec<u32> = (0..130).map(|i| i % 50).collect();
    let config = GenerationConfig {
        max_new_tokens: 40,
        temperature: 1.0,
        seed: Some(3),
        ignore_eos: true,
        ..Default::default()
    };
    let whole = run(512, &prompt, &config).unwrap();
    assert_eq!(whole.tokens.len(), 40);
    for chunk in [1, 7, 64, 100] {
        let got = run(chunk, &prompt, &config).unwrap();
        assert_eq!((got.tokens, got.finish), (whole.tokens.clone(), whole.finish));
    }
}

#[test]
fn the_context_ends_a_text_and_refuses_a_prompt() {
    let config = GenerationConfig { max_new_tokens: 400, ignore_eos: true, ..Default::default() };
    let full = run(512, &[1; 290], &config).unwrap();
    assert_eq!((full.tokens.len(), full.finish), (10, FinishReason::Context));
    assert_eq!(
        run(512, &[1; 300], &config),
        Err(InvalidRequest::TooLong { tokens: 300, context: 300 }.into())
    );
}

#[test]
fn eos_ends_the_text_and_is_not_part_of_it() {
    let config =
        GenerationConfig { max_new_tokens: 250, temperature: 2.0, seed: Some(1), ..Default::default() };
    let ended = run(64, &[1], &config).unwrap();
    assert_eq!(ended.finish, FinishReason::Eos);
    assert!(!ended.tokens.contains(&7));
    let held = GenerationConfig { min_new_tokens: ended.tokens.len() + 5, ..config };
    assert!(run(64, &[1], &held).unwrap().tokens.len() >= ended.tokens.len() + 5);
}

#[test]
fn a_callback_that_breaks_ends_the_text() {
    let config = GenerationConfig { max_new_tokens: 50, ..Default::default() };
    let mut seen = 0;
    let stopped = generate(&mut model(64), Request::new([1, 2], config), &engine(&[]), |_| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let stopped = stopped.unwrap();
    assert_eq!((stopped.tokens.len(), stopped.finish), (3, FinishReason::Cancelled));
}

struct Digits;

impl TokenText for Digits {
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{token:02}").as_bytes());
    }
}

#[test]
fn nothing_follows_the_token_at_which_a_callback_breaks() {
    let config = GenerationConfig { max_new_tokens: 3, ignore_eos: true, ..Default::default() };
    let tokens = run(64, &[1, 2], &config).unwrap().tokens;
    // All three tokens are held back and released together when the text ends.
    let held: String = tokens.iter().map(|t| format!("{t:02}")).collect();
    let config = GenerationConfig { stop_strings: vec![held + "!"], ..config };
    let mut seen = Vec::new();
    let stopped = generate(&mut model(64), Request::new([1, 2], config), &spelled(), |token| {
        seen.push(token);
        ControlFlow::Break(())
    });
    let stopped = stopped.unwrap();
    assert_eq!((seen, stopped.finish), (tokens[..1].to_vec(), FinishReason::Cancelled));
    assert_eq!(stopped.tokens, tokens[..1]);
}

#[test]
fn what_is_measured_counts_the_token_that_ends_the_text() {
    let free = GenerationConfig { max_new_tokens: 4, ignore_eos: true, ..Default::default() };
    let whole = run(64, &[1, 2], &free).unwrap();
    assert_eq!(whole.drawn, 4);
    assert!(whole.first_token.is_some() && whole.decode.is_some());
    let config = GenerationConfig { stop_tokens: vec![whole.tokens[0]], ..free.clone() };
    let ended = run(64, &[1, 2], &config).unwrap();
    assert_eq!((ended.tokens.len(), ended.drawn, ended.decode), (0, 1, None));
    assert!(ended.first_token.is_some());
    let nothing = run(64, &[1, 2], &GenerationConfig { max_new_tokens: 0, ..free }).unwrap();
    assert_eq!((nothing.first_token, nothing.drawn, nothing.decode), (None, 0, None));
}

#[test]
fn as_many_tokens_as_can_be_asked_for_end_at_the_context() {
    let config = GenerationConfig { max_new_tokens: usize::MAX, ignore_eos: true, ..Default::default() };
    let full = run(512, &[1; 290], &config).unwrap();
    assert_eq!((full.tokens.len(), full.finish), (10, FinishReason::Context));
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let free = GenerationConfig { max_new_tokens: 20, ..Default::default() };
    let go = |config: &GenerationConfig| {
        let request = Request::new([1, 2], config.clone());
        generate(&mut model(64), request, &spelled(), |_| ControlFlow::Continue(())).unwrap()
    };
    let tokens = go(&free).tokens;
    let stop = format!("{:02}{:02}", tokens[4], tokens[5]);
    let stopped = go(&GenerationConfig { stop_strings: vec![stop[1..].to_string()], ..free });
    assert_eq!(stopped.finish, FinishReason::StopString(0));
    assert_eq!((stopped.tokens, stopped.tail), (tokens[..4].to_vec(), stop.as_bytes()[..1].to_vec()));
}

#[test]
fn drafts_change_the_steps_of_a_text_and_none_of_its_tokens() {
    let limits = Limits { max_tokens: 64, max_logit_rows: 5, kv_blocks: 8, state_slots: 0 };
    // Few tokens, so that earlier text often recurs but continues differently.
    let config = GenerationConfig {
        max_new_tokens: 200,
        temperature: 1.0,
        seed: Some(3),
        logit_bias: vec![(1, 100.0), (2, 100.0)],
        ..Default::default()
    };
    let with = |max_draft| {
        let mut model = HashModel::new(50, 300, limits);
        let (counts, engine) = (model.counts(), EngineConfig { max_draft, ..EngineConfig::default() });
        let each = |_| ControlFlow::Continue(());
        let done = generate(&mut model, Request::new([1, 2, 1], config.clone()), &engine, each).unwrap();
        (done, counts.forwards.load(Relaxed) as u64)
    };
    let ((plain, steps), (drafting, fewer)) = (with(0), with(4));
    assert_eq!(drafting.tokens, plain.tokens);
    assert_eq!((plain.drafted, plain.accepted, drafting.drawn), (0, 0, plain.drawn));
    assert!(drafting.drafted > drafting.accepted && drafting.accepted > 0, "{drafting:?}");
    assert_eq!(fewer, steps - drafting.accepted);
}

#[test]
fn a_recurrent_model_drafts_only_where_it_has_logs_and_generates_the_same() {
    let config = GenerationConfig {
        max_new_tokens: 200,
        temperature: 1.0,
        seed: Some(5),
        logit_bias: (1..4).map(|token| (token, 100.0)).collect(),
        ..GenerationConfig::default()
    };
    let with = |state_slots, logs, max_draft| {
        let limits = Limits { max_tokens: 64, max_logit_rows: 5, kv_blocks: 8, state_slots };
        let engine = EngineConfig { max_draft, ..engine(&[]) };
        let each = |_| ControlFlow::Continue(());
        let request = Request::new([1, 2, 3], config.clone());
        let model = HashModel::new(50, 300, limits);
        let mut model = if logs { model } else { model.without_logs() };
        generate(&mut model, request, &engine, each).unwrap()
    };
    let plain = with(1, true, 0);
    assert_ne!(plain.tokens, with(0, true, 0).tokens, "the state decides");
    for (slots, logs) in [(1, false), (4, false), (1, true), (4, true)] {
        let drafted = with(slots, logs, 4);
        assert_eq!(drafted.tokens, plain.tokens, "{slots} slots, logs: {logs}");
        assert_eq!(drafted.drafted > 0, logs, "{slots} slots, logs: {logs}");
        assert_eq!(drafted.drafted > drafted.accepted, logs, "{slots} slots, logs: {logs}");
    }
}

#[test]
fn a_later_process_reads_a_lone_prompt_and_continues_it_with_the_same_tokens() {
    let prompt: Vec<u32> = (0..200).map(|i| i * 3 % 50).collect();
    let config = GenerationConfig { max_new_tokens: 20, seed: Some(3), ..Default::default() };
    for slots in [0, 4] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("cache");
        let folder = CacheFolder { path, bytes: 1 << 30, identity: [7; 32], about: "hashes".into() };
        let kept = EngineConfig { folder: Some(folder), ..engine(&[7]) };
        let mut computed = Vec::new();
        for engine in [&engine(&[7]), &kept, &kept] {
            let limits = Limits { max_tokens: 64, max_logit_rows: 1, kv_blocks: 4, state_slots: slots };
            let mut model = HashModel::new(50, 300, limits);
            let counts = model.counts();
            let request = Request::new(&prompt[..], config.clone());
            let done = generate(&mut model, request, engine, |_| ControlFlow::Continue(())).unwrap();
            computed.push((done.tokens, counts.tokens.load(Relaxed)));
        }
        let [alone, first, second] = &computed[..] else { unreachable!() };
        assert_eq!((first, &second.0), (alone, &alone.0));
        assert_eq!(first.1 - second.1, 192, "{slots} slots");
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_before_anything_is_computed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("file");
    std::fs::write(&path, "").unwrap();
    let folder = CacheFolder { path, bytes: 1 << 30, identity: [7; 32], about: "hashes".into() };
    let kept = EngineConfig { folder: Some(folder), ..engine(&[7]) };
    let request = Request::new(&[1, 2][..], GenerationConfig::default());
    let refused = generate(&mut model(64), request, &kept, |_| panic!("a token is computed"));
    assert!(matches!(refused, Err(GenerationError::Start(_))), "{refused:?}");
}
