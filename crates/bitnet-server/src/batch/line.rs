//! Lines in, lines out.

use std::io::{self, BufRead, Read};

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use sha2::{Digest, Sha256};

use super::{BatchOptions, seed_header};
use crate::{http::error::ApiError, identity::Identity, openai::job::Endpoint};

/// Lines of a file, blank ones aside, none of them held longer than it is needed.
pub(super) struct Lines<R> {
    from: R,
    limit: usize,
    /// Bytes read.
    at: u64,
}

/// A line of the input.
pub(super) struct Line {
    /// Its bytes without the line end; `None` if they are more than a line may have.
    text: Option<Vec<u8>>,
    /// Where the next line begins in the file.
    pub end: u64,
}

impl<R: BufRead> Lines<R> {
    /// Lines of up to `limit` bytes.
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
            // A file that some editors wrote begins with a byte order mark.
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
    /// A name for what the line asks of whom, the same whenever it is asked.
    pub fn id(&self, whom: &Identity, options: BatchOptions) -> String {
        let BatchOptions { return_tokens } = options;
        let hash = Sha256::new().chain_update(whom.to_string()).chain_update([0, u8::from(return_tokens)]);
        let hash = hash.chain_update(self.text.as_deref().unwrap_or_default()).finalize();
        hash[..12].iter().fold(String::from("batch_req_"), |id, byte| format!("{id}{byte:02x}"))
    }

    /// The line's name, if it has one that can be read.
    pub fn custom_id(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Named {
            custom_id: String,
        }
        let text = self.text.as_ref()?;
        serde_json::from_slice::<Named>(text).ok().map(|named| named.custom_id)
    }
}

/// A line that was understood; its body was not looked into.
pub(super) struct BatchRequest {
    pub custom_id: String,
    pub endpoint: Endpoint,
    /// A seed, where the body has none.
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// What is wrong with a line.
pub(super) struct BadLine(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
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

/// Reads what is around a body.
pub(super) fn read(line: &Line) -> Result<BatchRequest, BadLine> {
    let bad = |what: &dyn ToString| BadLine(what.to_string());
    let text = line.text.as_ref().ok_or_else(|| bad(&"the line is longer than a request may be"))?;
    let Fields { custom_id, method, url, body } = serde_json::from_slice(text).map_err(|e| bad(&e))?;
    if method != "POST" {
        return Err(BadLine(format!("method: {method:.40?} is not supported; POST is")));
    }
    let endpoint = match url.as_str() {
        "/v1/completions" => Endpoint::Completions,
        "/v1/chat/completions" => Endpoint::Chat,
        _ => {
            let known = "/v1/completions and /v1/chat/completions are";
            return Err(BadLine(format!("url: {url:.80?} is not supported; {known}")));
        }
    };
    let body = body.get();
    let seeded = serde_json::from_str::<Seeded>(body).is_ok_and(|s| s.seed.is_some());
    let headers = if seeded { HeaderMap::new() } else { seed_header(seed_of(&custom_id)) };
    Ok(BatchRequest { custom_id, endpoint, headers, body: body.as_bytes().to_vec() })
}

/// A seed that a line of this name always has, small enough for a client that counts in doubles.
fn seed_of(custom_id: &str) -> u64 {
    let hash = Sha256::digest(custom_id);
    u64::from_le_bytes(hash[..8].try_into().expect("8 bytes")) >> 11
}

/// What became of a line.
pub(super) enum Outcome<'a> {
    /// Its answer.
    Done { request_id: &'a str, body: &'a str },
    /// It was understood, and there is no answer.
    Refused(&'a ApiError),
    /// It was not understood.
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
    /// The line that tells it, as OpenAI's batch API does.
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
