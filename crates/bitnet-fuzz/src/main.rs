//! `cargo xtask fuzz`: damages files of every kind and judges what becomes of them.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command-line tool talks")]

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use bitnet_fuzz::{Grouped, Kind, Seed, Tally, run};
use bitnet_model::Target;
use clap::Parser;

#[global_allocator]
static MEMORY: peak_alloc::PeakAlloc = bitnet_fuzz::MEMORY;

#[derive(Parser)]
#[command(about = "Damages model files and judges what becomes of them")]
struct Args {
    /// Mutations over all kinds of file
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    count: u64,
    /// Stop after this time even if fewer were made
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Number of the first mutation of each kind
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write the files that are damaged to DIR/KIND/seed, and end: what libFuzzer may begin with
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
}

/// Mutations of one kind before the next has its turn.
const ROUND: u64 = 100;

fn main() -> Result<()> {
    let args = Args::parse();
    let start = Instant::now();
    let limit = args.seconds.map_or(Duration::MAX, Duration::from_secs);
    let seeds = Kind::ALL.map(|(kind, share)| Seed::new(kind).map(|seed| (seed, share)));
    let seeds = seeds.into_iter().collect::<Result<Vec<_>>>()?;
    if let Some(corpus) = &args.corpus {
        return seeds
            .iter()
            .try_for_each(|(seed, _)| save(&corpus.join(name(seed.kind)).join("seed"), &seed.bytes));
    }
    let mut tallies = vec![Tally::default(); seeds.len()];
    // A part of a hundred of each kind after another, so that a run that is cut short has seen all of them.
    while tallies.iter().map(|t| t.judged).sum::<u64>() < args.count && start.elapsed() < limit {
        for ((seed, share), tally) in seeds.iter().zip(&mut tallies) {
            let count = ROUND.min(args.count) * share / 100;
            if let Err(finding) = run(seed, args.seed + tally.judged, count, tally) {
                let file = std::env::temp_dir().join(format!("{}-{}", name(seed.kind), finding.seed));
                save(&file, &finding.bytes)?;
                bail!("{:?}, mutation {}: {} ({})", seed.kind, finding.seed, finding.problem, file.display());
            }
        }
    }
    let mut all = Tally::default();
    for ((seed, _), tally) in seeds.iter().zip(&tallies) {
        report(&name(seed.kind), tally);
        all.add(*tally);
    }
    report("all", &all);
    println!("{:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The name of libFuzzer's target.
fn name(kind: Kind) -> String {
    match kind {
        Kind::Gguf(Target::Tq2_0) => "gguf".into(),
        Kind::Gguf(target) => format!("gguf-{target}"),
        Kind::Grouped(Grouped::Ptq1_0) => "grouped".into(),
        Kind::Grouped(Grouped::Mlx) => "mlx".into(),
        Kind::Grouped(form) => format!("grouped-{form:?}").to_lowercase(),
        Kind::Weights => "safetensors".into(),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn save(file: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::write(file, bytes).with_context(|| file.display().to_string())
}

fn report(kind: &str, tally: &Tally) {
    let Tally { judged, refused, slowest, most } = tally;
    println!(
        "{kind:16} {judged:8} judged {refused:8} refused, slowest {:4} ms, {:5.1} MiB beyond 4 times the files",
        slowest.as_millis(),
        *most as f64 / f64::from(1 << 20)
    );
}
