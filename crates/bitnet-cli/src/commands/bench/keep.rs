//! `bench --keep N`: what keeping the cache in a folder costs. Prompts of N tokens that are in no cache are computed in turns
//! by an engine without a folder and by one that looks for them in its folder in vain. Then sequences decode while the parts
//! of such a prompt are written. The steps during which this happens are compared with those around them, because a machine
//! may get slower or faster from one second to the next.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use bitnet::inference::{Engine, RequestHandle, Update};
use serde::Serialize;

use super::{folder, runs};
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
/// Steps before and after one with which it is compared.
const AROUND: usize = 4;

#[derive(Debug, Serialize)]
struct Keep {
    model: String,
    kv: String,
    prompt_tokens: usize,
    prompts: Vec<Pair>,
    /// The median of `without_seconds / with_seconds`: 1 if looking in vain costs nothing.
    prompt_ratio: Option<f64>,
    streams: usize,
    decode: Decode,
}

/// As many new tokens computed by both engines, in seconds.
#[derive(Debug, Serialize)]
struct Pair {
    without_seconds: f64,
    with_seconds: f64,
}

/// Decoding while parts are written. What is `None` was not measured, because nothing was written, or in every step.
#[derive(Debug, Default, Serialize)]
struct Decode {
    /// Steps from the first to the last during which a part was copied or written, and how many such there were.
    steps: usize,
    writing_steps: usize,
    written_bytes: u64,
    /// The median time of the other steps.
    step_seconds: Option<f64>,
    /// How much longer than the other steps around them those are: median and mean.
    longer_median_seconds: Option<f64>,
    longer_mean_seconds: Option<f64>,
    /// How long the engine itself copies in such a step, a part of the above.
    copy_seconds: Option<f64>,
    /// The speed of decoding, as a part of what it would be if all steps were as those that write nothing.
    ratio: Option<f64>,
}

pub fn run(common: &Common, args: &BenchArgs, tokens: usize) -> Result<(), CliError> {
    let place = folder::make(args)?;
    let without = folder::start(common, args, STREAMS + 1, None)?;
    let with = folder::start(common, args, STREAMS + 1, Some(place.path()))?;
    let (without, with) = (without.engine(), with.engine());
    let prompt = |engine, run| -> Result<f64, CliError> {
        folder::rest(with, Duration::ZERO);
        let begun = Instant::now();
        let mut prompt = submit(engine, STREAMS + 1 + run, tokens, 1)?;
        while let Some(update) = prompt.recv() {
            tokens_of(update)?;
        }
        Ok(begun.elapsed().as_secs_f64())
    };
    let mut prompts = Vec::new();
    for run in 0..usize::from(args.runs) {
        // A machine that gets slower or faster favours neither.
        let (without_seconds, with_seconds) = if run % 2 == 0 {
            let first = prompt(without, run)?;
            (first, prompt(with, run)?)
        } else {
            let first = prompt(with, run)?;
            (prompt(without, run)?, first)
        };
        prompts.push(Pair { without_seconds, with_seconds });
    }
    folder::rest(with, Duration::ZERO);
    let ratios = prompts.iter().map(|pair| pair.without_seconds / pair.with_seconds);
    let report = Keep {
        model: args.model.clone().unwrap_or_default(),
        kv: with.backend().kv.to_owned(),
        prompt_tokens: tokens,
        prompt_ratio: median(ratios.collect()),
        prompts,
        streams: STREAMS,
        decode: compare(&decode(with, args.decode, tokens)?),
    };
    with.shutdown(Duration::ZERO);
    without.shutdown(Duration::ZERO);
    if args.json { output::json(&report) } else { print(&report) }
}

fn print(report: &Keep) -> Result<(), CliError> {
    let Keep { prompt_tokens, prompts, prompt_ratio, streams, decode, .. } = report;
    let unknown = || "unknown".to_owned();
    let ratio = |ratio: Option<f64>| ratio.map_or_else(unknown, |ratio| format!("{ratio:.4}"));
    output::line(format_args!(
        "{} prompts of {prompt_tokens} tokens that are in no folder: speed with a folder over that without {}",
        prompts.len(),
        ratio(*prompt_ratio),
    ))?;
    let Decode { steps, writing_steps, written_bytes, .. } = decode;
    let ms =
        |seconds: Option<f64>| seconds.map_or_else(unknown, |seconds| format!("{:.2} ms", seconds * 1e3));
    output::line(format_args!(
        "{streams} sequences while {:.2} GB are written: {writing_steps} of {steps} steps write, and take {} longer \
         (median {}; {} of it copying) than the {} of those around; speed over that without writing {}",
        *written_bytes as f64 / 1e9,
        ms(decode.longer_mean_seconds),
        ms(decode.longer_median_seconds),
        ms(decode.copy_seconds),
        ms(decode.step_seconds),
        ratio(decode.ratio),
    ))
}

/// A step of the streams, and what was copied and written during it.
struct Step {
    seconds: f64,
    copy_micros: u64,
    written_bytes: u64,
}

impl Step {
    fn writes(&self) -> bool {
        self.copy_micros > 0 || self.written_bytes > 0
    }
}

/// Decodes with all streams: this many steps after a prompt has ended, whose parts are then written.
fn decode(engine: &Engine, steps: usize, tokens: usize) -> Result<Vec<Step>, CliError> {
    // While the prompt is computed, the sequences decode as well.
    let most = steps + tokens / 8 + 256;
    let handles =
        (1..=STREAMS).map(|number| submit(engine, number, SHORT, most)).collect::<Result<_, _>>()?;
    let mut streams = Streams { handles, tokens: 0 };
    streams.decode(STREAMS)?;
    let mut prompt = submit(engine, 0, tokens, 1)?;
    while take(&mut prompt)?.is_some() {
        streams.take()?;
        sleep(LOOK);
    }
    // The first ends a step that has begun before.
    let first = streams.tokens + STREAMS;
    streams.decode(first)?;
    let mut done = Vec::new();
    let (mut begun, mut before) = (Instant::now(), folder::counts(engine));
    for step in 1..=steps {
        streams.decode(first + step * STREAMS)?;
        let (ended, after) = (Instant::now(), folder::counts(engine));
        done.push(Step {
            seconds: (ended - begun).as_secs_f64(),
            copy_micros: after.out_micros - before.out_micros,
            written_bytes: after.shelf.written_bytes - before.shelf.written_bytes,
        });
        (begun, before) = (ended, after);
    }
    Ok(done)
}

/// Compares each step that writes with those around it that do not.
fn compare(steps: &[Step]) -> Decode {
    let Some(first) = steps.iter().position(Step::writes) else { return Decode::default() };
    let last = steps.iter().rposition(Step::writes).unwrap_or(first);
    let writing: Vec<usize> = (first..=last).filter(|&at| steps[at].writes()).collect();
    let others = |from: usize, to: usize| {
        let near = steps[from..to.min(steps.len())].iter().filter(|step| !step.writes());
        median(near.map(|step| step.seconds).collect())
    };
    let longer = writing.iter().map(|&at| {
        let around = others(at.saturating_sub(AROUND), at + AROUND + 1)?;
        Some(steps[at].seconds - around)
    });
    let longer: Option<Vec<f64>> = longer.collect();
    let count = writing.len() as f64;
    let copied: u64 = writing.iter().map(|&at| steps[at].copy_micros).sum();
    let sum = longer.as_ref().map(|longer| longer.iter().sum::<f64>());
    let all: f64 = steps[first..=last].iter().map(|step| step.seconds).sum();
    Decode {
        steps: last + 1 - first,
        writing_steps: writing.len(),
        written_bytes: writing.iter().map(|&at| steps[at].written_bytes).sum(),
        step_seconds: others(first, last + 1),
        longer_median_seconds: longer.and_then(median),
        longer_mean_seconds: sum.map(|sum| sum / count),
        copy_seconds: Some(copied as f64 / 1e6 / count),
        ratio: sum.map(|sum| 1.0 - sum / all),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| runs::median(&values))
}

fn submit(engine: &Engine, number: usize, tokens: usize, most: usize) -> Result<RequestHandle, CliError> {
    let request = folder::request(engine, number, tokens, most, "--keep")?;
    engine.submit(request).map_err(|e| CliError::refused(e, "bench", "report this"))
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
            Ok(Some(update)) => tokens += tokens_of(update)?,
            Ok(None) => return Ok(None),
            Err(_) => return Ok(Some(tokens)),
        }
    }
}

fn tokens_of(update: Update) -> Result<usize, CliError> {
    match update {
        Update::Token { .. } => Ok(1),
        Update::Ended { end: Err(e), .. } => Err(CliError::refused(e, "bench", "report this")),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(steps: &[(f64, u64)]) -> Vec<Step> {
        steps
            .iter()
            .map(|&(seconds, written_bytes)| Step { seconds, copy_micros: written_bytes, written_bytes })
            .collect()
    }

    #[test]
    fn steps_that_write_are_compared_with_those_around_them_although_the_machine_gets_slower() {
        // A machine that becomes half as fast, and a part that costs a second each time.
        let mut all = vec![(1.0, 0); 6];
        all[2] = (2.0, 7);
        all.extend([(2.0, 0); 20]);
        all[20] = (3.0, 5);
        let Decode { steps, writing_steps, written_bytes, longer_mean_seconds, step_seconds, ratio, .. } =
            compare(&steps(&all));
        assert_eq!((steps, writing_steps, written_bytes), (19, 2, 12));
        assert_eq!((longer_mean_seconds, step_seconds), (Some(1.0), Some(2.0)));
        assert_eq!(ratio, Some(1.0 - 2.0 / 36.0));
    }

    #[test]
    fn what_cannot_be_compared_is_unknown() {
        assert_eq!(compare(&steps(&[(1.0, 0); 3])).ratio, None);
        let all = compare(&steps(&[(1.0, 5); 3]));
        assert_eq!((all.writing_steps, all.ratio, all.step_seconds), (3, None, None));
    }
}
