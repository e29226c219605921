use anyhow::{Result, ensure};

use crate::{git, root};

/// Maximum total size of committed files in bytes.
const LIMIT: u64 = 40 << 20;

/// Fails if something has too many bytes.
pub(crate) fn fits(what: &str, bytes: u64, limit: u64) -> Result<()> {
    ensure!(bytes < limit, "{what}: {bytes} bytes are more than the limit of {limit}");
    Ok(())
}

/// Adds up the committed files.
pub(crate) fn check() -> Result<()> {
    let files = git(&["ls-files", "-z"])?;
    // A deleted file that is still in the index has no size.
    let size = |name| root().join(name).symlink_metadata().map_or(0, |about| about.len());
    let total = files.split_terminator('\0').map(size).sum();
    fits("all committed files together", total, LIMIT)?;
    println!("{:.1} MiB of {} MiB", total as f64 / f64::from(1 << 20), LIMIT >> 20);
    Ok(())
}
