//! Fetching models from a hub: which files, in what order, and what happens when the hub fails.

use std::{collections::BTreeMap, fs, path::Path};

use bitnet_hub::{Hub, HubError, ModelId, Settings};

use crate::server::{self, BREAK, COMMIT, Repository};

const NAME: &str = "org/name";

/// A repository with all files of a model, and several that are not needed.
fn whole() -> Repository {
    let weights: Vec<u8> = (0..50_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let files = [
        ("config.json", b"{}".to_vec()),
        ("generation_config.json", b"{\"a\":1}".to_vec()),
        ("tokenizer.json", b"{\"b\":2}".to_vec()),
        ("tokenizer_config.json", b"{\"c\":3}".to_vec()),
        ("model.safetensors", weights),
        ("README.md", vec![1; 2000]),
        ("pytorch_model.bin", vec![2; 2000]),
        ("onnx/model.onnx", vec![3; 2000]),
        ("gguf/model-i2_s.gguf", vec![4; 30_000]),
    ];
    let files: BTreeMap<_, _> = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    Repository { name: NAME, files, ..Repository::default() }
}

fn fetch(settings: Settings, id: &str) -> Result<std::path::PathBuf, HubError> {
    let id = ModelId::parse(id).unwrap();
    Hub::new(settings).fetch(&id, &mut |_, _, _| {}).map(|fetched| fetched.path)
}

/// The message of a failure, which is one line of what, where and cure.
fn failure(settings: Settings, id: &str) -> String {
    let text = fetch(settings, id).unwrap_err().to_string();
    assert!(text.lines().count() == 1 && text.contains("): "), "{text}");
    text
}

fn assert_complete(folder: &Path, files: &BTreeMap<String, Vec<u8>>, names: &[&str]) {
    for name in names {
        assert!(fs::read(folder.join(name)).unwrap() == files[*name], "{name}");
    }
}

const NEEDED: [&str; 5] =
    ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

#[test]
fn a_model_is_fetched_once_and_only_the_files_that_are_needed() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(whole());
    let folder = fetch(hub.settings(cache.path()), NAME).unwrap();
    assert_complete(&folder, &whole().files, &NEEDED);
    assert_eq!(hub.asked(), NEEDED);
    // The layout is that of Hugging Face's own tools.
    let root = cache.path().join("models--org--name");
    assert_eq!(folder, root.join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read_dir(root.join("blobs")).unwrap().count(), NEEDED.len());

    let before = hub.seen().len();
    assert_eq!(fetch(hub.settings(cache.path()), NAME).unwrap(), folder);
    assert_eq!(hub.seen().len(), before + 1, "what is there is not fetched again");
}

#[test]
fn a_gguf_file_in_parts_is_fetched_whole_whichever_part_is_named() {
    let parts = [1, 2, 3].map(|number| format!("q/m-{number:05}-of-00003.gguf"));
    let mut repository = whole();
    for (part, byte) in parts.iter().zip(5..) {
        repository.files.insert(part.clone(), vec![byte; 3000]);
    }
    let hub = server::Hub::start(repository.clone());
    for named in &parts {
        let cache = tempfile::tempdir().unwrap();
        let path = fetch(hub.settings(cache.path()), &format!("{NAME}:{named}")).unwrap();
        assert!(path.ends_with(named), "{path:?}");
        for part in &parts {
            let beside = path.with_file_name(part.strip_prefix("q/").unwrap());
            assert!(fs::read(beside).unwrap() == repository.files[part], "{part}");
        }
        let offline = Settings { offline: true, ..hub.settings(cache.path()) };
        assert_eq!(fetch(offline.clone(), &format!("{NAME}:{named}")).unwrap(), path);
        fs::remove_file(path.with_file_name("m-00002-of-00003.gguf")).unwrap();
        assert!(failure(offline, &format!("{NAME}:{named}")).contains("m-00002-of-00003.gguf"));
    }
    repository.files.remove(&parts[1]);
    let (hub, cache) = (server::Hub::start(repository), tempfile::tempdir().unwrap());
    let missing = failure(hub.settings(cache.path()), &format!("{NAME}:{}", parts[0]));
    assert!(missing.contains(&parts[1]) && !missing.contains(&parts[2]), "one name for the whole: {missing}");
}

#[test]
fn a_model_in_shards_is_fetched_by_its_index() {
    let cache = tempfile::tempdir().unwrap();
    let mut repository = whole();
    let index =
        br#"{"weight_map":{"a":"model-2.safetensors","b":"model-1.safetensors","c":"model-1.safetensors"}}"#;
    repository.files.insert("model.safetensors.index.json".into(), index.to_vec());
    repository.files.insert("model-1.safetensors".into(), vec![5; 3000]);
    repository.files.insert("model-2.safetensors".into(), vec![6; 3000]);
    let files = repository.files.clone();
    let hub = server::Hub::start(repository);
    let folder = fetch(hub.settings(cache.path()), NAME).unwrap();
    assert_complete(&folder, &files, &["config.json", "model-1.safetensors", "model-2.safetensors"]);
    assert!(!folder.join("model.safetensors").exists(), "the index names what is needed");
}

#[test]
fn a_file_inside_a_repository_is_fetched_alone() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(whole());
    let file = fetch(hub.settings(cache.path()), "org/name:gguf/model-i2_s.gguf").unwrap();
    assert!(file.ends_with("gguf/model-i2_s.gguf"));
    assert!(fs::read(&file).unwrap() == whole().files["gguf/model-i2_s.gguf"]);
    assert_eq!(hub.asked(), ["gguf/model-i2_s.gguf"]);
    let told = failure(hub.settings(cache.path()), "org/name:model.gguf");
    assert!(told.contains("no file model.gguf") && told.contains("org/name:gguf/model-i2_s.gguf"), "{told}");
}

#[test]
fn the_gguf_files_of_a_repository_are_listed() {
    let cache = tempfile::tempdir().unwrap();
    let mut repository = whole();
    repository.files.retain(|name, _| !name.ends_with(".json"));
    let told = failure(server::Hub::start(repository).settings(cache.path()), NAME);
    assert!(told.contains("no file config.json") && told.contains("org/name:gguf/model-i2_s.gguf"), "{told}");
}

#[test]
fn the_token_goes_to_the_hub_and_not_where_it_redirects_to() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(Repository { token: Some("secret"), redirect: true, ..whole() });
    let told = failure(hub.settings(cache.path()), NAME);
    assert!(told.contains("does not give access") && told.contains("HF_TOKEN"), "{told}");
    let settings = Settings { token: Some("secret".into()), ..hub.settings(cache.path()) };
    let folder = fetch(settings, NAME).unwrap();
    assert_complete(&folder, &whole().files, &NEEDED);
    let weights: Vec<_> =
        hub.seen().into_iter().filter(|(path, ..)| path.ends_with(".safetensors")).collect();
    let tokens: Vec<bool> = weights.iter().map(|(.., token)| *token).collect();
    assert_eq!(tokens, [true, false], "asked at the hub with the token, and elsewhere without: {weights:?}");
}

#[test]
fn a_broken_transfer_resumes_where_it_stopped() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(Repository { breaks: 3, redirect: true, ..whole() });
    let mut told = Vec::new();
    let id = ModelId::parse(NAME).unwrap();
    let folder = Hub::new(hub.settings(cache.path())).fetch(&id, &mut |file, have, size| {
        told.push((file.to_owned(), have, size));
    });
    assert_complete(&folder.unwrap().path, &whole().files, &NEEDED);
    let ranges: Vec<_> = hub.seen().into_iter().filter_map(|(_, range, _)| range).collect();
    for n in 1..=3 {
        assert!(ranges.contains(&format!("bytes={}-", n * BREAK)), "{ranges:?}");
    }
    let weights = told.iter().filter(|(file, ..)| file == "model.safetensors");
    assert!(weights.clone().is_sorted_by_key(|(_, have, _)| have));
    assert_eq!(weights.max_by_key(|told| told.1).unwrap(), &("model.safetensors".to_owned(), 50_000, 50_000));
}

#[test]
fn a_transfer_that_another_run_began_is_resumed() {
    let cache = tempfile::tempdir().unwrap();
    let weights = whole().files["model.safetensors"].clone();
    // Content that another run has left: bytes that this one would not send again.
    let hash: String = {
        use sha2::{Digest, Sha256};
        Sha256::digest(&weights).iter().map(|b| format!("{b:02x}")).collect()
    };
    let blobs = cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    for (left, range) in [(12_345, Some("bytes=12345-".to_owned())), (weights.len(), None)] {
        fs::write(blobs.join(format!("{hash}.incomplete")), &weights[..left]).unwrap();
        let hub = server::Hub::start(whole());
        let folder = fetch(hub.settings(cache.path()), NAME).unwrap();
        assert_complete(&folder, &whole().files, &NEEDED);
        assert_eq!(hub.seen().into_iter().find_map(|(_, range, _)| range), range);
        fs::remove_file(folder.join("model.safetensors")).unwrap();
        fs::remove_file(blobs.join(&hash)).unwrap();
    }
}

#[test]
fn a_server_without_ranges_sends_all_of_it_again() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(Repository { breaks: 2, no_ranges: true, ..whole() });
    let folder = fetch(hub.settings(cache.path()), NAME).unwrap();
    assert_complete(&folder, &whole().files, &NEEDED);
}

#[test]
fn content_without_a_length_is_read_to_its_end() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(Repository { no_length: true, ..whole() });
    assert_complete(&fetch(hub.settings(cache.path()), NAME).unwrap(), &whole().files, &NEEDED);
}

#[test]
fn a_transfer_that_keeps_breaking_is_reported_and_keeps_what_arrived() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(Repository { breaks: usize::MAX, no_ranges: true, ..whole() });
    let told = failure(hub.settings(cache.path()), NAME);
    assert!(
        told.contains("broke after 10000 of 50000 bytes (")
            || told.contains("broke after 10000 of 50000 bytes:")
    );
    assert!(told.contains("model.safetensors") && told.contains("to resume it"), "{told}");
    assert!(!cache.path().join(format!("models--org--name/snapshots/{COMMIT}/model.safetensors")).exists());
}

#[test]
fn a_file_that_arrives_damaged_is_refused_and_removed() {
    let cache = tempfile::tempdir().unwrap();
    let told =
        failure(server::Hub::start(Repository { corrupts: true, ..whole() }).settings(cache.path()), NAME);
    assert!(
        told.contains("damaged") && told.contains("SHA-256") && told.contains("model.safetensors"),
        "{told}"
    );
    // A hub in order then delivers.
    let hub = server::Hub::start(whole());
    assert_complete(&fetch(hub.settings(cache.path()), NAME).unwrap(), &whole().files, &NEEDED);
}

#[test]
fn a_missing_model_or_revision_is_reported() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(whole());
    for id in ["org/other", "org/name@v2"] {
        let told = failure(hub.settings(cache.path()), id);
        assert!(told.contains("no such model or revision") && told.contains("after @"), "{told}");
    }
    assert!(fetch(hub.settings(cache.path()), "org/name@main").is_ok());
}

#[test]
fn an_unsuccessful_response_is_reported_with_its_status() {
    for (status, cure) in [(500, "try again"), (503, "try again"), (429, "HF_TOKEN"), (418, "HF_ENDPOINT")] {
        let cache = tempfile::tempdir().unwrap();
        let hub = server::Hub::start(Repository { status: Some(status), ..whole() });
        let told = failure(hub.settings(cache.path()), NAME);
        assert!(told.contains(&status.to_string()) && told.contains(cure), "{told}");
    }
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(Repository { status: Some(302), ..whole() });
    assert!(failure(hub.settings(cache.path()), NAME).contains("302"));
}

/// A port on which nothing listens.
const GONE: &str = "127.0.0.1:1";

#[test]
fn an_unreachable_hub_is_reported_with_its_address() {
    let cache = tempfile::tempdir().unwrap();
    let settings = Settings {
        endpoint: format!("http://{GONE}"),
        token: None,
        offline: false,
        cache: cache.path().into(),
        patience: std::time::Duration::ZERO,
    };
    let told = failure(settings, NAME);
    assert!(told.contains("no answer") && told.contains(GONE) && told.contains("HF_ENDPOINT"), "{told}");
}

#[test]
fn without_the_network_the_cache_is_used_and_that_is_said() {
    let cache = tempfile::tempdir().unwrap();
    let id = ModelId::parse(NAME).unwrap();
    let mut settings = server::Hub::start(whole()).settings(cache.path());
    let online = Hub::new(settings.clone()).fetch(&id, &mut |_, _, _| {}).unwrap();
    assert!(online.unreachable.is_none());
    let busy = server::Hub::start(Repository { status: Some(503), ..whole() });
    for (endpoint, why) in [(format!("http://{GONE}"), "no answer"), (busy.endpoint.clone(), "503")] {
        settings.endpoint = endpoint;
        let hub = Hub::new(settings.clone());
        let fetched = hub.fetch(&id, &mut |_, _, _| {}).unwrap();
        assert_eq!(fetched.path, online.path);
        assert!(fetched.unreachable.unwrap().to_string().contains(why));
        // What is not there cannot be used, and the network is to blame.
        let told = failure(settings.clone(), "org/name:gguf/model-i2_s.gguf");
        assert!(told.contains(why), "{told}");
    }
    // A model to which the hub denies access is not used, even if it is in the cache.
    let denies = server::Hub::start(Repository { token: Some("secret"), ..whole() });
    assert!(failure(denies.settings(cache.path()), NAME).contains("does not give access"));
}

#[test]
fn offline_uses_the_cache_and_sends_no_request() {
    let cache = tempfile::tempdir().unwrap();
    let hub = server::Hub::start(whole());
    let offline = || Settings { offline: true, ..hub.settings(cache.path()) };
    let told = failure(offline(), NAME);
    assert!(told.contains("HF_HUB_OFFLINE") && told.contains("not in the cache"), "{told}");
    assert_eq!(hub.seen().len(), 0);

    let folder = fetch(hub.settings(cache.path()), NAME).unwrap();
    let before = hub.seen().len();
    assert_eq!(fetch(offline(), NAME).unwrap(), folder);
    assert_eq!(fetch(offline(), &format!("{NAME}@{COMMIT}")).unwrap(), folder);
    assert!(
        failure(offline(), "org/name:gguf/model-i2_s.gguf")
            .contains("gguf/model-i2_s.gguf is not in the cache")
    );
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    assert!(failure(offline(), NAME).contains("model.safetensors is not in the cache"));
    assert_eq!(hub.seen().len(), before);
}

#[test]
fn what_a_hub_says_cannot_lead_out_of_the_cache() {
    for etag in ["../../../../escaped", "/etc/passwd", "", "a/b"] {
        let cache = tempfile::tempdir().unwrap();
        let hub = server::Hub::start(Repository { etag: Some(etag), ..whole() });
        let told = failure(hub.settings(&cache.path().join("hub")), NAME);
        assert!(told.contains("ETag"), "{told}");
        assert!(!cache.path().join("escaped").exists());
    }
    let cache = tempfile::tempdir().unwrap();
    let mut repository = whole();
    let index = br#"{"weight_map":{"a":"../../../config.json"}}"#;
    repository.files.insert("model.safetensors.index.json".into(), index.to_vec());
    let told = failure(server::Hub::start(repository).settings(cache.path()), NAME);
    assert!(told.contains("plain name"), "{told}");
}

#[test]
fn two_runs_do_not_write_to_one_file() {
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let hub = server::Hub::start(Repository { etag: Some("same"), ..whole() });
    let other = fs::File::create(blobs.join("same.incomplete")).unwrap();
    other.lock().unwrap();
    assert!(failure(hub.settings(cache.path()), NAME).contains("another process"));
}
