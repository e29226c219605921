use std::process::Command;

use anyhow::{Result, ensure};

use crate::{output, root};

/// Maximum total size of committed files in bytes.
const LIMIT: u64 = 40 << 20;

/// Adds up the committed files.
pub(crate) fn check() -> Result<()> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z"]).current_dir(root());
    let files = output(git)?;
    let mut total = 0;
    for name in files.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let path = root().join(String::from_utf8_lossy(name).as_ref());
        // A deleted file that is still in the index has no size.
        total += path.symlink_metadata().map_or(0, |about| about.len());
    }
    ensure!(total < LIMIT, "committed files take {total} bytes, more than {LIMIT}");
    println!("{:.1} MiB of {} MiB", total as f64 / f64::from(1 << 20), LIMIT >> 20);
    Ok(())
}
