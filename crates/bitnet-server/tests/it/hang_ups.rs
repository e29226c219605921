//! Clients that hang up in every phase of a request.

use std::{io::Write, net::TcpStream, time::Duration};

use bitnet::inference::EngineConfig;
use bitnet_server::{ConnectionLimits, ServerConfig};
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

/// When a client hangs up.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Connected,
    /// After this many thousandths of the request's bytes.
    Asking(usize),
    Asked,
    Queued,
    /// While its prompt, of many steps, is computed.
    Prefill,
    Streaming,
    /// While an answer that is not streamed is generated.
    Waiting,
    /// After it has read everything.
    Done,
}

const PHASES: [Phase; 11] = [
    Phase::Connected,
    Phase::Asking(20),
    Phase::Asking(300),
    Phase::Asking(700),
    Phase::Asking(999),
    Phase::Asked,
    Phase::Queued,
    Phase::Prefill,
    Phase::Streaming,
    Phase::Waiting,
    Phase::Done,
];

fn body(prompt: usize, max_tokens: usize, stream: bool) -> Value {
    let prompt: Vec<usize> = (0..prompt).map(|p| p * 7 % 40).collect();
    json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "seed": 5, "temperature": 1, "stream": stream})
}

fn send(server: &Server, body: &Value, thousandths: usize) -> TcpStream {
    let bytes =
        request("POST", COMPLETIONS, &[("content-type", "application/json")], body.to_string().as_bytes());
    let mut client = server.connect();
    client.write_all(&bytes[..bytes.len() * thousandths / 1000]).unwrap();
    client
}

/// Asks and hangs up. Others take `others` places of the batch.
fn leave(server: &Server, phase: Phase, others: f64) {
    let runs = |more: f64| move |s: &Server| s.metric("bitnet_requests_running") >= others + more;
    match phase {
        Phase::Connected => drop(server.connect()),
        Phase::Asking(part) => drop(send(server, &body(3, 4000, true), part)),
        Phase::Asked => drop(send(server, &body(3, 4000, true), 1000)),
        Phase::Queued => {
            let client = send(server, &body(3, 4000, true), 1000);
            server.until("it waits", |s| s.metric("bitnet_requests_waiting") >= 1.0);
            drop(client);
        }
        Phase::Prefill => {
            let client = send(server, &body(6000, 2000, true), 1000);
            server.until("its prompt is begun", runs(1.0));
            drop(client);
        }
        Phase::Streaming => {
            let mut events = Events::of(send(server, &body(3, 6000, true), 1000));
            events.read_head();
            events.by_ref().take(3).for_each(drop);
        }
        Phase::Waiting => {
            let client = send(server, &body(3, 6000, false), 1000);
            server.until("it is generated", runs(1.0));
            drop(client);
        }
        Phase::Done => {
            let mut events = Events::of(send(server, &body(3, 5, true), 1000));
            events.read_head();
            assert_eq!(events.count(), 7, "tokens, the end, and [DONE]");
        }
    }
}

/// What an event says, without the names of its request.
fn told(event: String) -> String {
    event.split_once("\"choices\":").map_or(event.clone(), |(_, choices)| choices.to_owned())
}

#[test]
fn a_client_that_hangs_up_in_any_phase_leaves_nothing_and_disturbs_nobody() {
    let engine = EngineConfig { max_batch_size: 2, ..EngineConfig::default() };
    let app = hashes(slow(Duration::from_micros(300)), engine, ServerConfig::default());
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let bystander = body(9, 1500, true);
    let want: Vec<String> = server.stream(COMPLETIONS, &[], &bystander).map(told).collect();
    let idle = |s: &Server| {
        let left = s.metric("bitnet_requests_running") + s.metric("bitnet_requests_waiting");
        left + s.metric("bitnet_kv_blocks_used") == 0.0
    };
    for phase in PHASES {
        let begun = server.metric("bitnet_requests_total");
        // To make a client wait, both places are taken; otherwise one.
        let others = if phase == Phase::Queued { 2 } else { 1 };
        let streams: Vec<Events> =
            (0..others).map(|_| server.stream_later(COMPLETIONS, &bystander)).collect();
        server.until("others run", |s| s.metric("bitnet_requests_running") >= f64::from(others));
        leave(&server, phase, f64::from(others));
        for mut stream in streams {
            stream.read_head();
            assert_eq!(stream.map(told).collect::<Vec<_>>(), want, "{phase:?}");
        }
        server.until("nothing is left", idle);
        let counted = server.metric("bitnet_requests_total") - begun - f64::from(others);
        let may = match phase {
            Phase::Connected | Phase::Asking(_) => 0.0..=0.0,
            Phase::Asked => 0.0..=1.0,
            _ => 1.0..=1.0,
        };
        assert!(may.contains(&counted), "{phase:?}: {counted}");
    }
    assert_eq!(server.metric_of("bitnet_requests_total", "fault"), 0.0);
}
