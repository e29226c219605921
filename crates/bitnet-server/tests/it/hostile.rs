//! Whatever a client sends, the answer is no worse than a 4xx, and the next request is answered.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::Shutdown,
    path::Path,
};

use bitnet::inference::EngineConfig;
use bitnet_hash_model::mix;
use bitnet_server::{BatchOptions, ConnectionLimits, ServerConfig, run_batch};
use serde_json::{Value, json};

use crate::support::*;

/// Sends bytes and returns the status, or `None` if the connection was closed without one.
fn status(server: &Server, bytes: &[u8], close: bool) -> Option<u16> {
    let mut client = server.connect();
    // The server may answer and close before everything is sent.
    let _ = client.write_all(bytes);
    if close {
        let _ = client.shutdown(Shutdown::Write);
    }
    let mut reader = BufReader::new(client);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let _ = reader.read_to_end(&mut Vec::new());
    line.split(' ').nth(1)?.parse().ok()
}

fn bodies() -> Vec<(&'static str, String)> {
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}});
    vec![
        (
            "/v1/completions",
            json!({"prompt": [1, 2], "max_tokens": 3, "n": 2, "stop": ["a"], "logit_bias": {"3": 1.5},
                "seed": 7, "temperature": 0.5, "stream": true, "stream_options": {"include_usage": true}})
            .to_string(),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "\u{e9}\u{1F600}"}]}],
                "max_tokens": 3, "response_format": format, "logprobs": true, "top_logprobs": 2})
            .to_string(),
        ),
        (
            "/v1/responses",
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "1"}],
                "tools": [{"type": "function", "name": "f"}], "max_output_tokens": 3, "stream": true})
            .to_string(),
        ),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "a"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]}],
                "tools": [{"name": "f", "input_schema": {}}], "max_tokens": 3, "stop_sequences": ["x"]})
            .to_string(),
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a"},
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}],
                "format": "json", "options": {"num_predict": 3, "num_ctx": 60, "repeat_penalty": 1.1, "stop": "x"}})
            .to_string(),
        ),
        ("/tokenize", json!({"prompt": "a\u{0}b", "add_special_tokens": false}).to_string()),
        ("/detokenize", json!({"tokens": [1, 2, 3]}).to_string()),
    ]
}

/// Damages a text in one of a few ways, chosen by a number.
fn mutated(text: &str, i: u64) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let pick = |what: u64, n: usize| mix(i, what) as usize % n.max(1);
    for change in 0..1 + i % 3 {
        let at = pick(10 + change, bytes.len());
        match pick(20 + change, 6) {
            0 => bytes[at] ^= 1 << pick(30 + change, 8),
            1 => bytes.truncate(at),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, [b'"', b'{', b'[', b'\\', 0, 0xFF, b'9', b'-'][pick(40 + change, 8)]),
            4 => {
                let part = bytes[at..(at + 20).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let huge = ["1e400", "-9999999999999999999999", "null", "[[[[", "\"\\ud800\"", "{\"a\":"];
                bytes.splice(at..at, huge[pick(50 + change, 6)].bytes());
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
fn thousands_of_malformed_bodies_get_4xx() {
    let server = demo_server();
    let (bodies, mut refused) = (bodies(), 0);
    for i in 0..4000 {
        let (path, text) = &bodies[i as usize % bodies.len()];
        let bytes = mutated(text, i);
        let sent = request("POST", path, &[("content-type", "application/json")], &bytes);
        let status = status(&server, &sent, false);
        let shown = || String::from_utf8_lossy(&bytes).into_owned();
        assert!(status.is_some_and(|s| s == 200 || (400..500).contains(&s)), "{status:?}: {}", shown());
        refused += u64::from(status != Some(200));
    }
    assert!(refused > 2000, "{refused}");
    assert_eq!(server.get("/ready").status, 200);
}

#[test]
fn every_one_of_thousands_of_malformed_batch_lines_has_an_answer_in_its_place() {
    let service = demo_service(EngineConfig::default(), ServerConfig::default());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [input, output] = ["malformed.in", "malformed.out"].map(|name| folder.join(name));
    let sound = |(url, body): (&str, String)| {
        let mut body: Value = serde_json::from_str(&body).unwrap();
        // Batch lines cannot be streamed.
        body.as_object_mut().unwrap().retain(|name, _| !name.starts_with("stream"));
        json!({"custom_id": "r", "method": "POST", "url": url, "body": body}).to_string()
    };
    let sound: Vec<String> =
        bodies().into_iter().filter(|(path, _)| path.ends_with("completions")).map(sound).collect();
    let line = |i: u64| match (i % 4, &sound[(i / 4) as usize % sound.len()]) {
        (0, sound) => sound.clone().into_bytes(),
        (_, sound) => mutated(sound, i),
    };
    let lines: Vec<Vec<u8>> = (0..4000).map(line).collect();
    let text = [lines.join(&b'\n'), b"\n".to_vec()].concat();
    fs::write(&input, &text).unwrap();
    let done = run_batch(&service, &input, &output, BatchOptions::default(), &mut |_| {}).unwrap();
    let asked = text.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
    let answers: Vec<Value> = fs::read_to_string(&output)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((done.lines as usize, answers.len()), (asked, asked));
    let (mut answered, mut refused) = (0, 0);
    for answer in &answers {
        match (answer["response"]["status_code"].as_u64(), answer["error"]["message"].as_str()) {
            (Some(200), None) => answered += 1,
            (Some(400..500), None) | (None, Some(_)) => refused += 1,
            _ => panic!("{answer}"),
        }
    }
    assert_eq!(done.failed, refused);
    assert!(answered >= 1000 && refused > 2500, "{answered} answered, {refused} refused");
}

#[test]
fn malformed_heads_and_streams_get_4xx_or_are_closed() {
    let app = hashes(Box::new(|_, _| Ok(())), EngineConfig::default(), ServerConfig::default());
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let body = json!({"prompt": [1, 2], "max_tokens": 3, "stream": true});
    let begun: Vec<String> = server.stream("/v1/completions", &[("x-seed", "5")], &body).collect();
    let body = body.to_string();
    let headers = [
        ("content-type", "application/json"),
        ("last-event-id", id_of(&begun[1]).unwrap()),
        ("x-seed", "5"),
        ("x-deadline-ms", "10000"),
        ("x-request-id", "a"),
        ("authorization", "Bearer x"),
    ];
    let sound = request("POST", "/v1/completions", &headers, body.as_bytes());
    assert_eq!(status(&server, &sound, false), Some(200));
    let text = String::from_utf8(sound).unwrap();
    let mut answered = 0;
    for i in 0..1500 {
        let bytes = mutated(&text, i);
        let status = status(&server, &bytes, true);
        let shown = || String::from_utf8_lossy(&bytes).into_owned();
        assert!(status.is_none_or(|s| s < 500), "{status:?}: {}", shown());
        answered += u64::from(status.is_some_and(|s| s >= 400));
    }
    assert!(answered > 300, "{answered}");
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"GET /v1/models/%ff%00 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ] {
        let status = status(&server, bytes, true);
        assert!(status.is_none_or(|s| s < 500), "{status:?}: {bytes:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(1 << 20));
    assert!(status(&server, long.as_bytes(), true).is_none_or(|s| (400..500).contains(&s)));
    assert_eq!(server.get("/ready").status, 200);
}
