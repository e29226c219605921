//! Models with recurrent layers as users meet them: every form through every command of the binary, and through a server.

use std::{
    io::{BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bitnet_tests::{binary, fixture, served_at};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Every form of each model, and what `inspect` says of it.
const MODELS: [(&[&str], &[&str]); 2] = [
    (
        &["qwen35-ternary", "qwen35-ternary/model-PQ2_0.gguf"],
        &["3 gated-delta layers, 1 that attend; 2 key heads and 8 value heads of width 16", "8 of the 32"],
    ),
    (
        &["qwen35-hadamard/model-PQ2_0.gguf", "qwen35-hadamard/model-PTQ1_0.gguf", "qwen35-hadamard/mlx"],
        &[
            "2 gated-delta layers, 2 that attend",
            "transform in blocks of 256, signs for 256, 512",
            "16 of the 64",
        ],
    ),
];

const LONG: &str = "The river flows past the old mill, and the miller counts his sacks twice. ";
const GREEDY: [&str; 2] = ["--temperature", "0"];

/// The binary with what it keeps in `folder`.
fn command(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).args(["--device", "cpu", "--threads", "2"]).env("BITNET_CACHE", folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// stdout and stderr of a run that succeeds.
fn ran(folder: &TempDir, args: &[&str], input: &str) -> (String, String) {
    let mut child = command(folder, args).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{args:?}: {err}");
    (out, err)
}

/// What every command makes of a model. Whatever differs between two forms of a model is left out.
fn made(folder: &TempDir, model: &str, inspected: &[&str]) -> Vec<(String, String)> {
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut all = Vec::new();
    let mut add = |what: &str, out: String| all.push((what.to_owned(), out));
    let run = |model: &str, more: &[&str]| {
        let args = [&["run", model, "--raw", "-n", "60"][..], &GREEDY, more].concat();
        ran(folder, &args, &LONG.repeat(3)).0
    };
    let text = run(model, &["--speculate", "0"]);
    assert!(!text.trim().is_empty());
    for more in [&["--speculate", "4"][..], &["--speculate", "1"], &["--memory", "4M"]] {
        assert_eq!(run(model, more), text, "{model} {more:?}");
    }
    let told = ran(folder, &["inspect", model], "").0;
    assert!(inspected.iter().all(|part| told.contains(part)), "{model}: {told}");
    ran(folder, &["convert", model, &at("to.gguf"), "--to", "pq2_0"], "");
    assert_eq!(run(&at("to.gguf"), &[]), text, "{model}, converted");
    add("run", text);

    std::fs::write(at("text"), LONG.repeat(20)).unwrap();
    let scored = ran(folder, &["perplexity", model, &at("text"), "--context", "100", "--json"], "").0;
    let scored: Value = serde_json::from_str(&scored).unwrap();
    assert!(scored["perplexity"].as_f64().is_some_and(|p| p > 1.0 && p.is_finite()), "{scored}");
    add("perplexity", scored["perplexity"].to_string());

    let turns =
        format!("Hello\nHow are you?\n/undo\nWhat?\n{}", "Tell me more of it, in many words.\n".repeat(8));
    let (out, err) = ran(folder, &[&["chat", model, "-n", "60"][..], &GREEDY].concat(), &turns);
    assert!(err.contains("2 messages are left") && err.contains("turn was dropped"), "{model}: {err}");
    add("chat", out);

    let line = |id: usize, url: &str, body: Value| {
        json!({"custom_id": id.to_string(), "method": "POST", "url": url, "body": body}).to_string() + "\n"
    };
    let bodies = (0..6).map(|i| {
        let body = json!({"prompt": LONG.repeat(i % 3 + 1), "max_tokens": 20, "n": i % 2 * 3 + 1, "seed": 7});
        line(i, "/v1/completions", body)
    });
    let talk =
        json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "temperature": 0});
    let bodies: String = bodies.chain([line(6, "/v1/chat/completions", talk)]).collect();
    let requests = at("in.jsonl");
    std::fs::write(&requests, bodies).unwrap();
    let answers = ran(folder, &["batch", model, &requests, "-"], "").0;
    for answer in answers.lines() {
        let answer: Value = serde_json::from_str(answer).unwrap();
        assert_eq!(answer["response"]["status_code"], 200, "{model}: {answer}");
        add("batch", answer["response"]["body"]["choices"].to_string());
    }

    let speeds = ran(folder, &["bench", model, "-p", "70", "-n", "6", "-b", "1,3", "--json"], "").0;
    assert!(serde_json::from_str::<Value>(&speeds).is_ok(), "{model}: {speeds}");
    all
}

#[test]
fn every_form_of_a_recurrent_model_gives_the_same_through_every_command() {
    let folder = tempfile::tempdir().unwrap();
    for (forms, inspected) in MODELS {
        let made = |form: &str| made(&folder, fixture(form).to_str().unwrap(), inspected);
        let first = made(forms[0]);
        assert_eq!(first.len(), 10);
        for form in &forms[1..] {
            assert_eq!(made(form), first, "{form}");
        }
    }
    // The fixtures are two kinds; each reads its own golden values.
    let fixtures = fixture("").to_str().unwrap().to_owned();
    let judged = ran(&folder, &["doctor", "--fixtures", &fixtures], "").0;
    assert_eq!(judged.lines().filter(|line| line.contains("qwen35-") && line.contains("near")).count(), 3);
}

/// A server that ends with the test.
struct Serving {
    child: Child,
    address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    fn start(folder: &TempDir, model: &Path) -> Serving {
        let args = ["serve", model.to_str().unwrap(), "--port", "0", "--max-batch-size", "6"];
        let mut child = command(folder, &args).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = served_at(&mut log).unwrap();
        // Its log must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Serving { child, address }
    }

    /// Sends a request of HTTP 1.0, whose answer ends with the connection.
    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json");
        write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        stream
    }

    fn text(&self, method: &str, path: &str, body: &str) -> String {
        let mut answer = String::new();
        self.send(method, path, body).read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        serde_json::from_str(&self.text("POST", path, &body.to_string())).unwrap()
    }

    /// The events of a stream.
    fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let events = self.text("POST", path, &body.to_string());
        let data = events.lines().filter_map(|line| line.strip_prefix("data: {"));
        data.map(|json| serde_json::from_str(&format!("{{{json}")).unwrap()).collect()
    }

    /// A number of `/metrics`.
    fn count(&self, name: &str) -> u64 {
        let metrics = self.text("GET", "/metrics", "");
        let line = metrics.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with('{'));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).rsplit(' ').next().unwrap().parse().unwrap()
    }
}

#[test]
fn a_recurrent_model_is_served_with_streams_choices_reuse_and_cancelled_requests() {
    let folder = tempfile::tempdir().unwrap();
    for form in ["qwen35-ternary/model-PQ2_0.gguf", "qwen35-hadamard/mlx"] {
        let server = Serving::start(&folder, &fixture(form));
        let with = |more: Value| {
            let mut body = json!({"prompt": LONG.repeat(3), "max_tokens": 30, "temperature": 0});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let complete = |more: Value| server.post("/v1/completions", &with(more));
        let texts = |answer: &Value| -> Vec<String> {
            let choices = answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}"));
            choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
        };
        let first = texts(&complete(json!({})));
        let found = server.count("bitnet_prefix_cache_hits_tokens_total");
        assert_eq!(texts(&complete(json!({}))), first, "{form}: from a kept state");
        let prompt = complete(json!({}))["usage"]["prompt_tokens"].as_u64().unwrap();
        let reused = server.count("bitnet_prefix_cache_hits_tokens_total") - found;
        assert_eq!(
            reused,
            2 * ((prompt - 1) / 64 * 64),
            "{form}: all whole blocks of {prompt} tokens, twice"
        );
        assert_eq!(texts(&complete(json!({"n": 4}))), vec![first[0].clone(); 4], "{form}");

        let path = "/v1/completions";
        let streamed = server.events(path, &with(json!({"stream": true})));
        let streamed: String =
            streamed.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(streamed, first[0], "{form}");
        let mut talk =
            json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "seed": 5});
        let said = server.post("/v1/chat/completions", &talk);
        talk["stream"] = json!(true);
        let streamed = server.events("/v1/chat/completions", &talk);
        let streamed: String =
            streamed.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(said["choices"][0]["message"]["content"], json!(streamed), "{form}");

        let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
        let asked =
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, picture]}]});
        let refused = server.post("/v1/chat/completions", &asked)["error"]["message"].to_string();
        assert!(
            refused.contains("messages[0].content[1].type") && refused.contains("image_url"),
            "{refused}"
        );

        // Hang up in the middle of streams.
        let endless =
            with(json!({"max_tokens": 250, "stream": true, "n": 3, "ignore_eos": true, "temperature": 1}));
        for _ in 0..4 {
            let mut stream = server.send("POST", path, &endless.to_string());
            stream.read_exact(&mut [0; 300]).unwrap();
        }
        let begun = Instant::now();
        while server.count("bitnet_state_slots_used") > 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{form}: slots of cancelled requests come back"
            );
        }
        assert_eq!(texts(&complete(json!({}))), first, "{form}: after all that");
    }
}
