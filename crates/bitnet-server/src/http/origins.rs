use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Headers of answers that pages may read besides those that browsers always show them.
const EXPOSED: [HeaderName; 4] = [
    header::RETRY_AFTER,
    HeaderName::from_static("x-chat-template"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-seed"),
];

/// Time for which a browser need not ask again whether it may send a request.
const ANSWERED: Duration = Duration::from_secs(600);

/// Lets pages of these origins use the server, or those of every origin if `*` is one of them. Pages may send any
/// header: nothing that a browser adds by itself, such as a cookie, gives access to anything.
pub(super) fn allow(origins: &[String]) -> CorsLayer {
    let origins = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        // A browser never sends what is no header value.
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .allow_private_network(true)
        .expose_headers(EXPOSED)
        .max_age(ANSWERED)
}
