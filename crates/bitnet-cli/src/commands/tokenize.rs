use std::io::Read;

use crate::{args::TokenizeArgs, error::CliError, model_arg, output};

/// Most bytes of text that are read from stdin.
const MAX_TEXT: u64 = 1 << 28;

/// `bitnet tokenize`.
pub fn run(args: &TokenizeArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    let tokenizer = model_arg::tokenizer(&checkpoint)?;
    let ids = match &args.text {
        Some(text) => tokenizer.encode(text, true)?,
        None => tokenizer.encode(&stdin()?, true)?,
    };
    output::json(&ids)
}

/// All of stdin, as text.
pub fn stdin() -> Result<String, CliError> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_TEXT + 1).read_to_string(&mut text);
    read.map_err(CliError::file("read", "stdin"))?;
    if text.len() as u64 > MAX_TEXT {
        return Err(CliError::refused(
            "the text is too long",
            "stdin",
            format!("give at most {MAX_TEXT} bytes"),
        ));
    }
    Ok(text)
}
