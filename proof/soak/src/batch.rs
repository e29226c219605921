//! Batch files that run at the same time as the server: killed, terminated and resumed, with every line accounted for.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::{Value, json};

use super::{
    answer::Answer,
    mix::{self, Ask, Manner},
};

/// Lines per file.
const LINES: usize = 200;
/// Lines of each file that are recomputed alone.
const SAMPLE: usize = 5;
/// Maximum time of a run.
const LIMIT: Duration = Duration::from_secs(900);

/// Results of the batch files.
#[derive(Debug, Default)]
pub(super) struct Batches {
    pub files: u64,
    pub lines: u64,
    pub kills: u64,
    /// Lines to be recomputed alone.
    pub sample: Vec<(Ask, Answer)>,
    pub problems: Vec<String>,
}

/// Runs files until told to stop.
pub(super) fn run(binary: &Path, folder: &Path, stop: &AtomicBool) -> Batches {
    let mut all = Batches::default();
    while !stop.load(Relaxed) && all.problems.is_empty() {
        let begun = Instant::now();
        if let Err(problem) = file(binary, folder, &mut all) {
            all.problems.push(format!("batch file {}: {problem:#}", all.files));
        }
        all.files += 1;
        // Rests as long as it worked.
        let rest = begun.elapsed().min(Duration::from_secs(20));
        while !stop.load(Relaxed) && begun.elapsed() < 2 * rest {
            thread::sleep(Duration::from_millis(50));
        }
    }
    all
}

/// Makes the requests of a file, of the kinds that a file may contain.
fn asks(file: u64) -> Vec<Ask> {
    // Far from the numbers of the requests to the server.
    let numbers = (file + 1) << 40..;
    let fits = |ask: &Ask| ask.manner == Manner::Reads && ask.deadline.is_none();
    let mut asks: Vec<Ask> = numbers.map(mix::ask).filter(fits).take(LINES).collect();
    for ask in &mut asks {
        ask.body = ask.alone();
    }
    asks
}

fn file(binary: &Path, folder: &Path, all: &mut Batches) -> Result<()> {
    let asks = asks(all.files);
    let (input, output) = (folder.join("in.jsonl"), folder.join("out.jsonl"));
    let line = |(i, ask): (usize, &Ask)| {
        json!({"custom_id": format!("r{i}"), "method": "POST", "url": ask.path, "body": ask.body}).to_string()
            + "\n"
    };
    fs::write(&input, asks.iter().enumerate().map(line).collect::<String>())?;
    let _ = fs::remove_file(&output);
    let mut rng = Rng::with_seed(all.files);
    for _ in 0..rng.u8(0..4) {
        all.kills += u64::from(interrupted(binary, &input, &output, &mut rng)?);
    }
    if !output.exists() {
        let ended = patiently(start(binary, &input, &output)?, LIMIT)?;
        ensure!(ended, "it took longer than {LIMIT:?}");
    }
    let text = fs::read_to_string(&output).context("the answers")?;
    read(&text, asks, all)
}

/// Checks a file of answers against its requests.
fn read(text: &str, asks: Vec<Ask>, all: &mut Batches) -> Result<()> {
    let answers: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(answers.len() == asks.len(), "{} lines answer {} requests", answers.len(), asks.len());
    let mut names = HashMap::new();
    for (i, (line, ask)) in answers.iter().zip(asks).enumerate() {
        ensure!(line["custom_id"] == format!("r{i}"), "line {i} belongs to {}", line["custom_id"]);
        ensure!(line["response"]["status_code"] == 200, "line {i}: {line}");
        let mut answer = Answer::new(ask.choices);
        let judged = answer.add(&line["response"]["body"]).and_then(|()| answer.judge(&ask));
        judged.map_err(|problem| anyhow::anyhow!("line {i}: {problem}"))?;
        names.insert(line["id"].to_string(), i);
        if i % (LINES / SAMPLE) == 0 {
            all.sample.push((ask, answer));
        }
        all.lines += 1;
    }
    ensure!(names.len() == answers.len(), "{} names for {} lines", names.len(), answers.len());
    Ok(())
}

fn start(binary: &Path, input: &Path, output: &Path) -> Result<std::process::Child> {
    // Batch runs have low priority: nobody waits for them.
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(binary).args(["batch", "demo", "--device", "cpu", "--threads", "1"]);
    command.arg(input).arg(output).stderr(Stdio::null());
    command.spawn().context("starting a batch run")
}

/// Runs it briefly and ends it by SIGKILL or SIGTERM; returns false if it finished before.
fn interrupted(binary: &Path, input: &Path, output: &Path, rng: &mut Rng) -> Result<bool> {
    if output.exists() {
        return Ok(false);
    }
    let mut process = start(binary, input, output)?;
    thread::sleep(Duration::from_millis(rng.u64(20..1500)));
    if process.try_wait()?.is_some() {
        return Ok(false);
    }
    if rng.bool() {
        process.kill()?;
        process.wait()?;
    } else {
        let id = process.id().to_string();
        ensure!(Command::new("kill").args(["-TERM", &id]).status()?.success(), "kill");
        ensure!(patiently(process, Duration::from_secs(60))?, "it still runs a minute after SIGTERM");
    }
    Ok(true)
}

/// Waits for a process and kills it if it takes too long; returns whether it ended by itself.
fn patiently(mut process: std::process::Child, limit: Duration) -> Result<bool> {
    let begun = Instant::now();
    while process.try_wait()?.is_none() {
        if begun.elapsed() > limit {
            process.kill()?;
            process.wait()?;
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}
