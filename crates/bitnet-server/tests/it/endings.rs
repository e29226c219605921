//! Requests that end early, when a client hangs up or does not read, or when the server shuts down.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use bitnet::inference::EngineConfig;
use bitnet_hash_model::mix;
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use serde_json::json;

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

fn slow_server(each: u64, engine: EngineConfig) -> Server {
    let app = hashes(slow(Duration::from_millis(each)), engine, ServerConfig::default());
    Server::start(app, ConnectionLimits::default(), SOON)
}

fn long(stream: bool) -> serde_json::Value {
    json!({"prompt": [1, 2, 3], "max_tokens": 5000, "ignore_eos": true, "stream": stream})
}

#[test]
fn a_client_that_hangs_up_costs_nothing_more_streamed_or_not() {
    let server = slow_server(1, EngineConfig::default());
    for stream in [true, false] {
        let mut client = server.connect();
        let headers = [("content-type", "application/json")];
        client
            .write_all(&request("POST", COMPLETIONS, &headers, long(stream).to_string().as_bytes()))
            .unwrap();
        server.until("it runs", |s| s.metric("bitnet_requests_running") == 1.0);
        drop(client);
        server.until("it is gone", |s| {
            s.metric("bitnet_requests_running") + s.metric("bitnet_kv_blocks_used") == 0.0
        });
    }
    assert_eq!(server.metric_of("bitnet_requests_total", "cancelled"), 2.0);
    assert!(server.metric("bitnet_generation_tokens_total") < 4000.0);
}

/// Counts of what clients saw.
#[derive(Debug, Default)]
struct Seen {
    /// Answers read to their end, and the tokens in them.
    ended: u64,
    tokens: u64,
    /// Streams left in the middle.
    left: u64,
    /// Requests left before their answer, which the server may not have accepted.
    gone: u64,
}

impl Seen {
    /// Plays one client, whose behaviour follows from its number: it reads everything, or leaves a long answer.
    fn ask(&mut self, server: &Server, i: u64) {
        let (stream, stays, pick) = (i % 3 < 2, mix(i, 1) % 4 < 2, mix(i, 2) % 60);
        let body = json!({
            "prompt": [i % 40, 1 + i % 7], "max_tokens": if stays { pick } else { 6000 }, "ignore_eos": true,
            "seed": i, "stream": stream,
        });
        match (stream, stays) {
            (true, true) => {
                let events = server.stream(COMPLETIONS, &[], &body).count() as u64;
                assert_eq!(events, pick + 2, "tokens, the end, and [DONE]");
            }
            (true, false) => {
                let read = server.stream(COMPLETIONS, &[], &body).take(1 + pick as usize).count() as u64;
                assert_eq!(read, 1 + pick);
            }
            (false, true) => {
                let answer = server.post(COMPLETIONS, &body).ok();
                assert_eq!(answer["usage"]["completion_tokens"], pick);
            }
            (false, false) => {
                let headers = [("content-type", "application/json")];
                let bytes = request("POST", COMPLETIONS, &headers, body.to_string().as_bytes());
                server.connect().write_all(&bytes).unwrap();
            }
        }
        match (stream, stays) {
            (_, true) => (self.ended, self.tokens) = (self.ended + 1, self.tokens + pick),
            (true, false) => self.left += 1,
            (false, false) => self.gone += 1,
        }
    }

    fn add(self, other: Seen) -> Seen {
        Seen {
            ended: self.ended + other.ended,
            tokens: self.tokens + other.tokens,
            left: self.left + other.left,
            gone: self.gone + other.gone,
        }
    }
}

#[test]
fn a_thousand_clients_that_disconnect_at_random_leave_nothing_and_are_counted_as_they_saw_it() {
    const WORKERS: u64 = 20;
    let engine = EngineConfig { max_queued_requests: 2000, ..EngineConfig::default() };
    let app = hashes(slow(Duration::from_micros(50)), engine, ServerConfig::default());
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let seen = std::thread::scope(|scope| {
        let server = &server;
        let work = |worker: u64| {
            let mut seen = Seen::default();
            (worker..1000).step_by(WORKERS as usize).for_each(|i| seen.ask(server, i));
            seen
        };
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().map(|w| w.join().unwrap()).fold(Seen::default(), Seen::add)
    });
    server.until("all are gone", |s| {
        let left = s.metric("bitnet_requests_running") + s.metric("bitnet_requests_waiting");
        left + s.metric("bitnet_kv_blocks_used") == 0.0
    });
    let requests = |reason| server.metric_of("bitnet_requests_total", reason) as u64;
    assert_eq!(requests("complete"), seen.ended);
    let cancelled = requests("cancelled");
    assert!((seen.left..=seen.left + seen.gone).contains(&cancelled), "{cancelled}: {seen:?}");
    assert_eq!(requests(""), seen.ended + cancelled, "nothing failed");
    assert!(server.metric("bitnet_generation_tokens_total") as u64 >= seen.tokens + seen.left);
}

#[test]
fn a_reader_that_stops_pauses_its_own_request_and_no_other_and_loses_no_token() {
    let engine = EngineConfig { mailbox: 16, ..EngineConfig::default() };
    let limits = ConnectionLimits { send_buffer: 8 << 10, ..ConnectionLimits::default() };
    let app = hashes(slow(Duration::from_micros(20)), engine, ServerConfig::default());
    let server = Server::start(app, limits, SOON);
    let body = |seed: u64, tokens: usize| {
        json!({"prompt": [1, 2, 3], "max_tokens": tokens, "ignore_eos": true, "seed": seed, "stream": true,
            "temperature": 1})
    };
    let want = unnamed(server.stream(COMPLETIONS, &[], &body(1, 8000)));
    let mut stopped = server.stream(COMPLETIONS, &[], &body(1, 8000));
    let begun: Vec<String> = stopped.by_ref().take(10).collect();
    server.until("it pauses", |s| s.metric("bitnet_slow_reader_pauses_total") >= 1.0);
    server.until("nothing is computed", |s| {
        let before = s.metric("bitnet_steps_total");
        std::thread::sleep(Duration::from_millis(50));
        s.metric("bitnet_steps_total") == before
    });
    let others = server.stream(COMPLETIONS, &[], &body(2, 300)).count();
    assert_eq!(others, 302);
    let rest: Vec<String> = stopped.collect();
    assert_eq!(unnamed([begun, rest].concat()), want);
}

#[test]
fn a_client_that_reads_nothing_for_too_long_is_disconnected() {
    let engine = EngineConfig { mailbox: 16, ..EngineConfig::default() };
    let limits = ConnectionLimits {
        send_buffer: 8 << 10,
        write_timeout: Duration::from_millis(300),
        ..ConnectionLimits::default()
    };
    let app = hashes(slow(Duration::from_micros(20)), engine, ServerConfig::default());
    let server = Server::start(app, limits, SOON);
    let stopped = server.stream(
        COMPLETIONS,
        &[],
        &json!({
            "prompt": [1], "max_tokens": 8000, "ignore_eos": true, "stream": true,
        }),
    );
    server.until("it is cancelled", |s| s.metric_of("bitnet_requests_total", "cancelled") == 1.0);
    drop(stopped);
}

#[test]
fn a_server_told_to_stop_refuses_new_requests_and_finishes_the_others() {
    let mut server = slow_server(10, EngineConfig { max_batch_size: 4, ..EngineConfig::default() });
    let body =
        |i: u64| json!({"prompt": [i, 2], "max_tokens": 100, "ignore_eos": true, "seed": i, "stream": true});
    let mut streams: Vec<Events> = (0..8).map(|i| server.stream_later(COMPLETIONS, &body(i))).collect();
    server.until("they are taken", |s| {
        s.metric("bitnet_requests_running") + s.metric("bitnet_requests_waiting") == 8.0
    });
    server.end();
    server.until("it is not ready", |s| s.get("/ready").status == 503);
    assert_eq!(server.get("/live").status, 200);
    assert_eq!(server.get("/health").status, 503);
    let refused = server.post(COMPLETIONS, &body(9));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("stopped")));
    for stream in &mut streams {
        stream.read_head();
        let events: Vec<String> = stream.collect();
        assert_eq!(events.len(), 102);
        assert_eq!(events[101], "data: [DONE]\n\n");
    }
    drop(streams);
    assert!(server.join().complete);
}

#[test]
fn an_idle_server_told_to_stop_answers_until_a_proxy_has_noticed() {
    let app = hashes(Box::new(|_, _| Ok(())), EngineConfig::default(), ServerConfig::default());
    let linger = Duration::from_secs(3);
    let mut server = Server::lingering(app, ConnectionLimits::default(), SOON, linger);
    let (mut kept, mut fresh) = (server.connect(), server.connect());
    let ask = request("GET", "/ready", &[], b"");
    let ask = String::from_utf8(ask).unwrap().replace("connection: close\r\n", "");
    kept.write_all(ask.as_bytes()).unwrap();
    let mut answer = [0; 4096];
    let length = kept.read(&mut answer).unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
    let begun = Instant::now();
    server.end();
    server.until("it is not ready", |s| s.get("/ready").status == 503);
    assert_eq!(server.post(COMPLETIONS, &json!({"prompt": [1]})).status, 503);
    // Connections from before are answered once more, and closed.
    for connection in [&mut kept, &mut fresh] {
        connection.write_all(ask.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("connection: close"), "{answer}");
    }
    assert!(server.join().complete);
    assert!(begun.elapsed() >= linger);
}

#[test]
fn a_server_told_to_end_before_it_has_a_model_does_not_linger() {
    let linger = Duration::from_secs(20);
    let app = App::new(ServerConfig::default());
    let server = Server::lingering(app, ConnectionLimits::default(), SOON, linger);
    assert_eq!(server.get("/live").status, 200);
    let begun = Instant::now();
    assert!(server.join().complete);
    assert!(begun.elapsed() < linger);
}

#[test]
fn requests_that_do_not_finish_in_time_get_an_error() {
    let app = hashes(slow(Duration::from_millis(5)), EngineConfig::default(), ServerConfig::default());
    let mut server = Server::start(app, ConnectionLimits::default(), Duration::from_secs(2));
    let mut stream = server.stream(COMPLETIONS, &[], &long(true));
    stream.next().unwrap();
    server.end();
    let last = stream.last().unwrap();
    assert_eq!(data_of(&last)["error"]["code"], "stopped");
    assert!(!server.join().complete);
}

#[test]
fn the_probes_report_that_the_model_is_being_loaded() {
    let server = Server::start(App::new(ServerConfig::default()), ConnectionLimits::default(), SOON);
    assert_eq!((server.get("/live").status, server.get("/").status), (200, 200));
    for path in ["/ready", "/health", "/metrics", "/stats", "/v1/models"] {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (503, Some("loading")), "{path}");
    }
    assert_eq!(server.post(COMPLETIONS, &json!({"prompt": "x"})).status, 503);
}

#[test]
fn a_connection_that_is_idle_or_slow_with_its_head_is_closed() {
    let limits = ConnectionLimits { header_timeout: Duration::from_secs(1), ..ConnectionLimits::default() };
    let app = hashes(Box::new(|_, _| Ok(())), EngineConfig::default(), ServerConfig::default());
    let server = Server::start(app, limits, SOON);
    for begun in ["", "GET /live HTTP/1.1\r\nhost", "GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let mut client = server.connect();
        client.write_all(begun.as_bytes()).unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all.is_empty(), !begun.ends_with("\r\n\r\n"), "{begun:?}");
    }
}
