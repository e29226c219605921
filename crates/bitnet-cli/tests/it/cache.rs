//! `--cache-dir`, `bitnet cache`, and what is left when a process is killed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    thread::sleep,
    time::{Instant, SystemTime},
};

use serde_json::{Value, json};

use crate::bitnet::{Outcome, bitnet, command};

fn requests(count: u32) -> String {
    let line = |i: u32| {
        let prompt: Vec<u32> = (0..400).map(|p| if p < 330 { p * p % 487 } else { (p + i) % 300 }).collect();
        let body = json!({"prompt": prompt, "max_tokens": 40, "seed": i});
        json!({"custom_id": i.to_string(), "method": "POST", "url": "/v1/completions", "body": body})
            .to_string()
    };
    (0..count).map(|i| line(i) + "\n").collect()
}

fn batch(folder: &Path, output: &str, cache: bool) -> Vec<String> {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut args: Vec<String> = ["batch", "synthetic:hybrid-tiny"].map(str::to_owned).into();
    args.extend([path("in.jsonl"), path(output)]);
    args.extend(["--device", "cpu", "--threads", "1", "--return-tokens"].map(str::to_owned));
    if cache {
        args.extend(["--cache-dir".to_owned(), path("cache")]);
    }
    args
}

/// When each part was last used.
fn used(cache: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let (mut folders, mut used) = (vec![cache.to_owned()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.path().extension() {
                _ if entry.path().is_dir() => folders.push(entry.path()),
                Some(_) => drop(used.insert(entry.path(), entry.metadata().unwrap().modified().unwrap())),
                None => {}
            }
        }
    }
    used
}

/// The choices of all answers.
fn tokens(output: &Path) -> Vec<Value> {
    let answers = fs::read_to_string(output).unwrap();
    let choices =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["response"]["body"]["choices"].clone();
    answers.lines().map(choices).collect()
}

#[test]
fn a_batch_reads_what_an_earlier_one_has_computed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("in.jsonl"), requests(3)).unwrap();
    bitnet(&batch(dir.path(), "without", false)).success();
    bitnet(&batch(dir.path(), "first", true)).success();
    let at = |name: &str| dir.path().join(name);
    let before = used(&at("cache"));
    bitnet(&batch(dir.path(), "second", true)).success();
    let after = used(&at("cache"));
    let read = before.iter().filter(|(path, time)| after[*path] > **time).count();
    assert!(before.len() >= 10 && read >= 6, "{read} of {} parts were read", before.len());
    assert_eq!(tokens(&at("first")), tokens(&at("without")));
    assert_eq!(tokens(&at("second")), tokens(&at("without")));

    let cache = at("cache").to_str().unwrap().to_owned();
    let listed = bitnet(&["cache", "list", "--json", "--cache-dir", &cache]).json();
    assert_eq!(listed[0]["salt"], Value::Null);
    assert!(listed[0]["model"].as_str().unwrap().starts_with("synthetic:hybrid-tiny, f32"), "{listed}");
    assert!(listed[0]["bytes"].as_u64().unwrap() > 100_000, "{listed}");
    let shown = bitnet(&["cache", "list", "--cache-dir", &cache]).success();
    assert!(shown.contains("synthetic:hybrid-tiny") && shown.contains("last used 0 days ago"), "{shown}");
    let Outcome { err, .. } = bitnet(&["cache", "clear", "--cache-dir", &cache, "--salt", "nobody"]);
    assert!(err.contains("removed 0 parts"), "{err}");
    let Outcome { err, .. } = bitnet(&["cache", "clear", "--cache-dir", &cache]);
    assert!(err.contains("removed ") && !err.contains("removed 0"), "{err}");
    assert_eq!(bitnet(&["cache", "list", "--json", "--cache-dir", &cache]).json(), json!([]));
}

#[test]
fn a_run_reads_the_prompt_of_an_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().to_str().unwrap();
    let ids = (0..150u32).map(|p| (p * p % 487).to_string()).collect::<Vec<_>>().join(",");
    for model in ["synthetic:tiny", "synthetic:hybrid-tiny"] {
        let args = ["run", model, "--ids", &ids, "-n", "8", "--json", "--device", "cpu", "--seed", "1"];
        let with = [&args[..], &["--cache-dir", cache]].concat();
        let runs = [bitnet(&args).json(), bitnet(&with).json(), bitnet(&with).json()];
        assert!(runs.iter().all(|run| run["token_ids"] == runs[0]["token_ids"]), "{model}: {runs:?}");
        assert_eq!(runs.map(|run| run["cached_tokens"].clone()), [0, 0, 128].map(Value::from), "{model}");
    }
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let args = ["run", "synthetic:tiny", "--ids", "1", "--device", "cpu", "--cache-dir"];
    let error = bitnet(&[&args[..], &[file.to_str().unwrap()]].concat()).failure(1);
    assert!(error.contains("the folder cannot be used") && error.contains("may write to"), "{error}");
}

#[test]
fn a_process_killed_at_any_moment_leaves_a_folder_that_works() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("in.jsonl"), requests(6)).unwrap();
    let begun = Instant::now();
    bitnet(&batch(dir.path(), "without", false)).success();
    let whole = begun.elapsed();
    let expected = tokens(&dir.path().join("without"));
    let kills = std::env::var("BITNET_KILLS").map_or(8, |kills| kills.parse().unwrap());
    for kill in 0..kills {
        let mut child = command(&batch(dir.path(), "killed", true));
        let mut child = child.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(whole.mul_f64(0.1 + 1.2 * f64::from(kill % 16) / 16.0));
        let _ = child.kill();
        child.wait().unwrap();
        for name in ["killed", "killed.partial"] {
            let _ = fs::remove_file(dir.path().join(name));
        }
        // Another process finds whole parts or none.
        bitnet(&batch(dir.path(), "after", true)).success();
        assert_eq!(tokens(&dir.path().join("after")), expected, "after kill {kill}");
        if kill % 3 == 0 {
            fs::remove_dir_all(dir.path().join("cache")).unwrap();
        }
    }
}

#[test]
fn flags_of_the_cache_are_checked() {
    let error = bitnet(&["batch", "demo", "-", "-", "--cache-dir", "x", "--cache-size", "50%"]).failure(2);
    assert!(error.contains("20GiB"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let args =
        ["batch", "synthetic:tiny", "-", "-", "--device", "cpu", "--cache-dir", file.to_str().unwrap()];
    let error = bitnet(&args).failure(1);
    assert!(error.contains("the folder cannot be used") && error.contains("file"), "{error}");
    let args = ["batch", "synthetic:tiny", "-", "-", "--device", "cpu", "--cache-host", "1M"];
    let error = bitnet(&args).failure(1);
    assert!(error.contains("no GPU computes (--cache-host): compute on a GPU"), "{error}");
}
