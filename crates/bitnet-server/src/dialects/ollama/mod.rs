//! Ollama's API: `POST /api/chat`, `POST /api/generate`, `POST /api/embed`, and the small paths that its clients ask
//! first.

mod answer;
pub(crate) mod embed;
mod input;
mod load;
mod options;

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::Response,
};
use bitnet::model::{ChatTemplate, Conventions, date};
use serde_json::{Value, json};

use crate::{
    generate::{
        endpoint,
        read::{read_fields, unknown_model},
    },
    http::{app::App, error::ApiError},
    service::Service,
};
use answer::{Ollama, TIME};

/// A time that is far away, in the format of clients.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// `POST /api/chat`.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    endpoint::answer::<Ollama<true>>(app, request).await
}

/// `POST /api/generate`.
pub(crate) async fn prompt(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    endpoint::answer::<Ollama<false>>(app, request).await
}

/// `GET /api/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`: the served model.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let service = app.service()?;
    let name = &service.model.name;
    let model =
        json!({"name": name, "model": name, "modified_at": modified(service), "details": details(service)});
    Ok(Json(json!({"models": [model]})))
}

/// `GET /api/ps`: the served model, which stays loaded.
pub(crate) async fn running(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let service = app.service()?;
    let name = &service.model.name;
    let model = json!({
        "name": name,
        "model": name,
        "details": details(service),
        "expires_at": NEVER,
        "context_length": service.engine.context(),
    });
    Ok(Json(json!({"models": [model]})))
}

/// `POST /api/show`: the served model, with its template and what it can do.
pub(crate) async fn show(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let shown = read_fields(&app, request, |fields, _, service| {
        // The older name of `model`.
        if let Some(name) = fields.take::<String>("name")?.filter(|name| !service.model.is_called(name)) {
            return Err(unknown_model(&name, &service.model));
        }
        fields.harmless("verbose", &[])?;
        let family = service.architecture();
        let template = service.model.chat.as_ref();
        let mut shown = json!({
            "modified_at": modified(service),
            "template": template.map_or("", ChatTemplate::source),
            "details": details(service),
            "model_info": {
                "general.architecture": family,
                format!("{family}.context_length"): service.engine.context(),
            },
            "capabilities": if service.embeds() { &["embedding"][..] } else { &["completion", "tools"] },
        });
        if let Some(template) = template {
            let conventions = template.conventions();
            if let Some(values) = thinking(conventions) {
                shown["thinking"] = values;
                shown["capabilities"]
                    .as_array_mut()
                    .into_iter()
                    .for_each(|list| list.push("thinking".into()));
            }
            shown["conventions"] = json!(conventions);
        }
        Ok(Json(shown))
    });
    shown.await
}

/// The values that `think` tells apart, and its default; `None` for a model that does not think.
fn thinking(conventions: &Conventions) -> Option<Value> {
    let form = conventions.thought.as_ref()?;
    let levels = conventions.efforts.accepted.iter().map(|effort| json!(effort.name()));
    let switch = form.switch.as_ref();
    let switched = switch.into_iter().flat_map(|_| [json!(true), json!(false)]);
    let default = match (conventions.efforts.default, switch) {
        (Some(effort), _) => json!(effort.name()),
        (None, Some(switch)) => json!(switch.default),
        (None, None) => json!(true),
    };
    Some(json!({"values": switched.chain(levels).collect::<Vec<_>>(), "default": default}))
}

fn modified(service: &Service) -> String {
    date(service.model.created, TIME)
}

fn details(service: &Service) -> Value {
    let family = service.architecture();
    json!({"parent_model": "", "family": family, "families": [family]})
}
