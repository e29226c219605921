//! `POST /v1/responses`, OpenAI's Responses API, without its store.

mod answer;
mod input;
mod reasoning;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};

use crate::{
    generate::endpoint,
    http::{app::App, error::ApiError},
};
pub(crate) use answer::Responses;

pub(crate) async fn responses(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    endpoint::answer::<Responses>(app, request).await
}
