//! Bodies of requests: received within limits on size, time and the memory of all of them together.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header, request::Parts},
};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{config::ServerConfig, http::error::ApiError};

/// Bytes of each body that do not count towards the total, so that ordinary requests are never refused because of large
/// ones. The limit on connections bounds how many such bytes there are.
const FREE: usize = 16 << 10;

/// Limits the bytes of all bodies together, from their arrival until they have been parsed.
#[derive(Debug)]
pub(crate) struct Bodies {
    limit: usize,
    room: Arc<Semaphore>,
}

impl Bodies {
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Bodies { limit, room: Arc::new(Semaphore::new(limit)) }
    }
}

/// A received body. Its bytes count towards the limit of [`Bodies`] until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub bytes: Vec<u8>,
    held: Option<OwnedSemaphorePermit>,
}

impl Received {
    /// Appends bytes of a body that has at most `limit` bytes.
    fn add(&mut self, more: &Bytes, bodies: &Bodies, limit: usize) -> Result<(), ApiError> {
        let (before, after) = (self.bytes.len(), self.bytes.len() + more.len());
        let counted = after.max(FREE) - before.max(FREE);
        if counted > 0 {
            let room = Arc::clone(&bodies.room).try_acquire_many_owned(counted as u32);
            let room = room.map_err(|_| {
                let message = format!("bodies of {} bytes are under way: try again later", bodies.limit);
                ApiError::busy("bodies_full", message, std::time::Duration::from_secs(1))
            })?;
            match &mut self.held {
                Some(held) => held.merge(room),
                None => self.held = Some(room),
            }
        }
        if after > self.bytes.capacity() {
            let doubled = (2 * before).clamp(after, limit.max(after));
            self.bytes.reserve_exact(doubled - before);
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

/// Whether a request may leave out that its body is JSON: on Ollama's paths, whose documentation shows `curl -d`, which
/// announces a form. Browsers say where a page of another site comes from, and sites may not do so.
fn may_be_undeclared(head: &Parts) -> bool {
    let of_a_page = [header::ORIGIN.as_str(), "sec-fetch-site"];
    head.uri.path().starts_with("/api/") && of_a_page.iter().all(|name| !head.headers.contains_key(*name))
}

/// Receives a JSON body within the limits on size and time. Other content types are refused, because browsers let pages
/// of other sites send some of them without asking.
pub(crate) async fn receive(
    bodies: &Bodies,
    config: &ServerConfig,
    head: &Parts,
    body: Body,
) -> Result<Received, ApiError> {
    let headers = &head.headers;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let undeclared = ["", "application/x-www-form-urlencoded", "text/plain"];
    let undeclared = undeclared.iter().any(|kind| essence.eq_ignore_ascii_case(kind));
    if !(essence.eq_ignore_ascii_case("application/json") || undeclared && may_be_undeclared(head)) {
        let message = format!("the Content-Type is {essence:.40?}: send application/json");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message));
    }
    if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        let message = "the body is encoded: send it as it is, without Content-Encoding";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_encoding", message));
    }
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > config.body_limit as u64) {
        return Err(too_large(config));
    }
    match tokio::time::timeout(config.body_timeout, collect(bodies, config, body, announced)).await {
        Ok(received) => received,
        Err(_) => {
            let message = format!("the body took longer than {:?}", config.body_timeout);
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

async fn collect(
    bodies: &Bodies,
    config: &ServerConfig,
    mut body: Body,
    announced: Option<u64>,
) -> Result<Received, ApiError> {
    let limit = announced.map_or(config.body_limit, |length| length as usize);
    let mut received = Received::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::malformed("the body did not arrive as announced"))?;
        let Ok(more) = frame.into_data() else { continue };
        if received.bytes.len() + more.len() > config.body_limit {
            return Err(too_large(config));
        }
        received.add(&more, bodies, limit)?;
    }
    Ok(received)
}

fn too_large(config: &ServerConfig) -> ApiError {
    let message = format!("the body has more than {} bytes", config.body_limit);
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_share_a_total_of_which_small_ones_take_nothing() {
        let bodies = Bodies::new(100 << 10);
        let piece = Bytes::from(vec![b'x'; 40 << 10]);
        let (mut one, mut two) = (Received::default(), Received::default());
        one.add(&piece, &bodies, usize::MAX).unwrap();
        two.add(&piece, &bodies, usize::MAX).unwrap();
        one.add(&piece, &bodies, usize::MAX).unwrap();
        let refused = two.add(&piece, &bodies, usize::MAX).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.body.code), (429, Some("bodies_full")));
        let mut small = Received::default();
        small.add(&piece.slice(..FREE), &bodies, usize::MAX).unwrap();
        drop(one);
        two.add(&piece, &bodies, usize::MAX).unwrap();
        assert_eq!((two.bytes.len(), small.bytes.len()), (80 << 10, FREE));
        drop(two);
        assert_eq!(bodies.room.available_permits(), 100 << 10);
    }
}
