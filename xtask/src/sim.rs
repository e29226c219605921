use anyhow::Result;
use bitnet_workspace::{cargo, run};
use clap::Args;

/// Runs the simulation tests of continuous integration with more seeds. A failure names its seed.
#[derive(Args)]
pub(crate) struct Sim {
    /// Run random mixes of requests on real models instead of random schedules; each must get what it gets alone
    #[arg(long)]
    exact: bool,
    /// Number of schedules or mixes [default: 100000 schedules, 10000 mixes]
    #[arg(long, alias = "cases")]
    seeds: Option<u64>,
    /// The first seed, to repeat a failing one
    #[arg(long, default_value_t = 0)]
    first: u64,
}

impl Sim {
    pub(crate) fn run(&self) -> Result<()> {
        let (package, tests, variable, seeds) = if self.exact {
            ("bitnet-tests", "exactness::", "BITNET_EXACT", 10_000)
        } else {
            ("bitnet-inference", "scheduler::simulation::", "BITNET_SIM", 100_000)
        };
        let mut test = cargo(&["test", "--release", "--package", package, tests, "--", "--nocapture"]);
        test.env(format!("{variable}_SEEDS"), self.seeds.unwrap_or(seeds).to_string());
        test.env(format!("{variable}_FIRST"), self.first.to_string());
        run(test)
    }
}
