//! Release notes: the part of CHANGELOG.md about a version.

use std::fs;

use anyhow::{Context, Result};
use bitnet_workspace::root;

/// The notes of a version, or of what is not released yet if the version has no part of its own.
pub(crate) fn of(version: &str) -> Result<String> {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).context("CHANGELOG.md")?;
    let notes = section(&changelog, version).or_else(|| section(&changelog, "Unreleased"));
    notes.with_context(|| format!("CHANGELOG.md says nothing about {version}"))
}

/// Whether the changelog has a part for the version itself.
pub(crate) fn has(version: &str) -> Result<bool> {
    Ok(section(&fs::read_to_string(root().join("CHANGELOG.md"))?, version).is_some())
}

/// The text under the heading whose first word is `name`.
fn section(changelog: &str, name: &str) -> Option<String> {
    let mut lines = changelog.lines();
    lines.find(|line| line.strip_prefix("## ").is_some_and(|title| title.split(' ').next() == Some(name)))?;
    let text: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    Some(format!("{}\n", text.join("\n").trim())).filter(|text| text.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_the_part_of_one_version() {
        let changelog = "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2027-01-02)\n\n- New.\n- More.\n\n## 0.1.0\n\n- Old.\n";
        assert_eq!(section(changelog, "0.2.0").as_deref(), Some("- New.\n- More.\n"));
        assert_eq!(section(changelog, "0.1.0").as_deref(), Some("- Old.\n"));
        assert_eq!(section(changelog, "Unreleased"), None);
        assert_eq!(section(changelog, "0.2"), None);
        assert!(of(crate::VERSION).unwrap().starts_with("- "));
    }
}
