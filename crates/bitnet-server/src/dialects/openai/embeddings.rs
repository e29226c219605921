//! `POST /v1/embeddings`: texts in, vectors of length 1 out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bitnet::{
    Embedding,
    inference::{self, RequestHandle, SubmitError},
};
use serde::Serialize;

use super::completions;
use crate::{
    generate::{
        prompt::Encoder,
        read::{priority, read_fields, user_salt},
    },
    http::{
        app::App,
        error::{ApiError, Names},
        fields::Fields,
    },
    service::Service,
};

/// Maximum number of texts of a request, as with OpenAI.
const MAX_TEXTS: usize = 2048;

/// Maximum number of texts of a request that are in the queue at once.
const AT_ONCE: usize = 128;

/// The handler of `POST /v1/embeddings`.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<List>, ApiError> {
    let (texts, coded) = read_texts(&app, request, take).await?;
    let service = app.service()?;
    Ok(Json(listed(texts.embed(service).await?, coded, &service.model.name)))
}

/// Takes the texts, and whether their embeddings are coded in base64.
pub(crate) fn take(
    fields: &mut Fields<'_>,
    encoder: &Encoder<'_>,
    service: &Service,
) -> Result<(Texts, bool), ApiError> {
    if !service.embeds() {
        return Err(no_embeddings(&service.model.name));
    }
    let texts = Texts::take("input", fields, encoder, service)?;
    match fields.take::<String>("encoding_format")?.as_deref() {
        None | Some("float") => Ok((texts, false)),
        Some("base64") => Ok((texts, true)),
        Some(_) => Err(ApiError::field("encoding_format", "it must be float or base64")),
    }
}

/// The answer of `/v1/embeddings`.
pub(crate) fn listed(embeddings: Vec<Embedding>, coded: bool, model: &str) -> List {
    let tokens = embeddings.iter().map(|embedding| embedding.prompt_tokens).sum();
    let data = embeddings.into_iter().enumerate().map(|(index, Embedding { values, .. })| {
        let embedding = if coded { Values::Base64(base64(&values)) } else { Values::Floats(values) };
        Item { object: "embedding", index, embedding }
    });
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    List { object: "list", data: data.collect(), model: model.to_owned(), usage }
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
    /// The field that has the texts.
    field: &'static str,
}

impl Texts {
    /// Takes the texts of `field`, and the other fields that decide how they are embedded.
    pub fn take(
        field: &'static str,
        fields: &mut Fields<'_>,
        encoder: &Encoder<'_>,
        service: &Service,
    ) -> Result<Texts, ApiError> {
        let pooling = service.pooling().ok_or_else(|| no_embeddings(&service.model.name))?;
        let texts = completions::texts_or_ids(fields, field, MAX_TEXTS, encoder)?;
        let width = service.width();
        let dimensions = fields.take("dimensions")?.unwrap_or(width);
        if !(1..=width).contains(&dimensions) {
            return Err(ApiError::field("dimensions", format!("{dimensions} is not from 1 to {width}")));
        }
        let (priority, salt) = (priority(fields)?, user_salt(fields)?);
        let timeout = Some(encoder.reading.remaining());
        let request = |text| inference::Request {
            priority,
            salt,
            timeout,
            ..inference::Request::pooled(text, pooling)
        };
        let requests: Vec<_> = texts.into_iter().map(request).collect();
        requests
            .iter()
            .try_for_each(|request| service.engine.validate(request))
            .map_err(|error| ApiError::from(error).renamed(&Names::new([("prompt", field)])))?;
        Ok(Texts { requests, dimensions, has_deadline: encoder.reading.has_deadline, field })
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Number of tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.requests.iter().map(|request| request.prompt.len()).max().unwrap_or(0)
    }

    /// The embeddings of all texts. The first are admitted together or not at all, the others as these end.
    pub async fn embed(self, service: &Service) -> Result<Vec<Embedding>, ApiError> {
        let refused = |error: &ApiError| service.metrics.rejected(error.body.code.unwrap_or("other"));
        self.compute(service).await.inspect_err(refused)
    }

    async fn compute(self, service: &Service) -> Result<Vec<Embedding>, ApiError> {
        let Texts { mut requests, dimensions, has_deadline, field } = self;
        let (first, overload) = (&requests[0], &service.overload);
        let priority = first.priority;
        let deadline = first.timeout.filter(|_| has_deadline);
        let expected = overload.check(&service.engine, priority, deadline)?;
        let waiting = overload.wait(priority, expected);
        let rest = requests.split_off(requests.len().min(AT_ONCE));
        let lengths: Vec<usize> = requests.iter().map(|request| request.prompt.len()).collect();
        let handles = service.engine.submit_together_timeout(requests, Duration::ZERO);
        let handles = handles.map_err(|refused| {
            let never = matches!(refused, SubmitError::NeverFits { .. });
            let error = overload.with_retry_time(&service.engine, ApiError::from(refused));
            if never { error.about(field) } else { error }
        })?;
        let mut embeddings = finished(handles, lengths, dimensions).await?;
        waiting.over();
        embeddings.extend(in_turn(service, rest, dimensions).await?);
        Ok(embeddings)
    }

    /// The embeddings of all texts, which wait for room in the queue as often as necessary. Texts that fit at once are
    /// submitted before this returns.
    pub fn embed_in_turn(
        self,
        service: &Service,
    ) -> impl Future<Output = Result<Vec<Embedding>, ApiError>> + use<> {
        let lengths: Vec<usize> = self.requests.iter().map(|request| request.prompt.len()).collect();
        let handles = service.engine.submit_all_async(self.requests);
        let dimensions = self.dimensions;
        async move { finished(handles.await.map_err(ApiError::from)?, lengths, dimensions).await }
    }
}

/// The embeddings of further texts, a limited number at a time, within the time that the first ones have left.
async fn in_turn(
    service: &Service,
    mut requests: Vec<inference::Request>,
    dimensions: usize,
) -> Result<Vec<Embedding>, ApiError> {
    let begun = Instant::now();
    let mut embeddings = Vec::with_capacity(requests.len());
    while !requests.is_empty() {
        let later = requests.split_off(requests.len().min(AT_ONCE));
        for request in &mut requests {
            request.timeout = request.timeout.map(|time| time.saturating_sub(begun.elapsed()));
        }
        let lengths = requests.iter().map(|request| request.prompt.len()).collect();
        let handles = service.engine.submit_all_async(requests).await.map_err(ApiError::from)?;
        embeddings.extend(finished(handles, lengths, dimensions).await?);
        requests = later;
    }
    Ok(embeddings)
}

async fn finished(
    handles: Vec<RequestHandle>,
    lengths: Vec<usize>,
    dimensions: usize,
) -> Result<Vec<Embedding>, ApiError> {
    let mut embeddings = Vec::with_capacity(handles.len());
    for (handle, tokens) in handles.into_iter().zip(lengths) {
        let hidden = handle.wait_async().await.map_err(ApiError::from)?.logits.unwrap_or_default();
        embeddings.push(Embedding::new(hidden, tokens).truncated(dimensions));
    }
    Ok(embeddings)
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

/// The values as little-endian f32 in base64, as OpenAI's clients decode them.
fn base64(values: &[f32]) -> String {
    STANDARD.encode(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
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
