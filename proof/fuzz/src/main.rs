//! `cargo xtask fuzz`: damages files of every kind and checks how each is handled.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a command-line tool prints its results")]

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use bitnet_fuzz::{Kind, Seed, Tally, run};
use clap::Parser;

#[global_allocator]
static MEMORY: peak_alloc::PeakAlloc = bitnet_fuzz::MEMORY;

#[derive(Parser)]
#[command(about = "Damages model files and checks how they are handled")]
struct Args {
    /// Number of mutations over all kinds of files
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    count: u64,
    /// Stop after this many seconds even if fewer mutations were run
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Damage only files of this kind; may be given several times
    #[arg(long = "kind", value_name = "NAME")]
    kinds: Vec<String>,
    /// Number of the first mutation of each kind
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write the undamaged files to DIR/KIND/seed as a first corpus for libFuzzer, and exit
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
}

/// Mutations per round, over all kinds.
const ROUND: u64 = 100;

fn main() -> Result<()> {
    let args = Args::parse();
    let start = Instant::now();
    let limit = args.seconds.map_or(Duration::MAX, Duration::from_secs);
    let seeds = kinds(&args.kinds)?.into_iter().map(|(kind, share)| Ok((Seed::new(kind)?, share)));
    let seeds = seeds.collect::<Result<Vec<_>>>()?;
    if let Some(corpus) = &args.corpus {
        return seeds
            .iter()
            .try_for_each(|(seed, _)| save(&corpus.join(seed.kind.name).join("seed"), &seed.bytes));
    }
    let mut tallies = vec![Tally::default(); seeds.len()];
    // Every round covers all kinds, so that a run that ends early has covered them too.
    while tallies.iter().map(|t| t.judged).sum::<u64>() < args.count && start.elapsed() < limit {
        for ((seed, share), tally) in seeds.iter().zip(&mut tallies) {
            let count = ROUND.min(args.count) * share / 100;
            if let Err(finding) = run(seed, args.seed + tally.judged, count, tally) {
                let name = seed.kind.name;
                let file = std::env::temp_dir().join(format!("{name}-{}", finding.seed));
                save(&file, &finding.bytes)?;
                bail!("{name}, mutation {}: {} ({})", finding.seed, finding.problem, file.display());
            }
        }
    }
    let mut all = Tally::default();
    for ((seed, _), tally) in seeds.iter().zip(&tallies) {
        report(seed.kind.name, tally);
        all.add(*tally);
    }
    report("all", &all);
    println!("{:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The kinds with these names in equal shares, or all in their own if none are named.
fn kinds(names: &[String]) -> Result<Vec<(&'static Kind, u64)>> {
    if names.is_empty() {
        return Ok(Kind::ALL.iter().map(|kind| (kind, kind.share)).collect());
    }
    let named = |wanted: &String| {
        let known = || Kind::ALL.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
        let kind =
            Kind::named(wanted).with_context(|| format!("--kind {wanted}: the kinds are {}", known()))?;
        Ok((kind, ROUND / names.len() as u64))
    };
    names.iter().map(named).collect()
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
        "{kind:16} {judged:8} judged {refused:8} refused, slowest {:4} ms, {:5.1} MiB above 4 times the files",
        slowest.as_millis(),
        *most as f64 / f64::from(1 << 20)
    );
}
