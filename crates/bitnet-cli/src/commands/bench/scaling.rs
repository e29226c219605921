//! Decodes one sequence with several numbers of threads, to show from which on more do not help.

use bitnet::{kernels::gpu::Driver, model::Checkpoint};

use super::{report::OnThreads, sequences::Sequences};
use crate::{
    args::{BenchArgs, Common},
    error::CliError,
    load::{Loaded, Machine, Want},
    memory,
};

/// The numbers of threads to compare, none unless several were given, and the flags with the last of them only.
pub fn threads(common: &Common) -> (&[u16], Common) {
    let all = common.threads.as_deref().unwrap_or_default();
    let last = Common { threads: all.last().map(|&n| vec![n]), ..common.clone() };
    (if all.len() > 1 { all } else { &[] }, last)
}

/// Loads a model with each number of threads and decodes one sequence.
pub fn measure<D: Driver + 'static>(
    machine: &Machine<'_, D>,
    args: &BenchArgs,
    (checkpoint, want): (&Checkpoint, Want),
    threads: &[u16],
) -> Result<Vec<OnThreads>, CliError> {
    let mut rows = Vec::new();
    for &number in threads {
        let common = Common { threads: Some(vec![number]), ..machine.common.clone() };
        let machine = Machine { common: &common, open: machine.open };
        let Loaded { mut model, weights, .. } = machine.load(checkpoint, want)?;
        if model.device().is_some() {
            let what = "several numbers of threads can only be compared on the CPU";
            return Err(CliError::usage(what, "--threads", "give --device cpu, or one number"));
        }
        let mut sequences = Sequences::new(&checkpoint.name, &mut *model, want.tokens);
        let depth = args.depth.first().copied().unwrap_or_default();
        let begun = sequences.begin(&[0], depth)?;
        let decode = sequences.decode_speed(&begun, depth, (args.decode, args.runs), &weights)?;
        drop(model);
        let threads = usize::from(number);
        let bandwidth_gb_s = memory::bandwidth(threads);
        let of_bandwidth = bandwidth_gb_s.map(|bandwidth| decode.gb_s / bandwidth);
        rows.push(OnThreads { threads, decode, bandwidth_gb_s, of_bandwidth });
    }
    Ok(rows)
}
