//! Models with a recurrent state: what a sequence continues from, and that no way to get there changes a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bitnet_hash_model::{Counts, HashModel, Oracle};
use bitnet_inference::{
    Engine, EngineConfig, FinishReason, GenerationConfig, Request,
    generation::{AutoregressiveGenerator, BatchProcessor},
    names::{GpuInferenceEngine, forward_batch},
};
use bitnet_kernels::{BackendInfo, KernelError};
use bitnet_model::{Batch, ForwardError, Limits, Logits, Model, ModelSpec};

use crate::support::*;

/// Slots for eight sequences and as many snapshots.
const SLOTS: usize = 16;

fn whole(state_slots: usize) -> Limits {
    Limits { max_tokens: 512, state_slots, ..limits() }
}

fn recurrent(state_slots: usize) -> (Engine, Arc<Counts>) {
    engine_with(whole(state_slots), config())
}

/// Runs a greedy request and returns its tokens and the number of tokens computed for it.
fn costs((engine, counts): &(Engine, Arc<Counts>), prompt: &[u32], new: usize) -> (Vec<u32>, usize) {
    let before = counts.tokens.load(Relaxed);
    let mut done = engine.submit(Request::new(prompt, greedy(new))).unwrap().wait().unwrap();
    let tokens = std::mem::take(&mut done.choices[0].tokens);
    assert_eq!(tokens, alone_with(SLOTS, prompt, &greedy(new)));
    (tokens, counts.tokens.load(Relaxed) - before)
}

fn prompt(len: u32, salt: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + salt) % 48).collect()
}

#[test]
fn every_request_gets_the_tokens_that_it_gets_alone() {
    let (mut rolled_back, mut hits) = (0, 0);
    for (slots, kv_blocks, max_draft) in
        [(1, 64, 0), (2, 64, 4), (8, 64, 4), (9, 16, 0), (12, 16, 4), (16, 64, 0), (24, 64, 4), (24, 9, 2)]
    {
        for max_tokens in [16, 64, 512] {
            let limits = Limits { max_tokens, kv_blocks, state_slots: slots, ..limits() };
            let (engine, _) = engine_with(limits, EngineConfig { max_draft, ..config() });
            // The second time, much of it is in the prefix cache.
            for round in [3, 3, 4] {
                let mut mix = mixed(24, round);
                for (i, (_, config)) in mix.iter_mut().enumerate() {
                    config.max_new_tokens += 30;
                    if i % 3 == 0 {
                        // Few tokens, so that earlier text often recurs but continues differently.
                        config.temperature = 1.0;
                        config.logit_bias = (1..4).map(|token| (token, 100.0)).collect();
                    }
                }
                let requests = mix.iter().map(|(p, c)| Request::new(p.clone(), c.clone())).collect();
                for (handle, (prompt, config)) in engine.submit_all(requests).unwrap().into_iter().zip(&mix) {
                    let got = handle.wait().unwrap().choices.remove(0).tokens;
                    let what = format!("{slots} slots, {kv_blocks} blocks, {max_draft} drafts, {max_tokens}");
                    assert_eq!(got, alone_with(slots, prompt, config), "{what}");
                }
            }
            until(|| engine.status().kv_used + engine.status().states_used == 0);
            let counts = engine.status().scheduler;
            rolled_back += counts.drafted - counts.accepted;
            hits += counts.prefix_hits;
            assert!(slots > engine.max_batch_size() || counts.prefix_hits == 0, "{counts:?}");
        }
    }
    assert!(rolled_back > 100 && hits > 1000, "{rolled_back} drafts rolled back, {hits} tokens found");
}

#[test]
fn one_in_eight_slots_is_left_for_snapshots() {
    for (slots, places) in [(1, 1), (2, 2), (7, 7), (8, 7), (9, 8), (24, 8)] {
        assert_eq!(recurrent(slots).0.max_batch_size(), places, "{slots}");
    }
}

#[test]
fn a_prompt_in_the_cache_continues_from_the_snapshot_at_its_last_block_boundary() {
    let engine = recurrent(SLOTS);
    assert_eq!(costs(&engine, &prompt(200, 0), 5).1, 200 + 4);
    assert_eq!(costs(&engine, &prompt(200, 0), 5).1, 200 - 192 + 4);
    // A prompt of whole blocks computes its last block again, for the logits after it.
    assert_eq!(costs(&engine, &prompt(192, 0), 1).1, 64 + 64 * 2);
    assert_eq!(costs(&engine, &prompt(192, 0), 1).1, 64);
    let status = engine.0.status();
    assert_eq!((status.states_used, status.state_slots), (0, SLOTS));
    assert!(status.states_saved >= 2, "{status:?}");
}

#[test]
fn cached_blocks_without_a_snapshot_are_not_used() {
    // One slot for the one sequence that runs, and none for snapshots.
    let engine = recurrent(1);
    for _ in 0..2 {
        assert_eq!(costs(&engine, &prompt(200, 0), 5).1, 200 + 4);
    }
    let status = engine.0.status();
    assert_eq!((status.states_saved, status.scheduler.prefix_hits), (0, 0));
    assert!(status.kv_cached >= 3, "{status:?}");
}

#[test]
fn the_third_text_with_a_beginning_continues_where_the_first_two_parted() {
    let engine = recurrent(SLOTS);
    let text = |salt: u32| [prompt(150, 0), prompt(60, 5 + salt)].concat();
    assert_eq!(costs(&engine, &text(0), 1).1, 210);
    assert_eq!(costs(&engine, &text(1), 1).1, 210, "the blocks are there, but no snapshot");
    assert_eq!(costs(&engine, &text(2), 1).1, 210 - 128);
}

#[test]
fn a_conversation_continues_from_the_last_block_boundary_of_the_answer() {
    let engine = recurrent(SLOTS);
    let mut text = prompt(70, 0);
    let (answer, cost) = costs(&engine, &text, 100);
    assert_eq!(cost, 70 + 99);
    text.extend(answer.into_iter().chain(prompt(10, 9)));
    assert_eq!(costs(&engine, &text, 1).1, 180 - 128);
}

#[test]
fn choices_share_the_snapshot_of_their_prompt() {
    let (engine, counts) = recurrent(SLOTS);
    let config = GenerationConfig { n: 4, ..greedy(12) };
    let done = engine.submit(Request::new(prompt(100, 0), config)).unwrap().wait().unwrap();
    for choice in &done.choices {
        assert_eq!(choice.tokens, alone_with(SLOTS, &prompt(100, 0), &greedy(12)));
    }
    assert_eq!(counts.tokens.load(Relaxed), 100 + 3 * (100 - 64) + 4 * 11);
}

#[test]
fn the_names_of_other_engines_serve_models_with_a_state() {
    let (engine, counts) = recurrent(SLOTS);
    let engine = Arc::new(engine);
    let gpu = GpuInferenceEngine::on(Arc::clone(&engine));
    let batch = mixed(20, 8);
    let want: Vec<_> = batch.iter().map(|(prompt, config)| alone_with(SLOTS, prompt, config)).collect();
    assert_eq!(gpu.process_batch_gpu(&batch).unwrap(), want);
    let prompts: Vec<_> = batch.iter().map(|(prompt, _)| prompt.clone()).collect();
    let logits = prompts.iter().map(|prompt| {
        let (mut oracle, mut row) = (Oracle::recurrent(), vec![0.0; VOCAB]);
        prompt.iter().for_each(|&token| oracle.push(token));
        oracle.logits(&mut row);
        row
    });
    assert_eq!(forward_batch(&engine, &prompts).unwrap(), logits.collect::<Vec<_>>());
    let batching = BatchProcessor::new(6, Duration::from_millis(1)).unwrap();
    let batching = batching.start_processing(engine).unwrap();
    let generator = AutoregressiveGenerator::new(batching, greedy(100));
    let mut text = prompt(30, 0);
    let before = counts.tokens.load(Relaxed);
    for step in 0..100 {
        text.push(generator.generate_token_batched(&text, step).unwrap().unwrap());
    }
    assert_eq!(text[30..], alone_with(SLOTS, &prompt(30, 0), &greedy(100)));
    assert_eq!(counts.tokens.load(Relaxed) - before, 30 + 99, "every token once");
}

#[test]
fn salts_share_no_snapshots() {
    let (engine, counts) = recurrent(SLOTS);
    for (salt, cost) in [(0, 200), (1, 200), (1, 8)] {
        let before = counts.tokens.load(Relaxed);
        let request = Request { salt, ..Request::new(prompt(200, 0), greedy(1)) };
        engine.submit(request).unwrap().wait().unwrap();
        assert_eq!(counts.tokens.load(Relaxed) - before, cost, "salt {salt}");
    }
}

#[test]
fn a_text_that_ends_among_its_drafts_is_continued_from_the_right_state() {
    // Token 1 over and over, so that all drafts are accepted; the fifth new one completes the stop string.
    let stopping =
        GenerationConfig { logit_bias: vec![(1, 100.0)], stop_strings: vec!["ab".repeat(5)], ..greedy(100) };
    let mut accepted = 0;
    for len in 52..70 {
        let limits = Limits { state_slots: SLOTS, ..limits() };
        let (engine, _) = engine_with(limits, EngineConfig { max_draft: 6, ..config() });
        let text = vec![1; len];
        let done = engine.submit(Request::new(text.clone(), stopping.clone())).unwrap().wait().unwrap();
        assert_eq!(done.choices[0].finish, FinishReason::StopString(0));
        for more in 0..8 {
            let next = [vec![1; len + more], vec![2, 3]].concat();
            let done = engine.submit(Request::new(next.clone(), greedy(9))).unwrap().wait().unwrap();
            assert_eq!(done.choices[0].tokens, alone_with(SLOTS, &next, &greedy(9)), "{len}, {more}");
        }
        accepted += engine.status().scheduler.accepted;
    }
    // How many are tried depends on the times of steps.
    assert!(accepted > 0);
}

#[test]
fn a_pass_that_fails_midway_advances_no_state_twice() {
    let mut rolled_back = 0;
    for at in 0..60 {
        let passes = AtomicUsize::new(0);
        let hook = move |_: &Batch, logits: Option<&mut Logits>| {
            // After everything is computed and all states are advanced.
            match logits {
                Some(_) if passes.fetch_add(1, Relaxed) == at => Err(failure()),
                _ => Ok(()),
            }
        };
        let limits =
            Limits { kv_blocks: if at % 2 == 0 { 64 } else { 12 }, state_slots: 8 + at % 5, ..limits() };
        let model = HashModel::new(VOCAB, CONTEXT, limits).with_hook(Box::new(hook));
        let engine = Engine::start(model, EngineConfig { max_draft: at % 3 * 2, ..config() }).unwrap();
        let mix = mixed(16, at as u64);
        let requests = mix.iter().map(|(p, c)| Request::new(p.clone(), c.clone())).collect();
        for (handle, (prompt, config)) in engine.submit_all(requests).unwrap().into_iter().zip(&mix) {
            let got = handle.wait().unwrap().choices.remove(0).tokens;
            assert_eq!(got, alone_with(1, prompt, config), "pass {at}");
        }
        rolled_back += engine.status().faults.rolled_back;
    }
    assert!(rolled_back > 100, "{rolled_back}");
}

fn failure() -> ForwardError {
    ForwardError::Kernel(KernelError::OutOfMemory { what: "planted", bytes: 1 })
}

/// A model whose copies of states fail, every `each`-th.
struct Forgetful {
    model: HashModel,
    each: usize,
    copies: usize,
    failed: Arc<AtomicUsize>,
}

impl Model for Forgetful {
    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    fn limits(&self) -> Limits {
        self.model.limits()
    }

    fn backend(&self) -> BackendInfo {
        self.model.backend()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.model.forward(batch, logits)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.model.copy_block(from, to)
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.copies += 1;
        if self.copies.is_multiple_of(self.each) {
            self.failed.fetch_add(1, Relaxed);
            return Err(failure());
        }
        self.model.copy_state(from, to)
    }
}

#[test]
fn a_copy_of_a_state_that_fails_costs_time_and_no_token() {
    for (each, max_draft) in [(1, 0), (3, 0), (5, 0), (7, 4), (9, 2)] {
        let failed = Arc::new(AtomicUsize::new(0));
        let model = HashModel::new(VOCAB, CONTEXT, Limits { state_slots: SLOTS, ..limits() });
        let model = Forgetful { model, each, copies: 0, failed: Arc::clone(&failed) };
        let engine = Engine::start(model, EngineConfig { max_draft, ..config() }).unwrap();
        for round in [1, 1, 2] {
            let mix = mixed(16, round);
            let requests = mix.iter().map(|(p, c)| Request::new(p.clone(), c.clone())).collect();
            for (handle, (prompt, config)) in engine.submit_all(requests).unwrap().into_iter().zip(&mix) {
                let got = handle.wait().unwrap().choices.remove(0).tokens;
                assert_eq!(got, alone_with(SLOTS, prompt, config), "every {each}, {max_draft} drafts");
            }
        }
        assert!(failed.load(Relaxed) > 0);
    }
}
