//! Writes errors in the form that the clients of a path expect.

use axum::{body::Body, extract::Request, http::StatusCode, middleware::Next, response::Response};
use serde_json::{Value, json};

use crate::http::error::ApiError;

/// Answers a request, with errors in the form of its path.
pub(crate) async fn in_the_form_of_the_path(request: Request, next: Next) -> Response {
    let form: Option<fn(&ApiError) -> Value> = match request.uri().path() {
        path if path == "/v1/messages" || path.starts_with("/v1/messages/") => Some(anthropic_error),
        path if path.starts_with("/api/") => Some(ollama_error),
        _ => None,
    };
    let mut response = next.run(request).await;
    match (form, response.extensions_mut().remove::<ApiError>()) {
        (Some(form), Some(error)) => response.map(|_| Body::from(form(&error).to_string())),
        _ => response,
    }
}

/// An error as Anthropic's clients read it.
pub(crate) fn anthropic_error(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.body.message}})
}

/// An error as Ollama's clients read it.
pub(crate) fn ollama_error(error: &ApiError) -> Value {
    json!({"error": error.body.message})
}
