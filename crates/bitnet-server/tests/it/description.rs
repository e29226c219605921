//! `/openapi.json` says what is true.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use bitnet::{
    inference::EngineConfig,
    model::{Limits, Model},
};
use bitnet_hash_model::HashModel;
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

#[test]
fn the_described_fields_are_those_that_are_taken() {
    let server = demo_server();
    let description = server.get("/openapi.json").ok();
    for (path, schema, needed) in [
        ("/v1/completions", "CompletionRequest", json!({"prompt": "x"})),
        ("/v1/chat/completions", "ChatRequest", json!({"messages": [{"role": "user", "content": "x"}]})),
        ("/v1/responses", "ResponseRequest", json!({"input": "x", "max_output_tokens": 1})),
        (
            "/v1/messages",
            "MessageRequest",
            json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ),
        (
            "/api/chat",
            "OllamaChatRequest",
            json!({"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 1}}),
        ),
        ("/api/generate", "OllamaGenerateRequest", json!({"prompt": "x", "options": {"num_predict": 1}})),
    ] {
        let fields = description["components"]["schemas"][schema]["properties"].as_object().unwrap();
        assert!(fields.len() > 10, "{fields:?}");
        for name in fields.keys() {
            // A value that no field takes, unless it takes any: one that is known says what is wrong with it, not that it
            // is unknown.
            let mut body = needed.clone();
            if path.ends_with("completions") {
                body["max_tokens"] = json!(1);
            }
            body[name] = json!({"no": ["such", "value"]});
            let reply = server.post(path, &body);
            if reply.status == 200 {
                continue;
            }
            let error = reply.json()["error"].clone();
            let message = error["message"].as_str().or(error.as_str()).unwrap();
            let unknown = format!("{name}: this field is not supported");
            assert!(!message.starts_with(&unknown), "{message}");
        }
    }
}

#[test]
fn every_described_path_is_there() {
    let server = demo_server();
    let description = server.get("/openapi.json").ok();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{name}", "demo");
            let reply =
                server.call(&method.to_uppercase(), &path, &[("content-type", "application/json")], b"{}");
            // These need no field.
            let without = ["/api/show", "/api/chat", "/api/generate"].contains(&path.as_str());
            let want = if method == "get" || without { 200 } else { 400 };
            assert_eq!(reply.status, want, "{method} {path}");
        }
    }
    let references = description.to_string();
    for part in references.split("\"#/").skip(1).map(|part| part.split('"').next().unwrap()) {
        assert_ne!(description.pointer(&format!("/{part}")), None::<&Value>, "{part}");
    }
}

#[test]
fn stats_are_the_metrics_as_json() {
    let server = demo_server();
    server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true})).ok();
    server.until("it is counted", |s| s.metric("bitnet_e2e_latency_seconds_count") == 1.0);
    let stats = server.get("/stats").ok();
    assert_eq!(stats["bitnet_generation_tokens_total"], json!([{"model": "demo", "value": 3.0}]));
    let ended = json!([{"model": "demo", "class": "normal", "reason": "complete", "value": 1.0}]);
    assert_eq!(stats["bitnet_requests_total"], ended);
    let whole = &stats["bitnet_e2e_latency_seconds"][0];
    assert_eq!(whole["count"], 1);
    assert_eq!(whole["sum"].as_f64().unwrap(), server.metric("bitnet_e2e_latency_seconds_sum"));
    let text = server.get("/metrics").text();
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    assert!(names.eq(stats.as_object().unwrap().keys()), "{text}");
}

#[test]
fn metrics_keep_to_the_conventions_of_prometheus() {
    let server = demo_server();
    server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 2})).ok();
    server.until("it is counted", |s| s.metric("bitnet_e2e_latency_seconds_count") == 1.0);
    let text = server.get("/metrics").text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut families = 0;
    for (name, kind) in types {
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        assert!(
            !["_count", "_sum", "_bucket", "_info_total"].iter().any(|end| name.ends_with(end)),
            "{name}"
        );
        assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        families += 1;
    }
    assert!(families > 40, "{text}");
    let version = concat!("bitnet_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\",model=\"demo\"} 1");
    assert!(text.contains(version), "{text}");
    promtool(&text);
}

#[test]
fn a_model_with_recurrent_layers_reports_its_states_and_others_none() {
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 64, state_slots: 9 };
    let model: Box<dyn Model> = Box::new(HashModel::new(VOCAB, CONTEXT, limits));
    let (engine, config) =
        (EngineConfig { max_batch_size: 4, ..Default::default() }, ServerConfig::default());
    let app = App::ready(serve_weights(bare("hash", &*model), model, engine, config));
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let prompt: Vec<u32> = (0..100).map(|token| token % 50).collect();
    let body = json!({"prompt": prompt, "max_tokens": 3, "ignore_eos": true});
    for _ in 0..2 {
        server.post("/v1/completions", &body).ok();
    }
    server.until("its state is free", |s| s.metric("bitnet_state_slots_used") == 0.0);
    assert_eq!(server.metric("bitnet_state_slots"), 9.0);
    assert_eq!(server.metric("bitnet_state_snapshots"), 1.0, "at the last block boundary of the prompt");
    assert_eq!(server.metric("bitnet_prefix_cache_hits_tokens_total"), 64.0);
    assert!(!demo_server().get("/metrics").text().contains("bitnet_state"));
}

/// Asks Prometheus' own linter, where it is installed.
#[allow(clippy::print_stdout, reason = "tests report what they covered")]
fn promtool(metrics: &str) {
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut check) = check.spawn() else { return println!("skipped: promtool is not installed") };
    check.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let told = check.wait_with_output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
}

#[test]
fn every_answer_is_counted_by_method_route_and_status() {
    let server = demo_server();
    let count = |labels: &str| server.metric_of("bitnet_http_requests_total", labels);
    server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 2})).ok();
    server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": "2"}));
    server.get("/v1/completions");
    server.get("/v1/models/demo").ok();
    for path in ["/v1/models/other", "/nowhere", "/v1/nowhere", "/%22}"] {
        server.get(path);
    }
    server.call("BREW", "/ready", &[], b"");
    for (labels, expected) in [
        (r#"method="POST",path="/v1/completions",status="200""#, 1.0),
        (r#"method="POST",path="/v1/completions",status="400""#, 1.0),
        (r#"method="GET",path="/v1/completions",status="405""#, 1.0),
        (r#"method="GET",path="/v1/models/{*name}",status="200""#, 1.0),
        (r#"method="GET",path="/v1/models/{*name}",status="404""#, 1.0),
        (r#"method="GET",path="other",status="404""#, 3.0),
        (r#"method="other",path="/ready",status="405""#, 1.0),
    ] {
        assert_eq!(count(labels), expected, "{labels}: {}", server.get("/metrics").text());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_process_has_its_usual_metrics() {
    let server = demo_server();
    for name in ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"] {
        assert!(server.metric(name) > 0.0, "{name}");
    }
    assert!(server.metric("process_open_fds") <= server.metric("process_max_fds"));
    let before = server.metric("process_cpu_seconds_total");
    server.until("time passes", |s| s.metric("process_cpu_seconds_total") > before);
}

#[test]
fn the_page_uses_only_what_the_server_has() {
    let place = tempfile::tempdir().unwrap();
    let server = server_with_folder(place.path());
    let (html, script) = (server.get("/").text(), server.get("/page.js").text());
    for (attribute, path) in [("href=\"", "page.css"), ("src=\"", "page.js")] {
        assert!(html.contains(&format!("{attribute}{path}\"")), "{path}");
        assert_eq!(server.get(&format!("/{path}")).status, 200, "{path}");
    }
    let stats = server.get("/stats").ok();
    let metrics = |text: &str| {
        let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        names.filter(|name| name.starts_with("bitnet_")).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut read = metrics(&script);
    // Only a server with a GPU can have host memory below it.
    read.retain(|name| !name.starts_with("bitnet_cache_host"));
    assert!(read.len() >= 5, "{read:?}");
    assert!(read.iter().all(|name| stats.get(name).is_some()), "{read:?}");
    let ids = script.split("at(\"").skip(1).filter_map(|rest| rest.split('"').next());
    for id in ids.filter(|id| !id.ends_with('-')) {
        assert!(html.contains(&format!("id=\"{id}\"")), "{id}");
    }
}

#[test]
fn haproxy_queues_every_path_that_generates() {
    let short = ["/v1/messages/count_tokens", "/api/show", "/tokenize", "/detokenize"];
    let description = demo_server().get("/openapi.json").ok();
    let paths = description["paths"].as_object().unwrap().iter();
    let posts = paths.filter(|(_, methods)| methods.get("post").is_some()).map(|(path, _)| path.as_str());
    let generates: Vec<&str> = posts.filter(|path| !short.contains(path)).collect();
    let proxy = include_str!("../../../../deploy/haproxy/haproxy.cfg");
    let queued = proxy.lines().find_map(|line| line.trim().strip_prefix("acl generates path ")).unwrap();
    assert_eq!(queued.split(' ').collect::<Vec<_>>(), generates);
}

#[test]
fn a_header_with_a_number_is_taken_within_its_described_limits() {
    let server = demo_server();
    let description = server.get("/openapi.json").ok();
    for header in ["X-Seed", "X-Deadline-Ms"] {
        let schema = &description["components"]["parameters"][header]["schema"];
        let (minimum, maximum) = (schema["minimum"].as_i64().unwrap(), schema["maximum"].as_u64().unwrap());
        for (value, taken) in [
            (i128::from(minimum), true),
            (i128::from(maximum), true),
            (i128::from(minimum) - 1, false),
            (i128::from(maximum) + 1, false),
        ] {
            for (path, body) in [
                ("/v1/completions", json!({"prompt": "x", "max_tokens": 1})),
                ("/api/generate", json!({"prompt": "x", "stream": false, "options": {"num_predict": 1}})),
            ] {
                let reply = server.post_with(path, &[(header, &value.to_string())], &body);
                // A deadline of a millisecond is valid, but too short for an answer.
                let hurried = header == "X-Deadline-Ms" && value == 1 && reply.status == 429;
                let status = if taken { 200 } else { 400 };
                assert!(reply.status == status || hurried, "{path}, {header} {value}: {}", reply.text());
            }
        }
    }
}

#[test]
fn the_events_of_every_stream_have_the_described_fields() {
    let server = demo_server();
    let description = server.get("/openapi.json").ok();
    let message = json!([{"role": "user", "content": "x"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 2, "stream": true})),
        ("/v1/chat/completions", json!({"messages": message, "max_tokens": 2, "stream": true})),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 2, "stream": true})),
        ("/v1/messages", json!({"messages": message, "max_tokens": 2, "stream": true})),
    ] {
        let content = &description["paths"][path]["post"]["responses"]["200"]["content"];
        let reference = content["text/event-stream"]["schema"]["$ref"].as_str().unwrap_or("#");
        let schema = description.pointer(&reference[1..]).unwrap();
        assert_eq!((&schema["type"], &schema["required"]), (&json!("object"), &json!(["data"])), "{path}");
        let reply = server.post(path, &body);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")), "{path}");
        for event in reply.text().split_terminator("\n\n") {
            let fields: Vec<&str> = event.lines().map(|line| line.split_once(": ").unwrap().0).collect();
            assert!(fields.contains(&"data"), "{path}: {event}");
            for field in fields {
                assert_eq!(schema["properties"][field]["type"], "string", "{path}: {event}");
            }
        }
    }
}

#[test]
fn a_null_list_of_allowed_tools_is_taken_as_described() {
    let server = demo_server();
    let description = server.get("/openapi.json").ok();
    let pointer = "/components/schemas/ToolChoice/anyOf/2/properties/allowed_tools/properties/tools/type";
    assert_eq!(description.pointer(pointer), Some(&json!(["array", "null"])));
    let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": null}});
    let body =
        json!({"messages": [{"role": "user", "content": "x"}], "tool_choice": choice, "max_tokens": 1});
    server.post("/v1/chat/completions", &body).ok();
}
