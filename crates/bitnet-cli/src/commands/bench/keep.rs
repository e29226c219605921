//! `bench --keep N`: what keeping the cache in a folder costs. While sequences decode, a prompt of N tokens is computed that is
//! in no cache; when it ends, its parts are written beside the others' steps. The same without a folder is the measure, and so
//! is the time for as many tokens afterwards, because a machine may get slower or faster from one engine to the next.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use bitnet::inference::{Engine, RequestHandle, Update};
use serde::Serialize;

use super::folder;
use crate::{
    args::{BenchArgs, Common},
    error::CliError,
    output,
};

/// Sequences that decode.
const STREAMS: usize = 8;
/// Tokens of their prompts, less than a block.
const SHORT: usize = 16;
/// How often to count tokens: a small part of a step.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Debug, Serialize)]
struct Keep {
    model: String,
    kv: String,
    prompt_tokens: usize,
    streams: usize,
    decode_tokens: usize,
    /// In the order in which they were measured.
    runs: Vec<Run>,
    /// Time of the prompt without a folder over that with one, of all runs: 1 if looking in vain costs nothing.
    prompt_ratio: f64,
    /// The time of decoding afterwards over that of decoding while parts are written, as a part of what it is without a
    /// folder: 1 if writing costs nothing.
    decode_ratio: f64,
    written_bytes: u64,
}

/// One engine.
#[derive(Debug, Serialize)]
struct Run {
    folder: bool,
    /// From the submission of the prompt to its end, while the others decode.
    prompt_seconds: f64,
    /// All sequences together, after the end of the prompt.
    decode_seconds: f64,
    decode_tok_s: f64,
    /// Bytes of parts written meanwhile.
    written_bytes: u64,
    /// As many tokens once more.
    later_seconds: f64,
    /// Bytes of parts that were written only then.
    later_bytes: u64,
}

pub fn run(common: &Common, args: &BenchArgs, tokens: usize) -> Result<(), CliError> {
    let mut kv = String::new();
    let mut runs = Vec::new();
    // A machine that gets slower or faster from run to run favours neither.
    let orders = [[false, true], [true, false]].into_iter().cycle();
    for with_folder in orders.take(args.runs.into()).flatten() {
        let place = with_folder.then(|| folder::make(args)).transpose()?;
        let model = folder::start(common, args, STREAMS + 1, place.as_ref().map(|place| place.path()))?;
        model.engine().backend().kv.clone_into(&mut kv);
        runs.push(measure(model.engine(), args, tokens)?);
        model.engine().shutdown(Duration::ZERO);
    }
    let sum =
        |folder, of: fn(&Run) -> f64| runs.iter().filter(|run| run.folder == folder).map(of).sum::<f64>();
    let ratio = |of| sum(false, of) / sum(true, of);
    let report = Keep {
        model: args.model.clone().unwrap_or_default(),
        kv,
        prompt_tokens: tokens,
        streams: STREAMS,
        decode_tokens: args.decode,
        prompt_ratio: ratio(|run| run.prompt_seconds),
        decode_ratio: ratio(|run| run.decode_seconds) / ratio(|run| run.later_seconds),
        written_bytes: runs.iter().map(|run| run.written_bytes).sum(),
        runs,
    };
    if args.json { output::json(&report) } else { print(&report) }
}

fn print(report: &Keep) -> Result<(), CliError> {
    for Run {
        folder,
        prompt_seconds,
        decode_tok_s,
        written_bytes,
        decode_seconds,
        later_seconds,
        later_bytes,
    } in &report.runs
    {
        let (with, written) =
            (if *folder { "with a folder" } else { "without" }, *written_bytes as f64 / 1e9);
        output::line(format_args!(
            "{with}: prompt of {} tokens in {prompt_seconds:.2} s; then {} sequences {decode_tok_s:.2} tokens/s, \
             {written:.2} GB written; then {:.2} tokens/s, {:.2} GB",
            report.prompt_tokens,
            report.streams,
            decode_tok_s * decode_seconds / later_seconds,
            *later_bytes as f64 / 1e9,
        ))?;
    }
    output::line(format_args!(
        "speed with a folder over that without: prompt {:.4}, decode while {:.2} GB were written {:.4}",
        report.prompt_ratio,
        report.written_bytes as f64 / 1e9,
        report.decode_ratio,
    ))
}

fn measure(engine: &Engine, args: &BenchArgs, tokens: usize) -> Result<Run, CliError> {
    // While the prompt is computed, the sequences decode as well.
    let most = 2 * args.decode + tokens / 8 + 256;
    let submit = |number, tokens, most| -> Result<RequestHandle, CliError> {
        let request = folder::request(engine, number, tokens, most, "--keep")?;
        engine.submit(request).map_err(|e| CliError::refused(e, "bench", "report this"))
    };
    let handles = (1..=STREAMS).map(|number| submit(number, SHORT, most)).collect::<Result<_, _>>()?;
    let mut streams = Streams { handles, tokens: 0 };
    streams.decode(STREAMS)?;
    let begun = Instant::now();
    let mut prompt = submit(0, tokens, 1)?;
    while take(&mut prompt)?.is_some() {
        streams.take()?;
        sleep(LOOK);
    }
    let prompt_seconds = begun.elapsed().as_secs_f64();
    let shelf = || engine.status().tier.map(|tier| tier.shelf.written_bytes);
    let mut decode = || -> Result<(usize, f64, u64), CliError> {
        let (before, begun, tokens) = (shelf(), Instant::now(), streams.tokens);
        streams.decode(tokens + STREAMS * args.decode)?;
        let written = shelf().unwrap_or(0) - before.unwrap_or(0);
        Ok((streams.tokens - tokens, begun.elapsed().as_secs_f64(), written))
    };
    let (tokens, decode_seconds, written_bytes) = decode()?;
    let (later_tokens, later_seconds, later_bytes) = decode()?;
    Ok(Run {
        folder: shelf().is_some(),
        prompt_seconds,
        decode_seconds,
        decode_tok_s: tokens as f64 / decode_seconds,
        written_bytes,
        later_seconds: later_seconds * tokens as f64 / later_tokens as f64,
        later_bytes,
    })
}

/// Sequences that decode, and how many tokens they have decoded.
struct Streams {
    handles: Vec<RequestHandle>,
    tokens: usize,
}

impl Streams {
    /// Counts the tokens that have come.
    fn take(&mut self) -> Result<(), CliError> {
        for handle in &mut self.handles {
            let ended = || CliError::refused("a sequence ended early", "bench", "report this");
            self.tokens += take(handle)?.ok_or_else(ended)?;
        }
        Ok(())
    }

    /// Waits until they have decoded this many tokens together.
    fn decode(&mut self, tokens: usize) -> Result<(), CliError> {
        while self.tokens < tokens {
            self.take()?;
            sleep(LOOK);
        }
        Ok(())
    }
}

/// The number of tokens that have come of a request; `None` once it has ended.
fn take(handle: &mut RequestHandle) -> Result<Option<usize>, CliError> {
    let mut tokens = 0;
    loop {
        match handle.recv_timeout(Duration::ZERO) {
            Ok(Some(Update::Token { .. })) => tokens += 1,
            Ok(Some(Update::Ended { end: Err(e), .. })) => {
                return Err(CliError::refused(e, "bench", "report this"));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(_) => return Ok(Some(tokens)),
        }
    }
}
