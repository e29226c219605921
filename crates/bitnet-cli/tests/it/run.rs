//! `bitnet run`: one text from one prompt.

use std::{io::Read, process::Stdio};

use crate::bitnet::{bitnet, bitnet_reading, command, fixture};

const TINY: [&str; 8] = ["run", "synthetic:tiny", "--ids", "1,2,3", "-n", "12", "--seed", "7"];

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

#[test]
fn a_model_without_a_tokenizer_continues_ids_with_ids() {
    let out = bitnet(&TINY).success();
    let ids: Vec<u32> = out.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids.len(), 12);
    assert!(ids.iter().all(|&id| id < 512), "{ids:?}");
    assert!(out.ends_with('\n'));
}

#[test]
fn one_seed_gives_one_text_on_every_level_and_number_of_threads() {
    let text = bitnet(&TINY).success();
    for machine in [&["--threads", "1"][..], &["--threads", "3"], &["--isa", "scalar"], &["--memory", "2M"]] {
        assert_eq!(bitnet(&with(&TINY, machine)).success(), text, "{machine:?}");
    }
    let mut other = TINY;
    other[7] = "8";
    assert_ne!(bitnet(&other).success(), text);
}

#[test]
fn a_chosen_seed_is_printed_and_gives_the_same_text_again() {
    let args = ["run", "synthetic:tiny", "--ids", "5", "-n", "10", "--temperature", "2"];
    let first = bitnet(&args);
    let seed = first.err.split("seed ").nth(1).and_then(|s| s.split(',').next()).unwrap().to_string();
    assert_eq!(bitnet(&with(&args, &["--seed", &seed])).success(), first.success());
}

#[test]
fn statistics_go_to_stderr_and_name_what_made_them() {
    let outcome = bitnet(&with(&TINY, &["--threads", "2", "--isa", "scalar"]));
    let stats = ["3 prompt tokens", "12 tokens generated", "first token after", "tok/s", "ended by length"];
    let machine = ["seed 7", "temperature 0.7", "kv f32", "isa scalar", "2 threads"];
    for part in stats.iter().chain(&machine) {
        assert!(outcome.err.contains(part), "{part}: {outcome:?}");
    }
}

#[test]
fn only_what_was_measured_has_a_rate() {
    for (tokens, rates) in [("0", 0), ("1", 1), ("2", 2)] {
        let outcome = bitnet(&["run", "synthetic:tiny", "--ids", "1,2", "-n", tokens]);
        assert_eq!(outcome.err.matches("tok/s").count(), rates, "{outcome:?}");
        assert_eq!(outcome.err.contains("first token after"), rates > 0, "{outcome:?}");
        assert!(outcome.err.contains(&format!("{tokens} tokens generated")), "{outcome:?}");
    }
}

#[test]
fn temperature_zero_and_top_k_one_take_the_most_likely_token_whatever_the_seed() {
    let greedy =
        |flag: &[&str]| bitnet(&with(&["run", "synthetic:tiny", "--ids", "9,8", "-n", "8"], flag)).success();
    let text = greedy(&["--temperature", "0"]);
    assert_eq!(greedy(&["--top-k", "1", "--seed", "1"]), text);
    assert_eq!(greedy(&["--top-p", "0.000001", "--seed", "2"]), text);
    assert_eq!(greedy(&["--min-p", "1", "--seed", "3"]), text);
}

#[test]
fn no_tokens_asked_for_print_nothing() {
    assert_eq!(bitnet(&["run", "synthetic:tiny", "--ids", "1", "-n", "0"]).success(), "");
    // A prompt that fills whole blocks of the cache leaves no room in them.
    let ids = vec!["1"; bitnet::model::Batch::BLOCK_TOKENS].join(",");
    let outcome = bitnet(&["run", "synthetic:tiny", "--ids", &ids, "-n", "0"]);
    assert_eq!(outcome.success(), "");
}

#[test]
fn the_text_ends_where_the_context_ends() {
    let ids = vec!["7"; 8186].join(",");
    let outcome = bitnet(&["run", "synthetic:tiny", "--ids", &ids, "-n", "50"]);
    assert!(outcome.err.contains("ended by context"), "{}", outcome.err);
    assert_eq!(outcome.success().split_whitespace().count(), 6);
}

#[test]
fn a_prompt_comes_from_the_argument_or_from_stdin_without_its_last_newline() {
    let model = fixture("bitnet-packed");
    let args = ["run", &model, "-n", "20", "--seed", "3", "--raw"];
    let text = bitnet(&with(&args, &["Hello there"])).success();
    for line_end in ["\n", "\r\n"] {
        let input = format!("Hello there{line_end}");
        assert_eq!(bitnet_reading(&input, &args).success(), text, "{line_end:?}");
    }
    assert_ne!(bitnet_reading("Hello there\n\n", &args).success(), text);
}

#[test]
fn the_chat_template_is_applied_unless_raw_is_asked_for() {
    let model = fixture("bitnet-packed");
    let tokens = |more: &[&str]| {
        let outcome = bitnet(&with(&["run", &model, "Hi", "-n", "1"], more));
        let told = outcome.err.lines().find_map(|line| line.split_once(" prompt tokens"));
        told.unwrap().0.parse::<usize>().unwrap()
    };
    let (chat, raw, system) = (tokens(&[]), tokens(&["--raw"]), tokens(&["--system", "Be brief."]));
    assert!(raw < chat && chat < system, "{raw} {chat} {system}");
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let model = fixture("bitnet-packed");
    let args = ["run", &model, "--raw", "Hello", "-n", "60", "--temperature", "0"];
    let text = bitnet(&args).success();
    let stop: String = text.chars().skip(6).take(2).collect();
    let cut = &text[..text.find(&stop).unwrap()];
    let outcome = bitnet(&with(&args, &["--stop", "never in the text", "--stop", &stop]));
    assert!(outcome.err.contains("ended by stop"), "{outcome:?}");
    assert_eq!(outcome.success().trim_end_matches('\n'), cut.trim_end_matches('\n'));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = command(&["run", "synthetic:tiny", "--ids", "1", "-n", "4000", "--device", "cpu"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn a_prompt_comes_from_a_file_or_stdin_without_its_last_line_end() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt");
    std::fs::write(&file, "Who goes there?\n").unwrap();
    let run = |input: &str, more: &[&str]| {
        bitnet_reading(input, &[&["run", "demo", "-n", "6", "--seed", "1"][..], more].concat()).success()
    };
    let text = run("", &["Who goes there?"]);
    assert_eq!(run("", &["-f", file.to_str().unwrap()]), text);
    for more in [&[][..], &["-"], &["-f", "-"]] {
        assert_eq!(run("Who goes there?\n", more), text, "{more:?}");
    }
    let error = bitnet(&["run", "demo", "-f", "nowhere.txt"]).failure(1);
    assert!(error.contains("nowhere.txt"), "{error}");
}

#[test]
fn a_json_object_has_the_text_and_what_made_it() {
    let args = ["run", "demo", "Who goes there?", "-n", "6", "--seed", "2"];
    let text = bitnet(&args).success();
    let object = bitnet(&with(&args, &["--json", "--threads", "2"])).json();
    assert_eq!(object["text"].as_str().unwrap().trim_end(), text.trim_end());
    assert_eq!(object["token_ids"].as_array().unwrap().len(), 6);
    assert_eq!((&object["finish_reason"], &object["seed"]), (&"length".into(), &2.into()));
    assert_eq!((&object["threads"], &object["kv"]), (&2.into(), &"f32".into()));
    assert!(object["decode_seconds"].as_f64().unwrap() > 0.0);
    let ids = bitnet(&with(&TINY, &["--json"])).json();
    assert!(ids["text"].is_null(), "{ids}");
}

#[test]
fn quiet_leaves_results_and_errors() {
    let loud = bitnet(&TINY);
    let quiet = bitnet(&with(&TINY, &["--quiet"]));
    assert_eq!(quiet.err, "");
    assert_eq!(quiet.success(), loud.success());
    assert!(bitnet(&["run", "nowhere.gguf", "x", "-q"]).failure(1).contains("nowhere.gguf"));
}

#[test]
fn flags_can_be_set_by_variables_and_the_command_line_wins() {
    let run = |more: &[&str]| {
        let mut command = command(&with(&["run", "--ids", "1,2", "-n", "3"], more));
        command.env("BITNET_MODEL", "synthetic:tiny").env("BITNET_THREADS", "2");
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    assert!(run(&[]).contains("2 threads"), "{}", run(&[]));
    assert!(run(&["--threads", "1"]).contains("1 threads"));
}
