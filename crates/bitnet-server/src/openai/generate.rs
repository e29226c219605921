//! The endpoints that generate: reads a job, submits it, and answers it whole or as a stream.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

use crate::{
    http::{
        app::{App, read},
        error::ApiError,
    },
    openai::{
        answers::Answers,
        job::{Endpoint, Job},
        position::Position,
        shape::{Shape, Usage, Wholes},
        stream::{Events, KEEP_ALIVE, Phase},
    },
    service::Service,
};

/// The handler of `POST /v1/completions`.
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    generate(Endpoint::Completions, app, request).await
}

/// The handler of `POST /v1/chat/completions`.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    generate(Endpoint::Chat, app, request).await
}

async fn generate(endpoint: Endpoint, app: Arc<App>, request: Request) -> Result<Response, ApiError> {
    let job = read(&app, request, move |service, headers, body, reading| {
        Job::read(endpoint, service, headers, body, reading)
    });
    let job = job.await?;
    let service = app.service()?;
    let answers = begin(service, &job)?;
    let seed = job.seed;
    let response = match job.stream {
        true => streamed(service, job, answers).await?,
        false => whole(service, job, answers).await?,
    };
    Ok(with_headers(response, service, endpoint, seed))
}

/// Adds the headers that give the answer's seed, and say whether a chat's prompt was made without a template.
pub(crate) fn with_headers(
    mut response: Response,
    service: &Service,
    endpoint: Endpoint,
    seed: u64,
) -> Response {
    let headers = response.headers_mut();
    headers.insert("x-seed", HeaderValue::from(seed));
    if endpoint == Endpoint::Chat && service.model.chat.is_none() {
        let joined = HeaderValue::from_static("none; contents joined by blank lines");
        headers.insert("x-chat-template", joined);
    }
    response
}

pub(crate) fn begin(service: &Service, job: &Job) -> Result<Answers, ApiError> {
    log_prompts(service, job);
    let deadline = job.timeout().filter(|_| job.has_deadline);
    let expected = service.overload.check(&service.engine, job.priority(), deadline);
    let begun = expected.and_then(|expected| {
        Answers::submit(service, job, expected)
            .map_err(|e| service.overload.with_retry_time(&service.engine, e))
    });
    begun.inspect_err(|refused| service.metrics.rejected(refused.body.code.unwrap_or("other")))
}

/// Logs the prompts, if the configuration asks for that.
fn log_prompts(service: &Service, job: &Job) {
    if !service.config.log_prompts {
        return;
    }
    for request in &job.requests {
        let decoded = service.model.tokenizer.as_ref().and_then(|t| t.decode(&request.prompt, false).ok());
        let prompt = decoded.unwrap_or_else(|| format!("{:?}", request.prompt));
        tracing::info!(target: "bitnet::prompt", id = &*job.caller.id, prompt);
    }
}

/// The shape of a job's answer: everything that its JSON objects share.
pub(crate) fn shape(service: &Service, job: &Job, created: u64) -> Shape {
    Shape {
        endpoint: job.endpoint,
        id: job.id.clone(),
        created,
        model: service.model.name.clone(),
        fingerprint: service.identity.to_string(),
        tokenizer: service.model.tokenizer.clone(),
        logprobs: job.logprobs,
        calls: job.calls.clone(),
        token_ids: job.token_ids,
        include_usage: job.include_usage,
    }
}

/// Collects all pieces of an answer, and counts its tokens.
pub(crate) async fn gather(job: &Job, answers: &mut Answers) -> Result<(Wholes, Usage), ApiError> {
    let mut wholes = Wholes::new(job.choices());
    while let Some(piece) = answers.next().await {
        wholes.add(piece?);
    }
    if let Some(best) = job.best {
        wholes.keep_best(job.n, best);
    }
    Ok((wholes, Usage::new(job.prompt_tokens(), answers.tokens())))
}

async fn whole(service: &Service, job: Job, mut answers: Answers) -> Result<Response, ApiError> {
    let (wholes, usage) = gather(&job, &mut answers).await?;
    let text = shape(service, &job, now()).whole(wholes, usage);
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// The time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

async fn streamed(service: &Service, job: Job, mut answers: Answers) -> Result<Response, ApiError> {
    answers.wait_for_first(KEEP_ALIVE).await?;
    let shape = shape(service, &job, service.model.created);
    let events = Events {
        answers,
        readers: (0..job.choices()).map(|_| shape.reader()).collect(),
        shape,
        prompt_tokens: job.prompt_tokens(),
        position: Position::start(job.choices()),
        after: job.after.clone().unwrap_or_else(|| Position::start(job.choices())),
        name: job.name,
        phase: Phase::Pieces,
    };
    Ok(unbuffered(events.into_sse().into_response().map(Body::new)))
}

/// The response with a header that keeps proxies from buffering its events.
pub(crate) fn unbuffered(mut response: Response) -> Response {
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
