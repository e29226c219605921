use anyhow::Result;
use bitnet_workspace::{cargo, run};
use clap::Args;

/// Default length of a run without a number of mutations, in seconds.
const SECONDS: u64 = 60;
/// Number of mutations for `--model-files` without a value.
const MILLION: &str = "1000000";

/// Limits of a run.
#[derive(Args)]
pub(crate) struct Fuzz {
    /// Stop after this many seconds [default: 60, or when --model-files are done]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Number of mutations over these kinds of model files [default without COUNT: a million]
    #[arg(long, value_name = "COUNT", num_args = 0..=1, default_missing_value = MILLION)]
    model_files: Option<u64>,
    /// Damage only files of this kind; may be given several times
    #[arg(long = "kind", value_name = "NAME")]
    kinds: Vec<String>,
    /// Number of the first mutation
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Fuzz {
    pub(crate) fn run(&self) -> Result<()> {
        let mut fuzz = cargo(&["run", "--release", "--quiet", "--package", "bitnet-fuzz", "--"]);
        let seconds = self.seconds.or(self.model_files.is_none().then_some(SECONDS));
        if let Some(seconds) = seconds {
            fuzz.args(["--seconds", &seconds.to_string()]);
        }
        fuzz.args(["--count", &self.model_files.unwrap_or(u64::MAX).to_string()]);
        fuzz.args(["--seed", &self.seed.to_string()]);
        for kind in &self.kinds {
            fuzz.args(["--kind", kind]);
        }
        run(fuzz)
    }
}
