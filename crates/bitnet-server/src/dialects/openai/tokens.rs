//! Tokenises without generating, under the paths of vLLM.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use bitnet::model::ChatTemplate;
use serde_json::{Value, json};

use super::chat;
use crate::{
    generate::{
        conversation::{Conversation, Talk},
        prompt::tokenizer,
        read::read_fields,
    },
    http::{app::App, error::ApiError, fields::list},
};

/// `POST /tokenize`: a `prompt`, or the `messages` of a chat.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let tokenized = read_fields(&app, request, |fields, encoder, _| {
        let special = fields.take("add_special_tokens")?.unwrap_or(true);
        let tokens = match fields.raw("prompt") {
            Some(text) => encoder.json(text, special, "prompt")?,
            None => {
                let talk = Talk { plain: true, ..chat::talk(fields, encoder)? };
                Conversation::new(talk, encoder, "messages")?.tokens
            }
        };
        Ok(Json(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": encoder.context})))
    });
    tokenized.await
}

/// `GET /tokenizer_info`, under the names of Hugging Face's `tokenizer_config.json`.
pub(crate) async fn tokenizer_info(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let service = app.service()?;
    let model = &service.model;
    let tokenizer = tokenizer(model, "tokenizer_info")?;
    let text = |id: Option<&u32>| {
        id.and_then(|&id| tokenizer.token_bytes(id)).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    Ok(Json(json!({
        "bos_token": text(tokenizer.prefix().first()),
        "eos_token": text(model.defaults.eos.first()),
        "pad_token": null,
        "chat_template": model.chat.as_ref().map(ChatTemplate::source),
        "model_max_length": service.engine.context(),
        "vocab_size": tokenizer.vocab_size(),
    })))
}

/// `POST /detokenize`: the text of `tokens`.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let detokenized = read_fields(&app, request, |fields, encoder, _| {
        let tokens: Vec<u32> = list(fields.need_raw("tokens")?, encoder.context)
            .map_err(|problem| ApiError::field("tokens", problem))?;
        let skip = fields.take("skip_special_tokens")?.unwrap_or(false);
        let tokenizer = tokenizer(encoder.model, "tokens")?;
        let text = tokenizer.decode(&tokens, skip).map_err(|e| ApiError::field("tokens", e))?;
        Ok(Json(json!({"prompt": text})))
    });
    detokenized.await
}
