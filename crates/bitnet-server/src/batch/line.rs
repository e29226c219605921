//! The format of the lines: reads requests, and writes answers.

use std::io::{self, BufRead, Read};

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use sha2::{Digest, Sha256};

use crate::{http::error::ApiError, identity::Identity};

/// Options of a batch run.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchOptions {
    /// Whether every choice carries its token ids.
    pub return_tokens: bool,
}

/// Reads the lines of a file one at a time, and skips blank ones.
pub(super) struct Lines<R> {
    from: R,
    limit: usize,
    /// Bytes read so far.
    at: u64,
}

pub(super) struct Line {
    /// Its bytes without white space at both ends; `None` if the line is too long.
    text: Option<Vec<u8>>,
    /// Offset in the file at which the next line begins.
    pub end: u64,
}

impl<R: BufRead> Lines<R> {
    /// Reads lines of up to `limit` bytes; the text of a longer line is dropped.
    pub fn new(from: R, limit: usize) -> Self {
        Lines { from, limit, at: 0 }
    }

    /// The next line that is not blank.
    pub fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let mut text = Vec::new();
            let most = self.limit as u64 + 1;
            let read = self.from.by_ref().take(most).read_until(b'\n', &mut text)? as u64;
            if read == 0 {
                return Ok(None);
            }
            self.at += read;
            let whole = text.last() == Some(&b'\n') || read < most;
            if !whole {
                self.at += self.from.skip_until(b'\n')? as u64;
            }
            // Some editors write a byte order mark at the beginning of a file.
            let text =
                if self.at == read { text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&text) } else { &text };
            let text = whole.then(|| text.trim_ascii().to_vec());
            if text.as_ref().is_none_or(|text| !text.is_empty()) {
                return Ok(Some(Line { text, end: self.at }));
            }
        }
    }
}

impl Line {
    /// An id that follows from the line, the options, and the identity that answers; it is the same in every run.
    pub fn id(&self, identity: &Identity, options: BatchOptions) -> String {
        let BatchOptions { return_tokens } = options;
        let hash =
            Sha256::new().chain_update(identity.to_string()).chain_update([0, u8::from(return_tokens)]);
        let hash = hash.chain_update(self.text.as_deref().unwrap_or_default()).finalize();
        hash[..12].iter().fold(String::from("batch_req_"), |id, byte| format!("{id}{byte:02x}"))
    }

    /// The line's `custom_id`, if the line is a JSON object with one.
    pub fn custom_id(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Named {
            custom_id: String,
        }
        let text = self.text.as_ref()?;
        serde_json::from_slice::<Named>(text).ok().map(|named| named.custom_id)
    }
}

/// The API that a line asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Completions,
    Chat,
    Responses,
    Embeddings,
}

/// A line that was parsed, except for its body.
pub(super) struct BatchRequest {
    pub custom_id: String,
    pub endpoint: Endpoint,
    /// Contains a seed if the body has none.
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

pub(super) struct BadLine(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLine<'a> {
    custom_id: String,
    method: String,
    url: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

#[derive(Deserialize)]
struct Seeded {
    seed: Option<Value>,
}

/// Parses a line, except for its body.
pub(super) fn read(line: &Line) -> Result<BatchRequest, BadLine> {
    let bad = |what: &dyn ToString| BadLine(what.to_string());
    let text = line.text.as_ref().ok_or_else(|| bad(&"the line is longer than a request may be"))?;
    let RequestLine { custom_id, method, url, body } = serde_json::from_slice(text).map_err(|e| bad(&e))?;
    if method != "POST" {
        return Err(BadLine(format!("method: {method:.40?} is not supported; POST is")));
    }
    let endpoint = match url.as_str() {
        "/v1/completions" => Endpoint::Completions,
        "/v1/chat/completions" => Endpoint::Chat,
        "/v1/responses" => Endpoint::Responses,
        "/v1/embeddings" => Endpoint::Embeddings,
        _ => {
            let known = "/v1/completions, /v1/chat/completions, /v1/responses and /v1/embeddings are";
            return Err(BadLine(format!("url: {url:.80?} is not supported; {known}")));
        }
    };
    let body = body.get();
    let seeded = serde_json::from_str::<Seeded>(body).is_ok_and(|s| s.seed.is_some());
    let headers = if seeded { HeaderMap::new() } else { seed_header(seed_of(&custom_id)) };
    Ok(BatchRequest { custom_id, endpoint, headers, body: body.as_bytes().to_vec() })
}

/// The seed of a line with this `custom_id`, small enough for clients whose numbers are doubles.
fn seed_of(custom_id: &str) -> u64 {
    let hash = Sha256::digest(custom_id);
    u64::from_le_bytes(hash[..8].try_into().expect("8 bytes")) >> 11
}

/// A header with a seed, for a body without one.
fn seed_header(seed: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-seed", seed.into());
    headers
}

pub(super) enum Outcome<'a> {
    Done {
        request_id: &'a str,
        body: &'a str,
    },
    /// Its request was refused, or failed.
    Refused(&'a ApiError),
    /// It could not be parsed.
    Unread(BadLine),
}

#[derive(Serialize)]
struct Answer<'a> {
    id: &'a str,
    custom_id: Option<&'a str>,
    response: Option<Response<'a>>,
    error: Option<Value>,
}

#[derive(Serialize)]
struct Response<'a> {
    status_code: u16,
    request_id: &'a str,
    body: Box<RawValue>,
}

impl Outcome<'_> {
    /// The line of the output, in the format of OpenAI's batch API.
    pub fn line(&self, id: &str, custom_id: Option<&str>) -> String {
        let raw = |json: String| RawValue::from_string(json).expect("it was made as JSON");
        let (response, error) = match self {
            Outcome::Done { request_id, body } => {
                (Some(Response { status_code: 200, request_id, body: raw((*body).to_owned()) }), None)
            }
            Outcome::Refused(error) => {
                let body = raw(json!({ "error": error.body }).to_string());
                (Some(Response { status_code: error.status.as_u16(), request_id: id, body }), None)
            }
            Outcome::Unread(BadLine(message)) => {
                (None, Some(json!({ "code": "invalid_line", "message": message })))
            }
        };
        let answer = Answer { id, custom_id, response, error };
        serde_json::to_string(&answer).expect("text and numbers make JSON")
    }
}
