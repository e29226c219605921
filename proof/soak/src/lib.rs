//! Runs a server under four times the load that it can handle, with clients that record every request.
#![allow(clippy::print_stdout, reason = "its tool prints results")]

mod answer;
mod batch;
mod client;
mod ledger;
mod mix;
mod report;
mod server;

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use bitnet_client::Client;
use bitnet_workspace::bitnet;
use clap::Args;

use answer::Answer;
use batch::Batches;
use ledger::Ledger;
use mix::Ask;
use report::{Phase, Report};
use server::{Server, Usage};

/// Sequences that the server computes together.
const PLACES: &str = "8";
/// Clients that keep the server busy without overload.
const FEW: usize = 14;
/// Clients of the crowd: more than the batch, the queue and paused readers together.
const MANY: usize = 600;
/// Requests offered for each one that can be answered.
const CROWD: f64 = 4.0;
/// One request in this many is recomputed alone.
const SAMPLED: u64 = 40;
/// Seconds of overload in the quick form.
const QUICK: u64 = 120;

/// Serve the demo to clients that stream, cancel, pause, resume and hang up, at four times the load it can handle and
/// while batch files run; compare what clients saw with what the server counts, and recompute a sample alone
#[derive(Debug, Args)]
pub struct Soak {
    /// Seconds of overload
    #[arg(long, value_name = "N", default_value_t = 1800)]
    seconds: u64,
    /// Run two minutes, and check the counts but not the speed; continuous integration runs this
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Goal for the time to the first token, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 1000)]
    goal: u64,
    /// Number of the first request; it determines all others
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Also write the results as JSON
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// The form for continuous integration.
///
/// # Errors
/// As [`Soak::run`].
pub fn quick() -> Result<()> {
    Soak { seconds: QUICK, quick: true, goal: 1000, first: 0, save: None }.run()
}

impl Soak {
    /// Runs and prints the report.
    ///
    /// # Errors
    /// If the server cannot be started, or a goal is missed.
    pub fn run(&self) -> Result<()> {
        let binary = bitnet()?;
        let report = self.soak(&binary)?;
        report.print();
        if let Some(file) = &self.save {
            report.save(file)?;
        }
        report.judge()
    }

    /// Time of overload.
    fn time(&self) -> Duration {
        Duration::from_secs(if self.quick { QUICK } else { self.seconds })
    }

    fn soak(&self, binary: &Path) -> Result<Report> {
        let goal = format!("{}ms", self.goal);
        let flags = ["--threads", "1", "--max-batch-size", PLACES, "--ttft-goal", &goal];
        let server = Server::start(binary, &[&flags[..], &["--request-timeout", "30s"]].concat())?;
        let folder = tempfile::tempdir()?;
        let crowd = Crowd { server: &server, next: AtomicU64::new(self.first), records: Mutex::default() };
        let short = (self.time() / 10).clamp(Duration::from_secs(4), Duration::from_secs(60));
        crowd.ask(FEW, Duration::from_secs(3), None);
        let rest = server.usage();
        let stop = AtomicBool::new(false);
        let (peaks, under, offered, seen, batches) = thread::scope(|scope| {
            let batches = scope.spawn(|| batch::run(binary, folder.path(), &stop));
            let watch = scope.spawn(|| watch(&server, &stop));
            let before = crowd.ask(FEW, short, None);
            let offered = CROWD * before.asked as f64 / before.seconds;
            let begun = Instant::now();
            let under = crowd.ask(MANY, self.time(), Some(offered));
            let ended = Instant::now();
            let after = crowd.ask(FEW, short, None);
            stop.store(true, Relaxed);
            let mut seen = watch.join().unwrap_or_default();
            seen.retain(|(at, _)| (begun..ended).contains(at));
            ([before, after], under, offered, seen, batches.join().unwrap_or_default())
        });
        // One more than at rest, for the connection that asks.
        let metrics = server.idle(rest.map_or(usize::MAX, |usage| usage.descriptors + 1))?;
        let mut records = crowd.records.into_inner().unwrap_or_default();
        records.ledger.reconcile(&metrics);
        let at_rest = [rest, server.usage()];
        drop(server);
        let counts = [batches.files, batches.lines, batches.kills];
        let recomputed = recompute(binary, records.sample, batches, &mut records.ledger)?;
        Ok(Report {
            quick: self.quick,
            goal: Duration::from_millis(self.goal),
            time: self.time(),
            offered,
            peaks,
            under,
            seen,
            at_rest,
            ledger: records.ledger,
            recomputed,
            pauses: metrics.sum("bitnet_slow_reader_pauses_total", ""),
            batches: counts,
        })
    }
}

/// The clients of a server.
struct Crowd<'s> {
    server: &'s Server,
    next: AtomicU64,
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    ledger: Ledger,
    /// Numbers of requests, what was read, and whether it was the whole answer.
    sample: Vec<(u64, Answer, bool)>,
}

impl Crowd<'_> {
    /// Lets `clients` clients send requests for `time`, at a rate, or each when its previous request has ended.
    fn ask(&self, clients: usize, time: Duration, rate: Option<f64>) -> Phase {
        let (begun, number) = (Instant::now(), self.next.load(Relaxed));
        let (answered, tokens) = self.answered();
        let firsts = self.lock().ledger.first.len();
        let client = || {
            let client = self.server.client();
            loop {
                if rate.is_none() && begun.elapsed() >= time {
                    return;
                }
                let i = self.next.fetch_add(1, Relaxed);
                if let Some(rate) = rate {
                    let due = Duration::from_secs_f64((i - number) as f64 / rate);
                    if due >= time {
                        return;
                    }
                    thread::sleep(due.saturating_sub(begun.elapsed()));
                }
                self.one(&client, i);
            }
        };
        thread::scope(|scope| {
            for _ in 0..clients {
                let client = thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, client);
                client.expect("the system has room for the clients' threads");
            }
        });
        let now = self.answered();
        let first = self.lock().ledger.first[firsts..].to_vec();
        Phase {
            seconds: begun.elapsed().as_secs_f64(),
            asked: self.next.load(Relaxed) - number,
            answered: now.0 - answered,
            tokens: now.1 - tokens,
            first,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn answered(&self) -> (u64, u64) {
        let records = self.lock();
        (records.ledger.complete + records.ledger.resumed, records.ledger.answered_tokens)
    }

    fn one(&self, client: &Client, number: u64) {
        let ask = mix::ask(number);
        let mut entry = client::ask(client, self.server.address, number, &ask);
        let mut records = self.lock();
        records.ledger.add(&entry);
        if let Some(answer) = entry.answer.take().filter(|_| number.is_multiple_of(SAMPLED)) {
            // A deadline ends a text at any point.
            let whole = entry.outcome != ledger::Outcome::Left && !answer.is_cut();
            records.sample.push((number, answer, whole));
        }
    }
}

/// Records what the server uses, once per second.
fn watch(server: &Server, stop: &AtomicBool) -> Vec<(Instant, Usage)> {
    let mut seen = Vec::new();
    while !stop.load(Relaxed) {
        seen.extend(server.usage().map(|usage| (Instant::now(), usage)));
        thread::sleep(Duration::from_secs(1));
    }
    seen
}

/// Sends the sample to another server, one request at a time, in batches of one and without draft tokens. Returns the
/// number of answers that were compared.
fn recompute(
    binary: &Path,
    sample: Vec<(u64, Answer, bool)>,
    batches: Batches,
    ledger: &mut Ledger,
) -> Result<u64> {
    let alone = Server::start(binary, &["--max-batch-size", "1", "--speculate", "0"])?;
    let client = alone.client();
    let asked = sample.into_iter().map(|(number, answer, whole)| (mix::ask(number), answer, whole));
    let lines = batches.sample.into_iter().map(|(ask, answer)| (ask, answer, true));
    let mut recomputed = 0;
    for (ask, answer, whole) in asked.chain(lines) {
        let same = answer_of(&client, &ask)?;
        recomputed += 1;
        if let Err(problem) = answer.compare(&same, whole) {
            ledger.fault(format!("{problem}: {}", ask.body));
        }
    }
    batches.problems.into_iter().for_each(|problem| ledger.fault(problem));
    Ok(recomputed)
}

fn answer_of(client: &Client, ask: &Ask) -> Result<Answer> {
    let reply = client.post(ask.path, &[], &ask.alone().to_string())?;
    let status = reply.status;
    let body = reply.rest()?;
    ensure!(status == 200, "alone, it gets {status}: {}", String::from_utf8_lossy(&body));
    let mut answer = Answer::new(ask.choices);
    answer.add(&serde_json::from_slice(&body)?).map_err(|problem| anyhow!("alone: {problem}"))?;
    Ok(answer)
}
