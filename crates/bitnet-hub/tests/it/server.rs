//! A hub on the loopback interface: a repository with files, and everything that can go wrong in fetching them.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use bitnet_hub::Settings;
use sha2::{Digest, Sha256};

/// What the hub has, and how it behaves.
#[derive(Debug, Clone, Default)]
pub struct Repository {
    /// `org/name`.
    pub name: &'static str,
    pub files: BTreeMap<String, Vec<u8>>,
    /// Only requests with this token are allowed.
    pub token: Option<&'static str>,
    /// Large files are on another server, which must not see the token.
    pub redirect: bool,
    /// Number of connections for content that break after [`BREAK`] bytes.
    pub breaks: usize,
    /// Ranges are not supported: every answer is the whole file.
    pub no_ranges: bool,
    /// Content arrives without a length and ends with the connection.
    pub no_length: bool,
    /// Content arrives with one byte changed.
    pub corrupts: bool,
    /// Status of every answer, if not the right one.
    pub status: Option<u16>,
    /// An `ETag` for every file, if not its hash.
    pub etag: Option<&'static str>,
}

/// The commit of every revision.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Bytes after which a connection breaks.
pub const BREAK: usize = 10_000;

/// A request: path, range, and whether it had the token.
pub type Seen = (String, Option<String>, bool);

pub struct Hub {
    pub endpoint: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Hub {
    pub fn start(repository: Repository) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let content = format!("http://{}", other.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let repository = Arc::new(Mutex::new(repository));
        for (listener, is_hub) in [(listener, true), (other, false)] {
            let (seen, repository, content) = (seen.clone(), repository.clone(), content.clone());
            // The thread ends with the process.
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (seen, repository, content) = (seen.clone(), repository.clone(), content.clone());
                    thread::spawn(move || answer(stream, is_hub, &seen, &repository, &content));
                }
            });
        }
        Hub { endpoint, seen }
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Paths of the requested files.
    pub fn asked(&self) -> Vec<String> {
        let files =
            self.seen().into_iter().filter_map(|(path, ..)| Some(path.split_once(COMMIT)?.1[1..].to_owned()));
        let mut files: Vec<_> = files.collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    pub fn settings(&self, cache: &std::path::Path) -> Settings {
        Settings {
            endpoint: self.endpoint.clone(),
            token: None,
            offline: false,
            cache: cache.into(),
            patience: std::time::Duration::from_millis(1),
        }
    }
}

fn answer(
    stream: TcpStream,
    is_hub: bool,
    seen: &Mutex<Vec<Seen>>,
    repository: &Mutex<Repository>,
    content: &str,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut range, mut token) = (None, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.to_owned()),
            "authorization" => token = Some(value.to_owned()),
            _ => {}
        }
    }
    seen.lock().unwrap().push((path.clone(), range.clone(), token.is_some()));
    let mut repository = repository.lock().unwrap();
    let wanted = repository.token.map(|t| format!("Bearer {t}"));
    if let Some(status) = repository.status {
        return reply(stream, status, &[], b"");
    }
    if is_hub && wanted.is_some() && wanted != token {
        return reply(stream, 401, &[], b"{\"error\":\"no\"}");
    }
    if path == format!("/api/models/{}/revision/main", repository.name) {
        let files: Vec<String> =
            repository.files.keys().map(|f| format!("{{\"rfilename\":\"{f}\"}}")).collect();
        let json = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}", files.join(","));
        return reply(stream, 200, &[], json.as_bytes());
    }
    let prefix = format!("/{}/resolve/{COMMIT}/", repository.name);
    let file =
        path.strip_prefix(&prefix).and_then(|f| Some((f.to_owned(), repository.files.get(f)?.clone())));
    let Some((name, bytes)) = file else { return reply(stream, 404, &[], b"Entry not found") };
    let hash: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    let etag = ("etag", format!("\"{}\"", repository.etag.unwrap_or(&hash)));
    if is_hub && repository.redirect && bytes.len() > 1000 {
        let to = ("location", format!("{content}{path}"));
        return reply(stream, 302, &[to, ("x-linked-etag", etag.1), ("etag", "\"other\"".into())], b"");
    }
    let start = range.and_then(|r| r.strip_prefix("bytes=")?.split('-').next()?.parse::<usize>().ok());
    let start = start.filter(|_| !repository.no_ranges);
    let mut rest = bytes[start.unwrap_or(0).min(bytes.len())..].to_vec();
    if repository.corrupts && name.ends_with("safetensors") {
        rest[0] ^= 1;
    }
    let total = format!("bytes {}-{}/{}", start.unwrap_or(0), bytes.len() - 1, bytes.len());
    let mut headers = vec![etag];
    if start.is_some() {
        headers.push(("content-range", total));
    }
    if repository.breaks > 0 && rest.len() > BREAK {
        repository.breaks -= 1;
        headers.push(("content-length", rest.len().to_string()));
        return send(stream, if start.is_some() { 206 } else { 200 }, &headers, &rest[..BREAK]);
    }
    if repository.no_length {
        return send(stream, 200, &headers[..1], &bytes);
    }
    reply(stream, if start.is_some() { 206 } else { 200 }, &headers, &rest)
}

fn reply(stream: TcpStream, status: u16, headers: &[(&str, String)], body: &[u8]) -> Option<()> {
    let length = [("content-length", body.len().to_string())];
    send(stream, status, &[headers, &length].concat(), body)
}

fn send(mut stream: TcpStream, status: u16, headers: &[(&str, String)], body: &[u8]) -> Option<()> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(stream, "HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}\r\n").ok()?;
    stream.write_all(body).ok()
}
