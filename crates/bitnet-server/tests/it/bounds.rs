//! No client can take more than its share, and a request that could only fail is refused before it runs.

use std::{
    fs,
    io::Write,
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

use bitnet::inference::EngineConfig;
use bitnet::model::{Batch, Limits, Logits, Tokenizer};
use bitnet_hash_model::HashModel;
use bitnet_server::{App, BatchOptions, ConnectionLimits, ServerConfig, run_batch, serve};
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn message(reply: &Reply) -> String {
    reply.json()["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_text_that_no_context_holds_is_refused_by_its_bytes_before_it_is_tokenised() {
    let server = demo_server();
    let long = "a ".repeat(1 << 20);
    let messages = json!([{"role": "user", "content": long}]);
    for (path, body, param) in [
        (COMPLETIONS, json!({"prompt": long}), "prompt"),
        (COMPLETIONS, json!({"prompt": ["x", long]}), "prompt"),
        (CHAT, json!({"messages": messages}), "messages"),
        ("/tokenize", json!({"prompt": long}), "prompt"),
        ("/tokenize", json!({"messages": messages}), "messages"),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.refusal(), (400, Some(param.into())), "{path}");
        let told = message(&reply);
        assert!(told.contains("bytes, and the context of 2048 tokens holds at most"), "{told}");
    }
    let fits = json!({"prompt": "First Citizen:\n".repeat(640), "max_tokens": 1});
    assert!(server.post(COMPLETIONS, &fits).ok()["usage"]["prompt_tokens"].as_u64().unwrap() > 1600);
}

#[test]
fn a_request_that_meets_its_deadline_keeps_its_text() {
    let app = hashes(slow(Duration::from_millis(5)), EngineConfig::default(), ServerConfig::default());
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let body = |n: usize| {
        json!({"prompt": [1, 2, 3], "max_tokens": 5000, "n": n, "ignore_eos": true, "seed": 1,
            "return_token_ids": true})
    };
    for n in [1, 3] {
        let late = server.post_with(COMPLETIONS, &[("x-deadline-ms", "1000")], &body(n)).ok();
        for choice in late["choices"].as_array().unwrap() {
            assert_eq!(
                (&choice["finish_reason"], &choice["stop_reason"]),
                (&json!("length"), &json!("deadline"))
            );
            assert!((1..400).contains(&choice["token_ids"].as_array().unwrap().len()), "{choice}");
        }
        let told: usize = late["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["token_ids"].as_array().unwrap().len())
            .sum();
        assert_eq!(late["usage"]["completion_tokens"], told);
    }
    assert_eq!(server.metric_of("bitnet_requests_total", "timeout"), 2.0);
    let early = json!({"prompt": [1], "max_tokens": 2, "ignore_eos": true});
    assert!(server.post(COMPLETIONS, &early).ok()["choices"][0].get("stop_reason").is_none());
}

#[test]
fn a_stream_continues_only_with_its_seed_on_what_began_it() {
    let server = demo_server();
    let body = json!({"prompt": "O", "max_tokens": 6, "temperature": 1, "stream": true});
    let mut stream = server.stream(COMPLETIONS, &[], &body);
    let seed = stream.headers.iter().find(|(name, _)| name == "x-seed").unwrap().1.clone();
    let events: Vec<String> = stream.by_ref().collect();
    let id = id_of(&events[2]).unwrap();
    let go_on = |id: &str, body: &Value, seed: Option<&str>| {
        let headers: Vec<_> =
            [("last-event-id", id)].into_iter().chain(seed.map(|seed| ("x-seed", seed))).collect();
        server.post_with(COMPLETIONS, &headers, body)
    };
    assert_eq!(go_on(id, &body, None).refusal(), (400, Some("Last-Event-ID".into())), "another text");
    let rest = go_on(id, &body, Some(&seed));
    assert_eq!((rest.status, rest.text()), (200, events[3..].concat()));
    for (ours, theirs, told) in [
        (";demo;", ";other;", "model other instead of demo"),
        (";f32;", ";i8;", "kv i8 instead of f32"),
        (";cpu", ";cuda:0", "device cuda:0 instead of cpu"),
        ("bitnet-", "bitnet-9", "version bitnet-9"),
    ] {
        let other = go_on(&id.replace(ours, theirs), &body, Some(&seed));
        assert_eq!(other.refusal(), (412, Some("Last-Event-ID".into())), "{theirs}");
        assert!(message(&other).contains(told), "{}", message(&other));
    }
    let mut longer = body.clone();
    longer["prompt"] = json!("Oh");
    assert_eq!(go_on(id, &longer, Some(&seed)).status, 412, "another body");
    assert_eq!(go_on(id, &body, Some("1")).status, 412, "another seed");

    let mut greedy = body.clone();
    greedy["temperature"] = json!(0);
    let events: Vec<String> = server.stream(COMPLETIONS, &[], &greedy).collect();
    assert_eq!(go_on(id_of(&events[2]).unwrap(), &greedy, None).text(), events[3..].concat());
}

#[test]
fn what_computes_an_answer_is_named_in_it_and_guards_a_batch_that_is_resumed() {
    let service = demo_service(EngineConfig::default(), ServerConfig::default());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [input, output, partial] = ["who.in", "who.out", "who.out.partial"].map(|name| folder.join(name));
    let line = |i: u64| {
        let body = json!({"prompt": "O", "max_tokens": 3 + i});
        json!({"custom_id": format!("r{i}"), "method": "POST", "url": COMPLETIONS, "body": body}).to_string()
            + "\n"
    };
    fs::write(&input, (0..3).map(line).collect::<String>()).unwrap();
    let run = || run_batch(&service, &input, &output, BatchOptions::default(), &mut |_| {});
    run().unwrap();
    let whole = fs::read_to_string(&output).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(whole.contains(&format!(r#""system_fingerprint":"bitnet-{version};demo;f32;cpu""#)), "{whole}");
    let answers: Vec<&str> = whole.split_inclusive('\n').collect();
    fs::write(&partial, answers[..2].concat().replace("demo;f32;cpu", "demo;i8;cpu")).unwrap();
    let told = run().unwrap_err().to_string();
    assert!(told.contains("line 1") && told.contains("kv i8 instead of f32"), "{told}");
    fs::write(&partial, answers[..2].concat()).unwrap();
    assert_eq!(run().unwrap().resumed, 2);
    assert_eq!(fs::read_to_string(&output).unwrap(), whole);
}

#[test]
fn equal_requests_have_ids_of_their_own() {
    let server = demo_server();
    let body = json!({"prompt": "O", "max_tokens": 2, "seed": 5});
    let [one, two] = [(), ()].map(|()| server.post(COMPLETIONS, &body).ok());
    assert_eq!(one["choices"], two["choices"]);
    assert_ne!(one["id"], two["id"]);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let ids: Vec<Value> = (0..2)
        .map(|_| {
            let events: Vec<String> = server.stream(COMPLETIONS, &[], &streamed).collect();
            let ids: Vec<Value> = events[..3].iter().map(|event| data_of(event)["id"].clone()).collect();
            assert!(ids.iter().all(|id| *id == ids[0]), "one answer has one id");
            ids[0].clone()
        })
        .collect();
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn a_format_cannot_be_combined_with_what_forbids_its_end() {
    let server = demo_server();
    for (field, value) in [("ignore_eos", json!(true)), ("min_tokens", json!(5))] {
        let body = json!({"prompt": "O", "max_tokens": 20, "response_format": {"type": "json_object"}, field: value});
        assert_eq!(server.post(COMPLETIONS, &body).refusal(), (400, Some(field.into())));
    }
    let harmless = json!({"prompt": "O", "max_tokens": 2, "response_format": {"type": "json_object"},
        "ignore_eos": false, "min_tokens": 0});
    server.post(COMPLETIONS, &harmless).ok();
}

#[test]
fn a_number_in_a_format_has_a_bounded_number_of_digits() {
    let server = demo_server();
    let one =
        server.post("/tokenize", &json!({"prompt": "1", "add_special_tokens": false})).ok()["tokens"].clone();
    assert_eq!(one.as_array().unwrap().len(), 1, "a digit is a token");
    let one = one[0].clone();
    let ask = |schema: Value| {
        let body = json!({"prompt": "O", "max_tokens": 120, "temperature": 0, "logit_bias": {one.to_string(): 100},
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
        let answer = server.post(COMPLETIONS, &body).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let integer = ask(json!({"type": "integer"}));
    assert_eq!(integer, "1".repeat(20));
    let number = ask(json!({"type": "number"}));
    assert!(number.len() < 70 && number.parse::<f64>().is_ok(), "{number}");
    // The limit on digits does not apply to strings, or to numbers that the schema spells out.
    let digits = ask(json!({"type": "string", "minLength": 30, "maxLength": 30}));
    assert_eq!(digits, format!("\"{}\"", "1".repeat(30)));
    let large: Value = serde_json::from_str("1000000000000000000000000000").unwrap();
    assert_eq!(ask(json!({"const": large})).parse::<f64>().unwrap(), 1e27);
}

/// Writes token 0, half a character, and then token 3: its other half and an `x`.
fn half_characters(batch: &Batch, logits: Option<&mut Logits>) -> Result<(), bitnet::model::ForwardError> {
    if let Some(logits) = logits {
        let next = if batch.tokens().last() == Some(&0) { 3 } else { 0 };
        let row = logits.row_mut(0);
        row.fill(0.0);
        row[next] = 10.0;
    }
    Ok(())
}

#[test]
fn a_character_that_ends_in_the_token_of_a_stop_string_is_whole() {
    let spelled = json!({
        "model": {"type": "BPE", "vocab": {"\u{c3}": 0, "\u{a9}": 1, "x": 2, "\u{a9}x": 3}, "merges": ["\u{a9} x"]},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    });
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 256, state_slots: 0 };
    let model = HashModel::new(4, CONTEXT, limits).with_hook(Box::new(half_characters));
    let mut checkpoint = bare("halves", &model);
    checkpoint.tokenizer = Some(Tokenizer::from_json(spelled.to_string().as_bytes()).unwrap());
    let (engine, config) = (EngineConfig::default(), ServerConfig::default());
    let service = serve_weights(checkpoint, Box::new(model), engine, config);
    let server = Server::start(App::ready(service), ConnectionLimits::default(), SOON);
    let body = json!({"prompt": [2], "max_tokens": 5, "temperature": 0, "stop": "x"});
    assert_eq!(server.post(COMPLETIONS, &body).ok()["choices"][0]["text"], "\u{e9}");
    let cut = json!({"prompt": [2], "max_tokens": 1, "temperature": 0, "stop": "x"});
    assert_eq!(server.post(COMPLETIONS, &cut).ok()["choices"][0]["text"], "\u{fffd}", "half a character");
}

#[test]
fn a_server_told_to_end_ends_in_time_even_if_a_step_hangs() {
    let app = hashes(slow(Duration::from_secs(5)), EngineConfig::default(), ServerConfig::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    let body = json!({"prompt": [1], "max_tokens": 5}).to_string();
    client
        .write_all(&request("POST", COMPLETIONS, &[("content-type", "application/json")], body.as_bytes()))
        .unwrap();
    let drain = Duration::from_millis(500);
    let begun = Instant::now();
    let end = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Duration::ZERO
    };
    let report = runtime.block_on(serve(listener, app, ConnectionLimits::default(), drain, end)).unwrap();
    let took = begun.elapsed();
    assert!(!report.complete && took < Duration::from_secs(4), "{took:?}");
    runtime.shutdown_background();
}

#[test]
fn a_foreign_host_name_is_not_answered_on_a_loopback_address() {
    let server = demo_server();
    let ask = |host: &str| {
        let mut client = server.connect();
        write!(client, "GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        Reply::read(client)
    };
    for local in ["localhost", "localhost:1234", "127.0.0.1", "[::1]:80"] {
        assert_eq!(ask(local).status, 200, "{local}");
    }
    let foreign = ask("evil.example:8080");
    assert_eq!((foreign.status, foreign.json()["error"]["code"].as_str()), (421, Some("unknown_host")));
    assert!(foreign.header("x-request-id").is_some());
}

#[test]
fn the_prompts_of_a_request_run_all_or_not_at_all() {
    let engine = EngineConfig {
        max_batch_size: 4,
        max_queued_requests: 16,
        mailbox: usize::MAX,
        ..EngineConfig::default()
    };
    let app = hashes(slow(Duration::from_millis(2)), engine, ServerConfig::default());
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let body = |prompts: usize, n: usize| {
        let prompts: Vec<_> = (0..prompts).map(|i| [1, i as u32 % 40]).collect();
        json!({"prompt": prompts, "max_tokens": 3, "n": n, "ignore_eos": true})
    };
    for (prompts, n, param) in [(64, 1, "prompt"), (9, 2, "prompt"), (1, 17, "n")] {
        let reply = server.post(COMPLETIONS, &body(prompts, n));
        assert_eq!(reply.refusal(), (400, Some(param.into())), "{}", reply.text());
        assert!(message(&reply).contains("at most 16"), "{}", message(&reply));
    }
    assert_eq!(server.metric("bitnet_steps_total"), 0.0, "nothing has run");
    assert_eq!(server.post(COMPLETIONS, &body(16, 1)).ok()["choices"].as_array().unwrap().len(), 16);
    let endless = json!({"prompt": [1], "max_tokens": 6000, "ignore_eos": true, "stream": true});
    let running: Vec<Events> = (0..4).map(|_| server.stream(COMPLETIONS, &[], &endless)).collect();
    let waiting = server.stream_later(COMPLETIONS, &endless);
    server.until("one waits", |s| s.metric("bitnet_requests_waiting") == 1.0);
    assert_eq!(server.post(COMPLETIONS, &body(16, 1)).status, 429, "15 would fit");
    assert_eq!(server.metric("bitnet_requests_waiting"), 1.0, "none of them is left");
    drop((running, waiting));
}

#[test]
fn choices_that_would_wait_for_each_other_without_end_are_refused_by_their_bound() {
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 1 << 14, state_slots: 0 };
    let model = HashModel::new(VOCAB, 1 << 20, limits);
    let (engine, config) = (EngineConfig::default(), ServerConfig::default());
    let service = serve_weights(bare("hash", &model), Box::new(model), engine, config);
    let server = Server::start(App::ready(service), ConnectionLimits::default(), SOON);
    let body = |n: usize, tokens: usize| json!({"prompt": [1], "max_tokens": tokens, "n": n, "stream": true, "stop_token_ids": (0..VOCAB).collect::<Vec<_>>()});
    let refused = server.post(COMPLETIONS, &body(128, 1 << 19));
    assert_eq!(refused.refusal(), (400, Some("max_tokens".into())));
    assert!(message(&refused).contains("4194304"), "{}", message(&refused));
    assert_eq!(server.post(COMPLETIONS, &body(128, 1 << 15)).status, 200);
    assert_eq!(server.post(COMPLETIONS, &body(1, 1 << 19)).status, 200);
}

#[test]
fn bodies_under_way_have_a_total_and_small_ones_are_always_taken() {
    let config = ServerConfig { body_limit: 1 << 20, bodies_limit: 1 << 20, ..ServerConfig::default() };
    let app = hashes(Box::new(|_, _| Ok(())), EngineConfig::default(), config);
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let padded = |bytes: usize| format!("{{\"prompt\": [1], \"max_tokens\": 1{}}}", " ".repeat(bytes));
    let json = [("content-type", "application/json")];
    let large = request("POST", COMPLETIONS, &json, padded(700 << 10).as_bytes());
    let refused = loop {
        let mut held = server.connect();
        held.write_all(&large[..large.len() - 10]).unwrap();
        let mut client = server.connect();
        // The server may answer and close before everything is sent.
        let _ = client.write_all(&large);
        let refused = Reply::read(client);
        server.post(COMPLETIONS, &json!({"prompt": [1], "max_tokens": 1})).ok();
        let _ = held.write_all(&large[large.len() - 10..]);
        let held = Reply::read(held);
        if (held.status, refused.status) == (200, 429) {
            break refused;
        }
        // They arrived side by side: the second was done before the first was there, or the first was refused, too or
        // instead.
        assert!(held.status == 200 || held.json()["error"]["code"] == "bodies_full", "{}", held.text());
    };
    assert_eq!(refused.json()["error"]["code"], "bodies_full");
    assert!(server.metric_of("bitnet_requests_rejected_total", "bodies_full") >= 1.0);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.call("POST", COMPLETIONS, &json, padded(700 << 10).as_bytes()).status, 200);
}

#[test]
fn a_host_name_can_be_allowed() {
    let config = ServerConfig { allow_hosts: vec!["models.example".into()], ..ServerConfig::default() };
    let app = hashes(Box::new(|_, _| Ok(())), EngineConfig::default(), config);
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    for (host, status) in [("models.example", 200), ("other.example", 421)] {
        let mut client = server.connect();
        write!(client, "GET /live HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        assert_eq!(Reply::read(client).status, status, "{host}");
    }
}
