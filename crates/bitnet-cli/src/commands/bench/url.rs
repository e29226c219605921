//! `bitnet bench --url`: measures what clients of a running server see.

use std::{
    io::{BufRead, BufReader},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use bitnet::hub;
use serde::Serialize;
use serde_json::{Value, json};
use ureq::{Agent, http::Response};

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

#[derive(Debug, PartialEq, Serialize)]
struct Percentiles {
    count: usize,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// What one client has seen. Times are in milliseconds.
#[derive(Default)]
struct Seen {
    answered: usize,
    tokens: usize,
    first: Vec<f64>,
    between: Vec<f64>,
    refusals: Vec<f64>,
    failed: usize,
    problem: Option<String>,
}

/// Sends requests to a server and prints what clients saw.
pub fn run(url: &str, args: &BenchArgs) -> Result<(), CliError> {
    let base = url.trim_end_matches('/').trim_end_matches("/v1");
    if args.rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e6)) {
        return Err(CliError::usage("the rate is not valid", "--rate", "give requests per second above 0"));
    }
    let key = args.api_key.clone().or_else(|| std::env::var("BITNET_API_KEY").ok());
    let agent = hub::agent(base).map_err(bitnet::Error::from)?;
    let mut server = Server { agent, base: base.into(), key, prompt: 0, tokens: args.decode };
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
            server.ask(i, &mut seen);
            bar.step();
        }
    };
    let mut seen = thread::scope(|scope| {
        let clients: Vec<_> = (0..args.clients).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|c| c.join().expect("a client")).fold(Seen::default(), Seen::add)
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
        first_token_ms: percentiles(&mut seen.first),
        inter_token_ms: percentiles(&mut seen.between),
        refusal_ms: percentiles(&mut seen.refusals),
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
    agent: Agent,
    base: String,
    key: Option<String>,
    prompt: usize,
    tokens: usize,
}

impl Server {
    fn key(&self) -> String {
        self.key.as_ref().map(|key| format!("Bearer {key}")).unwrap_or_default()
    }

    /// Returns the name of the model and, if the server reports it, its context; an error if no server serves one.
    fn model(&self) -> Result<(String, Option<usize>), CliError> {
        let fail = |problem: String| {
            CliError::refused(problem, format!("{}/v1/models", self.base), "start one with `bitnet serve`")
        };
        let get = self.agent.get(format!("{}/v1/models", self.base)).header("authorization", self.key());
        let mut reply = get.call().map_err(|e| fail(e.to_string()))?;
        let text = reply.body_mut().read_to_string().map_err(|e| fail(e.to_string()))?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let model = &value["data"][0];
        let name = model["id"].as_str().map(str::to_owned);
        let name = name.ok_or_else(|| fail(format!("no model is served ({})", reply.status())))?;
        Ok((name, model["max_model_len"].as_u64().map(|context| context as usize)))
    }

    /// Sends one request and notes a failure.
    fn ask(&self, i: usize, seen: &mut Seen) {
        let ids: Vec<usize> =
            (0..self.prompt).map(|p| IDS.start + (p * 7 + i * 2_654_435_761) % IDS.len()).collect();
        let body = json!({
            "prompt": ids, "max_tokens": self.tokens, "ignore_eos": true, "seed": i, "stream": true,
            "return_token_ids": true,
        });
        let start = Instant::now();
        let sent = self
            .agent
            .post(format!("{}/v1/completions", self.base))
            .header("authorization", self.key())
            .header("content-type", "application/json")
            .send(body.to_string());
        let outcome = match sent {
            Ok(mut reply) if reply.status() == 200 => read(&mut reply, start, seen),
            Ok(mut reply) => {
                let text = reply.body_mut().read_to_string().unwrap_or_default();
                match reply.status().as_u16() {
                    429 => {
                        seen.refusals.push(millis(start));
                        Ok(())
                    }
                    status => Err(format!("{status}: {text}")),
                }
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(problem) = outcome {
            seen.failed += 1;
            seen.problem.get_or_insert(problem);
        }
    }
}

/// Reads a stream to its end.
fn read(reply: &mut Response<ureq::Body>, start: Instant, seen: &mut Seen) -> Result<(), String> {
    let (mut last, mut done) = (None, false);
    for line in BufReader::new(reply.body_mut().as_reader()).lines() {
        let line = line.map_err(|e| e.to_string())?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            done = true;
        } else if data.starts_with("{\"error\"") {
            return Err(data.into());
        } else if data.contains("\"finish_reason\":null") {
            seen.tokens += 1;
            match last.replace(Instant::now()) {
                None => seen.first.push(millis(start)),
                Some(before) => seen.between.push(millis(before)),
            }
        }
    }
    seen.answered += usize::from(done);
    if done { Ok(()) } else { Err("a stream ended early".into()) }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

impl Seen {
    fn add(mut self, other: Seen) -> Seen {
        self.answered += other.answered;
        self.tokens += other.tokens;
        self.first.extend(other.first);
        self.between.extend(other.between);
        self.refusals.extend(other.refusals);
        self.failed += other.failed;
        self.problem = self.problem.or(other.problem);
        self
    }
}

/// Sorts the times and returns their percentiles, by nearest rank.
fn percentiles(times: &mut [f64]) -> Option<Percentiles> {
    times.sort_by(f64::total_cmp);
    let rank = |p: f64| times[((times.len() as f64 * p).ceil() as usize).clamp(1, times.len()) - 1];
    let max = *times.last()?;
    Some(Percentiles { count: times.len(), p50: rank(0.5), p90: rank(0.9), p99: rank(0.99), max })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        assert_eq!(percentiles(&mut []), None);
        let one = Percentiles { count: 1, p50: 3.0, p90: 3.0, p99: 3.0, max: 3.0 };
        assert_eq!(percentiles(&mut [3.0]), Some(one));
        let mut hundred: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let many = Percentiles { count: 200, p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 };
        assert_eq!(percentiles(&mut hundred), Some(many));
    }
}
