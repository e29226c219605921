//! OpenAI's Responses API.

use std::{fs, path::Path, time::Duration};

use bitnet::inference::EngineConfig;
use bitnet_server::{BatchOptions, ConnectionLimits, ServerConfig, run_batch};
use serde_json::{Value, json};

use crate::{
    support::*,
    tools::{PLAIN, Script, TAGGED, TEMPLATES, hooked, random, tools},
};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// The tools of chats, as this API describes them.
fn flat_tools() -> Value {
    let flat = |tool: &Value| {
        let mut flat = tool["function"].clone();
        flat["type"] = json!("function");
        flat
    };
    tools().as_array().unwrap().iter().map(flat).collect()
}

/// All texts of an answer.
fn text(answer: &Value) -> String {
    let items = answer["output"].as_array().unwrap().iter();
    items
        .filter(|item| item["type"] == "message")
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect()
}

/// Name and arguments of each call.
fn calls(answer: &Value) -> Vec<(String, String)> {
    let calls = answer["output"].as_array().unwrap().iter().filter(|item| item["type"] == "function_call");
    let owned = |value: &Value| value.as_str().unwrap().to_owned();
    calls.map(|call| (owned(&call["name"]), owned(&call["arguments"]))).collect()
}

#[test]
fn a_text_is_that_of_a_chat_with_equal_parameters_and_seed() {
    for template in [TAGGED, PLAIN] {
        let server = random(template, Script::default());
        for seed in 0..4 {
            let sampling = json!({"temperature": 0.8, "top_p": 0.9, "seed": seed});
            let chat = server.post(CHAT, &merged(&sampling, json!({
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
                    {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Go on"}],
                "max_tokens": 30, "stop": "q",
            }))).ok();
            let reply = server.post(RESPONSES, &merged(&sampling, json!({
                "instructions": "Be brief.", "max_output_tokens": 30, "stop": "q",
                "input": [{"role": "user", "content": "Hello"},
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
                    {"role": "user", "content": [{"type": "input_text", "text": "Go on"}]}],
            })));
            let answer = reply.ok();
            assert_eq!(text(&answer), chat["choices"][0]["message"]["content"].as_str().unwrap());
            assert_eq!(answer["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
            assert_eq!(answer["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
            let (status, details) = match chat["choices"][0]["finish_reason"].as_str().unwrap() {
                "length" => ("incomplete", json!({"reason": "max_output_tokens"})),
                _ => ("completed", Value::Null),
            };
            assert_eq!((&answer["status"], &answer["incomplete_details"]), (&json!(status), &details));
            assert_eq!(reply.header("x-seed"), Some(seed.to_string().as_str()));
        }
    }
}

#[test]
fn calls_are_those_of_a_chat_and_follow_their_schema() {
    for template in TEMPLATES {
        let server = random(template, Script::default());
        for (seed, choice, flat) in [
            (0, json!("required"), json!("required")),
            (
                1,
                json!({"type": "function", "function": {"name": "weather"}}),
                json!({"type": "function", "name": "weather"}),
            ),
            (
                2,
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools":
                    [{"type": "function", "function": {"name": "now"}}]}}),
                json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}),
            ),
        ] {
            let shared = json!({"temperature": 1, "seed": seed, "parallel_tool_calls": false});
            let messages = json!([{"role": "user", "content": "Go"}]);
            let chat = server
                .post(
                    CHAT,
                    &merged(&shared, json!({"messages": messages, "tools": tools(), "tool_choice": choice})),
                )
                .ok();
            let answer = server
                .post(
                    RESPONSES,
                    &merged(&shared, json!({"input": "Go", "tools": flat_tools(), "tool_choice": flat})),
                )
                .ok();
            let want = &chat["choices"][0]["message"]["tool_calls"][0]["function"];
            let called = calls(&answer);
            assert_eq!(called.len(), 1, "{answer}");
            assert_eq!(
                (&json!(called[0].0), &json!(called[0].1)),
                (&want["name"], &want["arguments"]),
                "{template}"
            );
            serde_json::from_str::<Value>(&called[0].1).unwrap();
            assert_eq!((&answer["status"], &answer["tool_choice"]), (&json!("completed"), &flat));
            assert_eq!(answer["tools"], flat_tools());
        }
    }
}

#[test]
fn a_conversation_with_calls_continues_as_in_a_chat() {
    let server = random(TAGGED, Script::default());
    let shared = json!({"temperature": 1, "seed": 5});
    let chat = server
        .post(
            CHAT,
            &merged(
                &shared,
                json!({"max_tokens": 12, "tools": tools(), "messages": [
                    {"role": "user", "content": "Rain?"},
                    {"role": "assistant", "content": "I look.", "tool_calls": [
                        {"id": "x", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
                    {"role": "tool", "tool_call_id": "x", "content": "noon"},
                ]}),
            ),
        )
        .ok();
    let answer = server.post(RESPONSES, &merged(&shared, json!({"max_output_tokens": 12, "tools": flat_tools(), "input": [
        {"role": "user", "content": "Rain?"},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content":
            [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "x", "name": "now", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "x", "output": "noon"},
    ]}))).ok();
    assert_eq!(answer["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(text(&answer), chat["choices"][0]["message"]["content"].as_str().unwrap_or_default());
}

/// Checks the order of a stream's events, and puts its text and arguments together from their pieces.
fn followed(events: &[(String, Value)]) -> (String, String) {
    let (mut text, mut arguments, mut open) = (String::new(), String::new(), false);
    for (i, (kind, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(kind), &json!(i)), "{data}");
        let delta = data["delta"].as_str().unwrap_or_default();
        match kind.as_str() {
            "response.created" | "response.in_progress" => {
                assert!(i < 2 && data["response"]["status"] == "in_progress", "{data}");
            }
            "response.output_item.added" => assert!(!std::mem::replace(&mut open, true), "{data}"),
            "response.output_item.done" => assert!(std::mem::replace(&mut open, false), "{data}"),
            "response.completed" | "response.incomplete" => assert!(i + 1 == events.len() && !open, "{data}"),
            "response.output_text.delta" => text += delta,
            "response.function_call_arguments.delta" => arguments += delta,
            "response.output_text.done" => {
                assert!(text.ends_with(data["text"].as_str().unwrap()) && open, "{data}")
            }
            "response.function_call_arguments.done" => assert_eq!(data["arguments"], json!(arguments)),
            "response.content_part.added" | "response.content_part.done" => assert!(open, "{data}"),
            other => panic!("{other}: {data}"),
        }
    }
    (text, arguments)
}

/// An answer without what differs from one request to the next.
fn unnamed(answer: &Value) -> Value {
    let name = answer["id"].as_str().unwrap().strip_prefix("resp_").unwrap();
    let mut answer: Value = serde_json::from_str(&answer.to_string().replace(name, "NAME")).unwrap();
    answer["created_at"].take();
    answer
}

#[test]
fn a_stream_sends_the_answer_in_typed_events() {
    let server = random(TAGGED, Script::default());
    let bodies = [
        json!({"input": "Hello", "max_output_tokens": 12}),
        json!({"input": "Hello", "max_output_tokens": 0}),
        json!({"input": "Go", "tools": flat_tools(), "tool_choice": "required", "parallel_tool_calls": false}),
        json!({"input": "Go", "tools": flat_tools(), "tool_choice": "required", "max_output_tokens": 30}),
    ];
    for body in bodies {
        let body = merged(&body, json!({"seed": 4, "temperature": 1}));
        let whole = server.post(RESPONSES, &body).ok();
        let streamed = server.post(RESPONSES, &merged(&body, json!({"stream": true})));
        assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
        let events = typed(&streamed.text());
        let (said, arguments) = followed(&events);
        let (kind, last) = events.last().unwrap();
        assert_eq!(*kind, format!("response.{}", whole["status"].as_str().unwrap()));
        // The second of two equal requests finds the prompt of the first.
        let uncached = |response: &Value| {
            let mut response = unnamed(response);
            response["usage"]["input_tokens_details"].take();
            response
        };
        assert_eq!(uncached(&last["response"]), uncached(&whole));
        assert_eq!(said, text(&whole));
        assert_eq!(arguments, calls(&whole).into_iter().map(|call| call.1).collect::<String>());
        assert_eq!(events[0].0, "response.created");
    }
}

#[test]
fn a_text_follows_the_format_that_is_asked_for() {
    let server = demo_server();
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "answer", "strict": true, "schema": schema});
    let answer = server.post(RESPONSES, &json!({"input": "O", "text": {"format": format}, "seed": 1})).ok();
    let said: Value = serde_json::from_str(&text(&answer)).unwrap();
    assert!(said["ok"].is_boolean() && said.as_object().unwrap().len() == 1, "{said}");
    assert_eq!(answer["text"]["format"], format);
    let chat = json!({"messages": [{"role": "user", "content": "O"}], "seed": 1, "response_format":
        {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}});
    assert_eq!(
        text(&answer),
        server.post(CHAT, &chat).ok()["choices"][0]["message"]["content"].as_str().unwrap()
    );
}

#[test]
fn what_could_change_the_answer_and_is_not_supported_is_refused_by_name() {
    let server = demo_server();
    for (more, param) in [
        (json!({"input": null}), "input"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"background": true}), "background"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"include": ["message.output_text.logprobs"]}), "include"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"n": 2}), "n"),
        (json!({"max_tokens": 2}), "max_tokens"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "tools[0].name"),
        (json!({"tools": [flat_tools()[1], flat_tools()[1]]}), "tools[1].name"),
        (
            json!({"tools": flat_tools(), "tool_choice": {"type": "function", "name": "other"}}),
            "tool_choice.name",
        ),
        (json!({"text": {"format": {"type": "grammar"}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "json_schema", "schema": 1}}}), "text.format.schema"),
        (json!({"text": {"format": {"type": "json_schema", "schema": {"type": "strng"}}}}), "text.format"),
        (json!({"temperature": 200}), "temperature"),
        (json!({"model": "other"}), "model"),
    ] {
        let reply =
            server.post(RESPONSES, &merged(&json!({"input": "x", "max_output_tokens": 1}), more.clone()));
        let status = if param == "model" { 404 } else { 400 };
        assert_eq!(reply.refusal(), (status, Some(param.to_owned())), "{more}: {}", reply.text());
    }
    let resumed =
        server.post_with(RESPONSES, &[("last-event-id", "1")], &json!({"input": "x", "stream": true}));
    assert_eq!(resumed.refusal(), (400, Some("Last-Event-ID".into())));
}

#[test]
fn a_client_that_hangs_up_cancels_its_answer() {
    let server = hooked(PLAIN, slow(Duration::from_millis(1)));
    let body = json!({"input": "x", "max_output_tokens": 3000, "ignore_eos": true, "stream": true});
    let mut events = server.stream(RESPONSES, &[], &body);
    assert!(events.by_ref().take(9).any(|event| event.contains("response.output_text.delta")));
    drop(events);
    server.until_cancelled();
}

#[test]
fn a_stream_that_fails_ends_with_an_error_event() {
    let server = hooked(PLAIN, slow(Duration::from_millis(2)));
    let body = json!({"input": "x", "max_output_tokens": 4000, "ignore_eos": true, "stream": true});
    let reply = server.post_with(RESPONSES, &[("x-deadline-ms", "1000")], &body);
    let (kind, last) = typed(&reply.text()).pop().unwrap();
    assert_eq!((kind.as_str(), &last["response"]["status"]), ("response.failed", &json!("failed")));
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert!(last["response"]["error"]["message"].is_string(), "{last}");
    let whole = merged(&body, json!({"stream": false}));
    let cut = server.post_with(RESPONSES, &[("x-deadline-ms", "1000")], &whole).ok();
    assert_eq!(cut["status"], "incomplete", "an answer that is not streamed keeps its text");
}

#[test]
fn a_key_is_asked_for_and_nothing_is_stored() {
    let config = ServerConfig { api_key: Some("k3y".into()), ..ServerConfig::default() };
    let server = Server::start(demo(EngineConfig::default(), config), ConnectionLimits::default(), SOON);
    let body =
        json!({"input": "O", "max_output_tokens": 2, "store": true, "metadata": {"a": "b"}, "user": "ann"});
    assert_eq!(server.post(RESPONSES, &body).status, 401);
    let answer = server.post_with(RESPONSES, &[("authorization", "Bearer k3y")], &body).ok();
    assert_eq!(
        (&answer["store"], &answer["metadata"], &answer["user"]),
        (&json!(false), &json!({"a": "b"}), &json!("ann"))
    );
}

#[test]
fn a_batch_file_takes_responses() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [input, output] = ["responses.in", "responses.out"].map(|name| folder.join(name));
    let body = json!({"input": "Hi", "max_output_tokens": 8, "seed": 3});
    let streamed = merged(&body, json!({"stream": true}));
    let line = |(id, body): (usize, &Value)| {
        json!({"custom_id": id.to_string(), "method": "POST", "url": RESPONSES, "body": body}).to_string()
            + "\n"
    };
    fs::write(&input, [&body, &streamed].into_iter().enumerate().map(line).collect::<String>()).unwrap();
    let service = demo_service(EngineConfig::default(), ServerConfig::default());
    let run = || {
        run_batch(&service, &input, &output, BatchOptions::default(), &mut |_| {}).unwrap();
        fs::read_to_string(&output).unwrap()
    };
    let first = run();
    let answers: Vec<Value> = first.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answered = &answers[0]["response"];
    assert_eq!(text(&answered["body"]), text(&demo_server().post(RESPONSES, &body).ok()));
    assert_eq!(answered["request_id"], answered["body"]["id"]);
    assert_eq!(answers[1]["response"]["body"]["error"]["param"], "stream");
    assert_eq!(run(), first, "the same file gives the same answers");
}
