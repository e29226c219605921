//! Host memory below that of a GPU: what comes back from it, where it leaves to, and that no token changes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bitnet_hash_model::Counts;
use bitnet_inference::{CacheFolder, Engine, EngineConfig, Request, StartError, TierCounts};
use bitnet_model::Limits;

use crate::support::*;

/// The bytes of a block and of a state.
const PART: u64 = 512 + 8;

fn folder(path: &Path) -> CacheFolder {
    CacheFolder { path: path.join("cache"), bytes: 1 << 30, identity: [7; 32], about: "hashes".into() }
}

/// An engine on a GPU with room for one prompt of 300 tokens, and host memory for this many parts.
fn with(slots: usize, parts: u64, folder: Option<CacheFolder>) -> (Engine, Arc<Counts>) {
    let limits = Limits { kv_blocks: 6, max_tokens: 64, state_slots: slots, ..limits() };
    engine_with(limits, EngineConfig { host_cache: parts * PART, folder, ..config() })
}

fn prompt(first: u32) -> Vec<u32> {
    (0..300).map(|i| (i * 7 + first) % 48).collect()
}

/// Runs a greedy request and returns the number of tokens computed.
fn computed((engine, counts): &(Engine, Arc<Counts>), slots: usize, prompt: &[u32]) -> usize {
    let before = counts.tokens.load(Relaxed);
    let done = engine.submit(Request::new(prompt, greedy(5))).unwrap().wait().unwrap();
    assert_eq!(done.choices[0].tokens, alone_with(slots, prompt, &greedy(5)));
    counts.tokens.load(Relaxed) - before
}

fn tier(engine: &Engine) -> TierCounts {
    engine.status().tier.unwrap()
}

#[test]
fn a_prompt_that_left_a_gpu_comes_back_from_host_memory() {
    for slots in [0, 16] {
        let gpu = with(slots, 40, None);
        assert_eq!([0, 1].map(|first| computed(&gpu, slots, &prompt(first))), [304, 304]);
        assert_eq!(computed(&gpu, slots, &prompt(0)), 304 - 256, "{slots} slots");
        let TierCounts { hits, hit_tokens, host_tokens, host, shelf, has_folder, .. } = tier(&gpu.0);
        assert_eq!((hits, host_tokens, host_tokens <= hit_tokens), (1, 192, true), "one block stayed");
        assert_eq!((shelf, has_folder), (Default::default(), false));
        let host = host.unwrap();
        assert!(host.read_bytes >= 3 * 512 && host.bytes <= 40 * PART && host.evicted == 0, "{host:?}");
    }
}

#[test]
fn what_leaves_host_memory_goes_to_the_folder_and_comes_back_from_both() {
    for slots in [0, 16] {
        let place = tempfile::tempdir().unwrap();
        let gpu = with(slots, 6, Some(folder(place.path())));
        for first in [0, 1, 2] {
            assert_eq!(computed(&gpu, slots, &prompt(first)), 304, "{slots} slots, {first}");
        }
        assert!(gpu.0.shutdown(Duration::from_secs(60)).complete);
        // Another process finds in the folder what does not fit into its host memory.
        let gpu = with(slots, 6, Some(folder(place.path())));
        for first in [0, 1, 2, 0, 1, 2] {
            assert_eq!(computed(&gpu, slots, &prompt(first)), 304 - 256, "{slots} slots, {first}");
        }
        let TierCounts { hits, host, shelf, .. } = tier(&gpu.0);
        let host = host.unwrap();
        assert!(hits == 6 && host.evicted > 0 && host.bytes <= 6 * PART, "{slots} slots: {hits} {host:?}");
        assert!(shelf.read_parts > 12, "{slots} slots: {shelf:?}");
        drop(gpu);
        // With more of it, host memory keeps what came from the folder.
        let gpu = with(slots, 40, Some(folder(place.path())));
        for first in [0, 1, 2] {
            assert_eq!(computed(&gpu, slots, &prompt(first)), 304 - 256, "{slots} slots, {first}");
        }
        let TierCounts { hit_tokens, host_tokens, .. } = tier(&gpu.0);
        assert_eq!((hit_tokens, host_tokens), (3 * 256, 0));
        assert_eq!(computed(&gpu, slots, &prompt(0)), 304 - 256);
        assert!(tier(&gpu.0).host_tokens > 0);
    }
}

#[test]
fn every_request_gets_the_tokens_that_it_gets_alone_whatever_host_memory_holds() {
    let mut read = 0;
    for (slots, kv_blocks, parts, in_folder) in
        [(0, 9, 1, true), (0, 9, 7, false), (12, 16, 5, true), (9, 9, 30, true), (24, 12, 12, false)]
    {
        let place = tempfile::tempdir().unwrap();
        for round in 0..4 {
            let limits = Limits { kv_blocks, max_tokens: 64 << (round % 2), state_slots: slots, ..limits() };
            let folder = in_folder.then(|| folder(place.path()));
            let settings = EngineConfig { max_draft: 2, host_cache: parts * PART, folder, ..config() };
            let (engine, _) = engine_with(limits, settings);
            let mut load = [mixed(20, 3 + round / 2), mixed(20, 3 + round / 2)].concat();
            load.iter_mut().for_each(|(prompt, _)| prompt.truncate(kv_blocks * 32));
            let requests = load.iter().map(|(p, c)| Request::new(p.clone(), c.clone())).collect();
            for (handle, (prompt, config)) in engine.submit_all(requests).unwrap().into_iter().zip(&load) {
                let got = handle.wait().unwrap().choices.remove(0).tokens;
                let what = format!("round {round}, {slots} slots, {kv_blocks} blocks, {parts} parts");
                assert_eq!(got, alone_with(slots, prompt, config), "{what}");
            }
            read += tier(&engine).host_tokens;
        }
    }
    // How many depends on when requests arrive; a quiet machine reads more than 1,000.
    assert!(read > 400, "{read} tokens were read");
}

#[test]
fn host_memory_without_a_gpu_is_refused_by_name() {
    let model = bitnet_hash_model::HashModel::new(VOCAB, CONTEXT, limits());
    let refused = Engine::start(model, EngineConfig { host_cache: 1 << 20, ..config() }).unwrap_err();
    assert_eq!(refused, StartError::NoGpu);
    assert!(refused.to_string().contains("host_cache"), "{refused}");
}
