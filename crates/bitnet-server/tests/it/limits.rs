//! API keys, size limits, queue limits, deadlines and priorities.

use std::{io::Write, time::Duration};

use bitnet::inference::EngineConfig;
use bitnet_server::{ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

fn server(each: Duration, engine: EngineConfig, config: ServerConfig) -> Server {
    Server::start(hashes(slow(each), engine, config), ConnectionLimits::default(), SOON)
}

fn body(tokens: usize) -> Value {
    json!({"prompt": [1, 2, 3], "max_tokens": tokens, "ignore_eos": true, "seed": 1})
}

#[test]
fn without_the_key_only_the_page_and_the_probes_answer() {
    let config = ServerConfig { api_key: Some("k3y".into()), ..ServerConfig::default() };
    let server = server(Duration::ZERO, EngineConfig::default(), config);
    for path in ["/", "/page.css", "/page.js", "/live", "/ready", "/health"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in ["/v1/models", "/metrics", "/stats", "/openapi.json", "/v1/nothing"] {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")), "{path}");
    }
    assert_eq!(server.post(COMPLETIONS, &body(1)).status, 401);
    for (method, path) in [("GET", COMPLETIONS), ("DELETE", "/v1/models")] {
        assert_eq!(server.call(method, path, &[], b"").status, 401, "{method} {path}");
    }
    let key = |key| [("authorization", key)];
    assert_eq!(server.post_with(COMPLETIONS, &key("Bearer k3"), &body(1)).status, 401);
    assert_eq!(server.post_with(COMPLETIONS, &key("Bearer k3y"), &body(1)).status, 200);
    let refused = server.call("POST", COMPLETIONS, &[], b"not even JSON");
    assert_eq!(refused.status, 401, "nothing is read before the key is checked");
}

#[test]
fn every_answer_has_a_name_that_of_the_client_if_it_is_sound() {
    let server = server(Duration::ZERO, EngineConfig::default(), ServerConfig::default());
    let named = server.call("GET", "/live", &[("x-request-id", "mine-1")], b"");
    assert_eq!(named.header("x-request-id"), Some("mine-1"));
    let long = "x".repeat(129);
    for bad in ["", "\u{e9}", &long] {
        let reply = server.call("GET", "/live", &[("x-request-id", bad)], b"");
        assert!(reply.header("x-request-id").unwrap().starts_with("req-"), "{bad:?}");
    }
    assert!(server.get("/v1/nothing").header("x-request-id").is_some());
}

#[test]
fn a_body_is_limited_in_size_and_time_and_kind() {
    let config = ServerConfig {
        body_limit: 1000,
        body_timeout: Duration::from_millis(200),
        ..ServerConfig::default()
    };
    let server = server(Duration::ZERO, EngineConfig::default(), config);
    let json = ("content-type", "application/json");
    let large = format!(r#"{{"prompt": [1{}]}}"#, " ".repeat(2000));
    assert_eq!(server.call("POST", COMPLETIONS, &[json], large.as_bytes()).status, 413);
    let chunked = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    let mut client = server.connect();
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{chunked}"
    );
    client.write_all(head.as_bytes()).unwrap();
    assert_eq!(Reply::read(client).status, 413);

    let mut client = server.connect();
    let all = request("POST", COMPLETIONS, &[json], body(1).to_string().as_bytes());
    client.write_all(&all[..all.len() - 5]).unwrap();
    assert_eq!(Reply::read(client).json()["error"]["code"], "body_timeout");

    for headers in [&[][..], &[("content-type", "text/plain")], &[json, ("content-encoding", "gzip")]] {
        assert_eq!(server.call("POST", COMPLETIONS, headers, body(1).to_string().as_bytes()).status, 415);
    }
    let charset = [("content-type", "Application/JSON; charset=utf-8")];
    assert_eq!(server.call("POST", COMPLETIONS, &charset, body(1).to_string().as_bytes()).status, 200);
}

#[test]
fn a_full_queue_is_reported_with_a_time_to_retry() {
    let engine = EngineConfig { max_batch_size: 2, max_queued_requests: 3, ..EngineConfig::default() };
    let server = server(Duration::from_millis(5), engine, ServerConfig::default());
    // The third waits for one of the two places, so that the pace of the queue is known: about ten a second.
    for _ in 0..3 {
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| server.post(COMPLETIONS, &body(40)).ok())));
        });
    }
    let endless = json!({"prompt": [1], "max_tokens": 6000, "ignore_eos": true, "stream": true});
    let running: Vec<Events> = (0..2).map(|_| server.stream(COMPLETIONS, &[], &endless)).collect();
    let waiting: Vec<Events> = (0..3).map(|_| server.stream_later(COMPLETIONS, &endless)).collect();
    server.until("the queue is full", |s| s.metric("bitnet_requests_waiting") == 3.0);
    let refused = server.post(COMPLETIONS, &body(1));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("queue_full")));
    let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3).contains(&after), "{after}");
    assert_eq!(server.metric_of("bitnet_requests_rejected_total", "queue_full"), 1.0);
    drop((running, waiting));
    server.until("they are gone", |s| s.metric("bitnet_requests_waiting") == 0.0);
    server.post(COMPLETIONS, &body(1)).ok();
}

#[test]
fn a_queue_is_limited_in_tokens_too() {
    let engine = EngineConfig { max_batch_size: 1, max_queued_tokens: 10, ..EngineConfig::default() };
    let server = server(Duration::from_millis(5), engine, ServerConfig::default());
    let endless = json!({"prompt": [1], "max_tokens": 6000, "ignore_eos": true, "stream": true});
    let running = server.stream(COMPLETIONS, &[], &endless);
    let eight = json!({"prompt": vec![1; 8], "max_tokens": 6000, "ignore_eos": true, "stream": true});
    let waiting = server.stream_later(COMPLETIONS, &eight);
    server.until("one waits", |s| s.metric("bitnet_queue_tokens") == 8.0);
    let refused = server.post(COMPLETIONS, &body(1));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("backlog_full")));
    drop((running, waiting));
}

#[test]
fn a_request_that_would_miss_its_goal_is_refused_immediately() {
    let engine = EngineConfig { max_batch_size: 1, mailbox: usize::MAX, ..EngineConfig::default() };
    let config = ServerConfig { ttft_goal: Some(Duration::from_secs(2)), ..ServerConfig::default() };
    let server = server(Duration::from_millis(2), engine, config);
    // About five a second leave the queue.
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| server.post(COMPLETIONS, &body(100)).ok());
        }
    });
    let endless = json!({"prompt": [1], "max_tokens": 5000, "ignore_eos": true, "stream": true});
    let running = server.stream(COMPLETIONS, &[], &endless);
    let mut waiting = Vec::new();
    let refused = loop {
        let mut client = server.connect();
        let headers = [("content-type", "application/json")];
        client.write_all(&request("POST", COMPLETIONS, &headers, endless.to_string().as_bytes())).unwrap();
        let before = waiting.len() as f64;
        server.until("it is decided", |s| {
            s.metric("bitnet_requests_waiting") > before || s.metric("bitnet_requests_rejected_total") > 0.0
        });
        if server.metric("bitnet_requests_rejected_total") > 0.0 {
            break Reply::read(client);
        }
        waiting.push(client);
    };
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("overloaded")));
    // On a slow machine fewer fit.
    assert!((1..=40).contains(&waiting.len()), "{} wait", waiting.len());
    let hurried = server.post_with(COMPLETIONS, &[("x-deadline-ms", "1")], &body(1));
    assert_eq!((hurried.status, hurried.json()["error"]["code"].as_str()), (429, Some("deadline")));
    // Background requests have no goal, so they are not refused for missing it.
    let mut background = endless.clone();
    background["priority"] = json!("batch");
    let patient = server.stream_later(COMPLETIONS, &background);
    let waits = waiting.len() as f64 + 1.0;
    server.until("it waits", |s| s.metric("bitnet_requests_waiting") == waits);
    drop((running, waiting, patient));
}

#[test]
fn a_deadline_ends_what_has_begun_and_refuses_what_has_not() {
    let engine = EngineConfig { max_batch_size: 1, ..EngineConfig::default() };
    let server = server(Duration::from_millis(5), engine, ServerConfig::default());
    let mut streamed = body(5000);
    streamed["stream"] = json!(true);
    let late = server.stream(COMPLETIONS, &[("x-deadline-ms", "1000")], &streamed).last().unwrap();
    assert_eq!(data_of(&late)["error"]["code"], "timeout", "a stream can continue where it was");
    let endless = json!({"prompt": [1], "max_tokens": 6000, "ignore_eos": true, "stream": true});
    let running = server.stream(COMPLETIONS, &[], &endless);
    let never = server.post_with(COMPLETIONS, &[("x-deadline-ms", "100")], &body(5));
    assert_eq!(never.status, 429, "{}", never.text());
    assert!(never.header("retry-after").is_some());
    for bad in ["0", "-1", "x", ""] {
        let reply = server.post_with(COMPLETIONS, &[("x-deadline-ms", bad)], &body(1));
        assert_eq!(reply.refusal(), (400, Some("X-Deadline-Ms".into())), "{bad}");
    }
    drop(running);
}

#[test]
fn the_urgent_go_before_those_that_came_earlier() {
    let engine = EngineConfig { max_batch_size: 1, mailbox: usize::MAX, ..EngineConfig::default() };
    let server = server(Duration::from_millis(2), engine, ServerConfig::default());
    let first = server.stream(
        COMPLETIONS,
        &[],
        &json!({
            "prompt": [1], "max_tokens": 8000, "ignore_eos": true, "stream": true,
        }),
    );
    std::thread::scope(|scope| {
        let ask = |priority: &'static str| {
            let server = &server;
            scope.spawn(move || {
                let mut body = body(200);
                body["priority"] = json!(priority);
                server.post(COMPLETIONS, &body).ok();
                std::time::Instant::now()
            })
        };
        let batch = ask("batch");
        server.until("one waits", |s| s.metric("bitnet_requests_waiting") == 1.0);
        let normal = ask("normal");
        server.until("two wait", |s| s.metric("bitnet_requests_waiting") == 2.0);
        let interactive = ask("interactive");
        server.until("three wait", |s| s.metric("bitnet_requests_waiting") == 3.0);
        drop(first);
        let done = [interactive, normal, batch].map(|asked| asked.join().unwrap());
        assert!(done.is_sorted());
    });
}

#[test]
fn more_connections_than_allowed_wait_for_a_place() {
    let limits = ConnectionLimits { connections: 2, ..ConnectionLimits::default() };
    let app = hashes(Box::new(|_, _| Ok(())), EngineConfig::default(), ServerConfig::default());
    let server = Server::start(app, limits, SOON);
    let held = [server.connect(), server.connect()];
    std::thread::scope(|scope| {
        let third = scope.spawn(|| server.get("/live").status);
        std::thread::sleep(Duration::from_millis(200));
        assert!(!third.is_finished());
        drop(held);
        assert_eq!(third.join().unwrap(), 200);
    });
}
