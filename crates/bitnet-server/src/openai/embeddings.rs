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

use crate::{
    http::{
        app::{App, read},
        error::ApiError,
        fields::Fields,
        reading::Reading,
    },
    openai::{
        completions,
        job::{check_model, priority, salt},
        prompt::Encoder,
    },
    service::Service,
};

/// The handler of `POST /v1/embeddings`.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<List>, ApiError> {
    let name = &app.service()?.model.name;
    if !app.service()?.embeds() {
        return Err(no_embeddings(name));
    }
    let asked = read(&app, request, |service, _, body, reading| Asked::read(service, body, reading)).await?;
    let service = app.service()?;
    let refused = |error: &ApiError| service.metrics.rejected(error.body.code.unwrap_or("other"));
    let (hidden, tokens) = asked.compute(service).await.inspect_err(refused)?;
    let data = hidden.into_iter().enumerate().map(|(index, hidden)| {
        let values = Embedding::new(hidden, 0).truncated(asked.dimensions).values;
        let embedding = if asked.base64 { Values::Base64(base64(&values)) } else { Values::Floats(values) };
        Item { object: "embedding", index, embedding }
    });
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(Json(List { object: "list", data: data.collect(), model: name.clone(), usage }))
}

/// The model does not embed texts.
pub(crate) fn no_embeddings(name: &str) -> ApiError {
    let message = format!(
        "{name:.100?} is no embedding model: ask it for text, or serve a model for embeddings elsewhere"
    );
    ApiError::new(StatusCode::BAD_REQUEST, "no_embeddings", message).about("model")
}

/// A parsed and validated request.
struct Asked {
    requests: Vec<inference::Request>,
    dimensions: usize,
    base64: bool,
    /// Whether the client has set a deadline.
    hurried: bool,
}

impl Asked {
    fn read(service: &Service, body: &[u8], reading: &Reading) -> Result<Asked, ApiError> {
        let mut fields = Fields::parse(body)?.strictly(service.config.strict);
        check_model(&mut fields, &service.model)?;
        let encoder = Encoder { model: &service.model, context: service.engine.context(), reading };
        let texts = completions::texts_or_ids(&mut fields, "input", &encoder)?;
        let base64 = match fields.take::<String>("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(ApiError::field("encoding_format", "it must be float or base64")),
        };
        let width = service.width();
        let dimensions = fields.take("dimensions")?.unwrap_or(width);
        if !(1..=width).contains(&dimensions) {
            return Err(ApiError::field("dimensions", format!("{dimensions} is not from 1 to {width}")));
        }
        let (priority, salt) = (priority(&mut fields)?, salt(fields.take("user")?));
        fields.finish()?;
        let timeout = Some(reading.remaining());
        let request =
            |text| inference::Request { priority, salt, timeout, ..inference::Request::hidden(text) };
        let requests: Vec<_> = texts.into_iter().map(request).collect();
        requests
            .iter()
            .try_for_each(|request| service.engine.validate(request))
            .map_err(|error| ApiError::from(error).about("input"))?;
        Ok(Asked { requests, dimensions, base64, hurried: reading.hurried })
    }

    /// The hidden states of all texts, which are admitted together or not at all, and their number of tokens.
    async fn compute(&self, service: &Service) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
        let (first, overload) = (&self.requests[0], &service.overload);
        let deadline = first.timeout.filter(|_| self.hurried);
        let expected = overload.check(&service.engine, first.priority, deadline)?;
        let waiting = overload.wait(first.priority, expected);
        let handles = service.engine.submit_together_timeout(self.requests.clone(), Duration::ZERO);
        let handles = handles.map_err(|refused| {
            let never = matches!(refused, SubmitError::NeverFits { .. });
            let error = overload.with_retry_time(&service.engine, ApiError::from(refused));
            if never { error.about("input") } else { error }
        })?;
        let mut hidden = Vec::with_capacity(handles.len());
        for handle in handles {
            hidden.push(handle.wait_async().await.map_err(ApiError::from)?.logits.unwrap_or_default());
        }
        waiting.over();
        Ok((hidden, self.requests.iter().map(|request| request.prompt.len()).sum()))
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
