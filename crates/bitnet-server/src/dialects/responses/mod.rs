//! `POST /v1/responses`, OpenAI's Responses API, without its store.

mod answer;
mod input;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};

use super::generate;
use crate::http::{app::App, error::ApiError};
use answer::Responses;

pub(crate) async fn responses(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    generate::answer::<Responses>(app, request).await
}
