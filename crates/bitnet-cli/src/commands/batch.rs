use std::time::{Duration, Instant};

use bitnet_inference::{BatchSizing, EngineConfig};
use bitnet_server::{BatchOptions, ServerConfig, run_batch};

use super::serve;
use crate::{
    args::{BatchArgs, Common},
    error::CliError,
    output,
    progress::Progress,
};

/// `bitnet batch`.
pub fn run(common: &Common, args: &BatchArgs) -> Result<(), CliError> {
    if !(1..=1 << 16).contains(&args.max_batch_size) {
        let what = format!("{} is not a valid limit", args.max_batch_size);
        return Err(CliError::usage(what, "--max-batch-size", "give 1 to 65536"));
    }
    // Nobody waits for a single line, so latency does not matter.
    let engine = EngineConfig {
        max_batch_size: args.max_batch_size,
        // A fixed size: no prompt is split to keep the time between tokens short.
        sizing: BatchSizing::Fixed(args.max_batch_size),
        max_draft: usize::from(args.speculation.speculate),
        mailbox: usize::MAX,
        ..EngineConfig::default()
    };
    let config = ServerConfig { request_timeout: Duration::MAX, ..ServerConfig::default() };
    let service = serve::start(common, &args.model, None, engine, config)?;
    let bar = Progress::bytes_with_message("answering");
    let begun = Instant::now();
    let options = BatchOptions { return_tokens: args.return_tokens };
    let done = run_batch(&service, &args.input, &args.output, options, &mut |progress| {
        let rate = (progress.lines - progress.resumed) as f64 / begun.elapsed().as_secs_f64();
        bar.at(progress.bytes as usize, progress.of_bytes as usize);
        bar.say(format!("{} lines, {rate:.1} per second", progress.lines));
    });
    drop(bar);
    let done = done.map_err(|e| CliError::refused(&e, "batch", e.cure()))?;
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
