//! `GET /v1/models` and `GET /v1/models/{name}`: the served model.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
};
use serde_json::{Value, json};

use crate::{
    generate::read::unknown_model,
    http::{app::App, error::ApiError},
    service::ServedModel,
};

/// `GET /v1/models`.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let service = app.service()?;
    let model = card(&service.model, service.engine.context());
    Ok(Json(json!({"object": "list", "data": [model]})))
}

/// `GET /v1/models/{name}`.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let service = app.service()?;
    let Path(name) = name.map_err(|refused| ApiError::malformed(refused.body_text()))?;
    if service.model.is_called(&name) {
        Ok(Json(card(&service.model, service.engine.context())))
    } else {
        Err(unknown_model(&name, &service.model))
    }
}

fn card(model: &ServedModel, context: usize) -> Value {
    let mut card = json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "bitnet",
        "max_model_len": context,
    });
    // What the chat template does, as far as it was found out.
    if let Some(template) = &model.chat {
        card["conventions"] = json!(template.conventions());
    }
    card
}
