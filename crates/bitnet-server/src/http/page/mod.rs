//! The chat page, which also shows the engine at work: three files that load nothing from elsewhere.

use axum::{http::header, response::IntoResponse};

/// Makes the browser run and load only what comes from this server, and show the page in no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /`.
pub(crate) async fn html() -> impl IntoResponse {
    file("text/html; charset=utf-8", include_str!("page.html"))
}

/// `GET /page.css`.
pub(crate) async fn css() -> impl IntoResponse {
    file("text/css; charset=utf-8", include_str!("page.css"))
}

/// `GET /page.js`.
pub(crate) async fn js() -> impl IntoResponse {
    file("text/javascript; charset=utf-8", include_str!("page.js"))
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}
