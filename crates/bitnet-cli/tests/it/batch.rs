//! `bitnet batch`: a file of requests in, a file of answers out.

use std::{fs, path::Path, time::Instant};

use serde_json::{Value, json};

use crate::bitnet::{Outcome, bitnet, bitnet_reading, command};

/// A request that draws its tokens, so that a seed that does not come from its name would be noticed.
fn line(name: &str, prompt: &[u32], max_tokens: usize) -> String {
    let body = json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.9});
    json!({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}).to_string()
}

fn lines(count: u32, max_tokens: usize) -> String {
    let one = |i: u32| line(&format!("r{i}"), &[i % 500, 7 + i % 13, 3], max_tokens + i as usize % 9) + "\n";
    (0..count).map(one).collect()
}

fn args<'a>(input: &'a Path, output: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let files = ["batch", "synthetic:tiny", input.to_str().unwrap(), output.to_str().unwrap()];
    [&files[..], more].concat()
}

fn batch(input: &Path, output: &Path, more: &[&str]) -> Outcome {
    bitnet(&args(input, output, more))
}

fn answers(output: &Path) -> Vec<Value> {
    fs::read_to_string(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn answers_come_in_order_and_are_the_same_in_a_batch_of_any_size() {
    let dir = tempfile::tempdir().unwrap();
    let (input, [one, many]) = (dir.path().join("in.jsonl"), ["1", "24"].map(|n| dir.path().join(n)));
    fs::write(&input, lines(60, 20)).unwrap();
    batch(&input, &one, &["--max-batch-size", "1", "--return-tokens"]).success();
    let told = batch(&input, &many, &["--max-batch-size", "24", "--return-tokens"]);
    assert!(told.err.contains("60 lines answered, 0 with an error"), "{}", told.err);
    assert_eq!(fs::read(&one).unwrap(), fs::read(&many).unwrap());
    for (i, answer) in answers(&many).iter().enumerate() {
        assert_eq!(answer["custom_id"], format!("r{i}"));
        assert_eq!((&answer["response"]["status_code"], &answer["error"]), (&json!(200), &Value::Null));
        let choice = &answer["response"]["body"]["choices"][0];
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), 20 + i % 9);
    }
}

#[test]
fn a_bad_line_gets_an_error_in_its_place_and_the_others_their_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    let with = |change: fn(&mut Value)| {
        let mut request: Value = serde_json::from_str(&line("x", &[1, 2], 3)).unwrap();
        change(&mut request);
        request.to_string()
    };
    let bad: Vec<(String, &str)> = vec![
        ("{".into(), "EOF"),
        ("[1]".into(), "expected"),
        (with(|r| r["method"] = json!("GET")), "POST"),
        (with(|r| r["url"] = json!("/v1/audio")), "/v1/completions"),
        (with(|r| r["extra"] = json!(1)), "extra"),
        (with(|r| r["body"]["prompt"] = json!([1, 512])), "512"),
        (with(|r| r["body"]["prompt"] = json!("text")), "tokenizer"),
        (with(|r| r["body"]["surprise"] = json!(1)), "surprise"),
        (with(|r| r["body"]["stream"] = json!(true)), "stream"),
        (with(|r| r["body"]["max_tokens"] = json!(-2)), "max_tokens"),
        (with(|r| r["body"]["model"] = json!("gpt")), "gpt"),
    ];
    let good = line("good", &[5, 6], 4);
    let text: String = "\u{feff}".to_string()
        + &bad.iter().map(|(line, _)| format!("{line}\n\n{good}\r\n")).collect::<String>();
    fs::write(&input, text.trim_end()).unwrap();
    let told = batch(&input, &output, &[]);
    assert!(told.err.contains("22 lines answered, 11 with an error"), "{}", told.err);
    told.success();
    let answers = answers(&output);
    for ((line, what), pair) in bad.iter().zip(answers.chunks(2)) {
        let error = if pair[0]["error"].is_null() {
            &pair[0]["response"]["body"]["error"]
        } else {
            &pair[0]["error"]
        };
        assert!(error["message"].as_str().unwrap().contains(what), "{line}: {error}");
        assert_ne!(pair[0]["response"]["status_code"], 200);
        assert_eq!(pair[1]["response"]["status_code"], 200);
        assert_eq!(pair[1], answers[1]);
    }
}

#[test]
fn a_batch_killed_at_any_point_and_restarted_loses_and_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (input, whole, broken) = (dir.path().join("in"), dir.path().join("whole"), dir.path().join("broken"));
    fs::write(&input, lines(400, 40)).unwrap();
    let begun = Instant::now();
    batch(&input, &whole, &[]).success();
    let whole_time = begun.elapsed();
    let partial = dir.path().join("broken.partial");
    let mut kills = 0;
    let told = loop {
        let mut run = command(&args(&input, &broken, &[]));
        let mut run = run.stderr(std::process::Stdio::piped()).spawn().unwrap();
        // Random points in time: the progress differs, and a line may be half written.
        std::thread::sleep(whole_time * (5 + kills * 31 % 20) / 100);
        if kills == 20 || run.try_wait().unwrap().is_some() {
            break String::from_utf8(run.wait_with_output().unwrap().stderr).unwrap();
        }
        run.kill().unwrap();
        run.wait().unwrap();
        kills += 1;
        if kills % 5 == 0 && partial.exists() {
            let text = fs::read(&partial).unwrap();
            fs::write(&partial, &text[..text.len().saturating_sub(7)]).unwrap();
        }
    };
    assert!(kills >= 3, "{kills} kills: {told}");
    assert!(told.contains("400 lines answered"), "{told}");
    assert_eq!(fs::read(&whole).unwrap(), fs::read(&broken).unwrap());
    assert!(!partial.exists());
}

#[test]
fn what_belongs_to_another_input_or_model_is_not_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    fs::write(&input, lines(3, 2)).unwrap();
    batch(&input, &output, &[]).success();
    let partial = dir.path().join("out.jsonl.partial");
    fs::rename(&output, &partial).unwrap();
    let kept = fs::read(&partial).unwrap();
    let refused = |input: &Path, more: &[&str], line: &str| {
        let error = batch(input, &output, more).failure(1);
        assert!(error.contains(line) && error.contains("remove that file"), "{error}");
        assert_eq!(fs::read(&partial).unwrap(), kept, "nothing is taken from it");
    };
    fs::write(&input, lines(3, 2).replace("r1", "other")).unwrap();
    refused(&input, &[], "line 2");
    fs::write(&input, lines(3, 2).replace("0.9", "0.8")).unwrap();
    refused(&input, &[], "line 1");
    fs::write(&input, lines(2, 2)).unwrap();
    refused(&input, &[], "line 3");
    fs::write(&input, lines(3, 2)).unwrap();
    refused(&input, &["--return-tokens"], "line 1");
    let files = [input.to_str().unwrap(), output.to_str().unwrap()];
    assert!(bitnet(&["batch", "demo", files[0], files[1]]).failure(1).contains("line 1"));
    assert!(batch(&partial, &output, &[]).failure(1).contains("both input and output"));
    fs::write(&input, lines(4, 2)).unwrap();
    let told = batch(&input, &output, &[]);
    assert!(told.err.contains("4 lines answered, 3 of them by an earlier run"), "{}", told.err);
    // A file of this name with other content is not an earlier run.
    fs::write(&partial, "milk\neggs\n").unwrap();
    assert!(batch(&input, &output, &[]).failure(1).contains("line 1"));
    assert_eq!(fs::read_to_string(&partial).unwrap(), "milk\neggs\n");
    fs::remove_file(&partial).unwrap();
    assert!(batch(&input, &input, &[]).failure(1).contains("both input and output"));
    assert!(batch(&dir.path().join("none"), &output, &[]).failure(1).contains("cannot read"));
    assert!(batch(&input, dir.path(), &[]).failure(1).contains("folder"));
}

#[test]
fn lines_that_are_no_text_or_too_long_are_answered_with_an_error_in_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    let good = line("good", &[5, 6], 4) + "\n";
    // Longer than a request may be, because of spaces.
    let long = good.replace('{', &format!("{{{}", " ".repeat(9 << 20)));
    let torn = [&b"{\"custom_id\": \"\xFF\"}\n"[..], good.as_bytes(), &b"\xC3\n"[..]].concat();
    fs::write(&input, [good.as_bytes(), &torn, long.as_bytes(), good.as_bytes()].concat()).unwrap();
    let told = batch(&input, &output, &[]);
    assert!(told.err.contains("6 lines answered, 3 with an error"), "{}", told.err);
    told.success();
    let answers = answers(&output);
    for (bad, what) in [(1, "code point"), (3, "expected value"), (4, "longer than a request may be")] {
        let error = &answers[bad]["error"];
        assert_eq!((&error["code"], &answers[bad]["response"]), (&json!("invalid_line"), &Value::Null));
        assert!(error["message"].as_str().unwrap().contains(what), "{error}");
        assert_eq!(answers[bad]["custom_id"], Value::Null);
    }
    for good in [2, 5] {
        assert_eq!(answers[good], answers[0]);
    }
    assert_eq!(answers[0]["response"]["status_code"], 200);
}

#[test]
fn lines_of_one_name_are_all_answered_each_for_what_it_asks() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    let asked = [line("twin", &[5, 6], 8), line("twin", &[7, 8], 5), line("twin", &[5, 6], 8)];
    fs::write(&input, asked.join("\n")).unwrap();
    batch(&input, &output, &["--return-tokens"]).success();
    let answers = answers(&output);
    let tokens = |i: usize| {
        assert_eq!(answers[i]["custom_id"], "twin");
        answers[i]["response"]["body"]["choices"][0]["token_ids"].as_array().unwrap()
    };
    assert_eq!((tokens(0).len(), tokens(1).len()), (8, 5));
    assert_eq!(answers[0], answers[2]);
    assert_ne!(answers[0]["id"], answers[1]["id"]);
}

#[test]
fn an_output_that_another_run_writes_is_left_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    let partial = dir.path().join("out.jsonl.partial");
    fs::write(&input, lines(3, 2)).unwrap();
    let other = fs::File::create(&partial).unwrap();
    other.lock().unwrap();
    let error = batch(&input, &output, &[]).failure(1);
    assert!(error.contains("being written by another run") && error.contains("wait for it"), "{error}");
    assert_eq!((fs::read(&partial).unwrap(), output.exists()), (vec![], false));
    drop(other);
    batch(&input, &output, &[]).success();
    assert_eq!(answers(&output).len(), 3);
}

#[test]
fn an_earlier_answer_that_is_damaged_is_neither_kept_nor_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    let partial = dir.path().join("out.jsonl.partial");
    fs::write(&input, lines(5, 2)).unwrap();
    batch(&input, &output, &[]).success();
    let whole = fs::read_to_string(&output).unwrap();
    let answered: Vec<&str> = whole.lines().collect();
    // One letter of the name, its second half, all of it.
    for damaged in [answered[2].replacen("batch_req_", "batch_reQ_", 1), answered[2][..40].into(), "".into()]
    {
        let text = [&answered[..2], &[damaged.as_str()], &answered[3..4]].concat().join("\n") + "\n";
        fs::write(&partial, &text).unwrap();
        let error = batch(&input, &output, &[]).failure(1);
        assert!(error.contains("line 3") && error.contains("remove that file"), "{error}");
        assert_eq!(fs::read_to_string(&partial).unwrap(), text);
    }
    fs::write(&partial, answered[..2].join("\n") + "\n").unwrap();
    let told = batch(&input, &output, &[]);
    assert!(told.err.contains("5 lines answered, 2 of them by an earlier run"), "{}", told.err);
    assert_eq!(fs::read_to_string(&output).unwrap(), whole);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output, want) = (dir.path().join("in"), dir.path().join("out"), dir.path().join("want"));
    fs::write(&input, lines(200, 4)).unwrap();
    batch(&input, &want, &[]).success();
    // A limit on file size fails like a full disk; the unit is 512 bytes.
    let script = "ulimit -f 32; trap '' XFSZ; exec \"$0\" batch synthetic:tiny \"$1\" \"$2\"";
    let mut shell = std::process::Command::new("sh");
    let run =
        shell.args(["-c", script, env!("CARGO_BIN_EXE_bitnet")]).args([&input, &output]).output().unwrap();
    let error = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot write") && error.contains("start again"), "{error}");
    assert!(!output.exists());
    let told = batch(&input, &output, &[]);
    assert!(told.err.contains("by an earlier run"), "{}", told.err);
    assert_eq!(fs::read(&want).unwrap(), fs::read(&output).unwrap());
}

#[test]
fn a_dash_is_stdin_or_stdout() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.jsonl"), dir.path().join("out.jsonl"));
    fs::write(&input, lines(5, 4)).unwrap();
    batch(&input, &output, &[]).success();
    let piped = bitnet_reading(&lines(5, 4), &["batch", "synthetic:tiny", "-", "-"]).success();
    assert_eq!(piped, fs::read_to_string(&output).unwrap());
}
