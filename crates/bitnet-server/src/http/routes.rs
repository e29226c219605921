//! Every path of the server, and what goes around each of them: hosts, keys, ids, panics.

use std::sync::Arc;

use axum::{
    Router,
    extract::{ConnectInfo, MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    dialects::{
        anthropic,
        errors::in_the_form_of_the_path,
        ollama,
        openai::{self, embeddings, models, tokens},
        responses,
    },
    http::{app::App, caller::Caller, error::ApiError, host::Hosts, origins, page, probes},
    random::fresh,
};

/// All routes of the server, for use in any axum app.
pub fn router(app: Arc<App>) -> Router {
    router_for(app, Hosts::any())
}

/// As [`router`], for a server that answers only requests for some host names.
pub(crate) fn router_for(app: Arc<App>, hosts: Hosts) -> Router {
    let open = Router::new()
        .route("/", get(page::html))
        .route("/page.css", get(page::css))
        .route("/page.js", get(page::js))
        .route("/live", get(probes::live))
        .route("/ready", get(probes::ready))
        .route("/health", get(probes::health))
        .method_not_allowed_fallback(wrong_method);
    let keyed = Router::new()
        .route("/v1/completions", post(openai::completions))
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::prompt))
        .route("/api/show", post(ollama::show))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::running))
        .route("/api/version", get(ollama::version))
        .route("/api/embed", post(ollama::embed::embed))
        .route("/api/embeddings", post(ollama::embed::embed_one))
        .route("/v1/models", get(models::models))
        .route("/v1/models/{*name}", get(models::model))
        .route("/tokenize", post(tokens::tokenize))
        .route("/tokenizer_info", get(tokens::tokenizer_info))
        .route("/detokenize", post(tokens::detokenize))
        .route("/metrics", get(probes::metrics))
        .route("/stats", get(probes::stats))
        .route("/openapi.json", get(probes::openapi))
        .method_not_allowed_fallback(wrong_method)
        .fallback(nowhere)
        // Last, so that clients without the key cannot tell which paths exist.
        .layer(from_fn_with_state(Arc::clone(&app), authorised));
    let mut all = open.merge(keyed);
    if !app.config.allow_origins.is_empty() {
        // Before the key is checked: browsers ask for permission without it.
        all = all.layer(origins::allow(&app.config.allow_origins));
    }
    let all = all.layer(from_fn_with_state(hosts, addressed));
    guarded(all).layer(from_fn_with_state(Arc::clone(&app), counted)).with_state(app)
}

/// Answers every other path.
async fn nowhere(request: Request) -> ApiError {
    let message = format!("there is nothing at {:.100}", request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", message)
}

/// Answers a known path with the wrong method.
async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", message)
}

/// Makes sure that every request gets an answer with an id, even if a handler panics.
fn guarded<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    let routes = routes.layer(CatchPanicLayer::custom(panicked));
    routes.layer(from_fn(in_the_form_of_the_path)).layer(from_fn(identified))
}

/// Refuses requests for host names that are not this server's.
async fn addressed(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    match hosts.check(&request) {
        Ok(()) => next.run(request).await,
        Err(foreign) => foreign.into_response(),
    }
}

/// Refuses requests without the API key, if there is one.
async fn authorised(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match &app.config.api_key {
        Some(key) if !knows(request.headers(), key) => {
            let message = "send the server's key as `Authorization: Bearer KEY` or `X-API-Key: KEY`";
            ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response()
        }
        _ => next.run(request).await,
    }
}

/// Whether the headers have the key, where OpenAI's or Anthropic's clients send it. Compares whole hashes, so that the
/// time taken reveals neither the key nor its length.
fn knows(headers: &HeaderMap, key: &str) -> bool {
    let bytes = |name: &str| headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
    let same = |sent: &[u8]| bool::from(Sha256::digest(sent).ct_eq(&Sha256::digest(key)));
    let sent = bytes(header::AUTHORIZATION.as_str());
    let scheme = sent.get(..7).unwrap_or_default();
    let bearer = scheme.eq_ignore_ascii_case(b"bearer ") & same(sent.get(7..).unwrap_or_default());
    bearer | (headers.contains_key("x-api-key") & same(bytes("x-api-key")))
}

/// Gives every request an id (the client's, if that is valid) and a line in the log.
async fn identified(mut request: Request, next: Next) -> Response {
    let id = match request.headers().get("x-request-id") {
        Some(id) if (1..=128).contains(&id.len()) && id.to_str().is_ok() => id.clone(),
        _ => HeaderValue::from_str(&format!("req-{:016x}", fresh())).expect("letters and digits"),
    };
    let address = request.extensions().get().map(|ConnectInfo(address)| *address);
    let caller = Caller::new(id.to_str().unwrap_or_default(), address);
    request.extensions_mut().insert(caller.clone());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    let (status, ms) = (response.status().as_u16(), caller.millis());
    let address = address.map(tracing::field::display);
    tracing::info!(target: "bitnet::request", id = &*caller.id, address, %method, path, status, ms);
    response.headers_mut().insert("x-request-id", id);
    response
}

/// Counts answers by method, route and status. Unknown paths and methods share one label, so that clients cannot create
/// new labels.
async fn counted(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.extensions().get().map(MatchedPath::as_str).unwrap_or("other").to_owned();
    let method = match *request.method() {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    };
    let response = next.run(request).await;
    if let Some(service) = app.loaded() {
        service.metrics.answered(method, &path, response.status().as_str());
    }
    response
}

/// Answers a request whose handler panicked; the connection and the server go on working.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::panicked().into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;
    use crate::http::reading::blocking;

    #[tokio::test]
    async fn a_handler_that_panics_fails_its_own_request_and_no_other() {
        async fn panics() -> Response {
            panic!("a fault in a handler")
        }
        async fn blocks() -> Result<Response, ApiError> {
            blocking(|| panic!("a fault on a thread that may block")).await
        }
        async fn answers() -> &'static str {
            "yes"
        }
        let routes = Router::new().route("/panics", get(panics)).route("/blocks", get(blocks));
        let routes = guarded(routes.route("/answers", get(answers)));
        for (path, status) in [("/panics", 500), ("/blocks", 500), ("/answers", 200), ("/panics", 500)] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let reply = routes.clone().oneshot(request).await.unwrap();
            assert_eq!(reply.status(), status, "{path}");
            assert!(reply.headers().contains_key("x-request-id"), "{path}");
        }
    }

    #[test]
    fn only_the_whole_key_is_the_key() {
        let sent = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            knows(&headers, "secret")
        };
        assert!(sent("Bearer secret") && sent("bearer secret"));
        for wrong in ["", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret"] {
            assert!(!sent(wrong), "{wrong:?}");
        }
        assert!(!knows(&HeaderMap::new(), ""));
        for (sent, known) in [("secret", true), ("Bearer secret", false), ("secre", false), ("", false)] {
            let headers = HeaderMap::from_iter([("x-api-key".parse().unwrap(), sent.parse().unwrap())]);
            assert_eq!(knows(&headers, "secret"), known, "{sent:?}");
        }
    }
}
