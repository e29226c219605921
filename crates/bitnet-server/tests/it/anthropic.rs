//! Anthropic's API.

use std::time::Duration;

use bitnet::inference::EngineConfig;
use bitnet_server::{ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::{
    support::*,
    tools::{PLAIN, Script, TAGGED, TEMPLATES, hooked, random, tools},
};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// The tools of chats, as this API describes them.
fn own_tools() -> Value {
    let own = |tool: &Value| {
        let mut own = tool["function"].clone();
        if let Some(schema) = own.as_object_mut().unwrap().remove("parameters") {
            own["input_schema"] = schema;
        }
        own
    };
    tools().as_array().unwrap().iter().map(own).collect()
}

/// Tokens of a prompt, whether they were cached or not.
fn prompt_tokens(usage: &Value) -> u64 {
    ["input_tokens", "cache_read_input_tokens"].into_iter().map(|field| usage[field].as_u64().unwrap()).sum()
}

#[test]
fn a_text_is_that_of_a_chat_with_equal_parameters_and_seed() {
    for template in [TAGGED, PLAIN] {
        let server = random(template, Script::default());
        for seed in 0..4 {
            let shared = json!({"max_tokens": 30, "temperature": 0.8, "top_k": 40, "top_p": 0.9});
            let chat = server
                .post(
                    CHAT,
                    &merged(
                        &shared,
                        json!({"seed": seed, "stop": ["q", "z"], "messages": [
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Go on"}]}),
                    ),
                )
                .ok();
            let body = merged(
                &shared,
                json!({"system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["q", "z"],
                "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"},
                    {"role": "user", "content": [{"type": "text", "text": "Go on"}]}]}),
            );
            let answer = server.post_with(MESSAGES, &[("x-seed", &seed.to_string())], &body).ok();
            let want = &chat["choices"][0];
            assert_eq!(answer["content"][0]["text"], want["message"]["content"]);
            assert_eq!(json!(prompt_tokens(&answer["usage"])), chat["usage"]["prompt_tokens"]);
            assert_eq!(answer["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
            match answer["stop_reason"].as_str().unwrap() {
                "max_tokens" => assert_eq!(want["finish_reason"], "length"),
                "stop_sequence" => assert!(["q", "z"].contains(&answer["stop_sequence"].as_str().unwrap())),
                other => assert_eq!((other, &answer["stop_sequence"]), ("end_turn", &Value::Null)),
            }
        }
    }
}

#[test]
fn the_stop_sequence_that_ended_a_text_is_named() {
    let prompt = {
        let server = random(PLAIN, Script::default());
        let messages = json!([{"role": "user", "content": "x"}]);
        server.post("/tokenize", &json!({"messages": messages})).ok()["count"].as_u64().unwrap() as usize
    };
    let server = random(PLAIN, Script::new("one two three", prompt));
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 50, "stop_sequences": ["four", "two"]});
    let answer = server.post(MESSAGES, &body).ok();
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!("two")));
    assert_eq!(answer["content"], json!([{"type": "text", "text": "one "}]));
}

#[test]
fn calls_are_those_of_a_chat_with_their_input_as_an_object() {
    for template in TEMPLATES {
        let server = random(template, Script::default());
        for (seed, choice, own) in [
            (0, json!("required"), json!({"type": "any", "disable_parallel_tool_use": true})),
            (
                1,
                json!({"type": "function", "function": {"name": "weather"}}),
                json!({"type": "tool", "name": "weather"}),
            ),
        ] {
            let shared = json!({"temperature": 1, "seed": seed, "max_tokens": 400, "messages": [{"role": "user", "content": "Go"}]});
            let chat = merged(
                &shared,
                json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": false}),
            );
            let want =
                server.post(CHAT, &chat).ok()["choices"][0]["message"]["tool_calls"][0]["function"].clone();
            let answer = server
                .post(MESSAGES, &merged(&shared, json!({"tools": own_tools(), "tool_choice": own})))
                .ok();
            let [call] = &answer["content"].as_array().unwrap()[..] else { panic!("{answer}") };
            let input: Value = serde_json::from_str(want["arguments"].as_str().unwrap()).unwrap();
            assert_eq!(
                (&call["type"], &call["name"], &call["input"]),
                (&json!("tool_use"), &want["name"], &input)
            );
            assert!(call["id"].as_str().unwrap().starts_with("toolu_"), "{call}");
            assert_eq!(answer["stop_reason"], "tool_use");
        }
        let none = json!({"max_tokens": 5, "seed": 1, "messages": [{"role": "user", "content": "Go"}]});
        let with = merged(&none, json!({"tools": own_tools(), "tool_choice": {"type": "none"}}));
        assert_eq!(
            server.post(MESSAGES, &none).ok()["content"],
            server.post(MESSAGES, &with).ok()["content"]
        );
    }
}

#[test]
fn a_conversation_with_calls_continues_as_in_a_chat() {
    let server = random(TAGGED, Script::default());
    let shared = json!({"temperature": 1, "seed": 5, "max_tokens": 12});
    let chat = server
        .post(
            CHAT,
            &merged(
                &shared,
                json!({"tools": tools(), "messages": [
                    {"role": "user", "content": "Rain?"},
                    {"role": "assistant", "content": "I look.", "tool_calls": [
                        {"id": "x", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
                    {"role": "tool", "tool_call_id": "x", "content": "noon"},
                    {"role": "user", "content": "And?"},
                ]}),
            ),
        )
        .ok();
    let body = merged(
        &shared,
        json!({"tools": own_tools(), "messages": [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "x", "name": "now", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "noon"}, {"type": "text", "text": "And?"}]},
        ]}),
    );
    let answer = server.post(MESSAGES, &body).ok();
    assert_eq!(json!(prompt_tokens(&answer["usage"])), chat["usage"]["prompt_tokens"]);
    assert_eq!(answer["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    let counted = server
        .post("/v1/messages/count_tokens", &json!({"tools": body["tools"], "messages": body["messages"]}));
    assert_eq!(counted.ok(), json!({"input_tokens": chat["usage"]["prompt_tokens"]}));
}

/// Puts the content together from the events of a stream, whose order it checks.
fn followed(events: &[(String, Value)]) -> (Vec<Value>, Value) {
    let (mut content, mut json, mut open, mut end) = (Vec::<Value>::new(), String::new(), false, Value::Null);
    for (i, (kind, data)) in events.iter().enumerate() {
        assert_eq!(data["type"], json!(kind), "{data}");
        assert_eq!(
            (i == 0, i + 1 == events.len()),
            (kind == "message_start", kind == "message_stop"),
            "{data}"
        );
        match kind.as_str() {
            "message_start" => assert_eq!(data["message"]["content"], json!([])),
            "content_block_start" => {
                assert!(!std::mem::replace(&mut open, true) && data["index"] == content.len(), "{data}");
                content.push(data["content_block"].clone());
                json.clear();
            }
            "content_block_delta" if data["delta"]["type"] == "text_delta" => {
                let block = content.last_mut().unwrap();
                block["text"] = json!(format!(
                    "{}{}",
                    block["text"].as_str().unwrap(),
                    data["delta"]["text"].as_str().unwrap()
                ));
            }
            "content_block_delta" => json += data["delta"]["partial_json"].as_str().unwrap(),
            "content_block_stop" => {
                assert!(std::mem::replace(&mut open, false) && data["index"] == content.len() - 1, "{data}");
                if let Ok(input) = serde_json::from_str::<Value>(&json) {
                    content.last_mut().unwrap()["input"] = input;
                }
            }
            "message_delta" => end = data.clone(),
            "ping" | "message_stop" => {}
            other => panic!("{other}: {data}"),
        }
    }
    (content, end)
}

#[test]
fn a_stream_sends_the_message_in_typed_events() {
    let server = random(TAGGED, Script::default());
    for more in [
        json!({"max_tokens": 12}),
        json!({"max_tokens": 0}),
        json!({"max_tokens": 400, "tools": own_tools(), "tool_choice": {"type": "any", "disable_parallel_tool_use": true}}),
    ] {
        let body = merged(
            &more,
            json!({"seed": 4, "temperature": 1, "messages": [{"role": "user", "content": "Go"}]}),
        );
        let whole = server.post(MESSAGES, &body).ok();
        let streamed = server.post(MESSAGES, &merged(&body, json!({"stream": true})));
        assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
        let (mut content, end) = followed(&typed(&streamed.text()));
        let mut want = whole["content"].as_array().unwrap().clone();
        for block in content.iter_mut().chain(&mut want) {
            block.as_object_mut().unwrap().remove("id");
        }
        assert_eq!(content, want);
        assert_eq!(end["delta"]["stop_reason"], whole["stop_reason"]);
        assert_eq!(end["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
        assert_eq!(prompt_tokens(&end["usage"]), prompt_tokens(&whole["usage"]));
    }
}

#[test]
fn a_format_is_followed() {
    let server = demo_server();
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    let body = json!({"max_tokens": 40, "seed": 1, "messages": [{"role": "user", "content": "O"}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let answer = server.post(MESSAGES, &body).ok();
    let said = answer["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(said).unwrap()["ok"].is_boolean(), "{said}");
}

#[test]
fn an_error_has_anthropics_form_and_names_the_field() {
    let server = demo_server();
    let messages = json!([{"role": "user", "content": "x"}]);
    for (body, status, kind, begins) in [
        (json!({"messages": messages}), 400, "invalid_request_error", "max_tokens: it is missing"),
        (json!({"max_tokens": 1}), 400, "invalid_request_error", "messages: "),
        (
            json!({"max_tokens": 1, "messages": [{"role": "assistant", "content": "a"}]}),
            400,
            "invalid_request_error",
            "messages[0].role: ",
        ),
        (
            json!({"max_tokens": 1, "messages": messages, "max_token": 1}),
            400,
            "invalid_request_error",
            "max_token: ",
        ),
        (
            json!({"max_tokens": 1, "messages": messages, "tools": [{"type": "bash_20250124", "name": "bash"}]}),
            400,
            "invalid_request_error",
            "tools[0].type: ",
        ),
        (
            json!({"max_tokens": 1, "messages": messages, "tool_choice": {"type": "any"}}),
            400,
            "invalid_request_error",
            "tool_choice.type: it needs tools",
        ),
        (
            json!({"max_tokens": 1, "messages": messages, "container": "c"}),
            400,
            "invalid_request_error",
            "container: ",
        ),
        (
            json!({"max_tokens": 1, "messages": messages, "model": "other"}),
            404,
            "not_found_error",
            "the model",
        ),
    ] {
        let reply = server.post(MESSAGES, &body);
        let error = reply.json();
        assert_eq!(
            (reply.status, &error["type"], &error["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{error}"
        );
        assert!(error["error"]["message"].as_str().unwrap().starts_with(begins), "{error}");
    }
    let wrong_method = server.get(MESSAGES).json();
    assert_eq!(wrong_method["type"], "error", "{wrong_method}");
}

#[test]
fn the_key_may_come_in_anthropics_header() {
    let config = ServerConfig { api_key: Some("k3y".into()), ..ServerConfig::default() };
    let server = Server::start(demo(EngineConfig::default(), config), ConnectionLimits::default(), SOON);
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "metadata": {"user_id": "ann"}});
    let refused = server.post_with(MESSAGES, &[("x-api-key", "k3")], &body);
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (401, &json!("authentication_error")));
    for header in [("x-api-key", "k3y"), ("authorization", "Bearer k3y")] {
        server.post_with(MESSAGES, &[header, ("anthropic-version", "2023-06-01")], &body).ok();
    }
}

#[test]
fn a_client_that_hangs_up_cancels_its_answer() {
    let server = hooked(PLAIN, slow(Duration::from_millis(1)));
    let body = json!({"max_tokens": 3000, "ignore_eos": true, "stream": true, "messages": [{"role": "user", "content": "x"}]});
    let mut events = server.stream(MESSAGES, &[], &body);
    assert!(events.by_ref().take(4).any(|event| event.contains("content_block_delta")));
    drop(events);
    server.until_cancelled();
}

#[test]
fn a_stream_that_fails_ends_with_an_error_event() {
    let server = hooked(PLAIN, slow(Duration::from_millis(2)));
    let body = json!({"max_tokens": 4000, "ignore_eos": true, "stream": true, "messages": [{"role": "user", "content": "x"}]});
    let reply = server.post_with(MESSAGES, &[("x-deadline-ms", "1000")], &body);
    let (kind, last) = typed(&reply.text()).pop().unwrap();
    assert_eq!(
        (kind.as_str(), &last["type"], &last["error"]["type"]),
        ("error", &json!("error"), &json!("timeout_error"))
    );
}
