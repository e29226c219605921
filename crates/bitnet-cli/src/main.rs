//! The binary `bitnet`: runs, measures and inspects ternary language models.
//!
//! Results go to stdout; progress, statistics and errors go to stderr. A failure is reported in one line,
//! `error: <what> (<where>): <cure>`. The exit code is 2 for wrong usage, 75 for a server that lost its GPU, and 1 for
//! any other failure.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod cpu_facts;
mod error;
mod input_text;
mod load;
mod memory;
mod model_arg;
mod output;
mod output_file;
mod printer;
mod progress;
mod session;
mod svg;
mod thinking;
mod token_ids;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, set_hook},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use args::{Cli, Command, Common};
use bitnet::kernels::Isa;
use clap::Parser;
use error::CliError;

fn main() -> ExitCode {
    one_line_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return output::usage(&e),
    };
    output::set_quiet(cli.common.quiet);
    match catch_unwind(AssertUnwindSafe(|| dispatch(cli.command, &cli.common))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        // The reader of our output has read enough: `bitnet run ... | head` is not a failure.
        Ok(Err(CliError::Stdout(e))) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Ok(Err(e)) => {
            output::error(&e);
            ExitCode::from(e.exit_code())
        }
        // The hook has already reported the panic.
        Err(_) => ExitCode::FAILURE,
    }
}

fn dispatch(command: Command, common: &Common) -> Result<(), CliError> {
    // Commands that do not compute accept these flags too, so they must refuse invalid values too.
    Isa::named(&common.isa)?;
    match command {
        Command::Run(a) => commands::run::run(common, &a),
        Command::Chat(a) => commands::chat::run(common, &a),
        Command::Logits(a) => commands::logits::run(common, &a),
        Command::Tokenize(a) => commands::tokenize::run(&a),
        Command::Detokenize(a) => commands::detokenize::run(&a),
        Command::Inspect(a) => commands::inspect::run(&a),
        Command::Batch(a) => commands::batch::run(common, &a),
        Command::Serve(a) => commands::serve::run(common, &a),
        Command::Convert(a) => commands::convert::run(&a),
        Command::Perplexity(a) => commands::perplexity::run(common, &a),
        Command::Bench(a) => commands::bench::run(common, &a),
        Command::Doctor(a) => commands::doctor::run(common, &a),
        Command::Pull { model } => commands::cache::pull(&model),
        Command::List { json } => commands::cache::list(json),
        Command::Rm { model } => commands::cache::remove(&model),
        Command::Cache(a) => commands::cache_folder::run(&a),
        Command::Health { url } => commands::health::run(&url),
        Command::Completions { shell } => commands::shell::completions(shell),
        Command::Man => commands::shell::man(),
    }
}

/// Reports a panic, which is a bug of ours, in one line like every failure. A worker's panic also brings down the
/// thread that waits for it, so only the first one is reported.
fn one_line_panics() {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    set_hook(Box::new(|panic| {
        if !REPORTED.swap(true, Ordering::Relaxed) {
            let place = panic.location().map_or("unknown place".into(), ToString::to_string);
            let what = panic.payload_as_str().unwrap_or("panic");
            output::error(&format!(
                "internal fault: {what} ({place}): please report it with the command you ran"
            ));
        }
    }));
}
