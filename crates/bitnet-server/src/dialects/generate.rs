//! Answers requests in a dialect, with jobs like those of chats.

use std::{sync::Arc, time::Instant};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, header},
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
        job::{Endpoint, Job},
        prompt::Encoder,
        stream::KEEP_ALIVE,
    },
    service::Service,
};

pub(crate) async fn answer<D: Dialect>(app: Arc<App>, request: Request) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let (job, dialect) = read(&app, request, job::<D>).await?;
    let service = app.service()?;
    let answers = generate::begin(service, &job)?;
    let turn = Turn::new(&job, &service.model.name, generate::now(), begun);
    let response = match job.stream {
        true => streamed(turn, answers, dialect).await?,
        false => whole(turn, answers, dialect).await?,
    };
    Ok(generate::with_headers(response, service, job.endpoint, job.seed))
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
    let read = |fields: &mut Fields<'_>, encoder: &Encoder<'_>| {
        let (parsed, dialect) = D::read(fields, encoder)?;
        match parsed.config.n {
            1 => Ok((parsed, dialect)),
            _ => Err(ApiError::unsupported("n", "more than one answer")),
        }
    };
    let (job, dialect) = Job::read_by(read, Endpoint::Chat, service, headers, body, reading)?;
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
    answers.wait_for_first(KEEP_ALIVE).await?;
    let body = Body::from_stream(Stream::new(turn, answers, dialect));
    Ok(generate::unbuffered(([(header::CONTENT_TYPE, D::STREAM)], body).into_response()))
}
