//! `bitnet serve` from start to end, and `bitnet bench --url` as its client.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStderr, Command, Stdio},
};

use bitnet_tests::served_at;

use crate::{bitnet::bitnet, signals};

/// A server that is killed at the end of the test.
struct Serving {
    child: Child,
    log: BufReader<ChildStderr>,
    address: String,
}

impl Serving {
    fn start(args: &[&str]) -> Serving {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
        command.arg("serve").args(args).args(["--port", "0", "--threads", "2"]);
        let mut child = signals::prepare(&mut command).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = served_at(&mut log).unwrap();
        Serving { child, log, address }
    }

    /// Sends a request and reads nothing yet.
    fn ask(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
        write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        stream
    }

    fn signal(&self) {
        assert!(signals::send("TERM", self.child.id()));
    }

    /// Returns the rest of its log and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let mut said = String::new();
        self.log.read_to_string(&mut said).unwrap();
        (said, self.child.wait().unwrap().code())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LONG: &str = r#"{"prompt": "O", "max_tokens": 480, "ignore_eos": true, "stream": true, "n": 16}"#;

#[test]
fn a_server_told_to_stop_finishes_its_requests_and_exits_with_0() {
    let args = ["demo", "--log", "off", "--host", "localhost", "--drain-timeout", "10m"];
    let server = Serving::start(&args);
    let mut stream = server.ask(LONG);
    let mut first = [0];
    stream.read_exact(&mut first).unwrap();
    server.signal();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]") && !rest.contains("\"error\""), "{rest}");
    assert_eq!(rest.matches("\"finish_reason\":\"length\"").count(), 16);
    assert_eq!(server.end(), (String::new(), Some(0)));
}

#[test]
fn a_server_told_to_end_while_it_fetches_its_model_does_not_wait() {
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
    command.args(["serve", "org/name", "--log", "off", "--port", &free.port().to_string()]);
    command.env("HF_ENDPOINT", format!("http://{}", hub.local_addr().unwrap()));
    command.env("HF_HOME", home.path()).env_remove("HF_HUB_OFFLINE");
    let mut child = signals::prepare(&mut command).stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let server = Serving { child, log, address: free.to_string() };
    // A hub that never answers.
    let _asked = hub.accept().unwrap();
    let mut probe = TcpStream::connect(free).unwrap();
    write!(probe, "GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut live = String::new();
    probe.read_to_string(&mut live).unwrap();
    assert!(live.starts_with("HTTP/1.1 200"), "{live}");
    let health = bitnet(&["health", &format!("http://{free}/v1")]).failure(1);
    assert!(health.contains("being loaded"), "{health}");
    server.signal();
    assert_eq!(server.end(), (String::new(), Some(0)));
}

#[test]
fn a_second_signal_ends_the_server_immediately() {
    // Enough work for much longer than the test takes.
    let server = Serving::start(&["synthetic:125m", "--log", "requests"]);
    let body = r#"{"prompt": [1], "max_tokens": 4000, "ignore_eos": true, "stream": true, "n": 32}"#;
    let mut stream = server.ask(body);
    stream.read_exact(&mut [0]).unwrap();
    server.signal();
    let mut server = server;
    loop {
        let mut line = String::new();
        assert!(server.log.read_line(&mut line).unwrap() > 0, "it ended by the first signal");
        if line.contains("a second signal ends the process immediately") {
            break;
        }
    }
    server.signal();
    assert_eq!(server.end().1, Some(1));
}

#[test]
fn a_step_beyond_its_limit_is_reported_with_what_it_computes() {
    let mut server = Serving::start(&["synthetic:125m", "--step-limit", "1ms"]);
    let prompt = vec!["1"; 2000].join(",");
    let mut answer = server.ask(&format!(r#"{{"prompt": [{prompt}], "max_tokens": 1}}"#));
    // If it is answered without a report, the end of the server ends the log and so the test.
    let id = server.child.id();
    std::thread::spawn(move || {
        let _ = answer.read_to_string(&mut String::new());
        signals::send("TERM", id);
    });
    loop {
        let mut line = String::new();
        assert!(server.log.read_line(&mut line).unwrap() > 0, "it ended");
        if line.contains("a step takes too long") && line.contains("prompt tokens") {
            break;
        }
    }
}

#[test]
fn what_keeps_it_from_serving_is_reported_in_one_line() {
    let server = Serving::start(&["demo"]);
    let port = server.address.rsplit(':').next().unwrap();
    for (args, place) in [
        (&["serve", "demo", "--port", port][..], "(--port)"),
        (&["serve", "no-such-model", "--port", "0"], "no-such-model"),
        (&["serve", "demo", "--port", "0", "--max-queued-requests", "0"], "max_queued_requests"),
    ] {
        let told = bitnet(args).failure(1);
        assert!(told.contains(place), "{told}");
    }
    for args in [["--ttft-goal", "0"], ["--host", "nowhere"], ["--max-batch-size", "0"], ["--api-key", ""]] {
        bitnet(&[&["serve", "demo"], &args[..]].concat()).failure(2);
    }
}

#[test]
fn health_says_whether_a_server_accepts_requests() {
    let server = Serving::start(&["demo", "--log", "off", "--api-key", "k"]);
    let url = format!("http://{}", server.address);
    assert_eq!(bitnet(&["health", &url]).success(), "ready\n");
    drop(server);
    let nobody = bitnet(&["health", &url]).failure(1);
    assert!(nobody.contains(&url) && nobody.contains("start `bitnet serve`"), "{nobody}");
}

#[test]
fn prompts_are_in_the_log_only_if_asked_for() {
    for (log, shown) in [("requests", false), ("prompts", true)] {
        let server = Serving::start(&["demo", "--log", log]);
        let mut reply = String::new();
        server.ask(r#"{"prompt": "Wherefore", "max_tokens": 3}"#).read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        server.signal();
        let (log, code) = server.end();
        assert!(log.contains("/v1/completions") && code == Some(0), "{log}");
        assert_eq!(log.contains("Wherefore"), shown, "{log}");
    }
}

#[test]
fn a_generation_is_logged_with_its_request_its_address_and_rounded_times() {
    let server = Serving::start(&["demo"]);
    let mut stream = server.ask(r#"{"prompt": "O", "max_tokens": 3, "ignore_eos": true}"#);
    let address = stream.local_addr().unwrap();
    stream.read_to_string(&mut String::new()).unwrap();
    server.signal();
    let (log, _) = server.end();
    let line =
        |target: &str| log.lines().find(|line| line.contains(target)).unwrap_or_else(|| panic!("{log}"));
    let (generation, request) = (line("bitnet::generation:"), line("bitnet::request:"));
    let field = |line: &str, name: &str| {
        let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{name}: {line}")).to_owned()
    };
    assert!(field(generation, "id").starts_with("\"req-"), "{generation}");
    for line in [generation, request] {
        assert_eq!(field(line, "id"), field(generation, "id"));
        assert_eq!(field(line, "address"), address.to_string());
    }
    assert_eq!(
        (field(generation, "reason"), field(generation, "tokens")),
        ("\"complete\"".into(), "3".into())
    );
    let times = [(generation, "first_ms"), (generation, "ms"), (request, "ms")].map(|(line, name)| {
        let text = field(line, name);
        assert!(text.split_once('.').is_none_or(|(_, digits)| digits.len() == 1), "{line}");
        text.parse::<f64>().unwrap()
    });
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn a_server_is_measured_from_its_clients_side() {
    let server = Serving::start(&["demo", "--log", "off", "--api-key", "k"]);
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("times.svg");
    let url = format!("http://{}", server.address);
    let args =
        ["bench", "--url", &url, "--api-key", "k", "--clients", "3", "--requests", "7", "-p", "8", "-n", "5"];
    let report = bitnet(&[&args[..], &["--json", "--svg", svg.to_str().unwrap()]].concat()).json();
    assert_eq!((report["model"].as_str(), report["answered"].as_u64()), (Some("demo"), Some(7)));
    assert_eq!((report["tokens"].as_u64(), report["failed"].as_u64()), (Some(35), Some(0)));
    assert_eq!(report["first_token_ms"]["count"], 7);
    assert_eq!(report["inter_token_ms"]["count"], 28);
    assert!(report["refusal_ms"].is_null());
    let times = &report["first_token_ms"];
    let of = |name: &str| times[name].as_f64().unwrap();
    assert!(of("p50") <= of("p90") && of("p90") <= of("p99") && of("p99") <= of("max"), "{times}");
    assert_eq!(std::fs::read_to_string(&svg).unwrap().matches("<polyline").count(), 2);

    // Without -p, prompts fit the server's context.
    let short =
        ["bench", "--url", &url, "--api-key", "k", "--clients", "1", "--requests", "1", "-n", "5", "--json"];
    let report = bitnet(&short).json();
    assert_eq!((&report["answered"], &report["prompt_tokens"]), (&1.into(), &512.into()));
    for more in [["-d", "30"], ["-p", "8,16"]] {
        bitnet(&[&short[..], &more].concat()).failure(2);
    }
    let long = bitnet(&[&short[..], &["-p", "2100"]].concat()).failure(1);
    assert!(long.contains("do not fit the server's 2048"), "{long}");
    let refused = bitnet(&["bench", "--url", &url]).failure(1);
    assert!(refused.contains("401"), "{refused}");
}
