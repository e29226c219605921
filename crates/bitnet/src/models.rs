//! A running model: completes, chats, streams and batches, blocking and async.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bitnet_inference::{
    self as inference, Drafter, Engine, EngineConfig, RequestHandle, TokenText, block_on,
};
use bitnet_model::{Checkpoint, Message, Tokenizer};
use futures_util::future::join_all;

#[cfg(feature = "json")]
use serde_json::Value;

use crate::{
    Answer, Error, Pieces, Prompted, Request, SystemMemory,
    answer::Parts,
    load::{Loaded, Plan},
    open::Opened,
};
#[cfg(feature = "json")]
use crate::{
    request::Format,
    schema::{Schema, Schemas},
};

/// A running model. Clones share it; dropping the last clone ends it.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    checkpoint: Checkpoint,
    path: Option<PathBuf>,
    engine: Arc<Engine>,
    plan: Plan,
    notes: Vec<String>,
    #[cfg(feature = "json")]
    schemas: Schemas,
}

impl Model {
    /// Starts a model whose weights are already in memory: loaded by [`load`](crate::load::load), or made by the
    /// program itself. The engine gets the model's tokenizer, and its end tokens unless `config` has others.
    ///
    /// # Errors
    /// If the engine does not start.
    pub fn start(
        opened: impl Into<Opened>,
        weights: Box<dyn bitnet_model::Model>,
        config: EngineConfig,
    ) -> Result<Model, Error> {
        Model::start_drafting(opened, weights, None, config)
    }

    /// As [`Model::start`], with what drafts for the model besides its texts.
    ///
    /// # Errors
    /// If the engine does not start.
    pub fn start_drafting(
        opened: impl Into<Opened>,
        weights: Box<dyn bitnet_model::Model>,
        drafter: Option<Box<dyn Drafter>>,
        config: EngineConfig,
    ) -> Result<Model, Error> {
        let (limits, spec) = (weights.limits(), weights.spec());
        let (context, state_bytes) = (spec.context, spec.state_bytes());
        let window_blocks = weights.window_blocks();
        let plan = Plan { limits, context, bytes: None, state_bytes, window_blocks };
        Model::start_planned(opened.into(), weights, drafter, plan, config)
    }

    pub(crate) fn start_loaded(
        mut opened: Opened,
        loaded: Loaded,
        config: EngineConfig,
    ) -> Result<Model, Error> {
        // Some warnings are known only after all weights have been read.
        let warnings = opened.checkpoint.tensors.warnings();
        opened
            .notes
            .extend(warnings.iter().map(|warning| format!("warning: {warning}")).chain(loaded.notes()));
        Model::start_planned(opened, loaded.model, loaded.drafter, loaded.plan, config)
    }

    fn start_planned(
        opened: Opened,
        weights: Box<dyn bitnet_model::Model>,
        drafter: Option<Box<dyn Drafter>>,
        plan: Plan,
        config: EngineConfig,
    ) -> Result<Model, Error> {
        let available = SystemMemory::now().available_bytes;
        if let Some(available) = available.filter(|&available| config.host_cache > available) {
            return Err(Error::HostCache { bytes: config.host_cache, available });
        }
        let Opened { checkpoint, path, notes } = opened;
        let text = checkpoint.tokenizer.clone().map(|t| Arc::new(t) as Arc<dyn TokenText>);
        let eos = config.eos.or_else(|| Some(checkpoint.defaults.eos.clone()));
        let engine = Engine::start_drafting(weights, drafter, EngineConfig { eos, text, ..config })?;
        #[cfg(feature = "json")]
        let schemas = Schemas::new(checkpoint.tokenizer.clone(), &checkpoint.defaults.eos, engine.vocab());
        let inner = Inner {
            checkpoint,
            path,
            engine: Arc::new(engine),
            plan,
            notes,
            #[cfg(feature = "json")]
            schemas,
        };
        Ok(Model(Arc::new(inner)))
    }

    /// Continues a text, or runs any other [`Request`], and waits for the end.
    ///
    /// # Errors
    /// If the request is invalid or fails.
    pub fn complete(&self, request: impl Into<Request>) -> Result<Answer, Error> {
        self.stream(request)?.answer()
    }

    /// Answers a conversation. Use [`Request::chat`] to set options.
    ///
    /// ```
    /// use bitnet::{Message, Model};
    ///
    /// let model = Model::open("demo")?;
    /// let answer = model.chat([Message::new("user", "Who goes there?")])?;
    /// assert!(!answer.text.is_empty());
    /// # Ok::<(), bitnet::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::complete`].
    pub fn chat(&self, messages: impl IntoIterator<Item = Message>) -> Result<Answer, Error> {
        self.complete(Request::chat(messages))
    }

    /// Returns the pieces of an answer as they are generated, as a blocking iterator. [`Pieces::answer`] returns the
    /// whole answer. If the pieces are not read, the request pauses, and fails after
    /// [`EngineConfig::slow_reader_timeout`].
    ///
    /// # Errors
    /// If the request is invalid. The iterator returns later failures.
    pub fn stream(&self, request: impl Into<Request>) -> Result<Pieces, Error> {
        let request = self.prepare(&request.into())?;
        let parts = [Parts::of(&request)];
        Ok(self.pieces(self.0.engine.submit_all(vec![request])?, parts).remove(0))
    }

    /// Answers many requests in one batch. Each gets the same tokens as it would alone, or its own error.
    pub fn batch<R: Into<Request>>(
        &self,
        requests: impl IntoIterator<Item = R>,
    ) -> Vec<Result<Answer, Error>> {
        block_on(self.batch_async(requests))
    }

    /// As [`Model::complete`], on any executor.
    pub async fn complete_async(&self, request: impl Into<Request>) -> Result<Answer, Error> {
        self.stream_async(request).await?.answer_async().await
    }

    /// As [`Model::stream`], on any executor.
    pub async fn stream_async(&self, request: impl Into<Request>) -> Result<Pieces, Error> {
        let request = self.prepare(&request.into())?;
        let parts = [Parts::of(&request)];
        let handles = self.0.engine.submit_all_async(vec![request]).await?;
        Ok(self.pieces(handles, parts).remove(0))
    }

    /// As [`Model::batch`], on any executor.
    pub async fn batch_async<R: Into<Request>>(
        &self,
        requests: impl IntoIterator<Item = R>,
    ) -> Vec<Result<Answer, Error>> {
        let (valid, mut results) = self.requests(requests);
        let parts: Vec<Parts> = valid.iter().map(Parts::of).collect();
        match self.0.engine.submit_all_async(valid).await {
            Ok(handles) => {
                // All are read as their tokens come, so none is paused for being unread.
                let answers = self.pieces(handles, parts).into_iter().map(Pieces::answer_async);
                fill(&mut results, join_all(answers).await);
            }
            Err(refused) => fill(&mut results, std::iter::repeat_with(|| Err(refused.clone().into()))),
        }
        results.into_iter().flatten().collect()
    }

    /// The token ids of a request's prompt, including special tokens.
    ///
    /// # Errors
    /// If the model has no tokenizer for the text, or its chat template refuses the conversation.
    pub fn encode(&self, request: &Request) -> Result<Vec<u32>, Error> {
        Ok(request.prompted(&self.0.checkpoint)?.tokens)
    }

    /// The request in the form of the engine, for programs that submit it themselves.
    ///
    /// # Errors
    /// If the request is invalid.
    pub fn prepare(&self, request: &Request) -> Result<inference::Request, Error> {
        let checkpoint = &self.0.checkpoint;
        #[cfg_attr(not(feature = "json"), expect(unused_mut, reason = "only a schema changes it"))]
        let Prompted { tokens, mut thought } = request.prompted(checkpoint)?;
        let constraint = match &request.format {
            #[cfg(feature = "json")]
            Some(format) => {
                let schema = self.schema(format)?;
                Some(thought.iter_mut().fold(schema, Schema::after_thought).constraint())
            }
            _ => request.constraint.clone(),
        };
        let request = inference::Request {
            constraint,
            thought,
            priority: request.priority,
            salt: request.salt,
            timeout: request.timeout,
            ..inference::Request::new(tokens, request.config(&checkpoint.defaults))
        };
        self.0.engine.validate(&request).map_err(inference::SubmitError::from)?;
        Ok(request)
    }

    /// The model's tokenizer, if it has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.0.checkpoint.tokenizer.as_ref()
    }

    /// The opened files of the model.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.0.checkpoint
    }

    /// Path of the model's file or folder; `None` for a model without files.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Compiles JSON schemas and grammars for the model's vocabulary.
    #[cfg(feature = "json")]
    pub fn schemas(&self) -> &Schemas {
        &self.0.schemas
    }

    /// The plan of the model's memory, including the largest request that fits. Its `Display` is one line.
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// Notes for the user, one line each: warnings about the files, or why the machine's GPU is not used.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// The underlying engine, for anything that this type does not offer.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }
}

type Results = Vec<Option<Result<Answer, Error>>>;

/// Fills the empty places with the answers, in order.
fn fill(results: &mut Results, answers: impl IntoIterator<Item = Result<Answer, Error>>) {
    let open = results.iter_mut().filter(|result| result.is_none());
    open.zip(answers).for_each(|(open, answer)| *open = Some(answer));
}

impl Model {
    /// Returns the valid requests, and for each request its error or an empty place for the answer.
    fn requests<R: Into<Request>>(
        &self,
        requests: impl IntoIterator<Item = R>,
    ) -> (Vec<inference::Request>, Results) {
        let mut valid = Vec::new();
        let results = requests.into_iter().map(|request| match self.prepare(&request.into()) {
            Ok(request) => {
                valid.push(request);
                None
            }
            Err(error) => Some(Err(error)),
        });
        let results = results.collect();
        (valid, results)
    }

    #[cfg(feature = "json")]
    fn schema(&self, format: &Format) -> Result<Schema, Error> {
        let schemas = &self.0.schemas;
        match format {
            Format::Json(schema) => schemas.compile(schema),
            Format::Regex(pattern) => schemas.regex(pattern),
            Format::Choice(texts) if texts.is_empty() => {
                Err(Error::Schema { problem: "there is nothing to choose from".into() })
            }
            Format::Choice(texts) => {
                let quoted: Vec<String> = texts.iter().map(|text| Value::from(&**text).to_string()).collect();
                schemas.grammar(&format!("start: {}", quoted.join(" | ")))
            }
        }
    }

    fn pieces(&self, handles: Vec<RequestHandle>, parts: impl IntoIterator<Item = Parts>) -> Vec<Pieces> {
        let decoder = || self.tokenizer().map(Tokenizer::stream);
        let pieces = handles.into_iter().zip(parts);
        pieces.map(|(handle, parts)| Pieces::new(handle, parts, decoder())).collect()
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { checkpoint, plan, .. } = &*self.0;
        let mut shown = f.debug_struct("Model");
        shown.field("name", &checkpoint.name).field("plan", plan).field("backend", self.0.engine.backend());
        shown.finish_non_exhaustive()
    }
}
