//! The two endpoints that generate.

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
    http::{body::read_json, error::ApiError},
    openai::{
        answers::{Answers, Piece},
        job::{Endpoint, Job},
        position::Position,
        shape::{Shape, Usage},
        stream::{Events, SILENCE, Then},
    },
    service::{App, Service},
};

/// `POST /v1/completions`.
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    generate(Endpoint::Completions, app, request).await
}

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    generate(Endpoint::Chat, app, request).await
}

async fn generate(endpoint: Endpoint, app: Arc<App>, request: Request) -> Result<Response, ApiError> {
    let service = app.service()?;
    let (head, body) = request.into_parts();
    let body = read_json(&app.config, &head.headers, body).await?;
    let reader = Arc::clone(&app);
    let job = blocking(move || Job::read(endpoint, reader.service()?, &head.headers, &body)).await??;
    log_prompts(service, &job);
    let answers = start(service, &job).inspect_err(|refused| {
        service.metrics.rejected(refused.body.code.unwrap_or("other"));
    })?;
    let seed = job.seed;
    let untemplated = endpoint == Endpoint::Chat && service.model.chat.is_none();
    let mut response = match job.stream {
        true => streamed(service, job, answers).await?,
        false => whole(service, job, answers).await?,
    };
    let headers = response.headers_mut();
    headers.insert("x-seed", HeaderValue::from(seed));
    if untemplated {
        headers.insert("x-chat-template", HeaderValue::from_static("none; contents joined by blank lines"));
    }
    Ok(response)
}

/// Prompts stay out of the log unless somebody asked for them.
fn log_prompts(service: &Service, job: &Job) {
    if !service.config.log_prompts {
        return;
    }
    for request in &job.requests {
        let decoded = service.model.tokenizer.as_ref().and_then(|t| t.decode(&request.prompt, false).ok());
        let prompt = decoded.unwrap_or_else(|| format!("{:?}", request.prompt));
        tracing::info!(target: "bitnet::prompt", id = job.id, prompt);
    }
}

/// Runs what takes long on a thread that may block; a panic there is a fault like any other.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::fault("the request made a handler panic"))
}

fn start(service: &Service, job: &Job) -> Result<Answers, ApiError> {
    let deadline = job.timeout().filter(|&t| t < service.config.request_timeout);
    let expected = service.overload.check(&service.engine, job.priority(), deadline)?;
    Answers::submit(service, job, expected).map_err(|e| service.overload.honest(&service.engine, e))
}

/// What all objects of the answer to a job share.
pub(crate) fn shape(service: &Service, job: &Job, created: u64) -> Shape {
    Shape {
        endpoint: job.endpoint,
        id: job.id.clone(),
        created,
        model: service.model.name.clone(),
        tokenizer: service.model.tokenizer.clone(),
        logprobs: job.logprobs,
        token_ids: job.token_ids,
        include_usage: job.include_usage,
    }
}

async fn whole(service: &Service, job: Job, mut answers: Answers) -> Result<Response, ApiError> {
    let mut pieces = Vec::new();
    while let Some(piece) = answers.next().await {
        pieces.push(piece?);
    }
    let usage = Usage::new(job.prompt_tokens(), answers.tokens());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = shape(service, &job, now).whole(job.choices(), pieces, usage);
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Waits for the first piece, so that what fails at once has a status that says so; but not so long that the client
/// would think that nobody is there.
async fn streamed(service: &Service, job: Job, mut answers: Answers) -> Result<Response, ApiError> {
    let first: Option<Piece> = match tokio::time::timeout(SILENCE, answers.next()).await {
        Ok(first) => first.transpose()?,
        Err(_) => None,
    };
    let events = Events {
        answers,
        first,
        shape: shape(service, &job, service.model.created),
        prompt_tokens: job.prompt_tokens(),
        position: Position::start(job.choices()),
        after: job.after.clone().unwrap_or_else(|| Position::start(job.choices())),
        then: Then::Pieces,
    };
    let mut response = events.into_sse().into_response().map(Body::new);
    // A proxy that collects events would defeat them.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}
