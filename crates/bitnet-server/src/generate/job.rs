//! Reads a body and headers into a job: requests to the engine, and what their answer needs.

use std::time::Duration;

use axum::http::HeaderMap;
use bitnet::inference::{Output, Priority, Request};
use bitnet::schema::Schema;
use sha2::Sha256;

use super::{
    constraint::{Constrained, constraint},
    limits::{check_generated, check_size},
    parsed::Parsed,
    position::{Position, Resume},
    prompt::Encoder,
    read::take_all,
    tools::reader::Calls,
};
use crate::{
    http::{caller::Caller, error::ApiError, fields::Fields, reading::Reading},
    random::fresh,
    service::Service,
};

/// A parsed and validated request.
#[derive(Debug)]
pub(crate) struct Job {
    /// Whether the prompt is a conversation.
    pub chat: bool,
    pub requests: Vec<Request>,
    /// Number of choices for each prompt.
    pub n: usize,
    /// Number of choices for each prompt that are returned, if not all are.
    pub best: Option<usize>,
    pub stream: bool,
    pub logprobs: bool,
    /// Whether choices begin with their prompt.
    pub echo: bool,
    /// How tool calls are written in the answer, if it may contain any.
    pub calls: Option<Calls>,
    /// The tools whose arguments can be any object, because a grammar cannot hold their schemas.
    pub relaxed: Vec<String>,
    /// Whether choices carry their token ids.
    pub token_ids: bool,
    pub seed: u64,
    /// Whether the client has set a deadline.
    pub has_deadline: bool,
    /// The name of the answer, which is part of all its ids; a resumed stream keeps its name.
    pub name: String,
    /// The position after which a dropped stream resumes.
    pub after: Option<Position>,
    /// The client that gets the answer.
    pub caller: Caller,
}

impl Job {
    /// Parses a body; `read` must consume every field except `model`. Call this on a thread that may block: it encodes
    /// texts and compiles grammars.
    pub fn read<T>(
        read: impl FnOnce(&mut Fields<'_>, &Encoder<'_>) -> Result<(Parsed, T), ApiError>,
        service: &Service,
        headers: &HeaderMap,
        body: &[u8],
        reading: &Reading,
    ) -> Result<(Job, T), ApiError> {
        let fields = Fields::parse(body)?.strictly(service.config.strict);
        let digest = fields.digest_without("seed");
        let (parsed, more) = take_all(fields, service, reading, read)?;
        Ok((Job::new(parsed, digest, service, headers, reading)?, more))
    }

    /// Makes a job of what a body asks for. `digest` is that of the body without its seed.
    fn new(
        mut parsed: Parsed,
        digest: Sha256,
        service: &Service,
        headers: &HeaderMap,
        reading: &Reading,
    ) -> Result<Job, ApiError> {
        let given_seed = seed(parsed.config.seed, headers)?;
        check_generated(&parsed, given_seed.is_some())?;
        let Constrained { schema, relaxed } = constraint(&mut parsed, service)?;
        let Parsed { prompts, mut config, best, offer, priority, salt, stream, .. } = parsed;
        let Parsed { chat, generated, token_ids, names, thought, prediction, .. } = parsed;
        let calls = offer.map(|(offer, form)| Calls { form, tools: offer.tools.into() });
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
            thought: thought.clone(),
            prediction: prediction.clone(),
            ..Request::new(prompt, config.clone())
        };
        let requests: Vec<Request> = prompts.into_iter().map(request).collect();
        check_size(&requests, n, stream, service).map_err(|refused| refused.renamed(&names))?;
        Ok(Job {
            chat,
            requests,
            n,
            best,
            stream,
            logprobs,
            echo,
            calls,
            relaxed,
            token_ids,
            seed,
            has_deadline: reading.has_deadline,
            name,
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

/// The seed from the body or from the header `X-Seed`, which must not contradict each other.
pub(crate) fn seed(body: Option<u64>, headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
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
