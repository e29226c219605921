use std::{path::PathBuf, process::Command};

use anyhow::{Result, bail};
use clap::Args;

use crate::{bitnet, on_path, output, root, run, target};

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

/// For continuous integration: runs the checks if the tools are installed, otherwise names the missing ones.
pub(crate) fn in_ci() -> Result<()> {
    let page = Page { python: "python3".into(), axe: None };
    match page.missing() {
        None => page.run(),
        Some(missing) => {
            println!("skipped: the chat page ({missing})");
            Ok(())
        }
    }
}

impl Page {
    /// What is not installed.
    fn missing(&self) -> Option<&'static str> {
        if on_path("chromium").next().is_none() {
            return Some("it needs chromium on the PATH");
        }
        let mut import = Command::new(&self.python);
        import.args(["-c", "import playwright"]);
        output(import).is_err().then_some("it needs Python with the package playwright")
    }

    pub(crate) fn run(&self) -> Result<()> {
        if let Some(missing) = self.missing() {
            bail!("the chat page cannot be checked: {missing}");
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
