//! What a soak measured, beside the goals that it must reach.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bitnet_client::percentile;
use bitnet_workspace::git;
use serde_json::{Value, json};

use super::{ledger::Ledger, server::Usage};

/// Minimum number of requests in the long form.
const REQUESTS: u64 = 100_000;
/// Fraction of the run after which memory must not grow any more.
const WARM: f64 = 0.25;

/// Results of a phase of the run.
#[derive(Debug, Default, Clone)]
pub(super) struct Phase {
    pub seconds: f64,
    pub asked: u64,
    /// Number of whole answers, and of their tokens.
    pub answered: u64,
    pub tokens: u64,
    /// Seconds to each first token, and whether the stream is interactive, in order of completion.
    pub first: Vec<(f64, bool)>,
}

/// Results of a run, and whether they reach the goals.
pub(super) struct Report {
    /// Whether only counts are judged, and no speeds.
    pub quick: bool,
    /// Goal for the time to the first token.
    pub goal: Duration,
    /// Time of overload.
    pub time: Duration,
    /// Requests offered per second of overload.
    pub offered: f64,
    /// Phases without overload, before and after.
    pub peaks: [Phase; 2],
    pub under: Phase,
    /// What the server used under overload.
    pub seen: Vec<(Instant, Usage)>,
    /// What the idle server used, before and after.
    pub at_rest: [Option<Usage>; 2],
    pub ledger: Ledger,
    pub recomputed: u64,
    pub pauses: f64,
    /// Numbers of batch files, lines, and interrupted runs.
    pub batches: [u64; 3],
}

/// A line of the report.
struct Row {
    what: &'static str,
    value: Value,
    goal: String,
    /// Whether the goal was reached; `None` if there is none.
    held: Option<bool>,
}

impl Report {
    /// Tokens of whole answers per second, under overload and without.
    fn goodput(&self) -> [f64; 2] {
        let speed = |phase: &Phase| phase.tokens as f64 / phase.seconds;
        [speed(&self.under), self.peaks.iter().map(speed).sum::<f64>() / 2.0]
    }

    /// Growth of the resident memory in MB per hour after warming up: the slope of a least-squares fit.
    fn slope(&self) -> Option<f64> {
        let (begun, last) = (self.seen.first()?.0, self.seen.last()?.0);
        let warm = (last - begun).mul_f64(WARM);
        let points: Vec<(f64, f64)> = self
            .seen
            .iter()
            .filter(|(at, _)| *at - begun >= warm)
            .map(|(at, usage)| ((*at - begun).as_secs_f64() / 3600.0, usage.resident * 1.048_576))
            .collect();
        slope(&points)
    }

    /// Mean resident memory in MiB in each tenth of the run.
    fn tenths(&self) -> Vec<f64> {
        let tenth = self.seen.len().div_ceil(10).max(1);
        let mean = |part: &[(Instant, Usage)]| {
            part.iter().map(|(_, usage)| usage.resident).sum::<f64>() / part.len() as f64
        };
        self.seen.chunks(tenth).map(mean).collect()
    }

    fn rows(&self) -> Vec<Row> {
        let ledger = &self.ledger;
        let row = |what, value: Value, goal: &str, held| Row { what, value, goal: goal.into(), held };
        let judged = |held: bool| (!self.quick).then_some(held);
        let [goodput, peak] = self.goodput();
        let p99 = self.first(0.99, None);
        let classes = [true, false].map(|interactive| self.first(0.99, Some(interactive)));
        let [before, after] = self.at_rest;
        let fds = before.zip(after).map(|(a, b)| b.descriptors <= a.descriptors + 1);
        let threads = before.zip(after).map(|(a, b)| b.threads <= a.threads + 16);
        let resident = |at: Option<Usage>| at.map(|usage| usage.resident);
        let slope = self.slope();
        let [files, lines, kills] = self.batches;
        vec![
            row("requests sent", json!(ledger.sent()), ">= 100000", judged(ledger.sent() >= REQUESTS)),
            row("requests by kind", json!(ledger.kinds), "", None),
            row("answered whole", json!(ledger.complete), "", None),
            row("left and resumed", json!(ledger.resumed), "", None),
            row("left, hung up", json!([ledger.left, ledger.gone]), "", None),
            row("refused, by code", json!(ledger.refused), "", None),
            row("pauses for slow readers", json!(self.pauses), "> 0", judged(self.pauses > 0.0)),
            row("batch files, lines, runs ended early", json!([files, lines, kills]), "", None),
            row("recomputed alone", json!(self.recomputed), "> 0", Some(self.recomputed > 0)),
            row("problems", json!(ledger.problems), "none", Some(ledger.problems.is_empty())),
            row("answered per second without a crowd", json!(self.answered(0)), "", None),
            row("offered per second", json!(self.offered), "4 times that", None),
            row("asked per second", json!(self.under.asked as f64 / self.under.seconds), "", None),
            row("tokens per second: with the crowd, without", json!([goodput, peak]), "", None),
            row("goodput", json!(goodput / peak), ">= 0.9", judged(goodput / peak >= 0.9)),
            row(
                "first token, p50 and p99, of the goal",
                json!([self.first(0.5, None), p99]),
                "p99 <= 1.25",
                judged(p99.is_some_and(|p| p <= 1.25)),
            ),
            row("p99, interactive and normal", json!(classes), "", None),
            row("resident MiB at rest", json!([resident(before), resident(after)]), "", None),
            row("resident MiB, mean of each tenth", json!(self.tenths()), "", None),
            row("memory slope, MB/h", json!(slope), "< 1", judged(slope.is_none_or(|mb| mb < 1.0))),
            row("descriptors", json!([before, after].map(|u| u.map(|u| u.descriptors))), "constant", fds),
            row("threads", json!([before, after].map(|u| u.map(|u| u.threads))), "bounded", threads),
        ]
    }

    /// A percentile of the times to the first token, as a fraction of the goal, for all streams or for one class.
    fn first(&self, p: f64, interactive: Option<bool>) -> Option<f64> {
        let own =
            self.under.first.iter().filter(|(_, class)| interactive.is_none_or(|wanted| wanted == *class));
        let mut times: Vec<f64> = own.map(|(seconds, _)| seconds / self.goal.as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        percentile(&times, p)
    }

    /// Whole answers per second in a phase without overload.
    fn answered(&self, phase: usize) -> f64 {
        self.peaks[phase].answered as f64 / self.peaks[phase].seconds
    }

    /// Prints a table.
    pub fn print(&self) {
        println!("| measured over {} s | value | goal | held |\n|---|---|---|---|", self.time.as_secs_f64());
        for row in self.rows() {
            let held = row.held.map_or("", |held| if held { "yes" } else { "NO" });
            println!("| {} | {} | {} | {held} |", row.what, shown(&row.value), row.goal);
        }
    }

    /// Saves the results as JSON, with a description of the machine.
    pub fn save(&self, file: &Path) -> Result<()> {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processor.lines().find_map(|line| line.strip_prefix("model name"));
        let rows: Vec<Value> = self
            .rows()
            .into_iter()
            .map(|row| json!({"what": row.what, "value": row.value, "goal": row.goal, "held": row.held}))
            .collect();
        let all = json!({
            "commit": git(&["rev-parse", "HEAD"])?,
            "processor": processor.map(|name| name.trim_start_matches([':', ' ', '\t'])),
            "cores": std::thread::available_parallelism().map_or(0, |n| n.get()),
            "seconds": self.time.as_secs_f64(),
            "rows": rows,
        });
        fs::write(file, serde_json::to_string_pretty(&all)? + "\n")
            .with_context(|| file.display().to_string())
    }

    /// Fails if a goal was missed.
    pub fn judge(&self) -> Result<()> {
        let failed: Vec<&str> =
            self.rows().iter().filter(|row| row.held == Some(false)).map(|row| row.what).collect();
        ensure!(failed.is_empty(), "goals missed: {}", failed.join(", "));
        Ok(())
    }
}

/// Returns the slope of the line that fits the points best.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let (over, under) =
        points.iter().fold((0.0, 0.0), |(a, b), p| (a + (p.0 - x) * (p.1 - y), b + (p.0 - x) * (p.0 - x)));
    (under > 0.0).then(|| over / under)
}

/// Formats a value, with rounded numbers.
fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{:.4}", number.as_f64().unwrap_or(f64::NAN)),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join("; "),
        Value::Object(map) => {
            let items: Vec<String> =
                map.iter().map(|(name, value)| format!("{name} {}", shown(value))).collect();
            items.join(", ")
        }
        Value::String(text) => text.replace('|', "\\|"),
        Value::Null => "unknown".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_that_of_the_line_through_the_points() {
        let line: Vec<(f64, f64)> = (0..9).map(f64::from).map(|x| (x, 3.0 - 2.0 * x)).collect();
        assert_eq!(slope(&line), Some(-2.0));
        assert_eq!((slope(&[]), slope(&[(1.0, 2.0)])), (None, None));
    }
}
