//! `bitnet chat`: conversations, their commands and sessions.

use std::fs;

use bitnet::model::Checkpoint;
use serde_json::{Value, json};

use crate::bitnet::{bitnet, bitnet_reading};

const ARGS: [&str; 6] = ["demo", "-n", "12", "--seed", "4", "--temperature=0.8"];

#[test]
fn a_conversation_remembers_what_was_said_until_it_is_reset_and_can_be_saved() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("chat.json");
    let said =
        format!("Who goes there?\nSpeak!\n/save {}\n/reset\nWho goes there?\n/nonsense\n", saved.display());
    let chat = bitnet_reading(&said, &[&["chat"][..], &ARGS].concat());
    assert!(chat.err.contains("4 messages"), "{}", chat.err);
    assert!(chat.err.contains("there is no /nonsense"), "{}", chat.err);
    let messages: Vec<Value> = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    let roles: Vec<&Value> = messages.iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(messages[0]["content"], json!("Who goes there?"));
    let content = |i: usize| messages[i]["content"].as_str().unwrap();
    let first = bitnet(&[&["run", ARGS[0], "Who goes there?"][..], &ARGS[1..]].concat()).success();
    assert_eq!(content(1).trim_end(), first.trim_end());
    // The second answer follows everything so far, as the demo's template writes it.
    let [a, b, c] = [0, 1, 2].map(|i| content(i).trim());
    let turns = format!(
        "<|begin_of_text|><|eot_id|>First Citizen:\n{a}<|eot_id|>Second Citizen:\n{b}<|eot_id|>First Citizen:\n{c}\
         <|eot_id|>Second Citizen:\n"
    );
    let ids = Checkpoint::demo().unwrap().tokenizer.unwrap().encode(&turns, false).unwrap();
    let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let second = bitnet(&[&["run", ARGS[0], "--ids", &ids][..], &ARGS[1..]].concat()).success();
    assert_eq!(content(3).trim_end(), second.trim_end());
    let out = chat.success();
    assert!(out.ends_with(&first), "after a reset the same question gets the same answer: {out}");
}

#[test]
fn a_model_without_a_tokenizer_cannot_talk() {
    let error = bitnet(&["chat", "synthetic:tiny"]).failure(1);
    assert!(error.contains("tokenizer"), "{error}");
}

#[test]
fn a_turn_can_be_undone_and_old_turns_make_room_for_new_ones() {
    let undone = bitnet_reading(
        "Who goes there?\n/undo\nWho goes there?\n/undo\n/undo\n",
        &[&["chat"][..], &ARGS].concat(),
    );
    assert!(undone.err.contains("0 messages are left"), "{}", undone.err);
    assert!(undone.err.contains("there is no turn to remove"), "{}", undone.err);
    assert!(undone.err.contains("tok/s, first after"), "{}", undone.err);
    let out = undone.success();
    let (first, second) = out.split_at(out.len() / 2);
    assert_eq!(first, second, "the second answer knows nothing of the first");

    let long = "speak to me of kings and crowns ".repeat(80);
    let full = bitnet_reading(&format!("{long}\n{long}\n{long}\n{long}\n"), &[&["chat"][..], &ARGS].concat());
    assert!(full.err.contains("the oldest turn was dropped to make room"), "{}", full.err);
    assert!(!full.err.contains("error"), "{}", full.err);
}

#[test]
fn a_session_goes_on_after_the_program_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let cache = cache.to_str().unwrap();
    let talk = |said: &str, session: &[&str]| {
        bitnet_reading(said, &[&["chat"][..], &ARGS, &["--cache-dir", cache], session].concat())
    };
    let together = bitnet_reading("Who goes there?\nSpeak!\n", &[&["chat"][..], &ARGS].concat()).success();
    let first = talk("Who goes there?\n", &["--session", "watch"]);
    assert!(!first.err.contains("goes on"), "{}", first.err);
    let second = talk("Speak!\n/sessions\n", &["--session", "watch"]);
    assert!(second.err.contains("watch goes on after 2 messages"), "{}", second.err);
    assert!(second.err.lines().any(|line| line == "watch"), "{}", second.err);
    assert_eq!(first.success() + &second.success(), together, "as in one conversation");
    assert_eq!(talk("Speak!\n", &["--session", "other"]).success(), talk("Speak!\n", &[]).success());
    let refused = bitnet(&["chat", "demo", "--cache-dir", cache, "--session", "../x"]).failure(2);
    assert!(refused.contains("--session"), "{refused}");
    fs::write(dir.path().join("cache/sessions/broken.json"), "[{").unwrap();
    let refused = bitnet(&["chat", "demo", "--cache-dir", cache, "--session", "broken"]).failure(1);
    assert!(refused.contains("damaged"), "{refused}");
}
