//! What clients send and read, so that they can hang up, stop reading and resume at any point.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use ureq::{Agent, BodyReader, http::HeaderMap};

/// Maximum silence; no answer takes this long, so a server that is silent longer hangs.
const SILENCE: Duration = Duration::from_secs(90);
/// Maximum idle time after which a connection is reused; the server closes it later.
const IDLE: Duration = Duration::from_secs(10);
/// Size of the buffers of a connection: small, because there are hundreds of clients.
const BUFFER: usize = 4096;

/// A client with one connection, which it reuses while both sides allow it.
pub(super) struct Client {
    address: SocketAddr,
    agent: Agent,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_idle_connections(1)
            .max_idle_age(IDLE)
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .input_buffer_size(BUFFER)
            .output_buffer_size(BUFFER);
        Client { address, agent: config.build().into() }
    }

    pub fn get(&self, path: &str) -> io::Result<Reply> {
        Reply::new(self.agent.get(format!("http://{}{path}", self.address)).call())
    }

    /// Sends a request and reads the head of its answer.
    pub fn post(&self, path: &str, headers: &[(&str, String)], body: &str) -> io::Result<Reply> {
        let post = self.agent.post(format!("http://{}{path}", self.address)).content_type("application/json");
        let post = headers.iter().fold(post, |post, (name, value)| post.header(*name, value));
        Reply::new(post.send(body))
    }

    /// Sends some thousandths of a request and hangs up. Returns whether that was all of it.
    pub fn hang_up(&self, path: &str, body: &str, thousandths: usize) -> io::Result<bool> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             \r\n{body}"
        );
        let sent = request.len() * thousandths / 1000;
        TcpStream::connect(self.address)?.write_all(&request.as_bytes()[..sent])?;
        Ok(sent == request.len())
    }
}

/// An answer; dropping it before its end hangs up.
pub(super) struct Reply {
    pub status: u16,
    headers: HeaderMap,
    body: BufReader<BodyReader<'static>>,
}

impl Reply {
    fn new(sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> io::Result<Self> {
        let (head, body) = sent.map_err(ureq::Error::into_io)?.into_parts();
        let body = BufReader::with_capacity(BUFFER, body.into_reader());
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body })
    }

    pub fn has_header(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Reads the next event of a stream, or `None` at the end of the body. Skips comments.
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

    /// Reads the rest of the body; the connection can then be reused.
    pub fn rest(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// An event of a stream.
#[derive(Debug, Default)]
pub(super) struct Event {
    pub id: String,
    pub data: String,
}
