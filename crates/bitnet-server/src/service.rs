use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::{Duration, UNIX_EPOCH},
};

use bitnet_inference::{DrainReport, Engine, EngineConfig, StartError, TokenText};
use bitnet_model::{ChatTemplate, Checkpoint, GenerationDefaults, Model, Tokenizer};

use crate::{
    http::{body::Bodies, error::ApiError, reading::Readers},
    identity::Identity,
    metrics::Metrics,
    openai::grammar::Grammars,
    overload::Overload,
};

/// A model as clients see it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServedModel {
    /// What clients call it.
    pub name: String,
    /// When it was made, in seconds since 1970: the time of its files. Streams tell it as the time of their text,
    /// which is a function of the model and the request and of no other time.
    pub created: u64,
    /// Text to ids and back; without one, prompts are token ids.
    pub tokenizer: Option<Tokenizer>,
    /// How conversations are written.
    pub chat: Option<ChatTemplate>,
    /// What the model asks for when a client says nothing, and the tokens that end a text.
    pub defaults: GenerationDefaults,
}

impl ServedModel {
    /// A model of token ids only.
    pub fn new(name: impl Into<String>) -> Self {
        ServedModel {
            name: name.into(),
            created: 0,
            tokenizer: None,
            chat: None,
            defaults: GenerationDefaults::default(),
        }
    }

    /// What a checkpoint says about itself.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        ServedModel {
            tokenizer: checkpoint.tokenizer.clone(),
            chat: checkpoint.chat.clone(),
            defaults: checkpoint.defaults.clone(),
            ..ServedModel::new(checkpoint.name.as_str())
        }
    }

    /// With the time of a file or folder, if there is one.
    pub fn dated(mut self, path: &Path) -> Self {
        let modified = path.metadata().and_then(|about| about.modified()).ok();
        let seconds = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        self.created = seconds.map_or(self.created, |s| s.as_secs());
        self
    }
}

/// How requests are treated.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// What clients must send as `Authorization: Bearer`, on all paths but the page and the probes.
    pub api_key: Option<String>,
    /// Maximum bytes of a body.
    pub body_limit: usize,
    /// Maximum bytes of all bodies together that have not been read, the first 16 KiB of each aside; further ones
    /// are refused.
    pub bodies_limit: usize,
    /// Maximum time that a body may take to arrive.
    pub body_timeout: Duration,
    /// Maximum time that a request may take, from the arrival of its body: reading it and its time in the queue
    /// included.
    pub request_timeout: Duration,
    /// Host names that are answered beside localhost. A server on a loopback address refuses all others; one on
    /// another address does if there are any here.
    pub allow_hosts: Vec<String>,
    /// Requests that would wait longer than this for their first token are refused.
    pub ttft_goal: Option<Duration>,
    /// Whether prompts may appear in the log.
    pub log_prompts: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            api_key: None,
            body_limit: 8 << 20,
            bodies_limit: 64 << 20,
            body_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(600),
            allow_hosts: Vec::new(),
            ttft_goal: None,
            log_prompts: false,
        }
    }
}

/// A model that is served: the engine, and what belongs to it.
pub struct Service {
    pub(crate) engine: Engine,
    pub(crate) model: Arc<ServedModel>,
    pub(crate) grammars: Grammars,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) overload: Arc<Overload>,
    pub(crate) config: ServerConfig,
    pub(crate) identity: Identity,
    /// Maximum requests that wait, here and in the engine's queue.
    pub(crate) max_queued_requests: usize,
}

impl Service {
    /// Starts the engine. End tokens and texts of tokens are those of `model`, whatever `engine` says, and the
    /// engine reports to the server's metrics.
    ///
    /// # Errors
    /// If the engine does not start.
    pub fn start(
        model: ServedModel,
        weights: Box<dyn Model>,
        engine: EngineConfig,
        config: ServerConfig,
    ) -> Result<Service, StartError> {
        let overload = Arc::new(Overload::new(config.ttft_goal));
        let metrics = Arc::new(Metrics::new(&model.name, &*weights, Arc::clone(&overload)));
        let text = model.tokenizer.clone().map(|t| Arc::new(t) as Arc<dyn TokenText>);
        let vocab = weights.spec().vocab;
        let engine = EngineConfig {
            eos: Some(model.defaults.eos.clone()),
            text,
            recorder: Some(Arc::clone(&metrics) as _),
            ..engine
        };
        let max_queued_requests = engine.max_queued_requests;
        let engine = Engine::start_boxed(weights, engine)?;
        let backend = engine.backend();
        let identity = Identity::new(&model.name, backend.kv, &backend.device);
        let model = Arc::new(model);
        let grammars = Grammars::new(Arc::clone(&model), vocab);
        Ok(Service { engine, model, grammars, metrics, overload, config, identity, max_queued_requests })
    }
}

/// What the paths of the server share. There is no service until the model is loaded; until then only the page and
/// the probes answer.
pub struct App {
    pub(crate) config: ServerConfig,
    pub(crate) bodies: Bodies,
    pub(crate) readers: Readers,
    service: OnceLock<Service>,
}

impl App {
    /// An app that is not ready.
    pub fn new(config: ServerConfig) -> Arc<App> {
        let bodies = Bodies::new(config.bodies_limit.max(config.body_limit));
        Arc::new(App { config, bodies, readers: Readers::new(), service: OnceLock::new() })
    }

    /// An app that is ready.
    pub fn ready(service: Service) -> Arc<App> {
        let app = App::new(service.config.clone());
        app.install(service);
        app
    }

    /// Makes it ready.
    ///
    /// # Panics
    /// If it is ready already.
    pub fn install(&self, service: Service) {
        assert!(self.service.set(service).is_ok(), "an app serves one model");
    }

    /// The service that takes requests, or why there is none.
    pub(crate) fn service(&self) -> Result<&Service, ApiError> {
        match self.service.get() {
            None => Err(ApiError::unavailable("loading", "the model is being loaded")),
            Some(service) if !service.engine.is_open() => Err(match service.engine.lost() {
                Some(lost) => ApiError::unavailable("device_lost", lost),
                None => ApiError::unavailable("stopped", "the engine takes no more requests"),
            }),
            Some(service) => Ok(service),
        }
    }

    /// The service, whether or not it takes requests.
    pub(crate) fn loaded(&self) -> Option<&Service> {
        self.service.get()
    }

    /// Takes no more requests, finishes those there are, at most for `timeout`, and ends the rest. Blocks.
    pub fn drain(&self, timeout: Duration) -> DrainReport {
        self.service.get().map_or(DrainReport { complete: true }, |s| s.engine.shutdown(timeout))
    }
}
