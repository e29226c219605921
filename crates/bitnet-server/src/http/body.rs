use axum::{
    body::{Body, Bytes, to_bytes},
    http::{HeaderMap, StatusCode, header},
};

use crate::{http::error::ApiError, service::ServerConfig};

/// The bytes of a JSON body, within the limits of size and time. Other types are refused: a page of another site
/// can send them without asking.
pub(crate) async fn read_json(
    config: &ServerConfig,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let message = format!("the Content-Type is {essence:.40?}: send application/json");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message));
    }
    if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        let message = "the body is encoded: send it as it is, without Content-Encoding";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_encoding", message));
    }
    let too_large = || {
        let message = format!("the body has more than {} bytes", config.body_limit);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > config.body_limit as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(config.body_timeout, to_bytes(body, config.body_limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(match is_length_limit(&error) {
            true => too_large(),
            false => ApiError::malformed("the body did not arrive as announced"),
        }),
        Err(_) => {
            let message = format!("the body took longer than {:?}", config.body_timeout);
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    let mut source = Some(error as &(dyn std::error::Error + 'static));
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}
