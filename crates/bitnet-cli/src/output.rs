//! Prints to stdout and stderr. Nothing here panics if the other end is closed.

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use clap::error::ErrorKind;
use serde::Serialize;

use crate::error::CliError;

/// Whether only results and errors are printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses notes and progress bars.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Relaxed);
}

/// Whether notes and progress bars are suppressed.
pub fn is_quiet() -> bool {
    QUIET.load(Relaxed)
}

/// Prints a line to stdout.
pub fn line(text: impl Display) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(CliError::Stdout)
}

/// Prints a value as JSON on one line.
pub fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|e| CliError::Stdout(e.into()))?;
    line(text)
}

/// A number of bytes for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.1} GB", bytes as f64 / 1e9),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// Prints something in addition to the result, such as a statistic or a warning, to stderr.
pub fn note(text: impl Display) {
    if !is_quiet() {
        stderr(text);
    }
}

fn stderr(text: impl Display) {
    // If stderr is closed, there is nobody to read it.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Reports a failure in one line, even if the message has several.
pub fn error(text: &impl Display) {
    let text = text.to_string();
    let lines: Vec<&str> = text.split(['\n', '\r']).map(str::trim).filter(|l| !l.is_empty()).collect();
    stderr(format_args!("error: {}", lines.join(" ")));
}

/// Prints what `clap` reports: help and version unchanged, wrong usage in one line, and each hint on a line of its own.
pub fn usage(error: &clap::Error) -> ExitCode {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if let DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand = error.kind() {
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim);
    let lines = lines.take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"));
    let (tips, lines): (Vec<&str>, Vec<&str>) =
        lines.filter(|l| !l.is_empty()).partition(|l| l.starts_with("tip: "));
    let text = lines.join(" ");
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    self::error(&format!("{text} (command line): see bitnet --help, or --help after a command"));
    for tip in tips {
        stderr(tip);
    }
    ExitCode::from(2)
}
