//! Requests and answers, so that a client can hang up, stop reading or resume at any point.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read},
    time::Duration,
};

use ureq::{Agent, Body, BodyReader, Error, http::HeaderMap, http::Response};

/// Maximum idle time after which a connection is reused; the server closes it later.
const IDLE: Duration = Duration::from_secs(10);
/// Size of the buffers of a connection: small, because there may be hundreds of clients.
const BUFFER: usize = 4096;

/// A client with one connection, which it reuses while both sides allow it.
#[derive(Debug, Clone)]
pub struct Client {
    base: String,
    agent: Agent,
    headers: Vec<(String, String)>,
}

impl Client {
    /// A client of the server at this address, such as `http://localhost:8080`. If the server says nothing for
    /// `silence`, the request fails.
    pub fn new(base: &str, silence: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_idle_connections(1)
            .max_idle_age(IDLE)
            .timeout_recv_response(Some(silence))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence))
            .input_buffer_size(BUFFER)
            .output_buffer_size(BUFFER);
        Client::with_agent(base, config.build().into())
    }

    /// A client that sends through this agent, which must not take statuses for errors.
    pub fn with_agent(base: &str, agent: Agent) -> Self {
        Client { base: base.to_owned(), agent, headers: Vec::new() }
    }

    /// Adds a header to all requests.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Asks for a path and reads the head of the answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn get(&self, path: &str) -> io::Result<Reply> {
        let get = self.agent.get(format!("{}{path}", self.base));
        Reply::new(self.headers.iter().fold(get, |get, (name, value)| get.header(name, value)).call())
    }

    /// Sends a JSON body with more headers, and reads the head of the answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn post(&self, path: &str, headers: &[(&str, String)], body: &str) -> io::Result<Reply> {
        let post = self.agent.post(format!("{}{path}", self.base)).content_type("application/json");
        let post = self.headers.iter().fold(post, |post, (name, value)| post.header(name, value));
        Reply::new(headers.iter().fold(post, |post, (name, value)| post.header(*name, value)).send(body))
    }
}

/// An answer whose head has been read. Dropping it before its end hangs up.
pub struct Reply {
    /// The status.
    pub status: u16,
    headers: HeaderMap,
    body: BufReader<BodyReader<'static>>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Reply {
    fn new(sent: Result<Response<Body>, Error>) -> io::Result<Self> {
        let (head, body) = sent.map_err(Error::into_io)?.into_parts();
        let body = BufReader::with_capacity(BUFFER, body.into_reader());
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Whether the answer has a header.
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Reads the next event of a stream; `None` at the end of the body. Skips comments.
    ///
    /// # Errors
    /// If the stream breaks.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        let mut event = Event::default();
        loop {
            let mut line = String::new();
            if self.body.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(id) = line.strip_prefix("id: ") {
                event.id = id.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                event.data = data.to_owned();
            } else if line.is_empty() && !event.data.is_empty() {
                return Ok(Some(event));
            }
        }
    }

    /// Reads the rest of the body. The connection can then be reused.
    ///
    /// # Errors
    /// If the connection breaks.
    pub fn rest(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the rest of the body as text.
    ///
    /// # Errors
    /// If the connection breaks.
    pub fn text(self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.rest()?).into_owned())
    }
}

/// An event of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Where the stream resumes after this event; empty if it has none.
    pub id: String,
    /// The JSON object, or `[DONE]`.
    pub data: String,
}
