use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};
use bitnet_workspace::{bitnet, on_path, output, root, run, target};
use clap::Args;

/// Use the chat page in headless Chromium, wide and narrow, light and dark; print a line for each check and fail if one
/// fails
#[derive(Args)]
pub(crate) struct Page {
    /// Run the checks with this Python, which has the package playwright
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Check accessibility with this file of the npm package axe-core
    #[arg(long, value_name = "FILE")]
    axe: Option<PathBuf>,
}

/// The form for continuous integration.
pub(crate) fn check() -> Result<()> {
    Page { python: "python3".into(), axe: None }.run()
}

/// What continuous integration lacks.
pub(crate) fn missing() -> Option<String> {
    lacks("python3".as_ref())
}

/// What is not installed.
fn lacks(python: &Path) -> Option<String> {
    if on_path("chromium").next().is_none() {
        return Some("needs chromium on the PATH".into());
    }
    let mut import = Command::new(python);
    import.args(["-c", "import playwright"]);
    output(import).is_err().then(|| "needs Python with the package playwright".into())
}

impl Page {
    pub(crate) fn run(&self) -> Result<()> {
        if let Some(missing) = lacks(&self.python) {
            bail!("the check of the chat page {missing}");
        }
        let mut check = Command::new(&self.python);
        check.arg(root().join("tools/check-page/check_page.py")).arg(bitnet()?).arg(target().join("page"));
        check.arg("--chromium").args(on_path("chromium").next());
        if let Some(axe) = &self.axe {
            check.arg("--axe").arg(axe);
        }
        run(check)
    }
}
