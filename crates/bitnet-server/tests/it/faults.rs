//! A failure affects only its own request. The next one is answered, or the server says why not.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use bitnet::inference::EngineConfig;
use bitnet::kernels::{BackendInfo, KernelError, gpu::GpuError};
use bitnet::model::{Batch, ForwardError, Limits, Logits, Model, ModelSpec};
use bitnet_hash_model::HashModel;
use bitnet_server::{App, ConnectionLimits, ServerConfig};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";
/// A prompt with this token makes its logits NaN.
const NAN: u32 = 48;
/// A step with this token panics.
const PANICS: u32 = 49;
/// A step with this token loses the GPU.
const LOSES: u32 = 47;

fn poisoned(batch: &Batch, logits: Option<&mut Logits>) -> Result<(), ForwardError> {
    let Some(logits) = logits else {
        assert!(!batch.tokens().contains(&PANICS), "a fault in the model");
        return Ok(());
    };
    let mut row = 0;
    for run in batch.runs() {
        let rows = batch.logit_rows().iter().filter(|index| run.tokens.contains(index)).count();
        if batch.tokens()[run.tokens.clone()].contains(&NAN) {
            (row..row + rows).for_each(|r| logits.row_mut(r).fill(f32::NAN));
        }
        row += rows;
    }
    Ok(())
}

fn body(prompt: &[u32], stream: bool) -> Value {
    // The tokens that cause faults are never drawn.
    let never = json!({NAN.to_string(): -100, PANICS.to_string(): -100});
    json!({"prompt": prompt, "max_tokens": 40, "ignore_eos": true, "seed": 3, "stream": stream, "logit_bias": never})
}

#[test]
fn a_forward_pass_that_hangs_is_no_longer_live_until_it_ends() {
    let gate = Arc::new(Mutex::new(()));
    let inner = Arc::clone(&gate);
    let hangs = move |_: &Batch, logits: Option<&mut Logits>| {
        if logits.is_none() {
            drop(inner.lock());
        }
        Ok(())
    };
    let engine = EngineConfig { step_limit: Duration::from_millis(100), ..EngineConfig::default() };
    let app = hashes(Box::new(hangs), engine, ServerConfig::default());
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    // It computes a few steps when it starts.
    server.until("no step runs", |s| s.metric("bitnet_step_age_seconds") == 0.0);
    let closed = gate.lock();
    let waiting = server.stream_later(COMPLETIONS, &body(&[1, 2], true));
    server.until("it is noticed", |s| s.get("/live").status == 503);
    assert_eq!(server.get("/live").json()["error"]["code"].as_str(), Some("stalled"));
    assert!(server.metric("bitnet_step_age_seconds") >= 0.1);
    drop(closed);
    server.until("it goes on", |s| s.get("/live").status == 200);
    drop(waiting);
}

#[test]
fn a_request_at_fault_fails_alone_with_an_error_status() {
    let server = Server::start(
        hashes(Box::new(poisoned), EngineConfig::default(), ServerConfig::default()),
        ConnectionLimits::default(),
        SOON,
    );
    let want = server.post(COMPLETIONS, &body(&[1, 2], false)).ok();
    thread::scope(|scope| {
        let server = &server;
        let ask = |prompt: &'static [u32], stream| {
            scope.spawn(move || server.post(COMPLETIONS, &body(prompt, stream)))
        };
        let good: Vec<_> = (0..6).map(|_| ask(&[1, 2], false)).collect();
        let bad =
            [ask(&[3, NAN], false), ask(&[4, PANICS], false), ask(&[5, NAN], true), ask(&[6, PANICS], true)];
        for reply in bad {
            let reply = reply.join().unwrap();
            assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (500, Some("server_error")));
        }
        for reply in good {
            assert_eq!(reply.join().unwrap().ok()["choices"], want["choices"]);
        }
    });
    assert_eq!(server.metric_of("bitnet_requests_total", "fault"), 4.0);
    assert_eq!(server.post(COMPLETIONS, &body(&[1, 2], false)).ok()["choices"], want["choices"]);
    assert_eq!(server.get("/ready").status, 200);
}

/// A model that panics where the engine does not expect it: when it copies a block.
struct Dying(HashModel);

impl Model for Dying {
    fn spec(&self) -> &ModelSpec {
        self.0.spec()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn backend(&self) -> BackendInfo {
        self.0.backend()
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        self.0.forward(batch, logits)
    }

    fn copy_block(&mut self, _: u32, _: u32) -> Result<(), ForwardError> {
        panic!("a fault in the engine")
    }
}

#[test]
fn after_a_fault_of_the_engine_requests_are_answered_or_ready_reports_why_not() {
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 64, state_slots: 0 };
    let model = Box::new(Dying(HashModel::new(VOCAB, CONTEXT, limits)));
    let (engine, config) = (EngineConfig::default(), ServerConfig::default());
    let service = serve_weights(bare("dying", &*model), model, engine, config);
    let server = Server::start(App::ready(service), ConnectionLimits::default(), SOON);
    server.post(COMPLETIONS, &body(&[1, 2], false)).ok();
    // Two choices share the block of their prompt until one of them writes.
    let mut two = body(&[1, 2], false);
    two["n"] = json!(2);
    assert!(server.post(COMPLETIONS, &two).status >= 500);
    let ready = server.get("/ready");
    let next = server.post(COMPLETIONS, &body(&[1, 2], false));
    match ready.status {
        200 => drop(next.ok()),
        _ => assert_eq!((ready.refusal().0, next.refusal().0), (503, 503)),
    }
    assert_eq!(server.get("/live").status, 200);
}

fn losing(batch: &Batch, _: Option<&mut Logits>) -> Result<(), ForwardError> {
    if !batch.tokens().contains(&LOSES) {
        return Ok(());
    }
    let reason = "CUDA_ERROR_ECC_UNCORRECTABLE".to_owned();
    Err(KernelError::Gpu(GpuError::Failed { during: "cuStreamQuery", reason }).into())
}

#[test]
fn when_the_gpu_is_lost_every_request_and_every_probe_gets_the_reason() {
    let app = hashes(Box::new(losing), EngineConfig::default(), ServerConfig::default());
    let server = Server::start(app, ConnectionLimits::default(), SOON);
    let never = json!({LOSES.to_string(): -100});
    let ask = |prompt: &[u32]| {
        server.post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 4, "logit_bias": never}))
    };
    ask(&[1, 2]).ok();
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.metric_of("bitnet_backend_info", "device=\"hash\""), 1.0);
    assert_eq!(server.metric_of("bitnet_backend_info", "kv=\"none\""), 1.0);
    for prompt in [[1, LOSES], [1, 2]] {
        let reply = ask(&prompt);
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, error["code"].as_str()), (503, Some("device_lost")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("ECC_UNCORRECTABLE"), "{error}");
    }
    assert_eq!(server.get("/ready").json()["error"]["code"], "device_lost");
    let health = server.get("/health");
    assert_eq!((health.status, health.json()["status"].as_str()), (503, Some("device_lost")));
    assert!(health.json()["reason"].as_str().unwrap().contains("restart the process"));
    assert_eq!(server.get("/live").status, 200);
}

#[test]
fn a_server_whose_gpu_is_lost_answers_and_ends_by_itself() {
    let app = hashes(Box::new(losing), EngineConfig::default(), ServerConfig::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let served = Arc::clone(&app);
    let server = thread::spawn(move || {
        bitnet_server::run(listener, served, ConnectionLimits::default(), SOON, Duration::ZERO)
    });
    let body = json!({"prompt": [1, LOSES], "max_tokens": 4}).to_string();
    let head = "Host: localhost\r\nContent-Type: application/json\r\nConnection: close";
    write!(client, "POST {COMPLETIONS} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 503") && reply.contains("device_lost"), "{reply}");
    server.join().unwrap().unwrap();
    assert!(app.lost().unwrap().contains("restart the process"));
}
