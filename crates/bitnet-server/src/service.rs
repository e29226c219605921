use std::{
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
    time::{Duration, UNIX_EPOCH},
};

use bitnet::{
    Model,
    inference::{DrainReport, Engine},
    model::{ChatTemplate, Checkpoint, GenerationDefaults, Tokenizer},
    schema::Schemas,
};

use crate::{
    http::{body::Bodies, error::ApiError, reading::Readers},
    identity::Identity,
    metrics::Metrics,
    overload::Overload,
};

/// The model as clients see it.
#[derive(Debug)]
pub(crate) struct ServedModel {
    /// The name that clients use.
    pub name: String,
    /// When the model was made, in seconds since 1970: the time of its files. Streams and batch answers carry this time
    /// instead of the current one, so that the same request always gives the same bytes.
    pub created: u64,
    /// Converts text to ids and back; without one, prompts must be token ids.
    pub tokenizer: Option<Tokenizer>,
    /// The chat template, if the model has one.
    pub chat: Option<ChatTemplate>,
    /// The model's settings for fields that a client does not send.
    pub defaults: GenerationDefaults,
}

impl ServedModel {
    pub fn new(name: Option<&str>, path: Option<&Path>, checkpoint: &Checkpoint) -> Self {
        // A model without files is part of the program.
        let file = path.map_or_else(std::env::current_exe, |path| Ok(path.to_owned()));
        let modified = file.and_then(|file| file.metadata()?.modified()).ok();
        let seconds = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        ServedModel {
            name: name.unwrap_or(&checkpoint.name).to_owned(),
            created: seconds.map_or(0, |seconds| seconds.as_secs()),
            tokenizer: checkpoint.tokenizer.clone(),
            chat: checkpoint.chat.clone(),
            defaults: checkpoint.defaults.clone(),
        }
    }
}

/// Limits and rules for requests.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The name that clients use for the model, instead of its own.
    pub name: Option<String>,
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
            name: None,
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

/// A served model.
pub struct Service {
    pub(crate) engine: Arc<Engine>,
    pub(crate) model: ServedModel,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) overload: Arc<Overload>,
    pub(crate) config: ServerConfig,
    pub(crate) identity: Identity,
    /// Keeps what the engine does not have, such as schemas.
    opened: Model,
}

impl Service {
    /// Serves a running model. The program can go on using it too.
    pub fn new(model: Model, config: ServerConfig) -> Service {
        let engine = Arc::clone(model.engine());
        let served = ServedModel::new(config.name.as_deref(), model.path(), model.checkpoint());
        let overload = Arc::new(Overload::new(config.ttft_goal));
        let metrics = Arc::new(Metrics::new(&served.name, &engine, Arc::clone(&overload)));
        engine.add_recorder(Arc::clone(&metrics) as _);
        let identity = Identity::new(&served.name, engine.backend().kv, &engine.backend().device);
        Service { engine, model: served, metrics, overload, config, identity, opened: model }
    }

    /// Compiles formats for the model's vocabulary.
    pub(crate) fn schemas(&self) -> &Schemas {
        self.opened.schemas()
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("model", &self.opened).finish_non_exhaustive()
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

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("service", &self.service.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_files_is_as_old_as_the_program() {
        let program = std::env::current_exe().unwrap();
        let checkpoint = Checkpoint::demo().unwrap();
        let created = |path: Option<&Path>| ServedModel::new(None, path, &checkpoint).created;
        assert_eq!(created(None), created(Some(&program)));
        assert!(created(None) > 1_600_000_000, "{}", created(None));
        assert_eq!(created(Some(Path::new("/no/such/file"))), 0);
    }
}
