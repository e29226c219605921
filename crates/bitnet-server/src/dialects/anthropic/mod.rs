//! Anthropic's API: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod answer;
mod input;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::Response,
};
use serde_json::{Value, json};

use super::generate;
use crate::{
    http::{
        app::{App, read},
        error::ApiError,
        fields::Fields,
    },
    openai::{chat::Conversation, job::check_model, prompt::Encoder},
};
use answer::Messages;
use input::{conversation, rest};

/// `POST /v1/messages`.
pub(crate) async fn messages(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    generate::answer::<Messages>(app, request).await
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let counted = read(&app, request, |service, _, body, reading| {
        let mut fields = Fields::parse(body)?.strictly(service.config.strict);
        check_model(&mut fields, &service.model)?;
        let encoder = Encoder { model: &service.model, context: service.engine.context(), reading };
        let (Conversation { tokens, .. }, _) = conversation(&mut fields, &encoder)?;
        rest(&mut fields)?;
        fields.finish()?;
        Ok(Json(json!({"input_tokens": tokens.len()})))
    });
    counted.await
}
