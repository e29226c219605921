//! `POST /v1/embeddings`: texts in, vectors of length 1 out.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};
use bitnet::{
    Embedding,
    inference::{self, SubmitError},
};
use serde::Serialize;

use super::completions;
use crate::{
    generate::{
        prompt::Encoder,
        read::{priority, read_fields, salt},
    },
    http::{app::App, error::ApiError, fields::Fields},
    service::Service,
};

/// The handler of `POST /v1/embeddings`.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<List>, ApiError> {
    let (texts, coded) = read_texts(&app, request, |fields, encoder, service| {
        let texts = Texts::take("input", fields, encoder, service)?;
        match fields.take::<String>("encoding_format")?.as_deref() {
            None | Some("float") => Ok((texts, false)),
            Some("base64") => Ok((texts, true)),
            Some(_) => Err(ApiError::field("encoding_format", "it must be float or base64")),
        }
    })
    .await?;
    let service = app.service()?;
    let embeddings = texts.embed(service).await?;
    let tokens = embeddings.iter().map(|embedding| embedding.prompt_tokens).sum();
    let data = embeddings.into_iter().enumerate().map(|(index, Embedding { values, .. })| {
        let embedding = if coded { Values::Base64(base64(&values)) } else { Values::Floats(values) };
        Item { object: "embedding", index, embedding }
    });
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(Json(List { object: "list", data: data.collect(), model: service.model.name.clone(), usage }))
}

/// As [`read_fields`]. Refuses every body if the model does not embed texts.
pub(crate) async fn read_texts<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    take: fn(&mut Fields<'_>, &Encoder<'_>, &Service) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let service = app.service()?;
    if !service.embeds() {
        return Err(no_embeddings(&service.model.name));
    }
    read_fields(app, request, take).await
}

/// The model does not embed texts.
fn no_embeddings(name: &str) -> ApiError {
    let message = format!(
        "{name:.100?} is no embedding model: ask it for text, or serve a model for embeddings elsewhere"
    );
    ApiError::new(StatusCode::BAD_REQUEST, "no_embeddings", message).about("model")
}

/// Texts to embed, as valid requests.
pub(crate) struct Texts {
    requests: Vec<inference::Request>,
    dimensions: usize,
    /// Whether the client has set a deadline.
    has_deadline: bool,
}

impl Texts {
    /// Takes the texts of `field`, and the other fields that decide how they are embedded.
    pub fn take(
        field: &'static str,
        fields: &mut Fields<'_>,
        encoder: &Encoder<'_>,
        service: &Service,
    ) -> Result<Texts, ApiError> {
        let texts = completions::texts_or_ids(fields, field, encoder)?;
        let width = service.width();
        let dimensions = fields.take("dimensions")?.unwrap_or(width);
        if !(1..=width).contains(&dimensions) {
            return Err(ApiError::field("dimensions", format!("{dimensions} is not from 1 to {width}")));
        }
        let (priority, salt) = (priority(fields)?, salt(fields.take("user")?));
        let timeout = Some(encoder.reading.remaining());
        let request =
            |text| inference::Request { priority, salt, timeout, ..inference::Request::hidden(text) };
        let requests: Vec<_> = texts.into_iter().map(request).collect();
        requests
            .iter()
            .try_for_each(|request| service.engine.validate(request))
            .map_err(|error| ApiError::from(error).about(field))?;
        Ok(Texts { requests, dimensions, has_deadline: encoder.reading.has_deadline })
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Number of tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.requests.iter().map(|request| request.prompt.len()).max().unwrap_or(0)
    }

    /// The embeddings of all texts, which are admitted together or not at all.
    pub async fn embed(self, service: &Service) -> Result<Vec<Embedding>, ApiError> {
        let refused = |error: &ApiError| service.metrics.rejected(error.body.code.unwrap_or("other"));
        self.compute(service).await.inspect_err(refused)
    }

    async fn compute(self, service: &Service) -> Result<Vec<Embedding>, ApiError> {
        let (first, overload) = (&self.requests[0], &service.overload);
        let (priority, deadline) = (first.priority, first.timeout.filter(|_| self.has_deadline));
        let expected = overload.check(&service.engine, priority, deadline)?;
        let waiting = overload.wait(priority, expected);
        let lengths: Vec<usize> = self.requests.iter().map(|request| request.prompt.len()).collect();
        let handles = service.engine.submit_together_timeout(self.requests, Duration::ZERO);
        let handles = handles.map_err(|refused| {
            let never = matches!(refused, SubmitError::NeverFits { .. });
            let error = overload.with_retry_time(&service.engine, ApiError::from(refused));
            if never { error.about("input") } else { error }
        })?;
        let mut embeddings = Vec::with_capacity(handles.len());
        for (handle, tokens) in handles.into_iter().zip(lengths) {
            let hidden = handle.wait_async().await.map_err(ApiError::from)?.logits.unwrap_or_default();
            embeddings.push(Embedding::new(hidden, tokens).truncated(self.dimensions));
        }
        waiting.over();
        Ok(embeddings)
    }
}

#[derive(Serialize)]
pub(crate) struct List {
    object: &'static str,
    data: Vec<Item>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Values,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Values {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The values as little-endian f32 in base64 (RFC 4648), as OpenAI's clients decode them.
fn base64(values: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = (0..3).fold(0, |word, i| word << 8 | u32::from(chunk.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_little_endian_floats_in_base64() {
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(base64(&[1.0, -2.0, 0.5]), "AACAPwAAAMAAAAA/");
    }
}
