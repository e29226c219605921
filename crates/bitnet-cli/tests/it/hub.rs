//! Models by name.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::Stdio,
};

use crate::bitnet::{Outcome, command, fixture};

/// A hub with one fixture; it answers one request per connection.
fn hub() -> String {
    const COMMIT: &str = "00112233445566778899aabbccddeeff00112233";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while reader.read_line(&mut request).is_ok_and(|n| n > 2) {}
            let path = request.split(' ').nth(1).unwrap_or_default();
            let file = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
            let body = match file {
                Some(file) => std::fs::read(fixture(&format!("bitnet-packed/{file}"))).ok(),
                None => (path == "/api/models/org/tiny/revision/main").then(|| {
                    let names =
                        ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
                    let names = names.map(|n| format!("{{\"rfilename\":\"{n}\"}}")).join(",");
                    format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{names}]}}").into_bytes()
                }),
            };
            let (status, body) = body.map_or((404, Vec::new()), |body| (200, body));
            let etag = path.replace('/', "-");
            let head = format!(
                "HTTP/1.1 {status} x\r\nconnection: close\r\netag: \"x{etag}\"\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _gone = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    endpoint
}

fn bitnet(args: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let mut command = command(args);
    command
        .env_remove("HF_TOKEN")
        .env_remove("HF_HUB_OFFLINE")
        .env_remove("HF_HUB_CACHE")
        .envs(variables.iter().copied());
    let output = command.stdin(Stdio::null()).output().unwrap();
    Outcome {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_model_is_run_by_its_name_and_then_without_the_network() {
    let (home, endpoint) = (tempfile::tempdir().unwrap(), hub());
    let online = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HOME", home.path().to_str().unwrap())];
    let run = ["run", "org/tiny", "--raw", "word", "-n", "8", "--temperature", "0", "--seed", "1"];
    let local = bitnet(&[&["run", &fixture("bitnet-packed")], &run[2..]].concat(), &[]).success();
    assert_eq!(bitnet(&run, &online).success(), local);
    assert!(home.path().join("hub/models--org--tiny/refs/main").is_file());
    let offline = [&online[1..], &[("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:9")]].concat();
    assert_eq!(bitnet(&run, &offline).success(), local);
    // The network is down, but HF_HUB_OFFLINE is not set.
    let down = [&online[1..], &[("HF_ENDPOINT", "http://127.0.0.1:9")]].concat();
    let outcome = bitnet(&run, &down);
    assert!(outcome.err.contains("warning: using the cached model"), "{}", outcome.err);
    assert_eq!(outcome.success(), local);
    let cache = home.path().join("hub");
    let moved = [down[1], ("HF_HUB_CACHE", cache.to_str().unwrap()), ("HF_HOME", "/nowhere")];
    assert_eq!(bitnet(&run, &moved).success(), local);
}

#[test]
fn a_model_that_the_hub_lacks_is_reported_in_one_line() {
    let (home, endpoint) = (tempfile::tempdir().unwrap(), hub());
    let variables = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HOME", home.path().to_str().unwrap())];
    let error = bitnet(&["inspect", "org/other"], &variables).failure(1);
    assert!(error.contains("no such model or revision (org/other@main)"), "{error}");
    let error = bitnet(&["inspect", "org/tiny:model.gguf"], &variables).failure(1);
    assert!(error.contains("no file model.gguf"), "{error}");
    let gone = [("HF_HUB_OFFLINE", "1"), ("HF_HOME", home.path().to_str().unwrap())];
    let error = bitnet(&["inspect", "org/other"], &gone).failure(1);
    assert!(error.contains("HF_HUB_OFFLINE is set"), "{error}");
}

#[test]
fn models_are_pulled_listed_and_removed() {
    let (home, endpoint) = (tempfile::tempdir().unwrap(), hub());
    let variables = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HOME", home.path().to_str().unwrap())];
    let empty = bitnet(&["list"], &variables);
    assert!(empty.err.contains("bitnet pull"), "{empty:?}");
    assert_eq!(empty.success(), "");
    let path = bitnet(&["pull", "org/tiny"], &variables).success();
    assert!(std::path::Path::new(path.trim()).join("model.safetensors").is_file(), "{path}");
    let listed = bitnet(&["list", "--json"], &variables).json();
    assert_eq!(
        (&listed[0]["model"], &listed[0]["revisions"]),
        (&"org/tiny".into(), &serde_json::json!(["main"]))
    );
    let weights = std::fs::metadata(fixture("bitnet-packed/model.safetensors")).unwrap().len();
    assert!(listed[0]["bytes"].as_u64().unwrap() > weights, "{listed}");
    let lines = bitnet(&["list"], &variables).success();
    assert!(lines.starts_with("org/tiny ") && lines.contains(" MB  main"), "{lines}");
    assert!(bitnet(&["rm", "org/tiny"], &variables).err.contains("removed org/tiny"));
    assert!(!home.path().join("hub/models--org--tiny").exists());
    assert!(bitnet(&["rm", "org/tiny"], &variables).failure(1).contains("bitnet list"));
    assert!(bitnet(&["pull", "./org"], &variables).failure(2).contains("org/name"));
}

#[test]
fn a_model_that_is_being_fetched_is_not_removed() {
    let home = tempfile::tempdir().unwrap();
    let blobs = home.path().join("hub/models--org--tiny/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let unfinished = std::fs::File::create(blobs.join("abc.incomplete")).unwrap();
    unfinished.try_lock().unwrap();
    let variables = [("HF_HOME", home.path().to_str().unwrap())];
    assert!(bitnet(&["rm", "org/tiny"], &variables).failure(1).contains("another process"));
    drop(unfinished);
    bitnet(&["rm", "org/tiny"], &variables).success();
}
