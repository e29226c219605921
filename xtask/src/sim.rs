use anyhow::Result;
use clap::Args;

use crate::{cargo, run};

/// The tests that continuous integration runs too, over more seeds. A failure names the seed that shows it.
#[derive(Args)]
pub(crate) struct Sim {
    /// Random schedules of a model without numbers
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
    /// Random mixes of requests on real models instead: each must get, bit for bit, what it gets alone
    #[arg(long)]
    exact: bool,
    /// How many mixes
    #[arg(long, default_value_t = 10_000, requires = "exact")]
    cases: u64,
    /// The first mix, to see a failing one again
    #[arg(long, default_value_t = 0, requires = "exact")]
    first: u64,
}

impl Sim {
    pub(crate) fn run(&self) -> Result<()> {
        let (package, tests) = match self.exact {
            true => ("bitnet-tests", "exactness::"),
            false => ("bitnet-inference", "scheduler::simulation::"),
        };
        let mut test = cargo(&["test", "--release", "--package", package, tests, "--", "--nocapture"]);
        test.env("BITNET_SIM_SEEDS", self.seeds.to_string());
        test.env("BITNET_EXACT_CASES", self.cases.to_string());
        test.env("BITNET_EXACT_FIRST", self.first.to_string());
        run(test)
    }
}
