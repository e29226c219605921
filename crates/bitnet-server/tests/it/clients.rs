//! What the clients of other servers send: values that ask for nothing, other names, and errors in their own forms.

use std::io::Write;

use bitnet::inference::EngineConfig;
use bitnet_server::{ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const OLLAMA: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const ANTHROPIC: &str = "/v1/messages";

fn hello() -> Value {
    json!([{"role": "user", "content": "Hi"}])
}

fn body(path: &str) -> Value {
    match path {
        COMPLETIONS => json!({"prompt": "Hi", "max_tokens": 2, "seed": 1}),
        CHAT => json!({"messages": hello(), "max_tokens": 2, "seed": 1}),
        RESPONSES => json!({"input": "Hi", "max_output_tokens": 2, "seed": 1}),
        ANTHROPIC => json!({"messages": hello(), "max_tokens": 2, "seed": 1}),
        GENERATE => json!({"prompt": "Hi", "stream": false, "options": {"num_predict": 2, "seed": 1}}),
        _ => json!({"messages": hello(), "stream": false, "options": {"num_predict": 2, "seed": 1}}),
    }
}

/// The message of an error in any form.
fn message(reply: &Reply) -> String {
    let error = &reply.json()["error"];
    error["message"].as_str().or(error.as_str()).unwrap_or_else(|| panic!("{}", reply.text())).to_owned()
}

#[test]
fn a_value_that_asks_for_nothing_changes_nothing_and_another_is_refused_by_name() {
    let server = demo_server();
    let both: [(&str, &[Value], Value); 23] = [
        ("use_beam_search", &[json!(false)], json!(true)),
        ("include_stop_str_in_output", &[json!(false)], json!(true)),
        ("return_tokens_as_token_ids", &[json!(false)], json!(true)),
        ("skip_special_tokens", &[json!(true)], json!(false)),
        ("spaces_between_special_tokens", &[json!(true)], json!(false)),
        ("length_penalty", &[json!(1), json!(1.0)], json!(2)),
        ("repeat_penalty", &[json!(1.0)], json!(1.1)),
        ("bad_words", &[json!([])], json!(["x"])),
        ("allowed_token_ids", &[json!([])], json!([1])),
        ("mirostat", &[json!(0)], json!(2)),
        ("dry_multiplier", &[json!(0.0)], json!(0.8)),
        ("xtc_probability", &[json!(0)], json!(0.5)),
        ("typical_p", &[json!(1.0)], json!(0.5)),
        ("n_probs", &[json!(0)], json!(5)),
        ("id_slot", &[json!(-1)], json!(3)),
        ("top_n_sigma", &[json!(-1)], json!(1)),
        ("grammar", &[json!("")], json!("root ::= \"x\"")),
        ("best_of", &[json!(1)], json!(1000)),
        ("echo", &[json!(false)], json!("x")),
        ("n", &[json!(1)], json!(1000)),
        ("logit_bias", &[json!({})], json!({"x": 1})),
        ("priority", &[json!(0), json!("normal")], json!(1)),
        ("top_k", &[json!(0), json!(-1)], json!(-2)),
    ];
    for path in [COMPLETIONS, CHAT] {
        let plain = body(path);
        let want = server.post(path, &plain).ok()["choices"].clone();
        for (field, neutral, other) in &both {
            for value in neutral.iter().chain([&Value::Null]) {
                let reply = server.post(path, &merged(&plain, json!({*field: value})));
                assert_eq!(reply.ok()["choices"], want, "{path} {field} {value}");
            }
            let refused = server.post(path, &merged(&plain, json!({*field: other})));
            assert_eq!(refused.refusal(), (400, Some((*field).to_owned())), "{path} {field}");
        }
    }
    for (path, field, value) in [
        (CHAT, "add_special_tokens", json!(false)),
        (CHAT, "add_generation_prompt", json!(true)),
        (CHAT, "stream_options", json!({"include_usage": false})),
        (COMPLETIONS, "add_special_tokens", json!(true)),
        (COMPLETIONS, "logprobs", json!(false)),
        (COMPLETIONS, "suffix", json!("")),
        (RESPONSES, "client_metadata", json!({"a": "b"})),
        (ANTHROPIC, "mcp_servers", json!([])),
        (ANTHROPIC, "container", json!(null)),
        (ANTHROPIC, "top_k", json!(-1)),
        (OLLAMA, "truncate", json!(true)),
        (GENERATE, "shift", json!(true)),
    ] {
        server.post(path, &merged(&body(path), json!({field: value}))).ok();
    }
}

#[test]
fn the_smallest_top_p_is_the_most_likely_token() {
    let server = demo_server();
    for path in [COMPLETIONS, CHAT] {
        let asked = |more: Value| server.post(path, &merged(&body(path), more)).ok()["choices"].clone();
        let many = json!({"max_tokens": 12});
        assert_eq!(
            asked(merged(&many, json!({"top_p": 0}))),
            asked(merged(&many, json!({"temperature": 0}))),
            "{path}"
        );
        let refused = server.post(path, &merged(&body(path), json!({"top_p": -0.1})));
        assert_eq!(refused.refusal(), (400, Some("top_p".into())));
    }
}

#[test]
fn no_limit_is_the_rest_of_the_context() {
    let server = demo_server();
    for path in [COMPLETIONS, CHAT] {
        let stops = json!({"max_tokens": -1, "stop": [" ", "e"], "seed": 3});
        let reply = server.post(path, &merged(&body(path), stops)).ok();
        assert_eq!(reply["choices"][0]["finish_reason"], "stop", "{reply}");
    }
    let refused = server.post(CHAT, &merged(&body(CHAT), json!({"max_tokens": -2})));
    assert_eq!(refused.refusal(), (400, Some("max_tokens".into())));
}

#[test]
fn log_probabilities_of_an_empty_answer_are_empty_lists() {
    let server = demo_server();
    let eos = bitnet::model::Checkpoint::demo().unwrap().defaults.eos[0];
    let bias = json!({"logit_bias": {eos.to_string(): 100}, "max_tokens": 5});
    let chat = merged(&merged(&body(CHAT), bias.clone()), json!({"logprobs": true}));
    let choice = server.post(CHAT, &chat).ok()["choices"][0].clone();
    assert_eq!((&choice["message"]["content"], &choice["logprobs"]["content"]), (&json!(""), &json!([])));
    let completion = merged(&merged(&body(COMPLETIONS), bias), json!({"logprobs": 0}));
    let choice = server.post(COMPLETIONS, &completion).ok()["choices"][0].clone();
    assert!(choice["logprobs"]["tokens"].is_array(), "{choice}");
    let none = server.post(CHAT, &body(CHAT)).ok();
    assert!(none["choices"][0]["logprobs"].is_null(), "none were asked for");
}

#[test]
fn an_empty_prompt_loads_a_model_and_no_time_unloads_it() {
    let server = demo_server();
    for (path, body, reason) in [
        (GENERATE, json!({"model": "demo"}), "load"),
        (GENERATE, json!({"model": "demo", "prompt": "", "stream": false}), "load"),
        (GENERATE, json!({"model": "demo", "keep_alive": "5m", "options": {"num_ctx": 512}}), "load"),
        (GENERATE, json!({"model": "demo", "keep_alive": 0}), "unload"),
        (OLLAMA, json!({"model": "demo"}), "load"),
        (OLLAMA, json!({"model": "demo", "messages": []}), "load"),
        (OLLAMA, json!({"model": "demo", "messages": [], "keep_alive": "0s"}), "unload"),
    ] {
        let said = server.post(path, &body).ok();
        assert_eq!((&said["done"], &said["done_reason"]), (&json!(true), &json!(reason)), "{path} {body}");
        let text = if path == OLLAMA { &said["message"]["content"] } else { &said["response"] };
        assert_eq!(text, "", "{said}");
    }
    assert_eq!(server.metric("bitnet_generation_tokens_total"), 0.0, "nobody asked for a text");
    for (path, body, named) in [
        (GENERATE, json!({"model": "other"}), "other"),
        (GENERATE, json!({"model": "demo", "keep_alife": 0}), "keep_alife"),
        (GENERATE, json!({"model": "demo", "think": {}}), "think"),
        (GENERATE, json!({"model": "demo", "options": {"top_p": "x"}}), "options.top_p"),
        (OLLAMA, json!({"model": "demo", "options": {"top_p": 2}}), "options.top_p"),
        (OLLAMA, json!({"model": "demo", "prompt": ""}), "prompt"),
    ] {
        let refused = server.post(path, &body);
        assert!(refused.status >= 400 && message(&refused).contains(named), "{}", refused.text());
    }
}

#[test]
fn a_name_may_have_the_tag_latest_on_every_path() {
    let server = demo_server();
    for path in [COMPLETIONS, CHAT, RESPONSES, ANTHROPIC, OLLAMA, GENERATE] {
        server.post(path, &merged(&body(path), json!({"model": "demo:latest"}))).ok();
        let other = server.post(path, &merged(&body(path), json!({"model": "demo:3b"})));
        assert_eq!(other.status, 404, "{path}");
    }
    for name in ["model", "name"] {
        server.post("/api/show", &json!({name: "demo:latest"})).ok();
    }
    server.get("/v1/models/demo:latest").ok();
    let running = server.get("/api/ps").ok();
    assert_eq!(
        (&running["models"][0]["name"], running["models"].as_array().unwrap().len()),
        (&json!("demo"), 1)
    );
    let config = ServerConfig { name: Some("own:latest".into()), ..ServerConfig::default() };
    let tagged = Server::start(demo(EngineConfig::default(), config), ConnectionLimits::default(), SOON);
    tagged.post(CHAT, &merged(&body(CHAT), json!({"model": "own"}))).ok();
}

#[test]
fn json_needs_no_content_type_on_ollamas_paths_unless_a_page_sends_it() {
    let server = demo_server();
    let form = ("content-type", "application/x-www-form-urlencoded");
    let send = |path: &str, headers: &[(&str, &str)]| {
        server.call("POST", path, headers, body(path).to_string().as_bytes())
    };
    for path in [OLLAMA, GENERATE] {
        assert_eq!(send(path, &[]).status, 200, "{path}");
        assert_eq!(send(path, &[form]).status, 200, "{path}");
        for page in [("origin", "http://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")]
        {
            assert_eq!(send(path, &[form, page]).status, 415, "{path} {page:?}");
        }
        assert_eq!(send(path, &[("content-type", "multipart/form-data; boundary=x")]).status, 415);
    }
    for path in [CHAT, COMPLETIONS, RESPONSES, ANTHROPIC] {
        assert_eq!(send(path, &[form]).status, 415, "{path}");
    }
}

#[test]
fn a_system_message_may_stand_among_the_messages_of_anthropics_api() {
    let server = demo_server();
    let said = json!([{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be brief."}]);
    let parts = json!([{"role": "user", "content": "Hi"}, {"role": "system", "content":
        [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}]);
    let counted = |messages: &Value| {
        server.post("/v1/messages/count_tokens", &json!({"messages": messages})).ok()["input_tokens"].clone()
    };
    assert_eq!(counted(&said), counted(&parts));
    assert!(counted(&said).as_u64() > counted(&hello()).as_u64(), "the model sees it");
    let ask = |messages: &Value| {
        let body = json!({"messages": messages, "max_tokens": 8, "temperature": 0});
        server.post(ANTHROPIC, &body).ok()["content"][0]["text"].clone()
    };
    let chat = json!({"messages": said, "max_tokens": 8, "temperature": 0});
    let chat = server.post(CHAT, &chat).ok();
    assert_eq!(ask(&said), chat["choices"][0]["message"]["content"]);
}

#[test]
fn an_error_names_the_field_that_was_sent() {
    let server = demo_server();
    let long = "x ".repeat(5000);
    for (path, more, named) in [
        (CHAT, json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (CHAT, json!({"max_tokens": null, "max_completion_tokens": 1, "min_tokens": 2}), "min_tokens"),
        (CHAT, json!({"max_tokens": null, "max_completion_tokens": -3}), "max_completion_tokens"),
        (CHAT, json!({"messages": [{"role": "user", "content": long}]}), "messages"),
        (CHAT, json!({"n": 1000}), "n"),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "x"}]}]}),
            "messages[1].content[0].type",
        ),
        (COMPLETIONS, json!({"best_of": 1000}), "best_of"),
        (COMPLETIONS, json!({"logprobs": 21}), "logprobs"),
        (COMPLETIONS, json!({"prompt": [long]}), "prompt"),
        (RESPONSES, json!({"input": long}), "input"),
        (RESPONSES, json!({"top_p": 2}), "top_p"),
        (ANTHROPIC, json!({"stop_sequences": [""]}), "stop_sequences"),
        (ANTHROPIC, json!({"messages": [{"role": "user", "content": long}]}), "messages"),
        (OLLAMA, json!({"options": {"top_p": 2}}), "options.top_p"),
        (OLLAMA, json!({"options": {"repeat_penalty": -1}}), "options.repeat_penalty"),
        (OLLAMA, json!({"options": {"stop": [""]}}), "options.stop"),
        (OLLAMA, json!({"messages": [{"role": "user", "content": long}]}), "messages"),
        (GENERATE, json!({"prompt": long}), "prompt"),
    ] {
        let refused = server.post(path, &merged(&body(path), more.clone()));
        assert_eq!(refused.status, 400, "{path} {named}: {}", refused.text());
        let said = message(&refused);
        match refused.json()["error"]["param"].as_str() {
            Some(param) => assert_eq!(param, named, "{said}"),
            None => assert!(
                said.starts_with(&format!("{named}: ")) || said.contains("tokens"),
                "{path} {named}: {said}"
            ),
        }
        for engines in ["max_new_tokens", "repetition_penalty: ", "prompt: "] {
            assert!(named == "prompt" || !said.starts_with(engines), "{path}: {said}");
        }
    }
}

#[test]
fn every_error_has_the_form_of_its_path() {
    let config = ServerConfig { body_limit: 4096, ..ServerConfig::default() };
    let server = Server::start(demo(EngineConfig::default(), config), ConnectionLimits::default(), SOON);
    let json_type = ("content-type", "application/json");
    let large = format!("{{\"x\": \"{}\"}}", "x".repeat(5000));
    for (path, form) in [
        (COMPLETIONS, "openai"),
        (CHAT, "openai"),
        (RESPONSES, "openai"),
        ("/v1/models/x", "openai"),
        ("/v1/models/x%ff", "openai"),
        ("/v1/nowhere", "openai"),
        (ANTHROPIC, "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/v1/messages/batches", "anthropic"),
        (OLLAMA, "ollama"),
        (GENERATE, "ollama"),
        ("/api/tags", "ollama"),
        ("/api/pull", "ollama"),
    ] {
        for reply in [
            server.get(path),
            server.call("DELETE", path, &[], b""),
            server.call("POST", path, &[json_type], b"{"),
            server.call("POST", path, &[json_type], large.as_bytes()),
            server.call("POST", path, &[("content-type", "image/png")], b"{}"),
            server.call("POST", path, &[json_type, ("content-encoding", "gzip")], b"{}"),
        ] {
            if reply.status == 200 {
                continue;
            }
            let error = reply.json();
            let right = match form {
                "openai" => error["error"]["message"].is_string() && error["error"]["type"].is_string(),
                "anthropic" => error["type"] == "error" && error["error"]["type"].is_string(),
                _ => error["error"].is_string(),
            };
            assert!(right && reply.header("content-type") == Some("application/json"), "{path}: {error}");
        }
    }
}

#[test]
fn a_request_of_http_1_1_names_exactly_one_host() {
    let server = demo_server();
    for (version, hosts, status) in [
        ("1.1", "", 400),
        ("1.1", "Host: localhost\r\n", 200),
        ("1.1", "Host: localhost\r\nHost: localhost\r\n", 400),
        ("1.1", "Host: local host\r\n", 400),
        ("1.1", "Host: evil.example\r\n", 421),
        ("1.0", "", 200),
        ("1.0", "Host: localhost\r\n", 200),
    ] {
        let mut stream = server.connect();
        write!(stream, "GET /v1/models HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n").unwrap();
        let reply = Reply::read(stream);
        assert_eq!(reply.status, status, "HTTP/{version} {hosts:?}");
        if status == 400 {
            assert_eq!(reply.refusal(), (400, Some("Host".into())));
        }
    }
}
