//! Reads a body and headers into a job: requests to the engine, and the form of their answer.

use std::{sync::Arc, time::Duration};

use axum::{extract, http::HeaderMap};
use bitnet::inference::{GenerationConfig, Output, Priority, Request};
use bitnet::schema::Schema;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    http::{
        app::{self, App},
        caller::Caller,
        error::ApiError,
        fields::Fields,
        reading::Reading,
    },
    openai::{
        chat::{self, Conversation},
        completions,
        grammar::Format,
        harmless,
        models::unknown_model,
        position::{Continued, Name, Position},
        prompt::Encoder,
        sampling,
        tools::{
            Offer,
            form::{Form, Rule, Thoughts},
            reader::Calls,
        },
        turns::MAX_WAITING,
    },
    random::fresh,
    service::{ServedModel, Service},
};

/// Maximum number of choices for all prompts of a request together.
const MAX_CHOICES: usize = GenerationConfig::MAX_CHOICES;

/// Maximum number of log-probabilities returned for the prompts of a request, including those of other likely tokens.
const MAX_SCORED: usize = 1 << 21;

/// Which API a request came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Completions,
    Chat,
}

/// What a body asks for, in any API.
pub(crate) struct Parsed {
    /// A conversation is one prompt.
    pub prompts: Vec<Vec<u32>>,
    /// The settings, with the seed of the body if it has one.
    pub config: GenerationConfig,
    /// How many of the choices for each prompt are returned, the best first; `None` returns all.
    pub best: Option<usize>,
    /// Number of tokens at the end of the prompt that another server has generated and that belong to the answer.
    pub generated: usize,
    /// The tools that may be called, how calls are written, and what may precede them.
    pub offer: Option<(Offer, Form, Thoughts)>,
    /// The format of the text, after the name of the field that asks for it.
    pub format: Option<(&'static str, Format)>,
    pub priority: Priority,
    /// Requests share cached prefixes only if this is equal.
    pub salt: u64,
    pub stream: bool,
    /// Whether a stream ends with the token counts.
    pub include_usage: bool,
    /// Whether choices carry their token ids.
    pub token_ids: bool,
}

/// A parsed and validated request.
#[derive(Debug)]
pub(crate) struct Job {
    pub endpoint: Endpoint,
    pub requests: Vec<Request>,
    /// Number of choices for each prompt.
    pub n: usize,
    /// Number of choices for each prompt that are returned, if not all are.
    pub best: Option<usize>,
    pub stream: bool,
    /// Whether a stream ends with the token counts.
    pub include_usage: bool,
    pub logprobs: bool,
    /// Whether choices begin with their prompt.
    pub echo: bool,
    /// How tool calls are written in the answer, if it may contain any.
    pub calls: Option<Calls>,
    /// Whether choices carry their token ids.
    pub token_ids: bool,
    pub seed: u64,
    /// Whether the client has set a deadline.
    pub has_deadline: bool,
    /// The name of the answer; a resumed stream keeps its name.
    pub name: Name,
    /// The answer's id for clients, which contains its name.
    pub id: String,
    /// The position after which a dropped stream resumes.
    pub after: Option<Position>,
    /// The client that gets the answer.
    pub caller: Caller,
}

impl Job {
    /// Reads a body of completions or of a chat.
    pub fn read(
        endpoint: Endpoint,
        service: &Service,
        headers: &HeaderMap,
        body: &[u8],
        reading: &Reading,
    ) -> Result<Job, ApiError> {
        let read = |fields: &mut Fields<'_>, encoder: &Encoder<'_>| {
            Parsed::read(endpoint, fields, encoder).map(|parsed| (parsed, ()))
        };
        Job::read_by(read, endpoint, service, headers, body, reading).map(|(job, ())| job)
    }

    /// Reads a body by a function that takes all its fields except the model's name. Call this on a thread that may
    /// block: it encodes texts and compiles grammars.
    pub fn read_by<T>(
        read: impl FnOnce(&mut Fields<'_>, &Encoder<'_>) -> Result<(Parsed, T), ApiError>,
        endpoint: Endpoint,
        service: &Service,
        headers: &HeaderMap,
        body: &[u8],
        reading: &Reading,
    ) -> Result<(Job, T), ApiError> {
        let fields = Fields::parse(body)?.strictly(service.config.strict);
        let digest = fields.digest_without("seed");
        let (parsed, more) = take_all(fields, service, reading, read)?;
        Ok((Job::new(endpoint, parsed, digest, service, headers, reading)?, more))
    }

    /// Makes a job of what a body asks for. `digest` is that of the body without its seed.
    fn new(
        endpoint: Endpoint,
        parsed: Parsed,
        digest: Sha256,
        service: &Service,
        headers: &HeaderMap,
        reading: &Reading,
    ) -> Result<Job, ApiError> {
        let given_seed = seed(parsed.config.seed, headers)?;
        check_generated(&parsed, given_seed.is_some())?;
        let schema = schema(&parsed, service)?;
        let Parsed { prompts, mut config, best, offer, priority, salt, stream, .. } = parsed;
        let Parsed { generated, include_usage, token_ids, .. } = parsed;
        let calls = offer.map(|(offer, form, _)| Calls {
            form,
            names: offer.tools.into_iter().map(|tool| tool.name).collect(),
        });
        // Small enough for clients whose numbers are doubles.
        let seed = given_seed.unwrap_or_else(|| fresh() >> 11);
        let choices = prompts.len() * config.n;
        let resume = Resume { headers, choices, stream, seeded: given_seed.is_some() };
        let (name, after) = resume.name(service, digest, &config, seed)?;
        config.seed = Some(seed);
        let (n, logprobs, echo) = (config.n, config.logprobs.is_some(), config.echo);
        if best.is_some() {
            config.logprobs.get_or_insert(0);
        }
        let request = |prompt: Vec<u32>| Request {
            generated,
            priority,
            timeout: Some(reading.remaining()),
            salt,
            output: if echo && logprobs { Output::Scored } else { Output::Tokens },
            constraint: schema.as_ref().map(Schema::constraint),
            ..Request::new(prompt, config.clone())
        };
        let requests: Vec<Request> = prompts.into_iter().map(request).collect();
        check_size(&requests, n, stream, service)?;
        let (id, has_deadline) = (endpoint.id(name), reading.has_deadline);
        Ok(Job {
            endpoint,
            requests,
            n,
            best,
            stream,
            include_usage,
            logprobs,
            echo,
            calls,
            token_ids,
            seed,
            has_deadline,
            name,
            id,
            after,
            caller: reading.caller.clone(),
        })
    }

    /// Number of choices for all prompts.
    pub fn choices(&self) -> usize {
        self.requests.len() * self.n
    }

    /// Number of tokens in all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.requests.iter().map(|r| r.prompt.len()).sum()
    }

    /// The priority of all its requests.
    pub fn priority(&self) -> Priority {
        self.requests.first().map_or(Priority::Normal, |r| r.priority)
    }

    /// The maximum time of all its requests.
    pub fn timeout(&self) -> Option<Duration> {
        self.requests.first().and_then(|r| r.timeout)
    }
}

impl Endpoint {
    /// The id of an answer.
    pub fn id(self, name: impl std::fmt::Display) -> String {
        match self {
            Endpoint::Completions => format!("cmpl-{name}"),
            Endpoint::Chat => format!("chatcmpl-{name}"),
        }
    }
}

impl Parsed {
    /// A request for the next turn of a conversation.
    pub fn turn(conversation: Conversation, config: GenerationConfig) -> Parsed {
        Parsed {
            prompts: vec![conversation.tokens],
            config,
            best: None,
            generated: 0,
            offer: conversation.offer,
            format: None,
            priority: Priority::Normal,
            salt: 0,
            stream: false,
            include_usage: false,
            token_ids: false,
        }
    }

    /// Takes the fields of a chat or of completions.
    fn read(endpoint: Endpoint, fields: &mut Fields<'_>, encoder: &Encoder<'_>) -> Result<Parsed, ApiError> {
        let (prompts, offer) = match endpoint {
            Endpoint::Completions => (completions::prompts(fields, encoder)?, None),
            Endpoint::Chat => {
                let Conversation { tokens, offer } = chat::conversation(fields, encoder)?;
                (vec![tokens], offer)
            }
        };
        let mut config = sampling::config(fields, &encoder.model.defaults)?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let (mut best, mut generated) = (None, 0);
        match endpoint {
            Endpoint::Completions => {
                // 16 by default, as with OpenAI.
                config.max_new_tokens = fields.take("max_tokens")?.unwrap_or(16);
                config.logprobs = fields.take("logprobs")?;
                config.echo = fields.take("echo")?.unwrap_or(false);
                best = completions::best_of(fields, &mut config, stream)?;
                generated = fields.take("generated_tokens")?.unwrap_or(0);
                harmless::of_both(fields)?;
            }
            Endpoint::Chat => {
                config.max_new_tokens = chat::max_tokens(fields)?;
                config.logprobs = chat::logprobs(fields)?;
                harmless::of_chat(fields)?;
            }
        }
        Ok(Parsed {
            prompts,
            config,
            best,
            generated,
            offer,
            format: Format::take(fields)?,
            priority: priority(fields)?,
            salt: salt(fields.take("user")?),
            stream,
            include_usage: stream_options(fields, stream)?,
            token_ids: fields.take("return_token_ids")?.unwrap_or(false) || encoder.model.tokenizer.is_none(),
        })
    }
}

/// Checks that an answer whose first tokens another server has generated can continue exactly as it would have there.
fn check_generated(parsed: &Parsed, seeded: bool) -> Result<(), ApiError> {
    let config = &parsed.config;
    let problem = match parsed.generated {
        0 => return Ok(()),
        _ if parsed.prompts.len() > 1 => "it needs a single prompt",
        _ if config.n > 1 => "it needs a single choice: leave out n and best_of",
        _ if !config.stop_strings.is_empty() => {
            "it cannot be combined with stop: a stop string may begin in these tokens"
        }
        _ if !seeded && config.temperature > 0.0 => "it needs the seed of the answer's beginning",
        _ => return Ok(()),
    };
    Err(ApiError::field("generated_tokens", problem))
}

/// The constraint on the text: tool calls, a format, or either. The text ends where the constraint does, so fields that
/// ask for a longer text are refused.
fn schema(parsed: &Parsed, service: &Service) -> Result<Option<Schema>, ApiError> {
    let Parsed { offer, format, config, .. } = parsed;
    let what = match (offer, format) {
        (None, None) => return Ok(None),
        (Some(_), _) => "tools",
        (None, Some((field, _))) => *field,
    };
    for (field, given) in [("ignore_eos", config.ignore_eos), ("min_tokens", config.min_new_tokens > 0)] {
        if given {
            let problem = format!("it cannot be combined with {what}: a finished text must end");
            return Err(ApiError::field(field, problem));
        }
    }
    let refused = |error| match error {
        bitnet::Error::Schema { problem } => ApiError::format(what, problem),
        other => ApiError::format(what, other),
    };
    let Some((offer, form, thoughts)) = offer else {
        let compiled = format.as_ref().map(|(_, format)| match format {
            Format::Json(schema) => service.schemas().json(schema.clone()),
            Format::Lark(expression) => service.schemas().grammar(&format!("start: {expression}")),
        });
        return compiled.transpose().map_err(refused);
    };
    let Rule { lark, within } = Rule::new(offer, *form, *thoughts, format.as_ref().map(|(_, format)| format));
    let schema = service.schemas().grammar(&lark).map_err(refused)?;
    Ok(Some(match within {
        Some(within) => schema.within(within),
        None => schema,
    }))
}

/// The parts of a request that decide whether it resumes a stream.
struct Resume<'h> {
    headers: &'h HeaderMap,
    choices: usize,
    stream: bool,
    /// Whether the client has sent the seed.
    seeded: bool,
}

impl Resume<'_> {
    /// The name of the answer, and the position after which it resumes, if requested. A stream cannot be resumed
    /// without its seed, because another seed gives another text.
    fn name(
        &self,
        service: &Service,
        digest: Sha256,
        config: &GenerationConfig,
        seed: u64,
    ) -> Result<(Name, Option<Position>), ApiError> {
        // A greedy text does not depend on its seed.
        let seed = if config.is_greedy() { 0 } else { seed };
        let digest = digest.chain_update(seed.to_le_bytes()).finalize();
        let digest = u32::from_le_bytes(digest[..4].try_into().expect("4 bytes"));
        if !self.headers.contains_key("last-event-id") {
            return Ok((Name::fresh(digest), None));
        }
        if !self.stream {
            return Err(ApiError::field("Last-Event-ID", "it needs stream to be true"));
        }
        if !self.seeded && !config.is_greedy() {
            let problem = "it needs the seed of the stream, in `seed` or X-Seed, unless temperature is 0";
            return Err(ApiError::field("Last-Event-ID", problem));
        }
        match Continued::requested(self.headers, self.choices, digest, &service.identity)? {
            Some(Continued { after, name }) => Ok((name, Some(after))),
            None => Ok((Name::fresh(digest), None)),
        }
    }
}

/// Refuses requests that are too large to run, even on an idle server.
fn check_size(requests: &[Request], n: usize, stream: bool, service: &Service) -> Result<(), ApiError> {
    let (prompts, choices) = (requests.len(), requests.len().saturating_mul(n));
    if choices > MAX_CHOICES {
        let problem = format!("{prompts} prompts with {n} choices each are over {MAX_CHOICES}");
        return Err(ApiError::field("n", problem));
    }
    requests.iter().try_for_each(|r| service.engine.validate(r))?;
    let scored = |r: &Request| r.prompt.len() * (1 + r.config.logprobs.unwrap_or(0)) * r.config.n;
    let total: usize = requests.iter().filter(|r| r.output == Output::Scored).map(scored).sum();
    if total > MAX_SCORED {
        let problem =
            format!("{total} log-probabilities of prompts are over {MAX_SCORED}: send fewer at a time");
        return Err(ApiError::field("echo", problem));
    }
    let room = |r: &Request| (service.engine.context() - r.prompt.len()).min(r.config.max_new_tokens);
    let tokens = n * requests.iter().map(room).sum::<usize>();
    if stream && choices > 1 && tokens > MAX_WAITING {
        let problem = format!("{choices} choices of up to {tokens} tokens together are over {MAX_WAITING}");
        return Err(ApiError::field("max_tokens", problem));
    }
    Ok(())
}

/// Receives a body and reads it by a function that takes all its fields except the model's name.
pub(crate) async fn read_fields<T: Send + 'static>(
    app: &Arc<App>,
    request: extract::Request,
    take: fn(&mut Fields<'_>, &Encoder<'_>, &Service) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let taken = app::read(app, request, move |service, _, body, reading| {
        let fields = Fields::parse(body)?.strictly(service.config.strict);
        take_all(fields, service, reading, |fields, encoder| take(fields, encoder, service))
    });
    taken.await
}

/// Takes the model's name, and all other fields by a function.
fn take_all<T>(
    mut fields: Fields<'_>,
    service: &Service,
    reading: &Reading,
    take: impl FnOnce(&mut Fields<'_>, &Encoder<'_>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    check_model(&mut fields, &service.model)?;
    let encoder = Encoder { model: &service.model, context: service.engine.context(), reading };
    let taken = take(&mut fields, &encoder)?;
    fields.finish()?;
    Ok(taken)
}

/// Takes the name of the model, and checks it if there is one.
fn check_model(fields: &mut Fields<'_>, model: &ServedModel) -> Result<(), ApiError> {
    match fields.take::<String>("model")? {
        Some(name) if name != model.name => Err(unknown_model(&name, model)),
        _ => Ok(()),
    }
}

/// The seed from the body or from the header `X-Seed`, which must not contradict each other.
fn seed(body: Option<u64>, headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
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
        (body, header) => Ok(body.or(header)),
    }
}

pub(crate) fn priority(fields: &mut Fields<'_>) -> Result<Priority, ApiError> {
    let Some(name) = fields.take::<String>("priority")? else { return Ok(Priority::Normal) };
    Priority::named(&name)
        .ok_or_else(|| ApiError::field("priority", "it must be interactive, normal or batch"))
}

/// The salt of a user's prefix cache. Users do not share cached prefixes, so that nobody can learn from response times
/// what others have asked.
pub(crate) fn salt(user: Option<String>) -> u64 {
    let Some(user) = user else { return 0 };
    let hash = Sha256::digest(user);
    u64::from_le_bytes(hash[..8].try_into().expect("8 bytes")).max(1)
}

fn stream_options(fields: &mut Fields<'_>, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::field("stream_options", "it needs stream to be true"));
    }
    let include_usage = options.take("include_usage")?.unwrap_or(false);
    options.harmless("include_obfuscation", &[json!(false)])?;
    options.harmless("continuous_usage_stats", &[json!(false)])?;
    options.finish()?;
    Ok(include_usage)
}
