//! Ollama's API.

use std::time::Duration;

use bitnet::inference::EngineConfig;
use bitnet_server::{ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::{
    support::*,
    tools::{PLAIN, Script, TAGGED, TEMPLATES, hooked, random, tools},
};

const OPENAI: &str = "/v1/chat/completions";
const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks the counts and the durations of a last line.
fn ended(last: &Value, openai: &Value) {
    assert_eq!(last["done"], true, "{last}");
    assert_eq!(last["done_reason"].as_str().unwrap(), openai["choices"][0]["finish_reason"]);
    assert_eq!(last["prompt_eval_count"], openai["usage"]["prompt_tokens"]);
    assert_eq!(last["eval_count"], openai["usage"]["completion_tokens"]);
    let nanos = |field: &str| last[field].as_u64().unwrap();
    assert_eq!(nanos("total_duration"), nanos("prompt_eval_duration") + nanos("eval_duration"));
    assert_eq!(nanos("load_duration"), 0);
    let at = last["created_at"].as_str().unwrap();
    assert!(at.len() == 20 && at.starts_with("20") && at.ends_with('Z'), "{at}");
}

#[test]
fn a_text_is_that_of_a_chat_with_equal_parameters_and_seed() {
    for template in [TAGGED, PLAIN] {
        let server = random(template, Script::default());
        for seed in 0..4 {
            let messages =
                json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
            let openai = json!({"messages": messages, "max_tokens": 30, "temperature": 0.8, "top_k": 40, "top_p": 0.9,
                "repetition_penalty": 1.1, "stop": ["q"], "seed": seed});
            let openai = server.post(OPENAI, &openai).ok();
            let want = openai["choices"][0]["message"]["content"].as_str().unwrap();
            let options = json!({"num_predict": 30, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "repeat_penalty": 1.1,
                "stop": ["q"], "seed": seed});
            let chat = json!({"model": "demo", "messages": messages, "options": options});
            let prompt =
                json!({"model": "demo", "system": "Be brief.", "prompt": "Hello", "options": options});
            for (path, body, text) in [(CHAT, chat, "/message/content"), (GENERATE, prompt, "/response")] {
                let streamed = lines(&server.post(path, &body));
                let (last, before) = streamed.split_last().unwrap();
                let said = |line: &Value| line.pointer(text).unwrap().as_str().unwrap().to_owned();
                assert_eq!(streamed.iter().map(said).collect::<String>(), want, "{path}");
                assert!(before.iter().all(|line| line["done"] == false), "{before:?}");
                ended(last, &openai);
                let mut whole = body.clone();
                whole["stream"] = json!(false);
                let whole = server.post(path, &whole).ok();
                assert_eq!(said(&whole), want);
                ended(&whole, &openai);
            }
        }
    }
}

#[test]
fn a_raw_prompt_is_continued_as_it_is() {
    let server = random(PLAIN, Script::default());
    let openai = json!({"prompt": "[user]Hello", "max_tokens": 12, "temperature": 1, "seed": 3});
    let want = server.post("/v1/completions", &openai).ok()["choices"][0]["text"].clone();
    let body = json!({"prompt": "[user]Hello", "raw": true, "stream": false,
        "options": {"num_predict": 12, "temperature": 1, "seed": 3}});
    assert_eq!(server.post(GENERATE, &body).ok()["response"], want);
}

#[test]
fn calls_are_those_of_a_chat_with_arguments_as_objects() {
    for template in TEMPLATES {
        let server = random(template, Script::default());
        let messages = json!([{"role": "user", "content": "Go"}]);
        let shared = json!({"messages": messages, "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false});
        let (mut openai, mut ollama) = (shared.clone(), shared);
        (openai["seed"], openai["temperature"]) = (json!(1), json!(1));
        ollama["options"] = json!({"seed": 1, "temperature": 1});
        let want =
            server.post(OPENAI, &openai).ok()["choices"][0]["message"]["tool_calls"][0]["function"].clone();
        let streamed = lines(&server.post(CHAT, &ollama));
        let called: Vec<&Value> = streamed
            .iter()
            .flat_map(|line| line["message"]["tool_calls"].as_array().into_iter().flatten())
            .collect();
        ollama["stream"] = json!(false);
        let whole = server.post(CHAT, &ollama).ok();
        assert_eq!(called, whole["message"]["tool_calls"].as_array().unwrap().iter().collect::<Vec<_>>());
        assert_eq!((called.len(), whole["done_reason"].as_str()), (1, Some("stop")));
        assert_eq!(called[0]["function"]["name"], want["name"]);
        let arguments: Value = serde_json::from_str(want["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(called[0]["function"]["arguments"], arguments);
        // A call that is cut off has no object to show.
        ollama["options"]["num_predict"] = json!(4);
        let cut = server.post(CHAT, &ollama).ok();
        assert_eq!(
            (&cut["done_reason"], cut["message"].get("tool_calls")),
            (&json!("length"), None),
            "{cut}"
        );
    }
}

#[test]
fn a_format_is_followed() {
    let server = demo_server();
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    let body = json!({"prompt": "O", "format": schema, "stream": false, "options": {"seed": 1}});
    let said = server.post(GENERATE, &body).ok()["response"].as_str().unwrap().to_owned();
    assert!(serde_json::from_str::<Value>(&said).unwrap()["ok"].is_boolean(), "{said}");
    let body = json!({"messages": [{"role": "user", "content": "O"}], "format": "json", "stream": false,
        "options": {"seed": 1, "num_predict": 8}});
    let said = server.post(CHAT, &body).ok()["message"]["content"].as_str().unwrap().to_owned();
    assert!(said.starts_with('{'), "{said}");
}

#[test]
fn the_small_paths_report_what_is_served() {
    let server = random(TAGGED, Script::default());
    assert_eq!(server.get("/api/version").ok(), json!({"version": env!("CARGO_PKG_VERSION")}));
    let tags = server.get("/api/tags").ok();
    assert_eq!((&tags["models"][0]["name"], &tags["models"][0]["model"]), (&json!("demo"), &json!("demo")));
    let shown = server.post("/api/show", &json!({"model": "demo"})).ok();
    assert_eq!(shown["template"], TAGGED);
    let family = shown["model_info"]["general.architecture"].as_str().unwrap();
    assert_eq!(shown["model_info"][format!("{family}.context_length")], 4096);
    assert_eq!(tags["models"][0]["details"]["family"], family);
    assert_eq!(server.post("/api/show", &json!({"name": "other"})).status, 404);
}

#[test]
fn an_error_is_a_text_that_names_the_field() {
    let server = demo_server();
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 1}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (path, body, status, begins) in [
        (CHAT, chat(json!({"messages": [{}]})), 400, "messages[0].role: "),
        (CHAT, chat(json!({"model": "other"})), 404, "the model \"other\""),
        (CHAT, chat(json!({"format": 1})), 400, "format: "),
        (CHAT, chat(json!({"options": {"temperature": 200}})), 400, "options.temperature: "),
        (CHAT, chat(json!({"options": {"mirostat": 2}})), 400, "options.mirostat: "),
        (CHAT, chat(json!({"logprobs": true})), 400, "logprobs: "),
        (
            CHAT,
            chat(json!({"messages": [{"role": "user", "content": "x", "images": ["a"]}]})),
            400,
            "messages[0].images: ",
        ),
        (GENERATE, json!({"prompt": "x", "suffix": "y"}), 400, "suffix: "),
        (GENERATE, json!({"prompt": "x", "context": [1]}), 400, "context: "),
        (GENERATE, json!({"prompt": "x", "template": "y"}), 400, "template: "),
        (GENERATE, json!({"prompt": "x", "raw": true, "system": "y"}), 400, "system: "),
        (GENERATE, json!({"prompt": "x", "think": {}}), 400, "think: "),
        (GENERATE, json!({"promt": "x"}), 400, "promt: "),
        ("/api/embed", json!({"input": "x"}), 400, "\"demo\" is no embedding model"),
        ("/api/nothing", json!({}), 404, "there is nothing at"),
    ] {
        let reply = server.post(path, &body);
        let error = reply.json();
        let message = error["error"].as_str().unwrap_or_else(|| panic!("{error}"));
        assert_eq!(reply.status, status, "{body}: {message}");
        assert!(message.starts_with(begins), "{message}");
        assert_eq!(error.as_object().unwrap().len(), 1, "{error}");
    }
    let config = ServerConfig { api_key: Some("k3y".into()), ..ServerConfig::default() };
    let server = Server::start(demo(EngineConfig::default(), config), ConnectionLimits::default(), SOON);
    let refused = server.get("/api/tags");
    assert!(refused.status == 401 && refused.json()["error"].is_string(), "{}", refused.text());
}

#[test]
fn a_client_that_hangs_up_cancels_its_answer() {
    let server = hooked(PLAIN, slow(Duration::from_millis(1)));
    let body = json!({"prompt": "x", "options": {"num_predict": 3000, "ignore_eos": true}});
    let mut lines = server.stream(GENERATE, &[], &body);
    assert!(lines.next().is_some());
    drop(lines);
    server.until_cancelled();
}

#[test]
fn a_stream_that_fails_ends_with_an_error_line() {
    let server = hooked(PLAIN, slow(Duration::from_millis(2)));
    let body = json!({"prompt": "x", "options": {"num_predict": 4000, "ignore_eos": true}});
    let last = lines(&server.post_with(GENERATE, &[("x-deadline-ms", "1000")], &body)).pop().unwrap();
    assert!(last["error"].is_string() && last.get("done").is_none(), "{last}");
}
