//! The model as clients see it, and the running service that answers for it.

use std::{fmt, path::Path, sync::Arc, time::UNIX_EPOCH};

use bitnet::{
    Model,
    inference::Engine,
    model::{ChatTemplate, Checkpoint, GenerationDefaults, Pooling, Tokenizer},
    schema::Schemas,
};

use crate::{config::ServerConfig, identity::Identity, metrics::ServerMetrics, overload::Overload};

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
    /// Maximum number of tokens of a thought, for requests that do not set one.
    pub thinking_budget: Option<usize>,
    /// Text that ends a thought whose budget is used up, if it is not the usual one.
    pub thinking_last_words: Option<String>,
}

impl ServedModel {
    /// Whether a client means this model by a name. Ollama's clients add `:latest` to names without a tag.
    pub fn is_called(&self, name: &str) -> bool {
        let plain = |name: &str| name.strip_suffix(":latest").unwrap_or(name).to_owned();
        name == self.name || plain(name) == plain(&self.name)
    }

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
            thinking_budget: None,
            thinking_last_words: None,
        }
    }
}

impl ServedModel {
    /// Whether the template knows thoughts or efforts; without that, fields about thoughts change no token.
    pub fn thinks(&self) -> bool {
        let conventions = self.chat.as_ref().map(ChatTemplate::conventions);
        conventions.is_some_and(|all| all.thought.is_some() || !all.efforts.accepted.is_empty())
    }
}

/// A served model.
pub struct Service {
    pub(crate) engine: Arc<Engine>,
    pub(crate) model: ServedModel,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) overload: Arc<Overload>,
    pub(crate) config: ServerConfig,
    pub(crate) identity: Identity,
    /// Holds what the engine lacks, such as schemas.
    opened: Model,
}

impl Service {
    /// Serves a running model. The program can keep using it as well.
    pub fn new(model: Model, config: ServerConfig) -> Service {
        let engine = Arc::clone(model.engine());
        let served = ServedModel {
            thinking_budget: config.thinking_budget,
            thinking_last_words: config.thinking_last_words.clone(),
            ..ServedModel::new(config.name.as_deref(), model.path(), model.checkpoint())
        };
        let overload = Arc::new(Overload::new(config.ttft_goal));
        let metrics = Arc::new(ServerMetrics::new(&served.name, &engine, Arc::clone(&overload)));
        engine.add_recorder(Arc::clone(&metrics) as _);
        let identity = Identity::new(&served.name, engine.backend().kv, &engine.backend().device);
        Service { engine, model: served, metrics, overload, config, identity, opened: model }
    }

    /// The family of the model, as named in its files.
    pub(crate) fn architecture(&self) -> &str {
        &self.opened.checkpoint().spec.architecture
    }

    /// Whether the model embeds texts.
    pub(crate) fn embeds(&self) -> bool {
        self.opened.embeds()
    }

    /// How the model makes an embedding of hidden states, if it embeds texts.
    pub(crate) fn pooling(&self) -> Option<Pooling> {
        self.opened.checkpoint().spec.embeds
    }

    /// Width of a hidden state.
    pub(crate) fn width(&self) -> usize {
        self.opened.checkpoint().spec.hidden
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
