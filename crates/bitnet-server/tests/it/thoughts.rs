//! Thoughts on every surface: apart from the answer, in the history, in the counts, and within their budgets.

use std::path::Path;

use bitnet::kernels::{Cpu, Isa};
use bitnet::model::{Batch, ChatTemplate, Checkpoint, Limits, Transformer};
use bitnet_server::ServerConfig;
use serde_json::{Value, json};

use crate::{
    scripted::{OPEN, Scripted, absent},
    support::*,
};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";
const PATHS: [&str; 4] = [CHAT, RESPONSES, MESSAGES, OLLAMA];

/// What an answer says, in any API.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    thought: String,
    text: String,
    /// Whether the answer was cut off.
    cut: bool,
}

fn said(thought: &str, text: &str, cut: bool) -> Said {
    Said { thought: thought.into(), text: text.into(), cut }
}

/// A question in the form of an API, with more fields of OpenAI's chats that all of them have by some name.
fn ask(path: &str, max_tokens: usize, stop: Option<&str>, stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": "O"}]);
    match path {
        CHAT => json!({"messages": messages, "max_tokens": max_tokens, "stop": stop, "stream": stream}),
        RESPONSES => {
            json!({"input": messages, "max_output_tokens": max_tokens, "stop": stop, "stream": stream})
        }
        MESSAGES => {
            let stops: Vec<&str> = stop.into_iter().collect();
            json!({"messages": messages, "max_tokens": max_tokens, "stop_sequences": stops, "stream": stream})
        }
        _ => {
            json!({"messages": messages, "stream": stream, "options": {"num_predict": max_tokens, "stop": stop}})
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Puts together the texts that match.
fn joined<'v>(values: impl Iterator<Item = &'v Value>) -> String {
    values.map(text).collect()
}

fn whole(path: &str, answer: &Value) -> Said {
    match path {
        CHAT => {
            let choice = &answer["choices"][0];
            let message = &choice["message"];
            let cut = choice["finish_reason"] == "length";
            Said { thought: text(&message["reasoning_content"]), text: text(&message["content"]), cut }
        }
        RESPONSES => {
            let parts = |kind: &str| {
                let items = answer["output"].as_array().unwrap().iter().filter(|item| item["type"] == kind);
                joined(items.flat_map(|item| item["content"].as_array().unwrap()).map(|part| &part["text"]))
            };
            Said {
                thought: parts("reasoning"),
                text: parts("message"),
                cut: answer["status"] == "incomplete",
            }
        }
        MESSAGES => {
            let blocks = answer["content"].as_array().unwrap();
            let of = |kind: &str| joined(blocks.iter().filter(|b| b["type"] == kind).map(|b| &b[kind]));
            assert!(blocks.iter().all(|b| b["type"] != "thinking" || !text(&b["signature"]).is_empty()));
            Said { thought: of("thinking"), text: of("text"), cut: answer["stop_reason"] == "max_tokens" }
        }
        _ => {
            let message = &answer["message"];
            let cut = answer["done_reason"] == "length";
            Said { thought: text(&message["thinking"]), text: text(&message["content"]), cut }
        }
    }
}

/// What a stream says, and the order in which it does: `t` for thought, `a` for the answer.
fn streamed(path: &str, body: &str) -> (Said, String) {
    let (mut said, mut order) = (said("", "", false), String::new());
    let mut add = |thought: &Value, answer: &Value| {
        for (value, letter, all) in [(thought, 't', &mut said.thought), (answer, 'a', &mut said.text)] {
            let more = value.as_str().unwrap_or_default();
            all.push_str(more);
            if !more.is_empty() && !order.ends_with(letter) {
                order.push(letter);
            }
        }
    };
    let mut cut = false;
    match path {
        CHAT => {
            for event in body.split_terminator("\n\n").filter(|event| !event.contains("[DONE]")) {
                let choice = &data_of(event)["choices"][0];
                add(&choice["delta"]["reasoning_content"], &choice["delta"]["content"]);
                cut |= choice["finish_reason"] == "length";
            }
        }
        RESPONSES => {
            for (kind, data) in typed(body) {
                match kind.as_str() {
                    "response.reasoning_text.delta" => add(&data["delta"], &Value::Null),
                    "response.output_text.delta" => add(&Value::Null, &data["delta"]),
                    "response.incomplete" => cut = true,
                    _ => {}
                }
            }
        }
        MESSAGES => {
            for (kind, data) in typed(body) {
                if kind == "content_block_delta" {
                    add(&data["delta"]["thinking"], &data["delta"]["text"]);
                }
                cut |= data["delta"]["stop_reason"] == "max_tokens";
            }
        }
        _ => {
            for line in body.lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                add(&line["message"]["thinking"], &line["message"]["content"]);
                cut |= line["done_reason"] == "length";
            }
        }
    }
    said.cut = cut;
    (said, order)
}

/// Checks what every API says of what the model writes, whole and as a stream.
fn check(model: &Scripted, writes: &[&str], max_tokens: usize, stop: Option<&str>, want: &Said) {
    for path in PATHS {
        let answer = model.post(path, &ask(path, max_tokens, stop, false), writes);
        assert_eq!(whole(path, &answer.ok()), *want, "{path} {writes:?}: {}", answer.text());
        let stream = model.post(path, &ask(path, max_tokens, stop, true), writes);
        assert_eq!(stream.status, 200, "{}", stream.text());
        let (said, order) = streamed(path, &stream.text());
        assert_eq!(said, *want, "{path} {writes:?}: {}", stream.text());
        let parts = [(&want.thought, 't'), (&want.text, 'a')];
        let expected: String =
            parts.into_iter().filter(|(text, _)| !text.is_empty()).map(|(_, c)| c).collect();
        assert_eq!(order, expected, "{path}: the thought comes first, and once");
    }
}

#[test]
fn a_thought_is_apart_from_the_answer_in_every_api_however_its_end_is_written() {
    let model = Scripted::new(OPEN);
    for writes in [
        &["I wonder.\n", "</think>", "\n\nYes."][..],
        &["I wonder.\n</th", "ink>\n\nYes."],
        &["I wonder.", "</", "think", ">", "Yes."],
        &["I wonder. \n", "</think>", "\n\n", "Yes."],
    ] {
        check(&model, writes, 100, None, &said("I wonder.", "Yes.", false));
    }
}

#[test]
fn a_model_that_opens_its_thought_itself_is_understood_too() {
    let model = Scripted::new(&absent());
    check(&model, &["<think>", "\nHm.\n", "</think>", "\n\nYes."], 100, None, &said("Hm.", "Yes.", false));
    check(&model, &["<thi", "nk>\nHm.\n</think>\n\nYes."], 100, None, &said("Hm.", "Yes.", false));
    check(&model, &["Yes <think>."], 100, None, &said("", "Yes <think>.", false));
}

#[test]
fn a_thought_that_never_ends_is_no_answer() {
    let model = Scripted::new(OPEN);
    let writes = ["I wonder and wonder and wonder."];
    let tokens = model.ids(&writes).len();
    check(&model, &writes, tokens, None, &said("I wonder and wonder and wonder.", "", true));
    check(&model, &writes, 100, None, &said("I wonder and wonder and wonder.", "", false));
}

#[test]
fn an_empty_thought_is_none_and_a_second_end_is_text() {
    let model = Scripted::new(OPEN);
    check(&model, &["\n", "</think>", "\n\nYes."], 100, None, &said("", "Yes.", false));
    check(&model, &["</think>", "\n\nYes."], 100, None, &said("", "Yes.", false));
    check(
        &model,
        &["Hm.\n", "</think>", "\n\nA ", "</think>", " b."],
        100,
        None,
        &said("Hm.", "A </think> b.", false),
    );
}

#[test]
fn stop_strings_leave_thoughts_alone() {
    let model = Scripted::new(OPEN);
    let writes = ["To stop or not.\n", "</think>", "\n\nGo, then stop here."];
    check(&model, &writes, 100, Some(" stop"), &said("To stop or not.", "Go, then", false));
    // Over the border: the end of the thought and the beginning of the answer make no stop string.
    let writes = ["It is A\n", "</think>", "\n\nB, not A\n\nB."];
    check(&model, &writes, 100, Some("A\n\nB"), &said("It is A", "B, not ", false));
}

#[test]
fn every_api_counts_the_tokens_of_thoughts() {
    let model = Scripted::new(OPEN);
    let (thought, answer) = (["I wonder.\n", "</think>"], ["\n\nYes."]);
    let writes = [&thought[..], &answer[..]].concat();
    let want = model.ids(&thought).len();
    for (path, count, all) in [
        (CHAT, "/usage/completion_tokens_details/reasoning_tokens", "/usage/completion_tokens"),
        (RESPONSES, "/usage/output_tokens_details/reasoning_tokens", "/usage/output_tokens"),
        (MESSAGES, "/usage/output_tokens_details/thinking_tokens", "/usage/output_tokens"),
    ] {
        let reply = model.post(path, &ask(path, 100, None, false), &writes).ok();
        assert_eq!(reply.pointer(count), Some(&json!(want)), "{path}: {reply}");
        assert_eq!(reply.pointer(all), Some(&json!(model.ids(&writes).len())), "{path}: {reply}");
    }
}

const LAST_WORDS: &str = "Considering the limited time by the user, I have to give the solution based on the thinking \
                          directly now.";

#[test]
fn a_thought_ends_at_its_budget_in_every_api() {
    let model = Scripted::new(OPEN);
    let writes = ["abcdefghijklmnop", "Yes."];
    let tokens = model.ids(&["abcdefghijklmnop"]).len();
    let budgeted = |path: &str, tokens: usize| {
        let mut body = ask(path, 200, None, false);
        match path {
            CHAT => body["thinking_token_budget"] = json!(tokens),
            _ => body["thinking"] = json!({"type": "enabled", "budget_tokens": tokens}),
        }
        body
    };
    for path in [CHAT, MESSAGES] {
        let said = whole(path, &model.post(path, &budgeted(path, tokens), &writes).ok());
        assert_eq!(said.thought, format!("abcdefghijklmnop\n\n{LAST_WORDS}"), "{path}");
        assert_eq!(said.text, "Yes.", "{path}");
    }
    for field in ["reasoning_budget_tokens", "thinking_budget_tokens", "thinking_budget"] {
        let mut body = ask(CHAT, 200, None, false);
        (body[field], body["reasoning_budget_message"]) = (json!(tokens), json!("\nEnough."));
        let said = whole(CHAT, &model.post(CHAT, &body, &writes).ok());
        assert_eq!(
            (said.thought.as_str(), said.text.as_str()),
            ("abcdefghijklmnop\nEnough.", "Yes."),
            "{field}"
        );
    }
    let without = whole(
        CHAT,
        &model
            .post(
                CHAT,
                &merged(&ask(CHAT, 200, None, false), json!({"thinking_budget": -1})),
                &["ab", "</think>", "c"],
            )
            .ok(),
    );
    assert_eq!(without, said("ab", "c", false));
}

#[test]
fn a_budget_never_cuts_a_character() {
    let model = Scripted::new(OPEN);
    let writes = ["aé中😀", "Yes."];
    let all = model.ids(&["aé中😀"]).len();
    for budget in 1..all {
        let body = merged(
            &ask(CHAT, 300, None, false),
            json!({"thinking_budget": budget, "reasoning_budget_message": "|"}),
        );
        let said = whole(CHAT, &model.post(CHAT, &body, &writes).ok());
        let thought = said.thought.strip_suffix('|').unwrap_or_else(|| panic!("{budget}: {said:?}"));
        assert!("aé中😀".starts_with(thought) && !thought.is_empty(), "{budget}: {said:?}");
    }
}

#[test]
fn the_server_can_limit_every_thought() {
    let config = ServerConfig {
        thinking_budget: Some(3),
        thinking_last_words: Some(String::from("...")),
        ..ServerConfig::default()
    };
    let model = Scripted::with(OPEN, config);
    let first = model.ids(&["abc def ghi"]).len();
    assert!(first > 3);
    for path in PATHS {
        let said =
            whole(path, &model.post(path, &ask(path, 200, None, false), &["abc def ghi", "Yes."]).ok());
        assert!(
            said.thought.ends_with("...") && said.thought.len() < "abc def ghi...".len(),
            "{path}: {said:?}"
        );
    }
    let free = merged(&ask(CHAT, 200, None, false), json!({"thinking_budget": 100}));
    let said = whole(CHAT, &model.post(CHAT, &free, &["abc def ghi", "</think>", "Yes."]).ok());
    assert_eq!(said.thought, "abc def ghi", "a request's own budget comes first");
}

#[test]
fn thoughts_are_shown_where_the_client_wants_them() {
    let model = Scripted::new(OPEN);
    let writes = ["Hm.\n", "</think>", "\n\nYes."];
    for (more, thought, content) in [
        (json!({}), Some("Hm."), "Yes."),
        (json!({"include_reasoning": false}), None, "Yes."),
        (json!({"separate_reasoning": false}), None, "<think>\nHm.\n</think>\n\nYes."),
        (json!({"reasoning_format": "none"}), None, "<think>\nHm.\n</think>\n\nYes."),
        (json!({"reasoning_format": "deepseek"}), Some("Hm."), "Yes."),
        (json!({"reasoning_format": "deepseek-legacy"}), Some("Hm."), "<think>\nHm.\n</think>\n\nYes."),
        (json!({"stream_reasoning": false}), Some("Hm."), "Yes."),
    ] {
        let answer = model.post(CHAT, &merged(&ask(CHAT, 100, None, false), more.clone()), &writes).ok();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message.get("reasoning_content").and_then(Value::as_str), thought, "{more}");
        assert_eq!(message["content"], content, "{more}");
        let stream = model.post(CHAT, &merged(&ask(CHAT, 100, None, true), more.clone()), &writes);
        let (said, _) = streamed(CHAT, &stream.text());
        assert_eq!(
            (said.thought.as_str(), said.text.as_str()),
            (thought.unwrap_or_default(), content),
            "{more}"
        );
        if more.get("stream_reasoning").is_some() {
            assert_eq!(stream.text().matches("reasoning_content").count(), 1, "{}", stream.text());
        }
    }
}

#[test]
fn content_is_absent_from_a_stream_while_the_model_thinks() {
    let model = Scripted::new(OPEN);
    let stream = model.post(CHAT, &ask(CHAT, 100, None, true), &["Hm.\n", "</think>", "\n\nYes."]).text();
    let deltas: Vec<Value> = stream
        .split_terminator("\n\n")
        .filter(|event| !event.contains("[DONE]"))
        .map(|event| data_of(event)["choices"][0]["delta"].clone())
        .collect();
    assert_eq!(deltas[0]["role"], "assistant");
    let answer = deltas.iter().position(|delta| delta["content"].is_string()).unwrap();
    let last_thought = deltas.iter().rposition(|delta| delta["reasoning_content"].is_string()).unwrap();
    assert!(last_thought < answer, "{deltas:?}");
}

/// The conversation with a thought in the past, as an API's clients send it back.
fn spelled(field: &str, value: Value) -> Value {
    let mut answer = json!({"role": "assistant", "content": "Yes."});
    answer[field] = value;
    json!({"messages": [{"role": "user", "content": "O"}, answer, {"role": "user", "content": "And?"}],
        "chat_template_kwargs": {"preserve_thinking": true}})
}

#[test]
fn a_thought_in_the_history_is_the_same_in_every_spelling() {
    let model = Scripted::new(OPEN);
    let want =
        "[user]O[end]\n[assistant]<think>\nHm.\n</think>\n\nYes.[end]\n[user]And?[end]\n[assistant]<think>\n";
    for (field, value) in [
        ("reasoning_content", json!("Hm.")),
        ("reasoning", json!("Hm.")),
        ("thinking", json!("Hm.")),
        ("reasoning_details", json!([{"type": "reasoning.text", "text": "Hm.", "index": 0}])),
        (
            "reasoning_details",
            json!([{"type": "reasoning.summary", "summary": "Hm."}, {"type": "reasoning.encrypted", "data": "x"}]),
        ),
        ("thinking_blocks", json!([{"type": "thinking", "thinking": "Hm.", "signature": "x"}])),
    ] {
        assert_eq!(model.prompt(&spelled(field, value.clone())), want, "{field} {value}");
    }
    let none = want.replace("<think>\nHm.\n</think>\n\n", "");
    for value in [json!(""), Value::Null] {
        assert_eq!(model.prompt(&spelled("reasoning_content", value)), none);
    }
    let mut both = spelled("reasoning", json!("Hm."));
    both["messages"][1]["reasoning_content"] = json!("");
    assert_eq!(model.prompt(&both), want, "an empty one does not count");
}

/// Number of tokens in the prompt of a body.
fn prompt_tokens(model: &Scripted, path: &str, body: &Value) -> u64 {
    let answer = model.post(path, body, &["</think>"]).ok();
    let usage = &answer["usage"];
    let tokens = match path {
        CHAT => usage["prompt_tokens"].as_u64(),
        RESPONSES => usage["input_tokens"].as_u64(),
        MESSAGES => {
            Some(usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap())
        }
        _ => answer["prompt_eval_count"].as_u64(),
    };
    tokens.unwrap()
}

#[test]
fn every_api_takes_its_own_thoughts_back_and_keeps_them() {
    let model = Scripted::new(OPEN);
    let count = |text: &str| {
        model.server.post("/tokenize", &json!({"prompt": text, "add_special_tokens": false})).ok()["count"]
            .as_u64()
    };
    let kept =
        "[user]O[end]\n[assistant]<think>\nHm.\n</think>\n\nYes.[end]\n[user]And?[end]\n[assistant]<think>\n";
    let dropped = kept.replace("<think>\nHm.\n</think>\n\nYes", "Yes");
    let writes = ["Hm.\n", "</think>", "\n\nYes."];
    let (first, next) = (json!({"role": "user", "content": "O"}), json!({"role": "user", "content": "And?"}));
    let bodies = |drop: bool| {
        let answer =
            model.post(CHAT, &ask(CHAT, 100, None, false), &writes).ok()["choices"][0]["message"].clone();
        let mut chat = json!({"messages": [first, answer, next], "max_tokens": 5});
        let more = json!({"include": ["reasoning.encrypted_content"], "store": false, "reasoning": {"summary": "auto"}});
        let output =
            model.post(RESPONSES, &merged(&ask(RESPONSES, 100, None, false), more), &writes).ok()["output"]
                .clone();
        let mut items = vec![first.clone()];
        items.extend(output.as_array().unwrap().clone());
        items.push(next.clone());
        let mut responses = json!({"input": items, "max_output_tokens": 5});
        let content = model.post(MESSAGES, &ask(MESSAGES, 100, None, false), &writes).ok()["content"].clone();
        let answer = json!({"role": "assistant", "content": content});
        let mut messages = json!({"messages": [first, answer, next], "max_tokens": 5});
        let answer = model.post(OLLAMA, &ask(OLLAMA, 100, None, false), &writes).ok()["message"].clone();
        let ollama =
            json!({"messages": [first, answer, next], "options": {"num_predict": 5}, "stream": false});
        if drop {
            chat["preserve_thinking"] = json!(false);
            responses["reasoning"] = json!({"context": "current_turn"});
            messages["context_management"] = json!({"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]});
        }
        [(CHAT, chat), (RESPONSES, responses), (MESSAGES, messages), (OLLAMA, ollama)]
    };
    for (path, body) in bodies(false) {
        assert_eq!(Some(prompt_tokens(&model, path, &body)), count(kept), "{path}: {body}");
    }
    for (path, body) in &bodies(true)[..3] {
        assert_eq!(Some(prompt_tokens(&model, path, body)), count(&dropped), "{path}: {body}");
    }
}

#[test]
fn a_reasoning_item_is_read_from_whatever_of_it_a_client_kept() {
    let model = Scripted::new(OPEN);
    let item = |more: Value| merged(&json!({"type": "reasoning", "id": "rs_x"}), more);
    let with = |item: Value| {
        json!({"input": [{"role": "user", "content": "O"}, item, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}],
            "max_output_tokens": 5})
    };
    let count = |item: Value| prompt_tokens(&model, RESPONSES, &with(item));
    let thought = count(item(json!({"content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []})));
    let none = count(item(json!({"summary": []})));
    assert!(thought > none);
    let own =
        json!({"id": "rs_0123456789abcdef01234567_0", "summary": [{"type": "summary_text", "text": "Hm."}]});
    assert_eq!(count(item(own)), thought, "a summary of this server is the thought");
    let foreign =
        json!({"summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gAAAAAB"});
    assert_eq!(count(item(foreign)), none, "one of another server is not");
    let more = json!({"include": ["reasoning.encrypted_content"], "store": false});
    let answer = model
        .post(RESPONSES, &merged(&ask(RESPONSES, 100, None, false), more), &["Hm.", "</think>", "Yes."])
        .ok();
    let encrypted = &answer["output"][0]["encrypted_content"];
    assert!(encrypted.is_string(), "{answer}");
    assert_eq!(count(item(json!({"encrypted_content": encrypted, "summary": []}))), thought);
    let plain = model.post(RESPONSES, &ask(RESPONSES, 100, None, false), &["Hm.", "</think>", "Yes."]).ok();
    assert!(plain["output"][0]["encrypted_content"].is_null(), "{plain}");
}

#[test]
fn events_of_a_response_come_in_order_and_each_has_what_came_before() {
    let model = Scripted::new(OPEN);
    let writes = ["Hm.\n", "</think>", "\n\nYes."];
    for (more, part, delta) in [
        (json!({}), "response.content_part", "response.reasoning_text"),
        (
            json!({"reasoning": {"summary": "auto"}}),
            "response.reasoning_summary_part",
            "response.reasoning_summary_text",
        ),
    ] {
        let body = merged(&ask(RESPONSES, 100, None, true), more);
        let events = typed(&model.post(RESPONSES, &body, &writes).text());
        let mut kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
        kinds.dedup();
        let (added, done) = (format!("{part}.added"), format!("{part}.done"));
        let (more, all) = (format!("{delta}.delta"), format!("{delta}.done"));
        let want = [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            &added,
            &more,
            &all,
            &done,
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ];
        assert_eq!(kinds, want);
        let item = &events.iter().find(|(kind, _)| kind == "response.output_item.done").unwrap().1["item"];
        assert_eq!(item["type"], "reasoning");
        let (full, empty) =
            if part.contains("summary") { ("summary", "content") } else { ("content", "summary") };
        assert_eq!((&item[full][0]["text"], &item[empty]), (&json!("Hm."), &json!([])), "{item}");
        assert_eq!(events.last().unwrap().1["response"]["output"][0], *item);
    }
}

#[test]
fn a_thinking_block_is_signed_before_it_stops_and_may_be_left_empty() {
    let model = Scripted::new(OPEN);
    let writes = ["Hm.\n", "</think>", "\n\nYes."];
    let events = typed(&model.post(MESSAGES, &ask(MESSAGES, 100, None, true), &writes).text());
    let blocks: Vec<String> = events
        .iter()
        .filter(|(kind, _)| kind.starts_with("content_block"))
        .map(|(kind, data)| {
            let what =
                [&data["content_block"]["type"], &data["delta"]["type"]].into_iter().find_map(Value::as_str);
            format!("{} {} {}", data["index"], kind, what.unwrap_or_default())
        })
        .collect();
    let mut order = blocks.clone();
    order.dedup();
    assert_eq!(
        order,
        [
            "0 content_block_start thinking",
            "0 content_block_delta thinking_delta",
            "0 content_block_delta signature_delta",
            "0 content_block_stop ",
            "1 content_block_start text",
            "1 content_block_delta text_delta",
            "1 content_block_stop ",
        ]
    );
    let more = json!({"thinking": {"type": "adaptive", "display": "omitted"}});
    let answer = model.post(MESSAGES, &merged(&ask(MESSAGES, 100, None, false), more.clone()), &writes).ok();
    assert_eq!(
        (&answer["content"][0]["thinking"], &answer["content"][1]["text"]),
        (&json!(""), &json!("Yes."))
    );
    assert!(!text(&answer["content"][0]["signature"]).is_empty());
    let stream = model.post(MESSAGES, &merged(&ask(MESSAGES, 100, None, true), more), &writes).text();
    assert!(!stream.contains("thinking_delta") && stream.contains("signature_delta"), "{stream}");
    // Blocks of other servers are no reason to refuse a conversation.
    let history = json!([{"role": "user", "content": "O"}, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"},
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"}, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "And?"}]);
    model.post(MESSAGES, &json!({"messages": history, "max_tokens": 5}), &["</think>"]).ok();
}

#[test]
fn every_effort_of_the_apis_is_what_the_template_can_do() {
    let model = Scripted::new(OPEN);
    let prompt =
        |more: Value| model.prompt(&merged(&json!({"messages": [{"role": "user", "content": "O"}]}), more));
    let (high, low, off) = (
        "[user]O[end]\n[assistant]<think>\n",
        "[user]O[end]\n[assistant][low]<think>\n",
        "[user]O[end]\n[assistant]<think>\n\n</think>\n\n",
    );
    for (effort, want) in [
        ("none", off),
        ("minimal", low),
        ("low", low),
        ("medium", high),
        ("high", high),
        ("xhigh", high),
        ("max", high),
    ] {
        assert_eq!(prompt(json!({"reasoning_effort": effort})), want, "{effort}");
    }
    assert_eq!(prompt(json!({"reasoning_effort": null})), high);
    assert_eq!(prompt(json!({"enable_thinking": false})), off);
    assert_eq!(prompt(json!({"chat_template_kwargs": {"enable_thinking": false}})), off);
    assert_eq!(prompt(json!({"thinking_budget": 0})), off, "no tokens for a thought");
    let refused = model.server.post(
        "/tokenize",
        &json!({"messages": [{"role": "user", "content": "O"}], "reasoning_effort": "huge"}),
    );
    assert_eq!(refused.refusal(), (400, Some("reasoning_effort".into())));
    // The same in the other APIs.
    for (path, more) in [
        (RESPONSES, json!({"reasoning": {"effort": "none"}})),
        (MESSAGES, json!({"thinking": {"type": "disabled"}})),
        (OLLAMA, json!({"think": false})),
    ] {
        let off = prompt_tokens(&model, path, &merged(&ask(path, 5, None, false), more.clone()));
        assert_eq!(
            off,
            prompt_tokens(
                &model,
                CHAT,
                &merged(&ask(CHAT, 5, None, false), json!({"reasoning_effort": "none"}))
            ),
            "{path}"
        );
    }
    for (path, more) in [
        (
            RESPONSES,
            json!({"reasoning": {"effort": "minimal", "summary": null, "context": "auto", "mode": "standard"}}),
        ),
        (MESSAGES, json!({"thinking": {"type": "between_tools"}, "output_config": {"effort": "low"}})),
        (OLLAMA, json!({"think": "low"})),
    ] {
        let low = prompt_tokens(&model, path, &merged(&ask(path, 5, None, false), more.clone()));
        assert_eq!(
            low,
            prompt_tokens(
                &model,
                CHAT,
                &merged(&ask(CHAT, 5, None, false), json!({"reasoning_effort": "low"}))
            ),
            "{path}"
        );
    }
    prompt_tokens(&model, OLLAMA, &merged(&ask(OLLAMA, 5, None, false), json!({"think": "gigantic"})));
}

#[test]
fn a_message_can_be_continued_and_a_prompt_can_leave_the_next_turn_closed() {
    let model = Scripted::new(OPEN);
    let messages = json!([{"role": "user", "content": "O"}, {"role": "assistant", "reasoning_content": "Hm.", "content": "Ye "}]);
    let prompt = |more: Value| model.prompt(&merged(&json!({"messages": messages}), more));
    let begun = "[user]O[end]\n[assistant]<think>\nHm.\n</think>\n\nYe ";
    assert_eq!(prompt(json!({"continue_final_message": true})), begun);
    assert_eq!(prompt(json!({"add_generation_prompt": false})), format!("{begun}[end]\n"));
    let both = json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": true});
    assert_eq!(model.server.post("/tokenize", &both).refusal(), (400, Some("continue_final_message".into())));
    let user = json!({"messages": [{"role": "user", "content": "O"}], "continue_final_message": true});
    assert_eq!(model.server.post("/tokenize", &user).refusal(), (400, Some("messages[0].role".into())));
    // What is continued is the answer; a thought that was cut off goes on as a thought.
    let body = json!({"messages": messages, "continue_final_message": true, "max_tokens": 9});
    assert_eq!(whole(CHAT, &model.post(CHAT, &body, &["s."]).ok()), said("", "s.", false));
    let cut = json!([{"role": "user", "content": "O"}, {"role": "assistant", "reasoning_content": "Hm", "content": null}]);
    let body = json!({"messages": cut, "continue_final_message": true, "max_tokens": 9});
    assert_eq!(
        whole(CHAT, &model.post(CHAT, &body, &["m.", "</think>", "Yes."]).ok()),
        said("m.", "Yes.", false)
    );
}

#[test]
fn leading_system_messages_are_merged_and_later_ones_are_refused_by_name() {
    let model = Scripted::new(OPEN);
    let system = |text: &str| json!({"role": "system", "content": text});
    let (developer, user) =
        (json!({"role": "developer", "content": "b"}), json!({"role": "user", "content": "O"}));
    let merged = model.prompt(&json!({"messages": [system("a"), developer, user]}));
    assert_eq!(merged, "[system]a\n\nb[end]\n[user]O[end]\n[assistant]<think>\n");
    let later = model.server.post(CHAT, &json!({"messages": [system("a"), user, system("c")]}));
    assert_eq!(later.refusal(), (400, Some("messages[2].role".into())));
    let later = model.server.post(RESPONSES, &json!({"instructions": "i", "input": [user, system("c")]}));
    assert_eq!(later.refusal(), (400, Some("input[1]".into())));
}

#[test]
fn a_client_can_see_what_the_template_does() {
    let model = Scripted::new(OPEN);
    let card = model.server.get("/v1/models/demo").ok();
    let thought = &card["conventions"]["thought"];
    assert_eq!(
        (&thought["open"], &thought["close"], &thought["gap"]),
        (&json!("<think>"), &json!("</think>"), &json!("\n\n")),
        "{card}"
    );
    let shown = model.server.post("/api/show", &json!({"model": "demo"})).ok();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    assert_eq!(shown["thinking"], json!({"values": [true, false, "low", "high"], "default": "high"}));
}

#[test]
fn several_thoughts_of_a_turn_stay_thoughts_in_every_api() {
    let model = Scripted::new(OPEN);
    let writes = ["Hm.\n", "</think>", "\n\nYes.\n", "<think>", "\nBut.\n", "</think>", "\n\nNo."];
    for path in PATHS {
        let answer = model.post(path, &ask(path, 100, None, false), &writes).ok();
        let whole = whole(path, &answer);
        let between = if matches!(path, CHAT | OLLAMA) { "\n\n" } else { "" };
        assert_eq!(whole, said(&format!("Hm.{between}But."), "Yes.\nNo.", false), "{path}: {answer}");
        let items = match path {
            RESPONSES => &answer["output"],
            MESSAGES => &answer["content"],
            _ => &Value::Null,
        };
        let kinds: Vec<&str> =
            items.as_array().into_iter().flatten().filter_map(|item| item["type"].as_str()).collect();
        match path {
            RESPONSES => assert_eq!(kinds, ["reasoning", "message", "reasoning", "message"]),
            MESSAGES => assert_eq!(kinds, ["thinking", "text", "thinking", "text"]),
            _ => {}
        }
        let stream = model.post(path, &ask(path, 100, None, true), &writes).text();
        let (said, order) = streamed(path, &stream);
        assert_eq!((said, order.as_str()), (whole, "tata"), "{path}: {stream}");
    }
    // Both count, and so do their markers.
    let usage = &model.post(CHAT, &ask(CHAT, 100, None, false), &writes).ok()["usage"];
    let thoughts = model.ids(&[writes[0], writes[1], writes[3], writes[4], writes[5]]).len();
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], thoughts, "{usage}");
    // Where the whole answer has a format, a marker in it is text.
    let format = json!({"guided_regex": "a\\n<think>b"});
    let answer = model.post(CHAT, &merged(&ask(CHAT, 100, None, false), format), &["Hm.\n", "</think>"]);
    assert_eq!(whole(CHAT, &answer.ok()), said("Hm.", "a\n<think>b", false));
}

#[test]
fn a_call_within_a_thought_closes_it_so_that_the_next_prompt_has_the_same_tokens() {
    let model = Scripted::new(OPEN);
    let tools = json!([{"type": "function", "function": {"name": "roll", "parameters": {
        "type": "object", "properties": {"sides": {"type": "integer"}}, "required": ["sides"]}}}]);
    let question = json!({"role": "user", "content": "Roll."});
    let call = "\n{\"name\": \"roll\", \"arguments\": {\"sides\": 6}}\n</tool_call>";
    for writes in
        [["I need a die.\n", "<tool_call>", call], ["I need a die.\n</think>\n\n\n", "<tool_call>", call]]
    {
        let body =
            json!({"messages": [question], "tools": tools, "max_tokens": 200, "return_token_ids": true});
        let answer = model.post(CHAT, &body, &writes).ok();
        let choice = &answer["choices"][0];
        let message = &choice["message"];
        assert_eq!(text(&message["reasoning_content"]), "I need a die.", "{choice}");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"sides\": 6}", "{choice}");
        assert_eq!(text(&message["content"]), "");
        let prompt = |messages: Value| -> Vec<u32> {
            let tokens = model.server.post("/tokenize", &json!({"messages": messages, "tools": tools})).ok();
            serde_json::from_value(tokens["tokens"].clone()).unwrap()
        };
        let mut written = prompt(json!([question]));
        written.extend(serde_json::from_value::<Vec<u32>>(choice["token_ids"].clone()).unwrap());
        let result = json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "1"});
        let next = prompt(json!([question, message, result]));
        assert_eq!(next[..written.len()], written, "{writes:?}");
    }
}

/// Qwen's form, with tokens that the fixture's vocabulary has.
const TURNS: &str = r"{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- if tools -%}{{ '<|im_start|>system\n<tools>' + tools | tojson + '</tools><|im_end|>\n' }}{%- endif -%}
{%- set seen = namespace(users=0) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set seen.users = seen.users + 1 -%}{%- endif -%}
{{ '<|im_start|>' + m.role + '\n' }}
{%- set keeps = preserve_thinking is defined and preserve_thinking or seen.users == users | length -%}
{%- if m.role == 'assistant' and m.reasoning_content and keeps -%}
{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}
{%- endif -%}
{{ m.content or '' }}
{%- for c in m.tool_calls or [] -%}
{{ ('\n' if m.content or not loop.first else '') + '<tool_call>\n' }}
{{- {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif -%}
";

#[test]
fn twenty_turns_with_tools_on_a_recurrent_model_find_all_but_the_new_message_in_the_cache() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/qwen35-ternary");
    let mut checkpoint = Checkpoint::open(Path::new(fixture)).unwrap();
    checkpoint.spec.context = 8192;
    checkpoint.chat = Some(ChatTemplate::new(TURNS, "", "").unwrap());
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 160, state_slots: 64 };
    let cpu = Cpu::new(Isa::named("auto").unwrap(), 1).unwrap();
    let weights = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {});
    let model = Scripted::over(checkpoint, Box::new(weights.unwrap()), ServerConfig::default());
    let tools = json!([{"type": "function", "function": {"name": "roll", "parameters": {
        "type": "object", "properties": {"sides": {"type": "integer"}}, "required": ["sides"]}}}]);
    let (mut messages, mut before) = (Vec::new(), 0);
    for turn in 0..20 {
        messages.push(json!({"role": "user", "content": format!("Roll number {turn}.")}));
        let call = format!(
            "<tool_call>\n{{\"name\": \"roll\", \"arguments\": {{\"sides\": {turn}}}}}\n</tool_call>"
        );
        for writes in [
            vec!["I need a die.\n</think>\n\n", &call],
            vec!["That is it.\n</think>\n\n", "You rolled a one."],
        ] {
            let whole = writes.concat();
            let body = json!({"messages": messages, "tools": tools, "max_tokens": 300});
            let answer = model.post(CHAT, &body, &[&whole]).ok();
            let (choice, usage) = (&answer["choices"][0], &answer["usage"]);
            let message = &choice["message"];
            let count = |field: &str| usage.pointer(field).and_then(Value::as_u64).unwrap() as usize;
            let cached = count("/prompt_tokens_details/cached_tokens");
            // Whole blocks are cached, and a recurrent state at their last boundary.
            assert!(cached + Batch::BLOCK_TOKENS > before, "turn {turn}: {cached} of {before}: {message}");
            before = count("/prompt_tokens") + count("/completion_tokens");
            messages.push(message.clone());
            let calls = message["tool_calls"].as_array();
            assert_eq!(calls.is_some(), whole.contains("<tool_call>"), "{choice}");
            for call in calls.into_iter().flatten() {
                messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "1"}));
            }
        }
    }
    assert!(before > 20 * 2 * 40, "the conversation is long: {before}");
}
