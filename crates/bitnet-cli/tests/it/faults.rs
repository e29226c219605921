//! Faults from outside: signals in every phase of a batch run, and a system that refuses memory.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{bitnet::command, signals};

/// Lines of the input. The last is long, so that a signal that comes late still ends a run.
const LINES: usize = 1000;

/// How far a run is when the signal comes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Started,
    /// Its output is open and empty.
    Opened,
    /// At least this many lines are answered.
    Answered(usize),
    /// All lines but one are answered.
    Last,
}

fn start(input: &Path, output: &Path) -> Child {
    let files = [input.to_str().unwrap(), output.to_str().unwrap()];
    let args = ["batch", "synthetic:tiny", files[0], files[1], "--device", "cpu", "--max-batch-size", "4"];
    signals::prepare(&mut command(&args)).stderr(Stdio::null()).spawn().unwrap()
}

/// Whether a run has reached a phase, or is over.
fn reached(phase: Phase, partial: &Path, output: &Path) -> bool {
    let lines = || fs::read(partial).map_or(0, |text| text.iter().filter(|&&byte| byte == b'\n').count());
    output.exists()
        || match phase {
            Phase::Started => true,
            Phase::Opened => partial.exists(),
            Phase::Answered(count) => lines() >= count,
            Phase::Last => lines() >= LINES - 1,
        }
}

#[test]
fn a_batch_ended_by_any_signal_in_any_phase_continues_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (input, whole) = (dir.path().join("in"), dir.path().join("whole"));
    let line = |i: usize| {
        // While the last is computed, all others are answered.
        let last = i == LINES - 1;
        let tokens = if last { 2500 } else { 20 + i % 30 };
        let body =
            json!({"prompt": [i % 500, 7, 3], "max_tokens": tokens, "ignore_eos": last, "temperature": 0.9});
        let line =
            json!({"custom_id": format!("r{i}"), "method": "POST", "url": "/v1/completions", "body": body});
        line.to_string() + "\n"
    };
    fs::write(&input, (0..LINES).map(line).collect::<String>()).unwrap();
    assert!(start(&input, &whole).wait().unwrap().success());
    let want = fs::read_to_string(&whole).unwrap();
    assert_eq!(want.lines().count(), LINES);
    let phases = [Phase::Started, Phase::Opened, Phase::Answered(1), Phase::Answered(150), Phase::Last];
    let mut ended = 0;
    for signal in signals::SIGNALS.into_iter().chain(["KILL"]) {
        let output = dir.path().join(signal);
        let partial = dir.path().join(format!("{signal}.partial"));
        for phase in phases {
            let mut run = start(&input, &output);
            let begun = Instant::now();
            while !reached(phase, &partial, &output) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{signal}, {phase:?}: not reached");
                std::thread::sleep(Duration::from_millis(1));
            }
            // It may have ended.
            let _ = match signal {
                "KILL" => run.kill().is_ok(),
                _ => signals::send(signal, run.id()),
            };
            ended += usize::from(!run.wait().unwrap().success());
            // What is kept is the beginning of the whole output.
            let kept = if output.exists() { &output } else { &partial };
            let kept = fs::read_to_string(kept).unwrap_or_default();
            assert!(want.starts_with(&kept), "{signal}, {phase:?}");
            assert!(output.exists() || !kept.is_empty() || !matches!(phase, Phase::Answered(_)), "{signal}");
            // A run that ended before its signal leaves nothing to do; the next phase begins anew.
            if output.exists() {
                assert_eq!(kept, want, "{signal}, {phase:?}");
                fs::remove_file(&output).unwrap();
            }
        }
        if !output.exists() {
            assert!(start(&input, &output).wait().unwrap().success(), "{signal}");
        }
        assert_eq!(fs::read_to_string(&output).unwrap(), want, "{signal}");
        assert!(!partial.exists());
    }
    assert!(ended >= 3 * signals::SIGNALS.len() + 3, "{ended} runs were ended by a signal");
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_the_system_refuses_at_start_is_an_error_of_one_line() {
    for model in ["synthetic:125m", "demo"] {
        // KiB of address space: enough for the program, too little for the weights.
        for limit in (90_000..=130_000).step_by(2_500) {
            let script =
                format!("ulimit -v {limit}; exec \"$0\" run {model} --ids 1,2 -n 3 --device cpu --threads 1");
            let mut shell = std::process::Command::new("sh");
            let run = shell.args(["-c", &script, env!("CARGO_BIN_EXE_bitnet")]).output().unwrap();
            let told = String::from_utf8(run.stderr).unwrap();
            assert_eq!(
                (run.status.code(), run.stdout.as_slice()),
                (Some(1), &b""[..]),
                "{model}, {limit}: {told}"
            );
            let [error] = told.lines().collect::<Vec<_>>()[..] else { panic!("{model}, {limit}: {told}") };
            assert!(
                error.starts_with("error: no memory for ") && error.contains("lower --memory"),
                "{error}"
            );
        }
    }
}
