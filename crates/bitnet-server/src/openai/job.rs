//! From a body and headers to what the engine is asked.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use bitnet_inference::{GenerationConfig, Priority, Request};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    http::{error::ApiError, fields::Fields},
    openai::{
        grammar::{Format, Grammar},
        position::Position,
        prompt, sampling,
    },
    random::fresh,
    service::{ServedModel, Service},
};

/// Most choices of all prompts of a request together.
const MAX_CHOICES: usize = GenerationConfig::MAX_CHOICES;

/// Which API a request came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Completions,
    Chat,
}

/// A request that has been understood.
#[derive(Debug)]
pub(crate) struct Job {
    pub endpoint: Endpoint,
    /// One for each prompt.
    pub requests: Vec<Request>,
    /// Choices for each prompt.
    pub n: usize,
    pub stream: bool,
    /// Whether a stream ends with the token counts.
    pub include_usage: bool,
    pub logprobs: bool,
    /// Whether choices carry their token ids.
    pub token_ids: bool,
    pub seed: u64,
    /// The same for the same body and seed, so that a stream that is continued goes on with the same bytes.
    pub id: String,
    /// Where a dropped stream goes on.
    pub after: Option<Position>,
}

impl Job {
    /// Reads a body. Texts are encoded and grammars compiled here, which takes a while: not for an async thread.
    pub fn read(
        endpoint: Endpoint,
        service: &Service,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Job, ApiError> {
        let model = &service.model;
        let mut fields = Fields::parse(body)?;
        let said = fields.without("seed");
        check_model(&mut fields, model)?;
        let prompts = match endpoint {
            Endpoint::Completions => prompt::prompts(fields.need("prompt")?, model)?,
            Endpoint::Chat => vec![prompt::conversation(&mut fields, model)?],
        };
        let mut config = sampling::config(&mut fields, &model.defaults)?;
        config.max_new_tokens = max_tokens(&mut fields, endpoint)?;
        config.logprobs = logprobs(&mut fields, endpoint)?;
        let seed = seed(config.seed, headers)?;
        config.seed = Some(seed);
        let priority = priority(&mut fields)?;
        let format = fields.object("response_format")?.map(Format::read).transpose()?.flatten();
        let grammar = format.map(|format| service.grammars.compile(format)).transpose()?;
        let salt = fields.take::<String>("user")?.map_or(0, |user| salt(&user));
        let stream = fields.take("stream")?.unwrap_or(false);
        let include_usage = stream_options(&mut fields, stream)?;
        let token_ids = fields.take("return_token_ids")?.unwrap_or(false) || model.tokenizer.is_none();
        ignore_neutral(&mut fields, endpoint)?;
        fields.finish()?;

        let (n, timeout) = (config.n, Some(timeout(headers, service.config.request_timeout)?));
        if prompts.len().saturating_mul(n) > MAX_CHOICES {
            let problem = format!("{} prompts with {n} choices each are over {MAX_CHOICES}", prompts.len());
            return Err(ApiError::field("n", problem));
        }
        let logprobs = config.logprobs.is_some();
        let after = Position::requested(headers, prompts.len() * n)?;
        if after.is_some() && !stream {
            return Err(ApiError::field("Last-Event-ID", "it needs stream to be true"));
        }
        let request = |prompt: Vec<u32>| Request {
            priority,
            timeout,
            salt,
            constraint: grammar.as_ref().map(Grammar::constraint),
            ..Request::new(prompt, config.clone())
        };
        let requests: Vec<Request> = prompts.into_iter().map(request).collect();
        requests.iter().try_for_each(|r| service.engine.validate(r))?;
        let id = id(endpoint, &said, seed);
        Ok(Job { endpoint, requests, n, stream, include_usage, logprobs, token_ids, seed, id, after })
    }

    /// Choices of all prompts.
    pub fn choices(&self) -> usize {
        self.requests.len() * self.n
    }

    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.requests.iter().map(|r| r.prompt.len()).sum()
    }

    /// How urgent it is.
    pub fn priority(&self) -> Priority {
        self.requests.first().map_or(Priority::Normal, |r| r.priority)
    }

    /// The longest it may take.
    pub fn timeout(&self) -> Option<Duration> {
        self.requests.first().and_then(|r| r.timeout)
    }
}

/// A name for what a body and a seed give.
fn id(endpoint: Endpoint, said: &[u8], seed: u64) -> String {
    let hash = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(said).finalize();
    let hex: String = hash[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    match endpoint {
        Endpoint::Completions => format!("cmpl-{hex}"),
        Endpoint::Chat => format!("chatcmpl-{hex}"),
    }
}

fn check_model(fields: &mut Fields, model: &ServedModel) -> Result<(), ApiError> {
    match fields.take::<String>("model")? {
        Some(name) if name != model.name => Err(unknown_model(&name, model)),
        _ => Ok(()),
    }
}

/// The model asked for is not the one that is served.
pub(crate) fn unknown_model(name: &str, model: &ServedModel) -> ApiError {
    let message = format!("the model {name:.100?} is not served here; {:?} is", model.name);
    ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).about("model")
}

/// 16 for completions, the rest of the context for a chat, as with OpenAI.
fn max_tokens(fields: &mut Fields, endpoint: Endpoint) -> Result<usize, ApiError> {
    let older = fields.take("max_tokens")?;
    match endpoint {
        Endpoint::Completions => Ok(older.unwrap_or(16)),
        Endpoint::Chat => match (older, fields.take("max_completion_tokens")?) {
            (Some(a), Some(b)) if a != b => {
                Err(ApiError::field("max_completion_tokens", "it contradicts max_tokens"))
            }
            (a, b) => Ok(a.or(b).unwrap_or(usize::MAX)),
        },
    }
}

/// How many likely tokens are told beside each token, if any are.
fn logprobs(fields: &mut Fields, endpoint: Endpoint) -> Result<Option<usize>, ApiError> {
    if endpoint == Endpoint::Completions {
        return fields.take("logprobs");
    }
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    match (wanted, fields.take::<usize>("top_logprobs")?) {
        (false, Some(1..)) => Err(ApiError::field("top_logprobs", "it needs logprobs to be true")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// The seed of the body or of the header `X-Seed`; else a new one, small enough for a client that counts in doubles.
fn seed(body: Option<u64>, headers: &HeaderMap) -> Result<u64, ApiError> {
    let header = match headers.get("x-seed") {
        None => None,
        Some(value) => {
            let seed = value.to_str().ok().and_then(|text| text.parse().ok());
            Some(seed.ok_or_else(|| ApiError::field("X-Seed", "it must be an integer of 64 bits"))?)
        }
    };
    match (body, header) {
        (Some(body), Some(header)) if body != header => {
            Err(ApiError::field("seed", "it contradicts the header X-Seed"))
        }
        (body, header) => Ok(body.or(header).unwrap_or_else(|| fresh() >> 11)),
    }
}

fn priority(fields: &mut Fields) -> Result<Priority, ApiError> {
    match fields.take::<String>("priority")?.as_deref() {
        Some("interactive") => Ok(Priority::Interactive),
        None | Some("normal") => Ok(Priority::Normal),
        Some("batch") => Ok(Priority::Background),
        Some(_) => Err(ApiError::field("priority", "it must be interactive, normal or batch")),
    }
}

/// Users do not share computed beginnings, so that nobody can learn from times what others have asked.
fn salt(user: &str) -> u64 {
    let hash = Sha256::digest(user);
    u64::from_le_bytes(hash[..8].try_into().expect("8 bytes")).max(1)
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::field("stream_options", "it needs stream to be true"));
    }
    let include_usage = options.take("include_usage")?.unwrap_or(false);
    options.only("include_obfuscation", &[json!(false)])?;
    options.finish()?;
    Ok(include_usage)
}

/// Fields that clients send with the value that changes nothing.
fn ignore_neutral(fields: &mut Fields, endpoint: Endpoint) -> Result<(), ApiError> {
    match endpoint {
        Endpoint::Completions => {
            fields.only("best_of", &[json!(1)])?;
            fields.only("echo", &[json!(false)])?;
            fields.only("suffix", &[json!("")])
        }
        Endpoint::Chat => {
            fields.only("tools", &[json!([])])?;
            fields.only("tool_choice", &[json!("none"), json!("auto")])?;
            fields.only("modalities", &[json!(["text"])])?;
            fields.only("store", &[json!(false)])?;
            fields.only("metadata", &[json!({})])?;
            fields.only("service_tier", &[json!("auto"), json!("default")])
        }
    }
}

/// The server's limit, or what the client leaves of it with `X-Deadline-Ms`.
fn timeout(headers: &HeaderMap, limit: Duration) -> Result<Duration, ApiError> {
    let Some(value) = headers.get("x-deadline-ms") else { return Ok(limit) };
    let millis: Option<u64> = value.to_str().ok().and_then(|text| text.parse().ok());
    match millis {
        Some(millis @ 1..) => Ok(limit.min(Duration::from_millis(millis))),
        _ => Err(ApiError::field("X-Deadline-Ms", "it must be a positive number of milliseconds")),
    }
}
