//! Streams have the same bytes alone, in a crowd, and when they are resumed.

use bitnet::inference::EngineConfig;
use bitnet_server::{ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn all(server: &Server, path: &str, headers: &[(&str, &str)], body: &Value) -> Vec<String> {
    server.stream(path, headers, body).collect()
}

/// The text of each choice.
fn texts(events: &[String], choices: usize) -> Vec<String> {
    let mut texts = vec![String::new(); choices];
    for event in events.iter().filter(|e| id_of(e).is_some()) {
        for choice in data_of(event)["choices"].as_array().unwrap() {
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap();
            texts[choice["index"].as_u64().unwrap() as usize] += text;
        }
    }
    texts
}

#[test]
fn a_stream_carries_the_text_a_token_an_event_and_ends_properly() {
    let server = demo_server();
    let body =
        |stream: bool| json!({"prompt": "First Citizen:", "max_tokens": 12, "seed": 4, "stream": stream});
    let whole = server.post(COMPLETIONS, &body(false)).ok();
    let events = all(&server, COMPLETIONS, &[], &body(true));
    assert_eq!(texts(&events, 1)[0], whole["choices"][0]["text"]);
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    let ids: Vec<&str> =
        events.iter().filter_map(|e| id_of(e)).map(|id| id.split(';').next().unwrap()).collect();
    assert_eq!(ids, (0..=tokens).map(|i| i.to_string()).collect::<Vec<_>>());
    assert_eq!(events.last().unwrap(), "data: [DONE]\n\n");
    let end = data_of(&events[tokens]);
    assert_eq!(end["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert!(end.get("usage").is_none());
}

#[test]
fn a_chat_stream_begins_with_the_role_and_ends_with_the_counts_if_asked() {
    let server = demo_server();
    let body = json!({
        "messages": [{"role": "user", "content": "O"}], "max_tokens": 6, "seed": 4, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let events = all(&server, CHAT, &[], &body);
    let deltas: Vec<Value> = events[..events.len() - 1].iter().map(|e| data_of(e)).collect();
    assert_eq!(deltas[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(deltas[1]["choices"][0]["delta"].get("role").is_none());
    assert_eq!(deltas[0]["object"], "chat.completion.chunk");
    let counts = deltas.last().unwrap();
    assert_eq!(counts["choices"], json!([]));
    let tokens = deltas.len() - 2;
    let prompt = counts["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(counts["usage"]["completion_tokens"], tokens);
    assert_eq!(counts["usage"]["total_tokens"], tokens + prompt);
    assert!(deltas[..deltas.len() - 1].iter().all(|d| d["usage"].is_null()));
}

#[test]
fn a_dropped_stream_resumes_byte_for_byte_after_any_event() {
    let server = demo_server();
    let bodies = [
        (COMPLETIONS, json!({"prompt": "First Citizen:", "max_tokens": 10, "seed": 4, "stream": true})),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "O"}], "max_tokens": 7, "seed": 1, "n": 3,
                "stream": true, "stream_options": {"include_usage": true}, "logprobs": true}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": ["What", "O"], "max_tokens": 6, "seed": 9, "n": 2, "stream": true, "stop": "e"}),
        ),
    ];
    for (path, body) in bodies {
        let undisturbed = all(&server, path, &[], &body);
        for (i, event) in undisturbed.iter().enumerate().filter(|(_, e)| id_of(e).is_some()) {
            let rest = all(&server, path, &[("last-event-id", id_of(event).unwrap())], &body);
            assert_eq!(rest, undisturbed[i + 1..], "after {event}");
        }
    }
    for (id, stream) in [("1,2", true), ("", true), ("1", false)] {
        let body = json!({"prompt": "O", "seed": 1, "stream": stream});
        let reply = server.post_with(COMPLETIONS, &[("last-event-id", id)], &body);
        assert_eq!(reply.refusal(), (400, Some("Last-Event-ID".into())), "{id} {stream}");
    }
}

#[test]
fn a_stream_without_a_seed_resumes_with_the_reported_seed() {
    let server = demo_server();
    let body = json!({"prompt": "O", "max_tokens": 9, "temperature": 1, "stream": true});
    let mut first = server.stream(COMPLETIONS, &[], &body);
    let seed = first.headers.iter().find(|(name, _)| name == "x-seed").unwrap().1.clone();
    let begun: Vec<String> = first.by_ref().take(4).collect();
    let rest: Vec<String> = first.collect();
    let headers = [("x-seed", seed.as_str()), ("last-event-id", id_of(&begun[3]).unwrap())];
    assert_eq!(all(&server, COMPLETIONS, &headers, &body), rest);
}

#[test]
fn of_64_streams_at_once_each_gets_the_bytes_it_gets_alone() {
    // There are fewer places than streams, and too few blocks for all, so streams wait and some are computed again.
    let engine = EngineConfig { max_batch_size: 12, ..EngineConfig::default() };
    let server = Server::start(demo(engine, ServerConfig::default()), ConnectionLimits::default(), SOON);
    let bodies: Vec<Value> = (0..64)
        .map(|i| {
            let words = ["O", "First Citizen:", "What say you", "The king is"];
            json!({
                "prompt": words[i % 4].repeat(1 + i % 5), "max_tokens": 20 + 7 * (i % 9), "seed": i,
                "temperature": 0.3 * (i % 4) as f64, "n": 1 + i % 3, "stream": true,
            })
        })
        .collect();
    let alone: Vec<Vec<String>> =
        bodies.iter().map(|body| unnamed(all(&server, COMPLETIONS, &[], body))).collect();
    std::thread::scope(|scope| {
        let server = &server;
        let crowd: Vec<_> =
            bodies.iter().map(|body| scope.spawn(move || all(server, COMPLETIONS, &[], body))).collect();
        for (i, (got, want)) in crowd.into_iter().zip(alone).enumerate() {
            assert_eq!(unnamed(got.join().unwrap()), want, "stream {i}");
        }
    });
    assert!(server.metric("bitnet_step_rows_sum") > 2.0 * server.metric("bitnet_step_rows_count"));
    assert_eq!(server.metric("bitnet_requests_total"), 128.0);
    server.until("all blocks are free", |s| s.metric("bitnet_kv_blocks_used") == 0.0);
}
