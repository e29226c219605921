//! Parses `BITNET_GPU`, a list of switches for maintainers. Each turns off one thing that must not change a result.

use std::time::Duration;

use crate::gpu::GpuError;

/// The environment variable with the switches.
const VARIABLE: &str = "BITNET_GPU";
/// Default time to wait for a GPU: far longer than any step, and shorter than people wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Switches for bringing up a GPU, as [`super::Cuda::open`] describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Switches {
    pub(super) overlap: bool,
    pub(super) tiles_by_size: bool,
    /// Whether the highest logits are found by bounds.
    pub(super) shortlists: bool,
    /// Whether the kernels compute cases with known answers when the GPU is opened.
    pub(super) known_answers: bool,
    /// Whether the driver compiles the kernels even if their machine code is at hand.
    pub(super) compile: bool,
    pub(super) recordings: bool,
    pub(super) sync: bool,
    pub(super) patience: Duration,
    /// Optimisation level of the driver's compiler; its default if `None`.
    pub(super) optimise: Option<u32>,
}

impl Default for Switches {
    fn default() -> Self {
        Switches {
            overlap: true,
            tiles_by_size: false,
            shortlists: true,
            known_answers: true,
            compile: false,
            recordings: true,
            sync: false,
            patience: PATIENCE,
            optimise: None,
        }
    }
}

impl Switches {
    /// Reads the switches from the environment.
    pub(super) fn of_environment() -> Result<Self, GpuError> {
        Self::parse(&std::env::var(VARIABLE).unwrap_or_default())
    }

    fn parse(text: &str) -> Result<Self, GpuError> {
        let mut switches = Switches::default();
        for switch in text.split(',').map(str::trim).filter(|switch| !switch.is_empty()) {
            let unknown = || GpuError::UnknownSwitch { switch: switch.to_owned() };
            match switch.split_once('=') {
                None if switch == "no-overlap" => switches.overlap = false,
                None if switch == "tiles-by-size" => switches.tiles_by_size = true,
                None if switch == "no-bounds" => switches.shortlists = false,
                None if switch == "unchecked" => switches.known_answers = false,
                None if switch == "compile" => switches.compile = true,
                None if switch == "no-recordings" => switches.recordings = false,
                None if switch == "sync" => (switches.sync, switches.recordings) = (true, false),
                Some(("patience", seconds)) => {
                    let seconds = seconds.parse().ok().filter(|&s: &u32| s > 0).ok_or_else(unknown)?;
                    switches.patience = Duration::from_secs(seconds.into());
                }
                Some(("optimise", level)) => {
                    let level = level.parse().ok().filter(|&l: &u32| l <= 4).ok_or_else(unknown)?;
                    (switches.optimise, switches.compile) = (Some(level), true);
                }
                _ => return Err(unknown()),
            }
        }
        Ok(switches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_read_and_an_unknown_one_is_refused_with_the_known_ones() {
        assert_eq!(Switches::parse(""), Ok(Switches::default()));
        let all = Switches::parse("sync, patience=3600,optimise=0").unwrap();
        assert!(all.sync && !all.recordings && all.optimise == Some(0));
        assert_eq!(all.patience, Duration::from_secs(3600));
        let one = Switches::parse("no-overlap").unwrap();
        assert!(all.overlap && !one.overlap && one.recordings);
        assert!(!Switches::parse("no-recordings").unwrap().recordings);
        assert!(Switches::parse("tiles-by-size").unwrap().tiles_by_size && !one.tiles_by_size);
        assert!(!Switches::parse("no-bounds").unwrap().shortlists && one.shortlists);
        assert!(!Switches::parse("unchecked").unwrap().known_answers && one.known_answers);
        assert!(Switches::parse("compile").unwrap().compile && all.compile && !one.compile);
        for wrong in ["synch", "patience", "patience=0", "optimise=5", "sync=1"] {
            let error = Switches::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("no-recordings"), "{error}");
        }
    }
}
