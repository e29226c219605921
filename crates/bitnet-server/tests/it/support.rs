//! A server of the demo in this process, and an HTTP client that shows every byte.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bitnet::inference::{CacheFolder, DrainReport, EngineConfig};
use bitnet::kernels::{Cpu, Isa};
use bitnet::model::{Batch, Checkpoint, Limits, Logits, Model, Synthetic, Transformer};
use bitnet_hash_model::{HashModel, Hook};
use bitnet_server::{App, ConnectionLimits, ServerConfig, Service, serve};
use serde_json::Value;
use tokio::sync::oneshot;

pub const SOON: Duration = Duration::from_secs(30);

/// A server on its own thread; dropping it ends it.
pub struct Server {
    pub address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<DrainReport>>,
}

impl Server {
    pub fn start(app: Arc<App>, limits: ConnectionLimits, drain: Duration) -> Server {
        Self::lingering(app, limits, drain, Duration::ZERO)
    }

    /// A server that still answers for `linger` after it is told to end.
    pub fn lingering(app: Arc<App>, limits: ConnectionLimits, drain: Duration, linger: Duration) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
            let end = async {
                let _ = ended.await;
                linger
            };
            runtime.block_on(serve(listener, app, limits, drain, end)).unwrap()
        });
        Server { address, end: Some(end), thread: Some(thread) }
    }

    /// Tells the server to end.
    pub fn end(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
    }

    pub fn join(mut self) -> DrainReport {
        self.end();
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, &[], body)
    }

    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let headers = [&[("content-type", "application/json")], headers].concat();
        self.call("POST", path, &headers, body.to_string().as_bytes())
    }

    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut stream = self.connect();
        stream.write_all(&request(method, path, headers, body)).unwrap();
        Reply::read(stream)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// Opens a stream of events.
    pub fn stream(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Events {
        let headers = [&[("content-type", "application/json")], headers].concat();
        let mut stream = self.connect();
        stream.write_all(&request("POST", path, &headers, body.to_string().as_bytes())).unwrap();
        Events::open(stream)
    }

    /// Requests a stream without waiting for its head, which comes with the first token.
    pub fn stream_later(&self, path: &str, body: &Value) -> Events {
        let mut stream = self.connect();
        let headers = [("content-type", "application/json")];
        stream.write_all(&request("POST", path, &headers, body.to_string().as_bytes())).unwrap();
        Events::of(stream)
    }

    /// A metric, summed over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        self.metric_of(name, "")
    }

    /// A metric, summed over the labels that contain a text.
    pub fn metric_of(&self, name: &str, label: &str) -> f64 {
        let text = self.get("/metrics").text();
        let of = |line: &&str| {
            let end = line.find(['{', ' ']).unwrap_or(line.len());
            &line[..end] == name && line.contains(label)
        };
        let values = text.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap());
        values.map(|value| value.parse::<f64>().unwrap()).sum()
    }

    /// Waits until `done` returns true.
    pub fn until(&self, what: &str, done: impl Fn(&Server) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < SOON, "{what}: {}", self.get("/health").text());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the one request is cancelled and its memory is free.
    pub fn until_cancelled(&self) {
        self.until("it is cancelled", |s| s.metric_of("bitnet_requests_total", "cancelled") == 1.0);
        self.until("nothing is left", |s| s.metric("bitnet_kv_blocks_used") == 0.0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    if method != "GET" {
        text += &format!("content-length: {}\r\n", body.len());
    }
    text += "\r\n";
    [text.as_bytes(), body].concat()
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn read(stream: TcpStream) -> Reply {
        let mut reader = BufReader::new(stream);
        let (status, headers) = head(&mut reader);
        let mut body = Vec::new();
        if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
            while let Some(chunk) = chunk(&mut reader) {
                body.extend(chunk);
            }
        } else {
            reader.read_to_end(&mut body).unwrap();
        }
        Reply { status, headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }

    /// The body, if the status is 200; panics otherwise.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The status, and the field that the error names.
    pub fn refusal(&self) -> (u16, Option<String>) {
        let error = &self.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        (self.status, error["param"].as_str().map(str::to_owned))
    }
}

fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.unwrap_or_else(|| panic!("a status line: {line:?}"));
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
            None => return (status, headers),
        }
    }
}

/// Reads the next chunk; `None` at the end.
fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
    let mut data = vec![0; size + 2];
    reader.read_exact(&mut data).ok()?;
    data.truncate(size);
    (size > 0).then_some(data)
}

/// Server-sent events, one at a time.
pub struct Events {
    reader: BufReader<TcpStream>,
    pub headers: Vec<(String, String)>,
    /// Events that came together with earlier ones.
    waiting: VecDeque<String>,
}

impl Events {
    /// A stream whose head has not been read.
    pub fn of(stream: TcpStream) -> Events {
        Events { reader: BufReader::new(stream), headers: Vec::new(), waiting: VecDeque::new() }
    }

    fn open(stream: TcpStream) -> Events {
        let mut events = Events::of(stream);
        events.read_head();
        events
    }

    /// Reads the head and returns the status.
    pub fn status(&mut self) -> u16 {
        let (status, headers) = head(&mut self.reader);
        self.headers = headers;
        status
    }

    /// Reads the head, and panics if the status is not 200.
    pub fn read_head(&mut self) {
        let status = self.status();
        if status != 200 {
            let mut text = String::new();
            let _ = self.reader.read_to_string(&mut text);
            panic!("{status}: {text}");
        }
    }
}

/// Yields the text of each event, unchanged.
impl Iterator for Events {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.waiting.is_empty() {
            let text = String::from_utf8(chunk(&mut self.reader)?).unwrap();
            self.waiting.extend(text.split_inclusive("\n\n").map(str::to_owned));
        }
        self.waiting.pop_front()
    }
}

/// A body with more fields.
pub fn merged(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The kind and the data of each event in a text.
pub fn typed(text: &str) -> Vec<(String, Value)> {
    let event = |event: &str| {
        let kind = event.lines().find_map(|line| line.strip_prefix("event: ")).unwrap();
        (kind.to_owned(), data_of(event))
    };
    text.split_terminator("\n\n").filter(|event| !event.starts_with(':')).map(event).collect()
}

/// The id of an event.
pub fn id_of(event: &str) -> Option<&str> {
    event.lines().find_map(|line| line.strip_prefix("id: "))
}

/// The events without pings, with the unique name of the answer replaced: equal requests have equal events.
pub fn unnamed(events: impl IntoIterator<Item = String>) -> Vec<String> {
    let events: Vec<String> = events.into_iter().filter(|event| !event.starts_with(':')).collect();
    let name = id_of(&events[0]).and_then(|id| id.split(';').nth(1)).unwrap().to_owned();
    events.into_iter().map(|event| event.replace(&name, "NAME")).collect()
}

/// The data of an event.
pub fn data_of(event: &str) -> Value {
    let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"))
}

/// An app that serves the demo model.
pub fn demo(engine: EngineConfig, config: ServerConfig) -> Arc<App> {
    App::ready(demo_service(engine, config))
}

/// A service with the demo model.
pub fn demo_service(engine: EngineConfig, config: ServerConfig) -> Service {
    demo_of(Checkpoint::demo().unwrap(), engine, config)
}

/// A service with the demo's weights, in little memory.
pub fn demo_of(checkpoint: Checkpoint, engine: EngineConfig, config: ServerConfig) -> Service {
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 128, state_slots: 0 };
    let cpu = Cpu::new(Isa::named("auto").unwrap(), 1).unwrap();
    let model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {});
    serve_weights(checkpoint, Box::new(model.unwrap()), engine, config)
}

/// A service with these weights.
pub fn serve_weights(
    checkpoint: Checkpoint,
    weights: Box<dyn Model>,
    engine: EngineConfig,
    config: ServerConfig,
) -> Service {
    Service::new(bitnet::Model::start(checkpoint, weights, engine).unwrap(), config)
}

/// A checkpoint without a tokenizer, for weights that come from elsewhere.
pub fn bare(name: &str, weights: &dyn Model) -> Checkpoint {
    Checkpoint::synthetic(name, Synthetic::of(weights.spec().clone()))
}

/// A server with the demo model and default limits.
pub fn demo_server() -> Server {
    let app = demo(EngineConfig::default(), ServerConfig::default());
    Server::start(app, ConnectionLimits::default(), SOON)
}

/// A server with the demo model that keeps its cache in a folder.
pub fn server_with_folder(place: &Path) -> Server {
    let (path, identity, about) = (place.join("cache"), [3; 32], "demo".into());
    let folder = Some(CacheFolder { path, bytes: 1 << 30, identity, about });
    let app = demo(EngineConfig { folder, ..EngineConfig::default() }, ServerConfig::default());
    Server::start(app, ConnectionLimits::default(), SOON)
}

pub const VOCAB: usize = 50;
pub const CONTEXT: usize = 8192;

/// An app whose model derives tokens from hashes instead of weights, for requests of token ids; `hook` sees every step.
pub fn hashes(hook: Hook, engine: EngineConfig, config: ServerConfig) -> Arc<App> {
    let limits = Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 256, state_slots: 0 };
    let model: Box<dyn Model> = Box::new(HashModel::new(VOCAB, CONTEXT, limits).with_hook(hook));
    App::ready(serve_weights(bare("hash", &*model), model, engine, config))
}

/// A hook that makes each step take at least this long.
pub fn slow(each: Duration) -> Hook {
    Box::new(move |_: &Batch, logits: Option<&mut Logits>| {
        if logits.is_none() {
            std::thread::sleep(each);
        }
        Ok(())
    })
}
