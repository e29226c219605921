#![no_main]

use axum::{body::Body, http::Request};
use bitnet_fuzz_targets::{TestServer, PATHS};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static ASKED: LazyLock<TestServer> = LazyLock::new(TestServer::new);

fuzz_target!(|bytes: &[u8]| {
    let Some((path, body)) = bytes.split_first() else { return };
    let path = PATHS[usize::from(*path) % PATHS.len()];
    let request = Request::post(path).header("content-type", "application/json");
    let status = ASKED.ask(request.body(Body::from(body.to_vec())).expect("a sound head"));
    // An answer or an error of the client is right; a panic, or an error of the server, is a finding.
    assert!(status < 500, "{status}");
});
