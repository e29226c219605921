//! OpenAI's API: completions and chats, which generate in its dialect, and embeddings, models and tokens.

mod answer;
mod chat;
mod completions;
pub(crate) mod embeddings;
pub(crate) mod format;
pub(crate) mod harmless;
mod messages;
pub(crate) mod models;
mod shape;
mod thoughts;
pub(crate) mod tokens;
pub(crate) mod tools;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};

use crate::{
    generate::endpoint,
    http::{app::App, error::ApiError},
};
pub(crate) use answer::OpenAi;

/// The dialect of chats.
pub(crate) type Chat = OpenAi<true>;
/// The dialect of completions.
pub(crate) type Completions = OpenAi<false>;

/// The handler of `POST /v1/chat/completions`.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    endpoint::answer::<Chat>(app, request).await
}

/// The handler of `POST /v1/completions`.
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    endpoint::answer::<Completions>(app, request).await
}
