//! `POST /api/embed`, and its older form `POST /api/embeddings`.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::{Request, State},
};
use bitnet::inference;
use serde::Serialize;
use serde_json::json;

use super::{answer::nanos, options};
use crate::{
    dialects::openai::embeddings::{Texts, read_texts},
    generate::prompt::Encoder,
    http::{app::App, error::ApiError, fields::Fields},
    service::Service,
};

/// Durations are in nanoseconds.
#[derive(Serialize)]
pub(crate) struct Embedded {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    /// The model is loaded before the server answers.
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
pub(crate) struct One {
    embedding: Vec<f32>,
}

/// `POST /api/embed`: an embedding for each text of `input`.
pub(crate) async fn embed(State(app): State<Arc<App>>, request: Request) -> Result<Json<Embedded>, ApiError> {
    let begun = Instant::now();
    let texts = read_texts(&app, request, |fields, encoder, service| {
        let texts = take("input", fields, encoder, service)?;
        // A text that is too long is refused, whatever this says.
        fields.harmless("truncate", &[json!(false)])?;
        Ok(texts)
    });
    let texts = texts.await?;
    let service = app.service()?;
    let embeddings = texts.embed(service).await?;
    Ok(Json(Embedded {
        model: service.model.name.clone(),
        prompt_eval_count: embeddings.iter().map(|embedding| embedding.prompt_tokens).sum(),
        embeddings: embeddings.into_iter().map(|embedding| embedding.values).collect(),
        total_duration: nanos(begun.elapsed()),
        load_duration: 0,
    }))
}

/// `POST /api/embeddings`: the embedding of `prompt`.
pub(crate) async fn embed_one(State(app): State<Arc<App>>, request: Request) -> Result<Json<One>, ApiError> {
    let texts = read_texts(&app, request, |fields, encoder, service| {
        let texts = take("prompt", fields, encoder, service)?;
        match texts.len() {
            1 => Ok(texts),
            _ => Err(ApiError::field("prompt", "it must be one text: send many to /api/embed")),
        }
    });
    let mut embeddings = texts.await?.embed(app.service()?).await?;
    Ok(Json(One { embedding: embeddings.remove(0).values }))
}

/// Takes the fields that both paths have.
fn take(
    field: &'static str,
    fields: &mut Fields<'_>,
    encoder: &Encoder<'_>,
    service: &Service,
) -> Result<Texts, ApiError> {
    let texts = Texts::take(field, fields, encoder, service)?;
    // Valid options change no embedding, and `num_ctx` is valid only if it has room for the longest text.
    let config = options::config(fields, &encoder.model.defaults, texts.longest())?;
    if config.n > 1 {
        return Err(ApiError::unsupported("options.n", "more than one embedding of a text"));
    }
    let valid = service.engine.validate(&inference::Request::new(vec![0], config));
    valid.map_err(|refused| ApiError::from(refused).renamed(&options::names(field)))?;
    // The model always stays loaded.
    fields.harmless("keep_alive", &[])?;
    Ok(texts)
}
