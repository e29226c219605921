//! The cache outlives the process: what is read instead of computed, what is refused, and that no way to get there
//! changes a token.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bitnet_hash_model::{Counts, mix};
use bitnet_inference::{
    BatchSizing, CacheFolder, Completion, Engine, EngineConfig, GenerationConfig, Request, StartError,
    clear_folder, list_folder,
};
use bitnet_model::Limits;

use crate::support::*;

fn folder(path: &Path) -> CacheFolder {
    CacheFolder { path: path.join("cache"), bytes: 1 << 30, identity: [7; 32], about: "hashes".into() }
}

fn with(state_slots: usize, folder: CacheFolder) -> (Engine, Arc<Counts>) {
    let limits = Limits { max_tokens: 512, state_slots, ..limits() };
    engine_with(limits, EngineConfig { folder: Some(folder), ..config() })
}

fn prompt(len: u32, first: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + first) % 48).collect()
}

fn run(engine: &Engine, request: Request) -> Completion {
    engine.submit(request).unwrap().wait().unwrap()
}

/// Runs a greedy request and returns the number of tokens computed and of those that came from a cache.
fn costs(
    (engine, counts): &(Engine, Arc<Counts>),
    slots: usize,
    prompt: &[u32],
    salt: u64,
) -> (usize, usize) {
    let cached = || engine.status().scheduler.prefix_hits as usize;
    let before = (counts.tokens.load(Relaxed), cached());
    let done = run(engine, Request { salt, ..Request::new(prompt, greedy(5)) });
    assert_eq!(done.choices[0].tokens, alone_with(slots, prompt, &greedy(5)));
    (counts.tokens.load(Relaxed) - before.0, cached() - before.1)
}

/// The files of all parts.
fn files(folder: &CacheFolder) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.path.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.path().extension().is_some() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_prompt_is_computed_once_although_the_engine_starts_again() {
    for slots in [0, 16] {
        let place = tempfile::tempdir().unwrap();
        let folder = folder(place.path());
        let first = with(slots, folder.clone());
        assert_eq!(costs(&first, slots, &prompt(300, 0), 0), (300 + 4, 0));
        assert!(first.0.shutdown(Duration::from_secs(60)).complete);
        let second = with(slots, folder.clone());
        assert_eq!(costs(&second, slots, &prompt(300, 0), 0), (300 - 256 + 4, 256), "{slots} slots");
        // A text that continues otherwise shares what is the same.
        let other = [prompt(200, 0), prompt(100, 3)].concat();
        let shared = if slots == 0 { 192 } else { 0 };
        assert_eq!(costs(&second, slots, &other, 0), (300 - shared + 4, shared));
        let tier = second.0.status().tier.unwrap();
        assert_eq!((tier.hits, tier.hit_tokens, tier.shelf.damaged), (1, 256, 0), "{tier:?}");
        drop(second);
        let third = with(slots, folder.clone());
        assert_eq!(costs(&third, slots, &other, 0).1, 256, "the end of an engine keeps what is in memory");
    }
}

#[test]
fn an_idle_engine_prepares_as_much_memory_as_the_folder_holds_and_none_before_the_first_part() {
    for slots in [0, 16] {
        let place = tempfile::tempdir().unwrap();
        let folder = folder(place.path());
        let prepared = |engine: &Engine| engine.status().tier.unwrap().prepared_bytes;
        let first = with(slots, folder.clone());
        costs(&first, slots, &prompt(300, 0), 0);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(prepared(&first.0), 0);
        assert!(first.0.shutdown(Duration::from_secs(60)).complete);
        let held: u64 = files(&folder).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
        let second = with(slots, folder.clone());
        let end = Instant::now() + Duration::from_secs(60);
        while prepared(&second.0) < held {
            assert!(Instant::now() < end, "{} of {held} bytes are prepared", prepared(&second.0));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(prepared(&second.0) < held + 4096, "at most a part more");
        assert_eq!(costs(&second, slots, &prompt(300, 0), 0), (300 - 256 + 4, 256));
    }
}

#[test]
fn a_salt_and_an_identity_share_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = folder(place.path());
    drop({
        let first = with(0, folder.clone());
        costs(&first, 0, &prompt(300, 0), 1);
        first
    });
    let second = with(0, folder.clone());
    assert_eq!(costs(&second, 0, &prompt(300, 0), 2).1, 0);
    assert_eq!(costs(&second, 0, &prompt(300, 0), 1).1, 256);
    drop(second);
    let listed: Vec<_> = list_folder(&folder.path).unwrap().iter().map(|l| (l.salt, l.parts)).collect();
    assert_eq!(listed, [(1, 4), (2, 4)]);
    let other = with(0, CacheFolder { identity: [8; 32], ..folder.clone() });
    assert_eq!(costs(&other, 0, &prompt(300, 0), 1).1, 0);
    drop(other);
    assert_eq!(clear_folder(&folder.path, Some(1)).unwrap().parts, 8);
    let third = with(0, folder.clone());
    assert_eq!(costs(&third, 0, &prompt(300, 0), 1).1, 0);
    assert_eq!(costs(&third, 0, &prompt(300, 0), 2).1, 256);
    drop(third);
    clear_folder(&folder.path, None).unwrap();
    assert_eq!((files(&folder), list_folder(&folder.path).unwrap()), (vec![], vec![]));
}

#[test]
fn requests_with_a_long_common_beginning_compute_it_once_over_restarts_too() {
    let place = tempfile::tempdir().unwrap();
    let common = prompt(384, 0);
    let lines: Vec<Vec<u32>> = (0..12).map(|i| [&common[..], &prompt(20, i)].concat()).collect();
    let computed = |folder: CacheFolder| {
        let limits = Limits { max_tokens: 64, kv_blocks: 128, ..limits() };
        let sizing = BatchSizing::Fixed(8);
        let (engine, counts) = engine_with(limits, EngineConfig { folder: Some(folder), sizing, ..config() });
        let requests = lines.iter().map(|line| Request::new(line.clone(), greedy(5))).collect();
        for (handle, line) in engine.submit_all(requests).unwrap().into_iter().zip(&lines) {
            assert_eq!(handle.wait().unwrap().choices[0].tokens, alone_with(0, line, &greedy(5)));
        }
        counts.tokens.load(Relaxed)
    };
    // Each line computes its last tokens and those that it generates.
    let own = 12 * (20 + 4);
    assert_eq!([0, 1].map(|_| computed(folder(place.path()))), [384 + own, own]);
}

/// Runs requests of all kinds on engines that start one after another in a folder; returns tokens read.
fn restarts(slots: usize, kv_blocks: usize, max_draft: usize, folder: &CacheFolder, rounds: u64) -> u64 {
    let mut read = 0;
    for round in 0..rounds {
        let limits = Limits { kv_blocks, max_tokens: 64 << (round % 2), state_slots: slots, ..limits() };
        let settings = EngineConfig { max_draft, folder: Some(folder.clone()), ..config() };
        let (engine, _) = engine_with(limits, settings);
        let what = format!("round {round}, {slots} slots, {kv_blocks} blocks, {max_draft} drafts");
        let alone = |prompt: &[u32], config: &GenerationConfig| alone_with(slots, prompt, config);
        mixed_as_alone(&engine, (20, 3 + round / 2), kv_blocks, 30, &what, alone);
        read += engine.status().tier.unwrap().hit_tokens;
        assert!(engine.shutdown(Duration::from_secs(60)).complete);
    }
    read
}

#[test]
fn every_request_gets_the_tokens_that_it_gets_alone_over_restarts() {
    let mut read = 0;
    for (slots, kv_blocks, max_draft) in [(0, 64, 0), (0, 9, 4), (12, 16, 4), (24, 64, 0), (9, 9, 2)] {
        let place = tempfile::tempdir().unwrap();
        read += restarts(slots, kv_blocks, max_draft, &folder(place.path()), 6);
    }
    assert!(read > 5000, "{read} tokens were read");
}

#[test]
fn engines_that_share_a_small_folder_stay_within_its_limit() {
    let place = tempfile::tempdir().unwrap();
    let folder = CacheFolder { bytes: 40_000, ..folder(place.path()) };
    std::thread::scope(|scope| {
        for slots in [0, 0, 12] {
            let folder = CacheFolder { identity: [slots as u8; 32], ..folder.clone() };
            scope.spawn(move || restarts(slots, 16, 2, &folder, 6));
        }
    });
    // What several have written at once may exceed it until the next look, which an engine takes when it starts.
    assert!(with(0, folder.clone()).0.shutdown(Duration::from_secs(60)).complete);
    let bytes: u64 = files(&folder).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!((1..=40_000).contains(&bytes), "{bytes}");
}

/// Damages a file in one of many ways.
fn damage(file: &Path, all: &[PathBuf], chance: u64) {
    let mut bytes = fs::read(file).unwrap();
    if bytes.is_empty() {
        return fs::remove_file(file).unwrap();
    }
    let at = (mix(chance, 1) % bytes.len() as u64) as usize;
    match chance % 8 {
        0 => fs::remove_file(file).unwrap(),
        1 => {
            bytes[at] ^= 1 << (mix(chance, 2) % 8);
            fs::write(file, bytes).unwrap();
        }
        2 => fs::write(file, &bytes[..at]).unwrap(),
        3 => fs::write(file, [&bytes[..], &bytes[..at]].concat()).unwrap(),
        4 => {
            let end = bytes.len().min(at + 100);
            bytes[at..end].fill(0);
            fs::write(file, bytes).unwrap();
        }
        5 => {
            // A whole, undamaged file under the wrong name.
            fs::copy(&all[(mix(chance, 3) % all.len() as u64) as usize], file).map(drop).unwrap_or_default();
        }
        6 => {
            bytes.rotate_left(at);
            fs::write(file, bytes).unwrap();
        }
        _ => {
            for (i, byte) in bytes.iter_mut().enumerate().skip(at).step_by(7) {
                *byte = mix(chance, i as u64) as u8;
            }
            fs::write(file, bytes).unwrap();
        }
    }
}

#[test]
fn thousands_of_damaged_files_give_no_wrong_token() {
    let wanted = std::env::var("BITNET_MUTATIONS").map_or(3500, |wanted| wanted.parse().unwrap());
    let (mut damaged, mut noticed, mut read) = (0, 0, 0);
    for (slots, end) in [(0, wanted / 2), (16, wanted)] {
        let place = tempfile::tempdir().unwrap();
        let folder = folder(place.path());
        let prompts: Vec<Vec<u32>> = (0..4).map(|n| prompt(150 + 90 * n, n)).collect();
        let mut round = 0;
        while damaged < end {
            round += 1;
            let engine = with(slots, folder.clone());
            let requests = prompts.iter().map(|p| Request::new(p.clone(), greedy(70))).collect();
            for (handle, prompt) in engine.0.submit_all(requests).unwrap().into_iter().zip(&prompts) {
                let done = handle.wait().unwrap();
                assert_eq!(done.choices[0].tokens, alone_with(slots, prompt, &greedy(70)), "round {round}");
            }
            let tier = engine.0.status().tier.unwrap();
            (noticed, read) = (noticed + tier.shelf.damaged, read + tier.hit_tokens);
            drop(engine);
            let all = files(&folder);
            for (i, file) in all.iter().enumerate() {
                // Most of them, so that sometimes a whole prompt is undamaged.
                let chance = mix(round * 1000 + i as u64, slots as u64);
                if !mix(chance, 9).is_multiple_of(4) || !round.is_multiple_of(5) && i == 0 {
                    damage(file, &all, chance);
                    damaged += 1;
                }
            }
        }
    }
    println!("{damaged} files damaged, {noticed} noticed, {read} tokens read");
    assert!(noticed > damaged / 10 && read > damaged, "{damaged} {noticed} {read}");
}

#[test]
fn a_file_goes_when_it_was_not_used_for_longest() {
    let place = tempfile::tempdir().unwrap();
    // Room for two prompts of four blocks, of 1024 bytes each, and a little more.
    let folder = CacheFolder { bytes: 11_000, ..folder(place.path()) };
    for first in [0, 1, 0, 2] {
        let engine = with(0, folder.clone());
        costs(&engine, 0, &prompt(300, first), 0);
    }
    let cached = |first| {
        costs(&with(0, CacheFolder { bytes: 1 << 30, ..folder.clone() }), 0, &prompt(300, first), 0).1
    };
    assert_eq!([cached(0), cached(2)], [256, 256]);
    assert!(cached(1) < 256, "the prompt that was not used again is gone");
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_with_a_cure() {
    let place = tempfile::tempdir().unwrap();
    let start = |folder: CacheFolder| {
        let model = bitnet_hash_model::HashModel::new(VOCAB, CONTEXT, limits());
        Engine::start(model, EngineConfig { folder: Some(folder), ..config() }).map(drop)
    };
    fs::write(place.path().join("file"), "").unwrap();
    let error = start(CacheFolder { path: place.path().join("file"), ..folder(place.path()) }).unwrap_err();
    assert!(matches!(&error, StartError::Folder(e) if e.path.ends_with("file")), "{error}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let open = folder(place.path());
        fs::create_dir(&open.path).unwrap();
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(&open.path, fs::Permissions::from_mode(mode)).unwrap();
            let error = start(open.clone()).unwrap_err().to_string();
            assert!(error.contains("other users can write") && error.contains("chmod 700"), "{error}");
        }
        fs::set_permissions(&open.path, fs::Permissions::from_mode(0o755)).unwrap();
        let engine = with(0, open.clone());
        costs(&engine, 0, &prompt(300, 0), 0);
        drop(engine);
        assert_eq!(files(&open).len(), 4);
        for file in files(&open) {
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            let above: Vec<u32> = file.ancestors().skip(1).take(2).map(mode).collect();
            assert_eq!((mode(&file), above), (0o600, vec![0o700, 0o700]));
        }
    }
}

#[test]
fn a_full_disk_stops_nothing() {
    let place = tempfile::tempdir().unwrap();
    // No part fits.
    let folder = CacheFolder { bytes: 100, ..folder(place.path()) };
    for _ in 0..2 {
        let engine = with(0, folder.clone());
        assert_eq!(costs(&engine, 0, &prompt(300, 0), 0), (304, 0));
    }
    assert_eq!(files(&folder), Vec::<PathBuf>::new());
}

#[test]
fn a_part_of_a_failed_sequence_is_not_kept() {
    let place = tempfile::tempdir().unwrap();
    let folder = folder(place.path());
    let nan = |bad: bool| {
        let hook = move |batch: &bitnet_model::Batch, logits: Option<&mut bitnet_model::Logits>| {
            if let Some(logits) = logits.filter(|_| bad && !batch.logit_rows().is_empty()) {
                logits.row_mut(0)[3] = f32::NAN;
            }
            Ok(())
        };
        let model = bitnet_hash_model::HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
        Engine::start(model, EngineConfig { folder: Some(folder.clone()), ..config() }).unwrap()
    };
    run(&nan(false), Request::new(prompt(300, 0), greedy(5)));
    assert_eq!(files(&folder).len(), 4);
    let engine = nan(true);
    let failed = engine.submit(Request::new(prompt(300, 0), GenerationConfig::default())).unwrap().wait();
    assert!(failed.is_err(), "{failed:?}");
    drop(engine);
    assert_eq!(files(&folder), Vec::<PathBuf>::new());
}
