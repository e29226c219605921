//! What several targets share: a server whose model computes nothing and whose texts are short, and a target that opens
//! models.

use std::path::Path;

use axum::{Router, body::Body, http::Request};
use bitnet_hash_model::HashModel;
use bitnet_server::{
    App, BatchOptions, BatchProgress, BatchRunError, ServerConfig, Service,
    bitnet::{
        Model,
        inference::EngineConfig,
        model::{Checkpoint, Limits},
    },
    router, run_batch,
};
use tokio::runtime::Runtime;
use tower::ServiceExt;

#[doc(hidden)]
pub use {bitnet_fuzz, libfuzzer_sys};

/// A target that opens a model whose file of the kind with this name holds the bytes.
///
/// A model or one error is right, a panic is a finding; `-timeout` and `-rss_limit_mb` watch the rest.
#[macro_export]
macro_rules! open_target {
    ($name:expr) => {
        use $crate::{
            bitnet_fuzz::{Kind, Seed},
            libfuzzer_sys,
        };

        static SEED: std::sync::LazyLock<Seed> = std::sync::LazyLock::new(|| {
            Seed::new(Kind::named($name).expect("a kind")).expect("an undamaged model")
        });

        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            let _either = SEED.open(bytes.to_vec());
        });
    };
}

/// Where bodies go.
pub const PATHS: [&str; 8] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/tokenize",
    "/detokenize",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
];

/// What is asked.
pub struct TestServer {
    runtime: Runtime,
    routes: Router,
    batch: Service,
}

impl TestServer {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        TestServer {
            runtime: runtime.expect("a runtime"),
            routes: router(App::ready(service())),
            batch: service(),
        }
    }

    /// The status of an answer.
    pub fn ask(&self, request: Request<Body>) -> u16 {
        let answer = self.runtime.block_on(async {
            let answer = self.routes.clone().oneshot(request).await.expect("routes always answer");
            let status = answer.status().as_u16();
            let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
            body.map(|_| status)
        });
        answer.expect("a body comes to its end")
    }

    /// Answers a file of lines.
    pub fn batch(&self, input: &Path, output: &Path) -> Result<BatchProgress, BatchRunError> {
        run_batch(&self.batch, input, output, BatchOptions::default(), &mut |_| {})
    }
}

impl Default for TestServer {
    fn default() -> Self {
        TestServer::new()
    }
}

fn service() -> Service {
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 16, state_slots: 0 };
    let checkpoint = Checkpoint::demo().expect("the demo");
    let weights = Box::new(HashModel::new(2048, 48, limits));
    let model = Model::start(checkpoint, weights, EngineConfig::default()).expect("an engine");
    Service::new(model, ServerConfig { name: Some("fuzzed".into()), ..ServerConfig::default() })
}
