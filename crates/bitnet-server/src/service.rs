use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::{Duration, UNIX_EPOCH},
};

use bitnet::schema::Schemas;
use bitnet_inference::{DrainReport, Engine, EngineConfig, StartError, TokenText};
use bitnet_model::{ChatTemplate, Checkpoint, GenerationDefaults, Model, Tokenizer};

use crate::{
    http::{body::Bodies, error::ApiError, reading::Readers},
    identity::Identity,
    metrics::Metrics,
    overload::Overload,
};

/// A model as clients see it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServedModel {
    /// The name that clients use.
    pub name: String,
    /// When the model was made, in seconds since 1970: the time of its files. Streams and batch answers carry this time
    /// instead of the current one, so that the same request always gives the same bytes.
    pub created: u64,
    /// Converts text to ids and back; without one, prompts must be token ids.
    pub tokenizer: Option<Tokenizer>,
    /// The chat template, if the model has one.
    pub chat: Option<ChatTemplate>,
    /// The model's settings for fields that a client does not send, and the tokens that end a text.
    pub defaults: GenerationDefaults,
}

impl ServedModel {
    /// A model without a tokenizer or a chat template, which serves token ids only.
    pub fn new(name: impl Into<String>) -> Self {
        ServedModel {
            name: name.into(),
            created: 0,
            tokenizer: None,
            chat: None,
            defaults: GenerationDefaults::default(),
        }
    }

    /// The name, tokenizer, chat template and defaults of a checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        ServedModel {
            tokenizer: checkpoint.tokenizer.clone(),
            chat: checkpoint.chat.clone(),
            defaults: checkpoint.defaults.clone(),
            ..ServedModel::new(checkpoint.name.as_str())
        }
    }

    /// Sets `created` to the modification time of a file or folder, if it has one.
    pub fn dated(mut self, path: &Path) -> Self {
        let modified = path.metadata().and_then(|about| about.modified()).ok();
        let seconds = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        self.created = seconds.map_or(self.created, |s| s.as_secs());
        self
    }
}

/// Limits and rules for requests.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The key that clients must send as `Authorization: Bearer KEY`, on all paths except the chat page, `/live`,
    /// `/ready` and `/health`.
    pub api_key: Option<String>,
    /// Maximum size of a body in bytes.
    pub body_limit: usize,
    /// Maximum size in bytes of all bodies together that arrive or wait to be parsed, not counting the first 16 KiB of
    /// each; further bodies are refused.
    pub bodies_limit: usize,
    /// Maximum time that a body may take to arrive.
    pub body_timeout: Duration,
    /// Maximum time that a request may take once its body has arrived, including parsing and the time in the queue.
    pub request_timeout: Duration,
    /// Host names to answer in addition to localhost. A server on a loopback address refuses all other names; a server
    /// on another address does so only if this list is not empty.
    pub allow_hosts: Vec<String>,
    /// Requests that would probably wait longer than this for their first token are refused.
    pub ttft_goal: Option<Duration>,
    /// Whether prompts may appear in the log.
    pub log_prompts: bool,
    /// Whether fields that change no token are refused, as unknown ones are.
    pub strict: bool,
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
            strict: false,
        }
    }
}

/// A served model: its engine, and what belongs to it.
pub struct Service {
    pub(crate) engine: Engine,
    pub(crate) model: Arc<ServedModel>,
    pub(crate) schemas: Schemas,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) overload: Arc<Overload>,
    pub(crate) config: ServerConfig,
    pub(crate) identity: Identity,
    /// Maximum number of requests that wait, either to be parsed or in the engine's queue.
    pub(crate) max_queued_requests: usize,
}

impl Service {
    /// Starts the engine. The end tokens, the tokenizer and the recorder in `engine` are replaced by those of `model`
    /// and by the server's metrics.
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
        let schemas = Schemas::new(model.tokenizer.clone(), &model.defaults.eos, vocab);
        let model = Arc::new(model);
        Ok(Service { engine, model, schemas, metrics, overload, config, identity, max_queued_requests })
    }
}

/// The state that all routes share. Until the model is loaded there is no service, and only the page and the probes
/// answer.
pub struct App {
    pub(crate) config: ServerConfig,
    pub(crate) bodies: Bodies,
    pub(crate) readers: Readers,
    service: OnceLock<Service>,
}

impl App {
    /// An app without a service, for [`App::install`].
    pub fn new(config: ServerConfig) -> Arc<App> {
        let bodies = Bodies::new(config.bodies_limit.max(config.body_limit));
        Arc::new(App { config, bodies, readers: Readers::new(), service: OnceLock::new() })
    }

    /// An app with a service.
    pub fn ready(service: Service) -> Arc<App> {
        let app = App::new(service.config.clone());
        app.install(service);
        app
    }

    /// Adds the service, once its model is loaded.
    ///
    /// # Panics
    /// If the app already has a service.
    pub fn install(&self, service: Service) {
        assert!(self.service.set(service).is_ok(), "an app serves one model");
    }

    /// The service, or an error that says why no requests are accepted.
    pub(crate) fn service(&self) -> Result<&Service, ApiError> {
        match self.service.get() {
            None => Err(ApiError::unavailable("loading", "the model is being loaded")),
            Some(service) if !service.engine.is_open() => Err(match service.engine.lost() {
                Some(lost) => ApiError::unavailable("device_lost", lost),
                None => ApiError::unavailable("stopped", "the engine accepts no more requests"),
            }),
            Some(service) => Ok(service),
        }
    }

    /// Why the model's device is lost, if it is. Only a new process cures that.
    pub fn lost(&self) -> Option<String> {
        self.service.get()?.engine.lost().map(|lost| lost.to_string())
    }

    /// The service, whether or not it accepts requests.
    pub(crate) fn loaded(&self) -> Option<&Service> {
        self.service.get()
    }

    /// Refuses new requests, finishes the others for at most `timeout`, and ends the rest. Blocks.
    pub fn drain(&self, timeout: Duration) -> DrainReport {
        self.service.get().map_or(DrainReport { complete: true }, |s| s.engine.shutdown(timeout))
    }
}
