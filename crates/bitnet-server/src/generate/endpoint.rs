//! The endpoints that generate: reads a job in a dialect, submits it, and answers it whole or as a stream.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};

use super::{
    answer::{About, now},
    dialect::Dialect,
    job::Job,
    pieces::Pieces,
    prompt::Encoder,
    stream::{KEEP_ALIVE, Stream},
    turn::{Turn, keep_best},
};
use crate::{
    http::{
        app::{App, read},
        error::ApiError,
        fields::Fields,
        reading::Reading,
    },
    service::Service,
};

/// Answers a request in a dialect.
pub(crate) async fn answer<D: Dialect>(app: Arc<App>, request: Request) -> Result<Response, ApiError> {
    let asked = read(&app, request, |service, headers, body, reading| {
        match D::at_once(service, headers, body, reading)? {
            Some(answer) => Ok(Err(answer)),
            None => job::<D>(service, headers, body, reading).map(Ok),
        }
    });
    let (job, dialect) = match asked.await? {
        Ok(job) => job,
        Err(answer) => return Ok(Json(answer).into_response()),
    };
    let service = app.service()?;
    let pieces = begin(service, &job)?;
    let (chat, seed, relaxed) = (job.chat, job.seed, job.relaxed.join(", "));
    let response = if job.stream {
        streamed(service, job, pieces, dialect).await?
    } else {
        whole(service, job, pieces, dialect).await?
    };
    let mut response = with_headers(response, service, chat, seed);
    if !relaxed.is_empty() {
        let names = HeaderValue::try_from(relaxed).expect("names of tools are plain");
        response.headers_mut().insert("x-relaxed-tools", names);
    }
    Ok(response)
}

/// Reads a body as a job, with the dialect that writes its answer.
pub(crate) fn job<D: Dialect>(
    service: &Service,
    headers: &HeaderMap,
    body: &[u8],
    reading: &Reading,
) -> Result<(Job, D), ApiError> {
    if !D::OF_EVENTS && headers.contains_key("last-event-id") {
        return Err(ApiError::unsupported("Last-Event-ID", "to resume a stream of this path"));
    }
    let read = |fields: &mut Fields<'_>, encoder: &Encoder<'_>| {
        let (parsed, dialect) = D::read(fields, encoder)?;
        match parsed.config.n {
            2.. if !D::OF_EVENTS => Err(ApiError::unsupported("n", "more than one answer")),
            _ => Ok((parsed, dialect)),
        }
    };
    Job::read(read, service, headers, body, reading)
}

/// Submits a job, unless the server has too much to do.
fn begin(service: &Service, job: &Job) -> Result<Pieces, ApiError> {
    log_prompts(service, job);
    let deadline = job.timeout().filter(|_| job.has_deadline);
    let expected = service.overload.check(&service.engine, job.priority(), deadline);
    let begun = expected.and_then(|expected| {
        Pieces::submit(service, job, expected)
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

/// Adds the headers that give the answer's seed, and say whether a chat's prompt was made without a template.
fn with_headers(mut response: Response, service: &Service, chat: bool, seed: u64) -> Response {
    let headers = response.headers_mut();
    headers.insert("x-seed", HeaderValue::from(seed));
    if chat && service.model.chat.is_none() {
        let joined = HeaderValue::from_static("none; contents joined by blank lines");
        headers.insert("x-chat-template", joined);
    }
    response
}

/// Collects all pieces of an answer, and counts its tokens.
pub(crate) async fn gather(
    service: &Service,
    job: &Job,
    pieces: &mut Pieces,
    created: u64,
) -> Result<(About, Vec<Turn>), ApiError> {
    let (mut about, mut turns) = About::new(service, job, created);
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        about.arrived(&piece);
        let turn = &mut turns[piece.choice];
        turn.add(&piece, &mut |_, _| {});
        turn.tokens.add(piece);
    }
    about.count(pieces.usage(), &turns);
    if let Some(best) = job.best {
        turns = keep_best(turns, job.n, best);
    }
    Ok((about, turns))
}

async fn whole<D: Dialect>(
    service: &Service,
    job: Job,
    mut pieces: Pieces,
    dialect: D,
) -> Result<Response, ApiError> {
    let (about, turns) = gather(service, &job, &mut pieces, now()).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], dialect.whole(&about, &turns)).into_response())
}

async fn streamed<D: Dialect>(
    service: &Service,
    job: Job,
    mut pieces: Pieces,
    dialect: D,
) -> Result<Response, ApiError> {
    pieces.wait_for_first(KEEP_ALIVE).await?;
    // A resumed stream has the same bytes, so it cannot carry the current time.
    let created = if D::OF_EVENTS { service.model.created } else { now() };
    let (about, turns) = About::new(service, &job, created);
    let body = Body::from_stream(Stream::new(about, turns, pieces, dialect));
    // The last header keeps proxies from buffering events.
    let headers = [(header::CONTENT_TYPE, D::STREAM), (header::CACHE_CONTROL, "no-cache")];
    let mut response = (headers, body).into_response();
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}
