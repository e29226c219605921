use bitnet::model::convert;

use crate::{args::ConvertArgs, error::CliError, model_arg, output, progress::Progress};

pub fn run(args: &ConvertArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    if checkpoint.spec.draft_head {
        output::note("note: the head that drafts tokens is left out");
    }
    let bar = Progress::new("converting", 0);
    let mut done = 0;
    convert(checkpoint, args.to, &args.destination, &mut |_, all| {
        bar.at(done, all);
        done += 1;
    })?;
    drop(bar);
    output::note(format_args!("wrote {} ({})", args.destination.display(), args.to));
    Ok(())
}
