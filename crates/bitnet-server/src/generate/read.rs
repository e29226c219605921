//! Receives a body and takes its fields: the model's name, and what several APIs have in the same form.

use std::sync::Arc;

use axum::{extract, http::StatusCode};
use bitnet::{cache::cache_salt, inference::Priority};

use super::prompt::Encoder;
use crate::{
    http::{
        app::{self, App},
        error::ApiError,
        fields::Fields,
        reading::Reading,
    },
    service::{ServedModel, Service},
};

/// Receives a body and reads it by a function that takes all its fields except the model's name.
pub(crate) async fn read_fields<T: Send + 'static>(
    app: &Arc<App>,
    request: extract::Request,
    take: fn(&mut Fields<'_>, &Encoder<'_>, &Service) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    app::read(app, request, move |service, _, body, reading| read_body(service, body, reading, take)).await
}

/// Reads a body by a function that takes all its fields except the model's name.
pub(crate) fn read_body<T>(
    service: &Service,
    body: &[u8],
    reading: &Reading,
    take: fn(&mut Fields<'_>, &Encoder<'_>, &Service) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let fields = Fields::parse(body)?.strictly(service.config.strict);
    take_all(fields, service, reading, |fields, encoder| take(fields, encoder, service))
}

/// Takes the model's name, and all other fields by a function.
pub(crate) fn take_all<T>(
    mut fields: Fields<'_>,
    service: &Service,
    reading: &Reading,
    take: impl FnOnce(&mut Fields<'_>, &Encoder<'_>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    check_model(&mut fields, &service.model)?;
    let encoder = Encoder { model: &service.model, context: service.engine.context(), reading };
    let taken = take(&mut fields, &encoder)?;
    fields.finish()?;
    Ok(taken)
}

/// Takes the name of the model, and checks it if there is one.
fn check_model(fields: &mut Fields<'_>, model: &ServedModel) -> Result<(), ApiError> {
    match fields.take::<String>("model")? {
        Some(name) if !model.is_called(&name) => Err(unknown_model(&name, model)),
        _ => Ok(()),
    }
}

/// The error for a model that is not served here.
pub(crate) fn unknown_model(name: &str, model: &ServedModel) -> ApiError {
    let message = format!("the model {name:.100?} is not served here; {:?} is", model.name);
    ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).about("model")
}

/// Takes the priority of a request.
pub(crate) fn priority(fields: &mut Fields<'_>) -> Result<Priority, ApiError> {
    // The neutral priority of servers that count.
    if fields.peek("priority").is_some_and(|value| value.get() == "0") {
        fields.raw("priority");
    }
    let Some(name) = fields.take::<String>("priority")? else { return Ok(Priority::Normal) };
    Priority::named(&name)
        .ok_or_else(|| ApiError::field("priority", "it must be interactive, normal or batch"))
}

/// The salt of the cache that a request may use: its `cache_salt`, or else its user. Requests with different ones share no
/// cached prefixes, so that nobody can learn from response times what others have asked.
pub(crate) fn salt(fields: &mut Fields<'_>, user: Option<String>) -> Result<u64, ApiError> {
    let salt: Option<String> = fields.take("cache_salt")?;
    if salt.as_ref().is_some_and(String::is_empty) {
        return Err(ApiError::field("cache_salt", "it is empty: give a text, or leave it out"));
    }
    Ok(salt.or(user).map_or(0, |text| cache_salt(&text)))
}

/// [`salt`] where the user is in the field `user`.
pub(crate) fn user_salt(fields: &mut Fields<'_>) -> Result<u64, ApiError> {
    let user = fields.take("user")?;
    salt(fields, user)
}
