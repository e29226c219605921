//! `bitnet batch`: answers a file of requests, and resumes where an earlier run was interrupted.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bitnet::inference::{BatchSizing, EngineConfig};
use bitnet_server::{BatchOptions, ServerConfig, run_batch};
use tempfile::TempDir;

use super::serve;
use crate::{
    args::{BatchArgs, Common},
    error::CliError,
    output,
    progress::Progress,
};

pub fn run(common: &Common, args: &BatchArgs) -> Result<(), CliError> {
    let files = Files::of(args)?;
    // Nobody waits for a single line, so latency does not matter.
    let engine = EngineConfig {
        max_batch_size: args.max_batch_size,
        // A fixed size: no prompt is split to keep the time between tokens short.
        sizing: BatchSizing::Fixed(args.max_batch_size),
        mailbox: usize::MAX,
        ..EngineConfig::default()
    };
    let config = ServerConfig { request_timeout: Duration::MAX, ..ServerConfig::default() };
    let service = serve::start(common, &args.model, &args.speculation, engine, config, &args.cache)?;
    let bar = Progress::bytes_with_message("answering");
    let begun = Instant::now();
    let options = BatchOptions { return_tokens: args.return_tokens };
    let done = run_batch(&service, &files.input, &files.output, options, &mut |progress| {
        let rate = (progress.lines - progress.resumed) as f64 / begun.elapsed().as_secs_f64();
        bar.at(progress.bytes as usize, progress.of_bytes as usize);
        bar.say(format!("{} lines, {rate:.1} per second", progress.lines));
    });
    drop(bar);
    let done = done.map_err(|e| CliError::refused(&e, "batch", e.cure()))?;
    files.print()?;
    let seconds = begun.elapsed().as_secs_f64();
    let resumed = match done.resumed {
        0 => String::new(),
        n => format!(", {n} of them by an earlier run"),
    };
    output::note(format_args!(
        "{} lines answered{resumed}, {} with an error; {} tokens in {seconds:.2} s, {:.1} tok/s",
        done.lines,
        done.failed,
        done.tokens,
        done.tokens as f64 / seconds
    ));
    Ok(())
}

/// The files of a run; temporary ones stand in for stdin and stdout.
struct Files {
    input: PathBuf,
    output: PathBuf,
    to_stdout: bool,
    /// Holds the temporary files, and is removed at the end.
    _folder: Option<TempDir>,
}

impl Files {
    /// Copies stdin, and asks before an existing output is replaced if there is somebody to ask.
    fn of(args: &BatchArgs) -> Result<Self, CliError> {
        let [from_stdin, to_stdout] = [&args.input, &args.output].map(|path| path == Path::new("-"));
        if args.output.is_file() && io::stdin().is_terminal() && !from_stdin {
            confirm(&args.output)?;
        }
        let (mut input, mut output) = (args.input.clone(), args.output.clone());
        if !from_stdin && !to_stdout {
            return Ok(Files { input, output, to_stdout, _folder: None });
        }
        let folder = tempfile::tempdir().map_err(CliError::file("write", std::env::temp_dir()))?;
        if from_stdin {
            input = folder.path().join("in.jsonl");
            let copy = || io::copy(&mut io::stdin().lock(), &mut File::create(&input)?);
            copy().map_err(CliError::file("write", &input))?;
        }
        if to_stdout {
            output = folder.path().join("out.jsonl");
        }
        Ok(Files { input, output, to_stdout, _folder: Some(folder) })
    }

    /// Prints the answers if stdout was requested.
    fn print(&self) -> Result<(), CliError> {
        if self.to_stdout {
            let mut answers = File::open(&self.output).map_err(CliError::file("read", &self.output))?;
            io::copy(&mut answers, &mut io::stdout().lock()).map_err(CliError::Stdout)?;
        }
        Ok(())
    }
}

/// Asks whether a file may be replaced.
fn confirm(file: &Path) -> Result<(), CliError> {
    // If stderr is closed, nobody sees the question, and no answer means no.
    let _ = write!(io::stderr().lock(), "{} exists; replace it? [y/N] ", file.display());
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(CliError::file("read", "stdin"))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CliError::refused("the file exists", file.display(), "give another name")),
    }
}
