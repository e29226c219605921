//! `GET /v1/models` and `GET /v1/models/{name}`: the served model.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
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
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let service = app.service()?;
    match name == service.model.name {
        true => Ok(Json(card(&service.model, service.engine.context()))),
        false => Err(unknown_model(&name, &service.model)),
    }
}

fn card(model: &ServedModel, context: usize) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "bitnet",
        "max_model_len": context,
    })
}
