//! The cache in a folder, with the kernels and models that users run.

use std::{fs, path::Path};

use bitnet::{
    CacheDir, Device, FinishReason, KvType, Model, Request,
    cache::cache_salt,
    inference::{Engine, TierCounts},
    kernels::Isa,
};

fn dir(place: &Path) -> CacheDir {
    CacheDir { path: place.join("cache"), bytes: CacheDir::BYTES }
}

fn model(name: &str, kv: KvType, dir: Option<CacheDir>) -> Model {
    let builder =
        Model::builder().device(Device::Cpu).threads(2).cache(kv).batch_size(4).drafts(4).context(512);
    let builder = dir.into_iter().fold(builder, bitnet::Builder::cache_dir);
    builder.open(name).unwrap()
}

/// Prompts that share beginnings of all lengths, in and between blocks.
fn requests() -> Vec<Request> {
    let long: Vec<u32> = (0..330u32).map(|i| i * i % 487).collect();
    let cut = |(seed, &length): (usize, &usize)| {
        let repeated = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2];
        let prompt = [&long[..length], &repeated].concat();
        let request = Request::tokens(prompt).max_tokens(20).seed(seed as u64);
        if seed % 2 == 0 { request.temperature(0.0) } else { request.temperature(0.8) }
    };
    [3, 54, 63, 64, 65, 118, 128, 191, 192, 300, 330].iter().enumerate().map(cut).collect()
}

fn answers(model: &Model, requests: &[Request]) -> Vec<Vec<u32>> {
    model.batch(requests.iter().cloned()).into_iter().map(|answer| answer.unwrap().tokens).collect()
}

fn tier(engine: &Engine) -> TierCounts {
    engine.status().tier.unwrap()
}

#[test]
fn tokens_are_equal_with_and_without_a_folder_for_every_family_and_cache_type() {
    for (name, kvs) in [
        ("synthetic:tiny", &[KvType::F32][..]),
        ("synthetic:bonsai-tiny", &KvType::ALL),
        ("synthetic:hybrid-tiny", &KvType::ALL),
        ("synthetic:hybrid-tiny-rotated", &[KvType::Bf16]),
    ] {
        for &kv in kvs {
            let expected = answers(&model(name, kv, None), &requests());
            let place = tempfile::tempdir().unwrap();
            for start in 0..2 {
                let model = model(name, kv, Some(dir(place.path())));
                let mut all = requests();
                if start > 0 {
                    // The longest first, so that it is read and not computed by the others.
                    all.reverse();
                }
                let mut tokens = answers(&model, &all);
                if start > 0 {
                    tokens.reverse();
                }
                assert_eq!(tokens, expected, "{name} {kv} start {start}");
                let tier = tier(model.engine());
                assert_eq!(
                    (tier.hit_tokens > 0, tier.shelf.damaged),
                    (start > 0, 0),
                    "{name} {kv}: {tier:?}"
                );
            }
        }
    }
}

#[test]
fn the_cache_of_one_instruction_set_serves_every_other() {
    let place = tempfile::tempdir().unwrap();
    let run = |isa: &str| {
        let builder = Model::builder().device(Device::Cpu).threads(1).isa(Isa::named(isa).unwrap());
        let model = builder.cache_dir(dir(place.path())).open("synthetic:hybrid-tiny").unwrap();
        let tokens = answers(&model, &requests()[9..10]);
        (tokens, tier(model.engine()).hit_tokens)
    };
    let (expected, read) = run("scalar");
    assert_eq!(read, 0);
    assert_eq!(run("auto"), (expected, 256));
}

#[test]
fn caches_of_other_models_and_types_are_not_used() {
    let place = tempfile::tempdir().unwrap();
    for (name, kv) in [
        ("synthetic:bonsai-tiny", KvType::F32),
        ("synthetic:bonsai-tiny", KvType::Bf16),
        ("synthetic:tiny", KvType::F32),
    ] {
        let model = model(name, kv, Some(dir(place.path())));
        answers(&model, &requests()[9..10]);
        assert_eq!(tier(model.engine()).hits, 0, "{name} {kv}");
    }
    let listed = CacheDir::list(&dir(place.path()).path).unwrap();
    assert_eq!(listed.len(), 3, "{listed:?}");
}

#[test]
fn a_file_that_changes_is_another_model_and_an_unchanged_one_is_hashed_once() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("model.gguf");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/qwen3-g64/model-Q2_0.gguf");
    fs::copy(fixture, &file).unwrap();
    let prompt: Vec<u32> = (0..150).map(|i| i % 90).collect();
    let read = || {
        let model = model(file.to_str().unwrap(), KvType::F32, Some(dir(place.path())));
        let answer = model.complete(Request::tokens(prompt.clone()).max_tokens(3).ignore_eos(true)).unwrap();
        assert_eq!(answer.finish, FinishReason::Length);
        tier(model.engine()).hit_tokens
    };
    assert_eq!([read(), read()], [0, 128]);
    // The last bytes are weights.
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 4;
    fs::write(&file, bytes).unwrap();
    assert_eq!(read(), 0);
}

#[test]
fn a_salt_separates_tenants_and_is_cleared_alone() {
    let place = tempfile::tempdir().unwrap();
    let request = |salt: &str| requests()[9].clone().cache_salt(salt);
    let read = |salt: &str| {
        let model = model("synthetic:tiny", KvType::F32, Some(dir(place.path())));
        model.complete(request(salt)).unwrap();
        tier(model.engine()).hit_tokens
    };
    assert_eq!(["a", "b", "a"].map(read), [0, 0, 256]);
    let cleared = CacheDir::clear(&dir(place.path()).path, Some(cache_salt("a"))).unwrap();
    assert!(cleared.parts > 0, "{cleared:?}");
    assert_eq!(["b", "a"].map(read), [256, 0]);
}

#[test]
fn a_folder_that_others_can_write_to_is_refused_with_a_cure() {
    let place = tempfile::tempdir().unwrap();
    let folder = dir(place.path());
    fs::write(&folder.path, "").unwrap();
    let error = Model::builder().device(Device::Cpu).cache_dir(folder).open("synthetic:tiny").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("cannot be used") && text.ends_with(&error.cure()), "{text}");
}
