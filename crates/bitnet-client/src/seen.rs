//! What a client sees of its requests, and percentiles of times.

use std::{io, time::Instant};

use serde::Serialize;

use crate::{Client, Reply};

/// What clients have seen so far. Times are in milliseconds.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Streams that came to their end.
    pub answered: usize,
    /// Events that brought a token.
    pub tokens: usize,
    /// From sending a request to its first token.
    pub first: Vec<f64>,
    /// From a token to the next.
    pub between: Vec<f64>,
    /// From sending a request to its refusal (429).
    pub refusals: Vec<f64>,
    /// Requests that ended in another way.
    pub failed: usize,
    /// The first of these ways.
    pub problem: Option<String>,
}

impl Seen {
    /// Sends the body of a streamed completion, reads the stream to its end, and notes what it saw.
    pub fn ask(&mut self, client: &Client, path: &str, body: &str) {
        let start = Instant::now();
        let outcome = match client.post(path, &[], body) {
            Ok(reply) if reply.status == 200 => self.read(reply, start),
            Ok(reply) if reply.status == 429 => {
                // Refusals count when their head arrives; the rest lets the connection be reused.
                self.refusals.push(millis(start));
                reply.rest().map(drop).map_err(|error| error.to_string())
            }
            Ok(reply) => {
                let status = reply.status;
                Err(format!("{status}: {}", reply.text().unwrap_or_default()))
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(problem) = outcome {
            self.failed += 1;
            self.problem.get_or_insert(problem);
        }
    }

    fn read(&mut self, mut reply: Reply, start: Instant) -> Result<(), String> {
        let broken = |error: io::Error| error.to_string();
        let mut last = None;
        while let Some(event) = reply.event().map_err(broken)? {
            if event.data == "[DONE]" {
                self.answered += 1;
                return reply.rest().map(drop).map_err(broken);
            }
            if event.data.starts_with("{\"error\"") {
                return Err(event.data);
            }
            if event.data.contains("\"finish_reason\":null") {
                self.tokens += 1;
                match last.replace(Instant::now()) {
                    None => self.first.push(millis(start)),
                    Some(before) => self.between.push(millis(before)),
                }
            }
        }
        Err("a stream ended early".into())
    }

    /// Adds what another client has seen.
    #[must_use]
    pub fn and(mut self, other: Seen) -> Seen {
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

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Percentiles of times.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Percentiles {
    /// Number of times.
    pub count: usize,
    /// The median.
    pub p50: f64,
    /// Nine in ten are not above this.
    pub p90: f64,
    /// Ninety-nine in a hundred are not above this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Percentiles {
    /// Sorts the times; `None` if there are none.
    pub fn of(times: &mut [f64]) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let of = |part| percentile(times, part);
        let max = times.last().copied()?;
        Some(Percentiles { count: times.len(), p50: of(0.5)?, p90: of(0.9)?, p99: of(0.99)?, max })
    }
}

/// The value of a sorted list that this part of its values does not exceed, by nearest rank; `None` if it is empty.
pub fn percentile(sorted: &[f64], part: f64) -> Option<f64> {
    let at = ((sorted.len() as f64 * part).ceil() as usize).max(1) - 1;
    sorted.get(at.min(sorted.len().checked_sub(1)?)).copied()
}
