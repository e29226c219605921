//! The table of claims in `xtask/claims.txt`: promises of the product, known mistakes of other engines, and faults caused
//! on purpose, each with the tests that show it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use bitnet_workspace::{cargo, root};

/// Sections begin with `#`, claims at the start of a line, and tests with four spaces.
const TABLE: &str = include_str!("../claims.txt");

/// The section of faults. In all of them, only the request at fault fails, its error is typed, its blocks are freed, and
/// the tokens of all other requests do not change.
const FAULTS: &str = "# Faults made on purpose, and what may follow";

/// Prints the table with the packages of the tests; fails if a claim has no test, or a test does not exist.
pub(crate) fn check() -> Result<()> {
    let packages = packages()?;
    let (mut missing, mut bare, mut untested) = (Vec::new(), Vec::new(), None);
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        if let Some(test) = line.strip_prefix("    ") {
            untested = None;
            match packages.get(test) {
                Some(package) => println!("    {test} ({package})"),
                None => missing.push(test),
            }
        } else {
            println!("{line}");
            bare.extend(untested.take());
            untested = Some(line).filter(|line| !line.starts_with('#'));
        }
    }
    bare.extend(untested);
    ensure!(missing.is_empty(), "no such tests: {}", missing.join(", "));
    ensure!(bare.is_empty(), "no test shows: {}", bare.join("; "));
    Ok(())
}

/// Checks the table and runs the tests of all faults; fails if one fails or does not run.
pub(crate) fn run_faults() -> Result<()> {
    check()?;
    let (_, faults) = TABLE.split_once(FAULTS).context("the table has faults")?;
    let wanted: BTreeSet<&str> = faults.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    // The whole workspace, so that features and binaries are those of the other tests.
    let mut test = cargo(&["test", "--release", "--workspace", "--lib", "--bins", "--tests", "--"]);
    test.args(&wanted).stderr(Stdio::inherit());
    let out = test.output().context("cargo test")?;
    let report = String::from_utf8_lossy(&out.stdout);
    let missing: Vec<&str> = wanted.iter().copied().filter(|name| !passed(&report, name)).collect();
    if !(out.status.success() && missing.is_empty()) {
        print!("{report}");
    }
    ensure!(out.status.success(), "a fault did more than the table allows");
    ensure!(missing.is_empty(), "these tests did not run: {}", missing.join(", "));
    println!("{} tests of faults passed", wanted.len());
    Ok(())
}

/// Whether a test passed, according to the output of a test run.
fn passed(report: &str, name: &str) -> bool {
    report.lines().any(|line| {
        let test = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... ok"));
        test.is_some_and(|test| test.rsplit("::").next() == Some(name))
    })
}

/// The packages of all tests of the workspace, by the test's name.
fn packages() -> Result<BTreeMap<String, String>> {
    let mut packages = BTreeMap::new();
    for folder in ["crates", "proof"].map(|name| root().join(name)) {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            collect(&entry.path(), &entry.file_name().to_string_lossy(), &mut packages)?;
        }
    }
    collect(&root().join("tests"), "bitnet-tests", &mut packages)?;
    Ok(packages)
}

/// Collects the functions under `folder` that have `#[test]` or `#[tokio::test]`.
fn collect(folder: &Path, package: &str, packages: &mut BTreeMap<String, String>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for path in entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()? {
        if path.is_dir() {
            collect(&path, package, packages)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let (text, mut under_test) = (fs::read_to_string(&path)?, false);
            for line in text.lines().map(str::trim_start) {
                under_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test]");
                if let Some(name) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")
                    && std::mem::take(&mut under_test)
                {
                    let name = name.split('(').next().unwrap_or(name);
                    packages.insert(name.to_owned(), package.to_owned());
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_passed_test_of_exactly_that_name_counts() {
        let report = "test engine::a_b ... ok\ntest engine::a_c ... FAILED\ntest a_d ... ignored\n";
        assert!(passed(report, "a_b"));
        assert!(!["b", "a", "a_c", "a_d", "engine::a_b"].iter().any(|name| passed(report, name)));
    }
}
