//! Thoughts on the command line: apart from the answer, limited, hidden, and kept in conversations.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bitnet::{bitnet, bitnet_reading, fixture};

/// A model with random weights that opens a thought at the beginning of every answer.
fn thinker() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let weights = fixture("qwen3-unpacked");
    for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"] {
        fs::copy(Path::new(&weights).join(name), dir.path().join(name)).unwrap();
    }
    let thinking = fixture("thinking");
    fs::copy(Path::new(&thinking).join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let template = Path::new(&thinking).join("templates/xml.jinja");
    fs::copy(template, dir.path().join("chat_template.jinja")).unwrap();
    dir
}

fn run<'a>(model: &'a TempDir, more: &[&'a str]) -> Vec<&'a str> {
    let args = ["run", model.path().to_str().unwrap(), "Why?", "-n", "160", "--seed", "3"];
    [&args[..], more].concat()
}

#[test]
fn a_thought_is_apart_from_the_answer_and_stdout_has_the_answer_only() {
    let model = thinker();
    let object = bitnet(&run(&model, &["--thinking", "10", "--json"])).json();
    let (thought, text) = (object["thought"].as_str().unwrap(), object["text"].as_str().unwrap());
    assert!(thought.ends_with("thinking directly now."), "the budget ends it: {object}");
    assert!(object["thought_tokens"].as_u64().unwrap() > 10 && !text.contains("think>"), "{object}");
    let shown = bitnet(&run(&model, &["--thinking", "10"]));
    assert!(shown.err.contains(&format!("[thinking]\n{thought}\n")), "{shown:?}");
    assert!(shown.err.contains("of them for thoughts"), "{shown:?}");
    assert!(!shown.err.contains('\x1b'), "stderr is no terminal");
    assert_eq!(shown.success().trim_end(), text.trim_end());
    for quiet in [&["-q"][..], &["--no-thinking"]] {
        let hidden = bitnet(&run(&model, quiet));
        assert!(!hidden.err.contains("[thinking]"), "{hidden:?}");
    }
}

#[test]
fn a_hidden_thought_is_thought_and_not_shown() {
    let model = thinker();
    let object = |wish| bitnet(&run(&model, &["--thinking", wish, "--json"])).json();
    let hidden = bitnet(&run(&model, &["--thinking", "hide"]));
    assert!(!hidden.err.contains("[thinking]"), "{hidden:?}");
    let on = object("on");
    assert_eq!(hidden.success().trim_end(), on["text"].as_str().unwrap().trim_end());
    assert!(on["thought"].is_string(), "{on}");
    let off = object("off");
    assert_eq!((&off["thought"], &off["thought_tokens"]), (&Value::Null, &0.into()));
    assert_eq!(object("0")["prompt_tokens"], off["prompt_tokens"]);
}

#[test]
fn a_conversation_keeps_its_thoughts() {
    let (model, dir) = (thinker(), tempfile::tempdir().unwrap());
    let saved = dir.path().join("chat.json");
    let said = format!("Why?\nAnd?\n/save {}\n", saved.display());
    let path = model.path().to_str().unwrap();
    let chat = bitnet_reading(&said, &["chat", path, "-n", "110", "--seed", "3", "--thinking", "5"]);
    assert!(chat.err.matches("[thinking]").count() == 2, "{chat:?}");
    let messages: Vec<Value> = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    let thought = |i: usize| messages[i]["reasoning_content"].as_str().unwrap();
    assert!(chat.err.contains(thought(1)) && chat.err.contains(thought(3)));
    // The second answer follows the first with its thought.
    let content = |i: usize| messages[i]["content"].as_str().unwrap().trim();
    let turns = format!(
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n{}\n</think>\n\n{}<|im_end|>\n\
         <|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n",
        thought(1).trim(),
        content(1),
    );
    let args = ["run", path, &turns, "--raw", "-n", "5", "--seed", "3", "--json"];
    let raw = bitnet(&args).json();
    let begun = raw["text"].as_str().unwrap().trim().to_owned();
    assert!(!begun.is_empty() && thought(3).starts_with(&begun), "{begun:?} / {:?}", thought(3));
}

#[test]
fn a_line_of_a_batch_has_its_thought_apart() {
    let (model, dir) = (thinker(), tempfile::tempdir().unwrap());
    let body = json!({"messages": [{"role": "user", "content": "Why?"}], "seed": 3, "max_tokens": 80,
        "thinking_budget": 6, "reasoning_budget_message": "\nEnough."});
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body});
    let input = dir.path().join("in.jsonl");
    fs::write(&input, line.to_string()).unwrap();
    let answer = bitnet(&["batch", model.path().to_str().unwrap(), input.to_str().unwrap(), "-"]).json();
    let message = &answer["response"]["body"]["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().unwrap().ends_with("Enough."), "{answer}");
    assert!(!message["content"].as_str().unwrap().contains("think>"), "{answer}");
}

#[test]
fn what_the_template_cannot_do_is_refused_by_its_flag() {
    for wish in ["off", "on", "hide", "100"] {
        let error = bitnet(&["run", "demo", "hi", "--thinking", wish]).failure(1);
        assert!(error.contains("--thinking"), "{error}");
    }
    let error = bitnet(&["run", "demo", "hi", "--thinking", "much"]).failure(2);
    assert!(error.contains("on, off, hide or a number"), "{error}");
    assert!(bitnet(&["run", "demo", "hi", "--raw", "--thinking", "on"]).failure(2).contains("--raw"));
}
