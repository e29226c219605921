//! The part of HTTP/1.1 that a client needs in order to hang up, stop reading and resume at any point.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Maximum silence; no answer takes this long, so a server that is silent longer hangs.
const SILENCE: Duration = Duration::from_secs(90);
/// Maximum idle time after which a connection is reused; the server closes it later.
const IDLE: Duration = Duration::from_secs(10);

/// The bytes of a request.
pub(super) fn request(method: &str, path: &str, headers: &[(&str, String)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    if !body.is_empty() {
        text += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    }
    (text + "\r\n" + body).into_bytes()
}

/// A client with one connection, which it reuses while both sides allow it.
pub(super) struct Client {
    address: SocketAddr,
    idle: Option<(BufReader<TcpStream>, Instant)>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Client { address, idle: None }
    }

    /// Sends a request and reads the head of its answer.
    pub fn ask(&mut self, request: &[u8]) -> io::Result<Reply<'_>> {
        let idle = self.idle.take().filter(|(_, since)| since.elapsed() < IDLE);
        let mut stream = match idle {
            Some((stream, _)) => stream,
            None => BufReader::new(connect(self.address)?),
        };
        stream.get_mut().write_all(request)?;
        let (status, headers) = head(&mut stream)?;
        let left = match headers.iter().find(|(name, _)| name == "content-length") {
            Some((_, length)) => Left::Bytes(length.parse().map_err(io::Error::other)?),
            None => Left::Chunk(0),
        };
        let body = Body { stream, left };
        Ok(Reply { status, headers, body: BufReader::with_capacity(4096, body), client: self })
    }

    /// Sends part of a request and hangs up.
    pub fn hang_up_after(&self, bytes: &[u8]) -> io::Result<()> {
        connect(self.address)?.write_all(bytes)
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

type Headers = Vec<(String, String)>;

fn head(stream: &mut impl BufRead) -> io::Result<(u16, Headers)> {
    let status = line(stream)?;
    let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code =
        code.ok_or_else(|| io::Error::other(format!("{status:?} is not the status line of an answer")))?;
    let mut headers = Vec::new();
    loop {
        let line = line(stream)?;
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            None => return Ok((code, headers)),
        }
    }
}

/// Reads a line without its end; an error at the end of the stream.
fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// An answer; dropping it before its end hangs up.
pub(super) struct Reply<'c> {
    pub status: u16,
    headers: Headers,
    body: BufReader<Body>,
    client: &'c mut Client,
}

impl Reply<'_> {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
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
        if self.header("connection").is_none_or(|value| !value.eq_ignore_ascii_case("close")) {
            self.client.idle = Some((self.body.into_inner().stream, Instant::now()));
        }
        Ok(bytes)
    }
}

/// An event of a stream.
#[derive(Debug, Default)]
pub(super) struct Event {
    pub id: String,
    pub data: String,
}

/// Reads the bytes of a body, by its length or in chunks.
struct Body {
    stream: BufReader<TcpStream>,
    left: Left,
}

enum Left {
    /// Bytes left in the body.
    Bytes(usize),
    /// Bytes left in the chunk.
    Chunk(usize),
    Nothing,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunk(0) = self.left {
            let size = line(&mut self.stream)?;
            let size = usize::from_str_radix(&size, 16)
                .map_err(|_| io::Error::other(format!("{size:?} is not the size of a chunk")))?;
            self.left = Left::Chunk(size);
            if size == 0 {
                line(&mut self.stream)?;
                self.left = Left::Nothing;
            }
        }
        let (Left::Bytes(left) | Left::Chunk(left)) = &mut self.left else { return Ok(0) };
        if *left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let most = buffer.len().min(*left);
        let read = self.stream.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *left -= read;
        if let Left::Chunk(0) = self.left {
            line(&mut self.stream)?;
        }
        Ok(read)
    }
}
