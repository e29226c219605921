//! What reports on the server: its health, its metrics and the description of its paths.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::http::{app::App, error::ApiError};

/// `GET /openapi.json`.
pub(crate) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
}

/// `GET /live`: the process answers, and the engine's step is not stalled.
pub(crate) async fn live(State(app): State<Arc<App>>) -> Response {
    match app.loaded().and_then(|service| service.engine.stalled()) {
        None => Json(json!({"status": "live"})).into_response(),
        Some(age) => {
            let message = format!("a forward pass has been running for {age:.0?}: restart the server");
            ApiError::unavailable("stalled", message).into_response()
        }
    }
}

/// `GET /ready`: requests are accepted, or the reason why not.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    match app.service() {
        Ok(_) => Json(json!({"status": "ready"})).into_response(),
        Err(error) => error.into_response(),
    }
}

/// `GET /health`: as `/ready`, with the state of the engine.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let Some(service) = app.loaded() else { return ready(State(app)).await };
    let open = service.engine.is_open();
    let status = service.engine.status();
    let queue = service.engine.queue();
    let lost = service.engine.lost();
    let report = json!({
        "status": if lost.is_some() { "device_lost" } else if open { "ready" } else { "stopped" },
        "reason": lost.map(|lost| lost.to_string()),
        "model": service.model.name,
        "running": status.running,
        "waiting": queue.sequences,
        "kv_blocks": status.kv_blocks,
        "kv_used": status.kv_used,
    });
    let code = if open { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(report)).into_response()
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    // A stopped engine still reports its metrics.
    let Some(service) = app.loaded() else { return app.service().map(|_| StatusCode::OK.into_response()) };
    let text = service.metrics.text(&service.engine);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

/// `GET /stats`: the numbers of `/metrics`, as JSON.
pub(crate) async fn stats(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let Some(service) = app.loaded() else { return app.service().map(|_| StatusCode::OK.into_response()) };
    Ok(Json(service.metrics.json(&service.engine)).into_response())
}
