//! Answers requests in a dialect, with jobs like those of chats.

use std::{sync::Arc, time::Instant};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};

use super::{dialect::Dialect, stream::Stream, turn::Turn};
use crate::{
    http::{
        app::{App, read},
        error::ApiError,
        fields::Fields,
        reading::Reading,
    },
    openai::{
        answers::Answers,
        generate,
        job::{Endpoint, Job, check_model},
        prompt::Encoder,
    },
    service::Service,
};

/// Answers a request in a dialect.
pub(crate) async fn answer<D: Dialect>(app: Arc<App>, request: Request) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let (job, dialect) = read(&app, request, job::<D>).await?;
    let service = app.service()?;
    let answers = generate::begin(service, &job)?;
    let turn = Turn::new(&job, &service.model.name, generate::now(), begun);
    let mut response = match job.stream {
        true => streamed(turn, answers, dialect).await?,
        false => whole(turn, answers, dialect).await?,
    };
    response.headers_mut().insert("x-seed", HeaderValue::from(job.seed));
    if service.model.chat.is_none() {
        generate::mark_untemplated(&mut response);
    }
    Ok(response)
}

fn job<D: Dialect>(
    service: &Service,
    headers: &HeaderMap,
    body: &[u8],
    reading: &Reading,
) -> Result<(Job, D), ApiError> {
    if headers.contains_key("last-event-id") {
        return Err(ApiError::unsupported("Last-Event-ID", "to resume a stream of this path"));
    }
    let mut fields = Fields::parse(body)?.strictly(service.config.strict);
    let digest = fields.digest_without("seed");
    check_model(&mut fields, &service.model)?;
    let encoder = Encoder { model: &service.model, context: service.engine.context(), reading };
    let (parsed, dialect) = D::read(&mut fields, &encoder)?;
    fields.finish()?;
    if parsed.config.n != 1 {
        return Err(ApiError::unsupported("n", "more than one answer"));
    }
    let job = Job::new(Endpoint::Chat, parsed, digest, service, headers, reading)?;
    Ok((Job { id: format!("{}{}", D::ID, job.name), ..job }, dialect))
}

async fn whole<D: Dialect>(mut turn: Turn, mut answers: Answers, dialect: D) -> Result<Response, ApiError> {
    while let Some(piece) = answers.next().await {
        turn.add(&piece?, &mut |_, _| {});
    }
    turn.tokens = answers.tokens();
    Ok(([(header::CONTENT_TYPE, "application/json")], dialect.whole(&turn)).into_response())
}

async fn streamed<D: Dialect>(turn: Turn, mut answers: Answers, dialect: D) -> Result<Response, ApiError> {
    let first = generate::first(&mut answers).await?;
    let body = Stream::new(turn, answers, first, dialect).into_body();
    Ok(generate::unbuffered(([(header::CONTENT_TYPE, D::STREAM)], body).into_response()))
}
