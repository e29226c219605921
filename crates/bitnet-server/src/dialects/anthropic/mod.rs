//! Anthropic's API: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod answer;
mod input;
mod thinking;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::Response,
};
use serde_json::{Value, json};

use crate::{
    generate::{endpoint, read::read_fields},
    http::{app::App, error::ApiError},
};
use answer::Messages;
use input::{Read, conversation, rest};

/// `POST /v1/messages`.
pub(crate) async fn messages(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    endpoint::answer::<Messages>(app, request).await
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let counted = read_fields(&app, request, |fields, encoder, _| {
        let Read { conversation, .. } = conversation(fields, encoder)?;
        rest(fields)?;
        Ok(Json(json!({"input_tokens": conversation.tokens.len()})))
    });
    counted.await
}
