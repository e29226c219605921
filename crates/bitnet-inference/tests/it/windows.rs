//! Models whose sliding layers have blocks of their own: a sequence holds its window only, and no way in which blocks are
//! shared, given back, taken away or found again changes a token.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bitnet_hash_model::{Counts, HashModel};
use bitnet_inference::{CacheFolder, Engine, EngineConfig, GenerationConfig, Request};
use bitnet_model::{Batch, Limits, Model};

use crate::support::*;

const WIDTH: usize = 100;

/// An engine whose model has a window of `width` keys and this many blocks for it.
fn engine_within(width: usize, blocks: usize, limits: Limits, config: EngineConfig) -> (Engine, Arc<Counts>) {
    let model = HashModel::new(VOCAB, CONTEXT, limits).with_window(width, blocks);
    let counts = model.counts();
    (Engine::start(model, config).unwrap(), counts)
}

fn prompt(len: u32, first: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + first) % 48).collect()
}

/// Runs a greedy request; returns its tokens and the number of prompt tokens that it found in the cache.
fn costs(engine: &Engine, width: usize, prompt: &[u32]) -> usize {
    let hits = || engine.status().scheduler.prefix_hits as usize;
    let before = hits();
    let done = engine.submit(Request::new(prompt, greedy(5))).unwrap().wait().unwrap();
    assert_eq!(done.choices[0].tokens, alone_within(width, prompt, &greedy(5)));
    hits() - before
}

#[test]
fn every_request_gets_the_tokens_that_it_gets_alone_although_windows_are_given_back() {
    let mut preempted = 0;
    for (width, blocks, kv_blocks, max_draft, max_tokens) in [
        (1, 9, 64, 0, 64),
        (30, 40, 64, 4, 512),
        (64, 5, 64, 0, 64),
        (100, 4, 64, 4, 100),
        (100, 12, 12, 2, 64),
        (300, 8, 40, 4, 64),
        (600, 64, 64, 4, 512),
    ] {
        let what = format!("{width} keys, {blocks} of {kv_blocks} blocks, {max_draft} drafts, {max_tokens}");
        let limits = Limits { kv_blocks, max_tokens, ..limits() };
        let (engine, _) = engine_within(width, blocks, limits, EngineConfig { max_draft, ..config() });
        let alone = |prompt: &[u32], config: &GenerationConfig| alone_within(width, prompt, config);
        mixed_as_alone(&engine, (30, 7), kv_blocks, 60, &what, alone);
        let status = engine.status();
        assert_eq!((status.kv_used, status.windows_used), (0, 0), "{what}");
        preempted += status.scheduler.preemptions;
    }
    assert!(preempted > 0, "some pools were too small for all");
}

#[test]
fn a_long_text_needs_no_more_blocks_of_sliding_layers_than_its_window_and_a_step() {
    let least = Batch::blocks_of_window(WIDTH, 1);
    let (engine, counts) = engine_within(WIDTH, least, limits(), config());
    let (prompt, before) = (prompt(400, 0), counts.tokens.load(Relaxed));
    let done = engine.submit(Request::new(prompt.clone(), greedy(100))).unwrap().wait().unwrap();
    assert_eq!(done.choices[0].tokens, alone_within(WIDTH, &prompt, &greedy(100)));
    // The prompt is cut where the pool ends, and nothing is computed twice.
    assert_eq!(counts.tokens.load(Relaxed) - before, 499);
    assert_eq!((engine.status().window_blocks, engine.status().scheduler.preemptions), (least, 0));
}

#[test]
fn choices_that_start_after_the_first_has_left_its_prompt_continue_it_all_the_same() {
    for places in [1, 2, 8] {
        let (engine, _) =
            engine_within(WIDTH, 24, limits(), EngineConfig { max_batch_size: places, ..config() });
        // Choices end at different times.
        let config =
            GenerationConfig { n: 6, temperature: 0.8, seed: Some(3), ignore_eos: false, ..greedy(200) };
        let done = engine.submit(Request::new(prompt(250, 2), config.clone())).unwrap().wait().unwrap();
        assert_eq!(done.choices[0].tokens, alone_within(WIDTH, &prompt(250, 2), &config), "{places} places");
        let status = engine.status();
        assert!(status.scheduler.prefix_hits >= 5 * 192, "{places} places: {:?}", status.scheduler);
        assert_eq!(status.windows_used, 0);
    }
}

#[test]
fn a_prefix_is_used_as_far_as_a_whole_window_is_there() {
    let (engine, _) = engine_within(WIDTH, 12, limits(), config());
    let text = prompt(400, 0);
    assert_eq!(costs(&engine, WIDTH, &text), 0);
    assert_eq!(costs(&engine, WIDTH, &text), 384);
    // The first window is gone, and so is what a text needs that branches far from the end of the prompt.
    let branch = [&text[..200], &prompt(100, 3)].concat();
    assert_eq!(costs(&engine, WIDTH, &branch), 0);
    // Another one finds it, because the last has kept the window before the branch.
    let other = [&text[..200], &prompt(100, 5)].concat();
    assert_eq!(costs(&engine, WIDTH, &other), 192);
    // A little before the end of the prompt, a branch needs no second text.
    let late = [&text[..330], &prompt(60, 7)].concat();
    assert_eq!(costs(&engine, WIDTH, &late), 320);
    // Other texts need all blocks of sliding layers; the other layers keep theirs.
    (10..13).for_each(|first| assert_eq!(costs(&engine, WIDTH, &prompt(390, first)), 0));
    assert_eq!(costs(&engine, WIDTH, &text), 0, "{:?}", engine.status());
}

#[test]
fn a_model_without_blocks_of_its_own_for_windows_has_none_and_reports_none() {
    let (engine, _) = engine(config());
    assert_eq!(costs(&engine, 0, &prompt(300, 0)), 0);
    assert_eq!(costs(&engine, 0, &prompt(300, 0)), 256);
    let status = engine.status();
    assert_eq!((status.window_blocks, status.windows_used, status.windows_cached), (0, 0, 0));
    assert_eq!(HashModel::new(VOCAB, CONTEXT, limits()).window_blocks(), 0);
}

fn folder(path: &Path) -> CacheFolder {
    CacheFolder { path: path.join("cache"), bytes: 1 << 30, identity: [7; 32], about: "hashes".into() }
}

#[test]
fn a_text_goes_on_from_a_folder_where_it_has_a_whole_window() {
    let place = tempfile::tempdir().unwrap();
    let start = || {
        let limits = Limits { max_tokens: 512, ..limits() };
        let settings = EngineConfig { folder: Some(folder(place.path())), ..config() };
        engine_within(WIDTH, 12, limits, settings).0
    };
    let stop = |engine: Engine| assert!(engine.shutdown(Duration::from_secs(60)).complete);
    let text = prompt(300, 0);
    let first = start();
    assert_eq!(costs(&first, WIDTH, &text), 0);
    stop(first);
    let second = start();
    assert_eq!(costs(&second, WIDTH, &text), 256);
    let tier = second.status().tier.unwrap();
    assert_eq!((tier.hits, tier.hit_tokens, tier.shelf.damaged), (1, 256, 0), "{tier:?}");
    // No window was kept where another text branches, until it has.
    assert_eq!(costs(&second, WIDTH, &[&text[..200], &prompt(100, 3)].concat()), 0);
    stop(second);
    let third = start();
    assert_eq!(costs(&third, WIDTH, &[&text[..200], &prompt(100, 5)].concat()), 192);
}

#[test]
fn every_request_gets_the_tokens_that_it_gets_alone_over_restarts_in_a_folder() {
    let mut read = 0;
    for (width, blocks, kv_blocks, max_draft) in [(30, 40, 64, 0), (100, 10, 64, 4), (200, 9, 9, 2)] {
        let place = tempfile::tempdir().unwrap();
        for round in 0..4 {
            let limits = Limits { kv_blocks, max_tokens: 64 << (round % 2), ..limits() };
            let settings = EngineConfig { max_draft, folder: Some(folder(place.path())), ..config() };
            let (engine, _) = engine_within(width, blocks, limits, settings);
            let what = format!("{width} keys, round {round}");
            let alone = |prompt: &[u32], config: &GenerationConfig| alone_within(width, prompt, config);
            mixed_as_alone(&engine, (20, 3 + round / 2), kv_blocks, 30, &what, alone);
            let tier = engine.status().tier.unwrap();
            assert_eq!(tier.shelf.damaged, 0, "{tier:?}");
            read += tier.hit_tokens;
            assert!(engine.shutdown(Duration::from_secs(60)).complete);
        }
    }
    assert!(read > 2000, "{read} tokens were read");
}
