use crate::{args::DetokenizeArgs, error::CliError, model_arg, output};

pub fn run(args: &DetokenizeArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    let tokenizer = model_arg::tokenizer(&checkpoint)?;
    output::line(tokenizer.decode(&args.ids.0, !args.special)?)
}
