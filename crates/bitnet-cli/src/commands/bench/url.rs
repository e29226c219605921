//! `bitnet bench --url`: measures what clients of a running server see.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use bitnet::hub;
use bitnet_client::{Client, Percentiles, Seen};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    args::{BenchArgs, DEFAULT_PROMPT},
    error::CliError,
    output, output_file,
    progress::Progress,
    svg,
};

/// Ids that every vocabulary has and that are rarely control tokens.
const IDS: std::ops::Range<usize> = 3..256;

#[derive(Serialize)]
struct Report {
    url: String,
    model: String,
    clients: u16,
    /// Intended requests per second.
    rate: Option<f64>,
    prompt_tokens: usize,
    max_tokens: usize,
    answered: usize,
    refused: usize,
    failed: usize,
    tokens: usize,
    seconds: f64,
    tok_s: f64,
    /// Milliseconds; null if there were none.
    first_token_ms: Option<Percentiles>,
    inter_token_ms: Option<Percentiles>,
    refusal_ms: Option<Percentiles>,
}

/// Sends requests to a server and prints what clients saw.
pub fn run(url: &str, args: &BenchArgs) -> Result<(), CliError> {
    let base = url.trim_end_matches('/').trim_end_matches("/v1");
    if args.rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e6)) {
        return Err(CliError::usage("the rate is not valid", "--rate", "give requests per second above 0"));
    }
    let key = args.api_key.clone().or_else(|| std::env::var("BITNET_API_KEY").ok());
    let client = Client::with_agent(base, hub::agent(base).map_err(bitnet::Error::from)?);
    let key = key.map(|key| format!("Bearer {key}")).unwrap_or_default();
    let client = client.header("authorization", &key);
    let mut server = Server { client, base: base.into(), prompt: 0, tokens: args.decode };
    let (model, context) = server.model()?;
    server.prompt = prompt(args, context)?;
    let svg = args.svg.as_deref().map(|place| output_file::create(place).map(|file| (place, file)));
    let svg = svg.transpose()?;
    let bar = Progress::new("asking", args.requests);
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let client = || {
        let mut seen = Seen::default();
        loop {
            let i = next.fetch_add(1, Relaxed);
            if i >= args.requests {
                return seen;
            }
            if let Some(rate) = args.rate {
                let due = start + Duration::from_secs_f64(i as f64 / rate);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            seen.ask(&server.client, "/v1/completions", &server.body(i));
            bar.step();
        }
    };
    let mut seen = thread::scope(|scope| {
        let clients: Vec<_> = (0..args.clients).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|c| c.join().expect("a client")).fold(Seen::default(), Seen::and)
    });
    let seconds = start.elapsed().as_secs_f64();
    drop(bar);
    if let (0, Some(problem)) = (seen.answered + seen.refusals.len(), &seen.problem) {
        return Err(CliError::refused(problem, "--url", "check the server"));
    }
    let report = Report {
        url: base.into(),
        model,
        clients: args.clients,
        rate: args.rate,
        prompt_tokens: server.prompt,
        max_tokens: server.tokens,
        answered: seen.answered,
        refused: seen.refusals.len(),
        failed: seen.failed,
        tokens: seen.tokens,
        seconds,
        tok_s: seen.tokens as f64 / seconds,
        first_token_ms: Percentiles::of(&mut seen.first),
        inter_token_ms: Percentiles::of(&mut seen.between),
        refusal_ms: Percentiles::of(&mut seen.refusals),
    };
    if let Some((place, file)) = svg {
        let curves = [("first token", &seen.first[..]), ("between tokens", &seen.between)];
        let picture = svg::distributions("milliseconds", &curves);
        file.write(picture).map_err(CliError::file("write", place))?;
    }
    if let Some(problem) = &seen.problem {
        output::note(format_args!("warning: {} requests failed, the first with: {problem}", seen.failed));
    }
    if args.json { output::json(&report) } else { print(&report) }
}

/// Returns the length of the prompts: as requested, or what leaves room in the server's context.
fn prompt(args: &BenchArgs, context: Option<usize>) -> Result<usize, CliError> {
    let prompt = match args.prefill.as_deref() {
        None => DEFAULT_PROMPT.min(context.map_or(DEFAULT_PROMPT, |context| context / 2)),
        Some(&[prompt]) => prompt,
        Some(_) => {
            return Err(CliError::usage("a server is measured with one length of prompt", "-p", "give one"));
        }
    };
    match context {
        Some(context) if prompt + args.decode > context => {
            let what =
                format!("{prompt} prompt tokens and {} more do not fit the server's {context}", args.decode);
            Err(CliError::refused(what, "--url", "lower -p or -n"))
        }
        _ => Ok(prompt),
    }
}

struct Server {
    client: Client,
    base: String,
    prompt: usize,
    tokens: usize,
}

impl Server {
    /// Returns the name of the model and, if the server reports it, its context; an error if no server serves one.
    fn model(&self) -> Result<(String, Option<usize>), CliError> {
        let fail = |problem: String| {
            CliError::refused(problem, format!("{}/v1/models", self.base), "start one with `bitnet serve`")
        };
        let reply = self.client.get("/v1/models").map_err(|e| fail(e.to_string()))?;
        let status = reply.status;
        let text = reply.text().map_err(|e| fail(e.to_string()))?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let model = &value["data"][0];
        let name = model["id"].as_str().map(str::to_owned);
        let name = name.ok_or_else(|| fail(format!("no model is served ({status})")))?;
        Ok((name, model["max_model_len"].as_u64().map(|context| context as usize)))
    }

    /// The body of a request.
    fn body(&self, i: usize) -> String {
        let ids: Vec<usize> =
            (0..self.prompt).map(|p| IDS.start + (p * 7 + i * 2_654_435_761) % IDS.len()).collect();
        let body = json!({
            "prompt": ids, "max_tokens": self.tokens, "ignore_eos": true, "seed": i, "stream": true,
            "return_token_ids": true,
        });
        body.to_string()
    }
}

fn print(r: &Report) -> Result<(), CliError> {
    let rate = r.rate.map_or(String::new(), |rate| format!(", {rate} requests per second"));
    let mut lines = vec![
        format!("{} at {}, {} clients{rate}", r.model, r.url, r.clients),
        format!("{} answered, {} refused, {} failed in {:.2} s", r.answered, r.refused, r.failed, r.seconds),
        format!("{} tokens, {:.1} tok/s", r.tokens, r.tok_s),
    ];
    for (what, times) in [
        ("first token", &r.first_token_ms),
        ("between tokens", &r.inter_token_ms),
        ("refusal", &r.refusal_ms),
    ] {
        if let Some(Percentiles { p50, p90, p99, max, .. }) = times {
            lines.push(format!("{what:15} p50 {p50:9.2}  p90 {p90:9.2}  p99 {p99:9.2}  max {max:9.2} ms"));
        }
    }
    output::line(lines.join("\n"))
}
