//! A cache in a folder, as clients see it: over restarts, with salts, and in the metrics.

use std::time::Duration;

use bitnet_server::{ServerConfig, bitnet::inference::EngineConfig};
use serde_json::{Value, json};

use crate::support::*;

const WORDS: &str =
    "Before we proceed any further, hear me speak. You are all resolved rather to die than to famish? ";

/// Every API, with a body and where its answer counts cached tokens.
fn apis() -> [(&'static str, Value, &'static str); 4] {
    let text = WORDS.repeat(5);
    let messages = json!([{"role": "user", "content": text}]);
    let cached = "/usage/prompt_tokens_details/cached_tokens";
    [
        ("/v1/completions", json!({"prompt": text, "max_tokens": 4, "seed": 1}), cached),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 4, "seed": 1}), cached),
        (
            "/v1/responses",
            json!({"input": text, "max_output_tokens": 4, "temperature": 0.0}),
            "/usage/input_tokens_details/cached_tokens",
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 4, "temperature": 0.0}),
            "/usage/cache_read_input_tokens",
        ),
    ]
}

#[test]
fn every_api_counts_what_came_from_the_folder_and_salts_separate_tenants() {
    let place = tempfile::tempdir().unwrap();
    let ask = |server: &Server, salt: &str| {
        apis().map(|(path, body, cached)| {
            let answer = server.post(path, &merged(&body, json!({"cache_salt": salt}))).ok();
            answer.pointer(cached).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {answer}"))
        })
    };
    let first = server_with_folder(place.path());
    let [alone, ..] = ask(&first, "a");
    assert_eq!((alone, first.metric("bitnet_cache_tier_hits_total")), (0, 0.0));
    first.join();
    let second = server_with_folder(place.path());
    let cached = ask(&second, "a");
    assert!(cached.iter().all(|&tokens| tokens >= 64), "{cached:?}");
    assert!(second.metric("bitnet_cache_tier_hits_total") >= 1.0);
    assert!(second.metric("bitnet_cache_folder_hits_tokens_total") >= 64.0);
    assert!(second.metric("bitnet_cache_folder_read_bytes_total") > 1000.0);
    assert_eq!(second.metric("bitnet_cache_folder_damaged_total"), 0.0);
    assert_eq!(ask(&second, "b")[0], 0, "another tenant has read nothing");
    second.join();
}

#[test]
fn an_empty_salt_is_refused_by_name_and_a_user_is_a_salt() {
    let place = tempfile::tempdir().unwrap();
    let server = server_with_folder(place.path());
    for (path, body, _) in apis() {
        let refusal = server.post(path, &merged(&body, json!({"cache_salt": ""})));
        assert!(refusal.status == 400 && refusal.text().contains("cache_salt"), "{path}: {}", refusal.text());
    }
    let (path, body, cached) = &apis()[0];
    let ask =
        |more: Value| server.post(path, &merged(body, more)).ok().pointer(cached).unwrap().as_u64().unwrap();
    assert_eq!(ask(json!({"user": "ann"})), 0);
    assert!(ask(json!({"user": "ann"})) >= 64);
    assert!(ask(json!({"cache_salt": "ann", "user": "ben"})) >= 64);
    assert_eq!(ask(json!({"user": "ben"})), 0);
}

#[test]
fn a_server_without_a_folder_has_no_metrics_of_one() {
    let server = Server::start(
        demo(EngineConfig::default(), ServerConfig::default()),
        Default::default(),
        Duration::ZERO,
    );
    assert!(!server.get("/metrics").text().contains("bitnet_cache_"));
}
