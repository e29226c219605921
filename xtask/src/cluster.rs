use std::{path::PathBuf, process::Command};

use anyhow::{Result, bail};
use bitnet_workspace::{bitnet, on_path, root, run};
use clap::Args;

/// Serve the demo from two replicas behind HAProxy, and behind NVIDIA Dynamo where it is installed, and check load,
/// overload, ends, kills, restarts, hang-ups and jobs; print a line for each and fail if one fails
#[derive(Args)]
pub(crate) struct ClusterSmoke {
    /// Check the answers but nothing that depends on speed; continuous integration runs this
    #[arg(long)]
    quick: bool,
    /// Serve with this program instead of building one
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Run the checks with this Python, which may have the packages of Dynamo and Ray
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
}

/// The form for continuous integration.
pub(crate) fn quick() -> Result<()> {
    ClusterSmoke { quick: true, binary: None, python: "python3".into() }.run()
}

/// Tools that are not installed.
pub(crate) fn missing() -> Option<String> {
    let mut missing = vec!["haproxy", "python3"];
    missing.retain(|name| on_path(name).next().is_none());
    (!missing.is_empty())
        .then(|| format!("needs {} (in Debian, packages of the same names)", missing.join(" and ")))
}

impl ClusterSmoke {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(missing) = missing() {
            bail!("the check of replicas behind a proxy {missing}");
        }
        let binary = match self.binary {
            Some(binary) => binary,
            None => bitnet()?,
        };
        let mut check = Command::new(self.python);
        check.arg(root().join("tools/check-server/check_cluster.py")).arg(binary);
        check.args(self.quick.then_some("--quick"));
        run(check)
    }
}
