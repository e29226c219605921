use crate::{args::TokenizeArgs, error::CliError, input_text, model_arg, output};

pub fn run(args: &TokenizeArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    let tokenizer = model_arg::tokenizer(&checkpoint)?;
    let ids = match &args.text {
        Some(text) => tokenizer.encode(text, true)?,
        None => tokenizer.encode(&stdin()?, true)?,
    };
    output::json(&ids)
}

/// Reads all of stdin as text.
pub fn stdin() -> Result<String, CliError> {
    input_text::read(std::io::stdin().lock(), "stdin")
}
